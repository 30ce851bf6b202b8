"""The registered watches of a metadata store."""

from __future__ import annotations

import logging

from kavka.metadata.store import Watch, WatchEvent, WatchType

logger = logging.getLogger(__name__)


class Watches:
    """Owns the registered watches by path. A watch fires once. Registering the same function twice
    on a znode has no effect. A watch that raises does not affect the others. Only the event loop
    may call the methods."""

    def __init__(self) -> None:
        self._data: dict[str, dict[Watch, None]] = {}
        self._children: dict[str, dict[Watch, None]] = {}

    def add_data(self, path: str, watch: Watch) -> None:
        self._data.setdefault(path, {})[watch] = None

    def add_children(self, path: str, watch: Watch) -> None:
        self._children.setdefault(path, {})[watch] = None

    def fire(self, event: WatchEvent) -> None:
        """Remove and call the watches that match an event."""
        watches: dict[Watch, None] = {}
        if event.type is not WatchType.CHILDREN:
            watches |= self._data.pop(event.path, {})
        if event.type in (WatchType.CHILDREN, WatchType.DELETED):
            watches |= self._children.pop(event.path, {})
        for watch in watches:
            _call(watch, event)

    def fire_all(self) -> None:
        """Remove and call every watch, because any znode may have changed."""
        data, self._data = self._data, {}
        children, self._children = self._children, {}
        for watch_type, by_path in ((WatchType.CHANGED, data), (WatchType.CHILDREN, children)):
            for path, watches in by_path.items():
                for watch in watches:
                    _call(watch, WatchEvent(watch_type, path))


def _call(watch: Watch, event: WatchEvent) -> None:
    try:
        watch(event)
    except Exception:
        logger.exception("A watch on %s failed", event.path)
