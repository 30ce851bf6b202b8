"""The admin client, one file per family of calls; `aio.py` puts them together, `blocking.py` is made from that."""

from kavka.client.admin.base import AdminError
from kavka.client.admin.blocking import Admin

__all__ = ["Admin", "AdminError"]
