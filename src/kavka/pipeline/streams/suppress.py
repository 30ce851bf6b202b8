"""`KTable.suppress`: changes held back until a window closes, or for a time."""

from __future__ import annotations

import pickle
import struct
from typing import Any

from kavka.pipeline.streams.engine import Headers, Node, Task
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.stores import ValueAndTimestamp
from kavka.pipeline.streams.tables import Getter, Step
from kavka.pipeline.streams.windows import Suppressed, Windowed

_AT = struct.Struct(">q")


def _sortable(key: Any) -> bytes:
    """A key as bytes, so that those of one time are told in the order of their bytes."""
    if isinstance(key, Windowed):
        return _sortable(key.key) + struct.pack(">qq", key.window.start, key.window.end)
    return key.encode() if isinstance(key, str) else key if isinstance(key, bytes) else pickle.dumps(key)


class SuppressStep(Step):
    def __init__(self, parent: Step, suppressed: Suppressed, grace: int, store: str) -> None:
        super().__init__(store)
        self.parent, self.suppressed, self.grace = parent, suppressed, grace
        parent.enable_old()

    def enable_old(self, force: bool = True) -> bool:
        self.send_old = self.parent.enable_old(force)
        return self.send_old

    def getter(self, task: Task) -> Getter:
        """What was told last of a key: what it was before it was held back, if it is; otherwise
        what the table says."""
        parent = self.parent.getter(task)
        buffer = next(one for one in task.nodes if isinstance(one, Suppress) and one.step is self)

        def get(key: Any) -> ValueAndTimestamp | None:
            held = buffer.before(key)
            if held is None:
                return parent(key)
            return None if held[0] is None else ValueAndTimestamp(held[0], -1)

        return get

    def getter_stores(self) -> tuple[str, ...]:
        assert self.store is not None
        return (self.store, *self.parent.getter_stores())

    def node(self) -> Node:
        return Suppress(self)


class Suppress(Node):
    """The buffer is a store, ordered by time; each key has at most one entry, at the time it was
    first held back, and the map `_where` has that entry for the key. Keys and values are pickled
    there: they may be any objects, which no serde need fit. `state_folder.py` has what makes that
    safe."""

    def __init__(self, step: SuppressStep) -> None:
        self.step = step
        self._final = step.suppressed.final
        self._wait = step.grace if self._final else step.suppressed.wait

    def init(self) -> None:
        self._store = self.task.store(self.step.store or "")
        self._where = self._store.open_map(f"{self.step.store} keys")

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        self.observed = max(self.observed, timestamp)
        self._hold(key, value, timestamp, headers)
        self._tell()

    def before(self, key: Any) -> tuple[Any] | None:
        """What a key that is held back was before; None if it is not held back."""
        entry = self._where.get(pickle.dumps(key))
        return None if entry is None else (pickle.loads(self._store.get(entry))[2],)

    def _hold(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        ident = pickle.dumps(key)
        entry = self._where.get(ident)
        old = value.old
        if entry is None:
            time = key.window.end if self._final and isinstance(key, Windowed) else timestamp
            entry = _AT.pack(time) + _sortable(key)
            self._where.put(ident, entry)
        else:
            old = pickle.loads(self._store.get(entry))[2]
        self._store.put(entry, pickle.dumps((ident, value.new, old, timestamp, headers)))

    def _tell(self) -> None:
        buffer = self.step.suppressed.buffer
        limit = self.observed - self._wait
        while (entry := self._store.first()) is not None:
            full = (buffer.max_records_ is not None and len(self._where) > buffer.max_records_) or (
                buffer.max_bytes_ is not None and self._store.size > buffer.max_bytes_
            )
            due = _AT.unpack_from(entry)[0] <= limit
            if not due and not full:
                return
            if not due and buffer.when_full == "fail":
                raise StreamsException(
                    f"{self.name} buffer exceeded its max capacity ({buffer.max_records_} records, "
                    f"{buffer.max_bytes_} bytes)"
                )
            ident, new, old, timestamp, headers = pickle.loads(self._store.get(entry))
            self._store.put(entry, None)
            self._where.put(ident, None)
            if new is not None or not self._final:
                self.forward(pickle.loads(ident), Change(new, old), timestamp, headers)
