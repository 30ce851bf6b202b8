"""`KTable.suppress`: buffers changes until their window closes, or for a time."""

from __future__ import annotations

import pickle
import struct
from typing import Any

from kavka.pipeline.streams.engine import Task
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.processors import Headers, Node
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.stores import ValueAndTimestamp
from kavka.pipeline.streams.tables import Getter, Step
from kavka.pipeline.streams.windows import Suppressed, Windowed

_TIME = struct.Struct(">q")


def _sortable(key: Any) -> bytes:
    """The key's bytes: changes of one time are forwarded in the order of their keys' bytes."""
    if isinstance(key, Windowed):
        return _sortable(key.key) + struct.pack(">qq", key.window.start, key.window.end)
    return key.encode() if isinstance(key, str) else key if isinstance(key, bytes) else pickle.dumps(key)


class SuppressStep(Step):
    def __init__(self, parent: Step, suppressed: Suppressed, grace: int, store: str) -> None:
        super().__init__(store)
        self.parent, self.suppressed, self.grace = parent, suppressed, grace
        parent.enable_sending_old_values()

    def enable_sending_old_values(self, force: bool = True) -> bool:
        self.sends_old_values = self.parent.enable_sending_old_values(force)
        return self.sends_old_values

    def getter(self, task: Task) -> Getter:
        """Looks up the value that was forwarded last: the value before the buffered change, or the
        parent's value if no change is buffered."""
        parent_value = self.parent.getter(task)
        buffer = next(node for node in task.nodes if isinstance(node, _Suppress) and node.step is self)

        def get(key: Any) -> ValueAndTimestamp | None:
            change = buffer.buffered(key)
            if change is None:
                return parent_value(key)
            return None if change.old is None else ValueAndTimestamp(change.old, -1)

        return get

    def getter_stores(self) -> tuple[str, ...]:
        assert self.store is not None
        return (self.store, *self.parent.getter_stores())

    def node(self) -> Node:
        return _Suppress(self)


class _Suppress(Node):
    """The buffer is a store in the order of time. A key has at most one entry, at the time of its
    first buffered change; the map `_entries` has the entry of each key. Keys and values are
    pickled, because they may be any objects that no serde fits. `state_folder.py` describes what
    makes that safe."""

    def __init__(self, step: SuppressStep) -> None:
        self.step = step
        self._final = step.suppressed.final
        self._wait = step.grace if self._final else step.suppressed.wait

    def init(self) -> None:
        self._store = self.task.store(self.step.store or "")
        self._entries = self._store.open_map(f"{self.step.store} keys")

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        self.observed = max(self.observed, timestamp)
        self._buffer(key, value, timestamp, headers)
        self._forward_due()

    def buffered(self, key: Any) -> Change | None:
        entry = self._entries.get(pickle.dumps(key))
        if entry is None:
            return None
        _, new, old, _, _ = pickle.loads(self._store.get(entry))
        return Change(new, old)

    def _buffer(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        key_data = pickle.dumps(key)
        entry = self._entries.get(key_data)
        old = value.old
        if entry is None:
            time = key.window.end if self._final and isinstance(key, Windowed) else timestamp
            entry = _TIME.pack(time) + _sortable(key)
            self._entries.put(key_data, entry)
        else:
            old = pickle.loads(self._store.get(entry))[2]
        self._store.put(entry, pickle.dumps((key_data, value.new, old, timestamp, headers)))

    def _forward_due(self) -> None:
        buffer = self.step.suppressed.buffer
        limit = self.observed - self._wait
        while (entry := self._store.first()) is not None:
            is_full = (buffer.max_records_ is not None and len(self._entries) > buffer.max_records_) or (
                buffer.max_bytes_ is not None and self._store.size > buffer.max_bytes_
            )
            is_due = _TIME.unpack_from(entry)[0] <= limit
            if not is_due and not is_full:
                return
            if not is_due and buffer.when_full == "fail":
                raise StreamsException(
                    f"{self.name} buffer exceeded its max capacity ({buffer.max_records_} records, "
                    f"{buffer.max_bytes_} bytes)"
                )
            key_data, new, old, timestamp, headers = pickle.loads(self._store.get(entry))
            self._store.put(entry, None)
            self._entries.put(key_data, None)
            if new is not None or not self._final:
                self.forward(pickle.loads(key_data), Change(new, old), timestamp, headers)
