"""The clients for asyncio: the same names as in `kavka`, with `async` and `await`.

from kavka.aio import Admin, Consumer, Producer
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kavka.client.admin.aio import Admin as Admin
    from kavka.client.consumer.aio import Consumer as Consumer
    from kavka.client.producer.aio import Producer as Producer

_WHERE = {
    "Admin": "kavka.client.admin.aio",
    "Consumer": "kavka.client.consumer.aio",
    "Producer": "kavka.client.producer.aio",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'kavka.aio' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(where), name)
    globals()[name] = found
    return found
