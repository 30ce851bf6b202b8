"""The admin client, one module per group of calls. `aio.py` combines them, and `blocking.py` is
generated from the result."""

from kavka.client.admin.base import AdminError
from kavka.client.admin.blocking import Admin

__all__ = ["Admin", "AdminError"]
