"""The asyncio clients. They have the same names as the clients in `kavka`.

from kavka.aio import Admin, Consumer, Producer
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kavka.client.admin.aio import Admin as Admin
    from kavka.client.consumer.aio import Consumer as Consumer
    from kavka.client.producer.aio import Producer as Producer

_MODULES = {
    "Admin": "kavka.client.admin.aio",
    "Consumer": "kavka.client.consumer.aio",
    "Producer": "kavka.client.producer.aio",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'kavka.aio' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value
