"""[pure] The interface between the coordinators' state machines and their runtime.

A state machine has no I/O. An operation returns an `Outcome`: the records that make the change
durable, and the response. The runtime appends the records to the shard's partition, replays them
into the state and responds when they are committed. Operations that run later are scheduled with
`Timers`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from kavka.common.errors import KafkaError

OnAppend = Callable[[KafkaError | None], None]


class Outcome(NamedTuple):
    """`on_append` is called when the records are committed, or with the error if the write failed.

    `replay=False`: the state machine has changed its state itself, or does so in `on_append`. The
    records are replayed only when the shard is loaded.

    `atomic=False`: the records may be written in several batches if they do not fit into one.
    """

    records: Sequence[Any] = ()
    response: Any = None
    on_append: OnAppend | None = None
    replay: bool = True
    atomic: bool = True


NOTHING = Outcome()

TimerOperation = Callable[[], Outcome]


class Timers(Protocol):
    """Timers of one shard by key. A new timer replaces the one with the same key."""

    def schedule(self, key: Hashable, delay_ms: float, operation: TimerOperation) -> None: ...

    def cancel(self, key: Hashable) -> None: ...


MISSING: Any = object()


class Journal:
    """The changes since the last write, so that they can be undone if the next write fails.

    Replayed state is in dicts whose values are replaced, never mutated. Every change goes through
    `put` and `drop`.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[dict[Any, Any], Any, Any]] = []

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._entries.append((table, key, table.get(key, MISSING)))
        table[key] = value

    def drop(self, table: dict[Any, Any], key: Any) -> None:
        old = table.pop(key, MISSING)
        if old is not MISSING:
            self._entries.append((table, key, old))

    def __len__(self) -> int:
        return len(self._entries)

    def since(self, count: int) -> list[tuple[dict[Any, Any], Any, Any]]:
        """All changes after the first `count`."""
        return self._entries[count:]

    def restore(self, entries: list[tuple[dict[Any, Any], Any, Any]]) -> None:
        """Add back changes that `clear` removed although they are not in the log."""
        self._entries += entries

    def clear(self) -> None:
        """The changes are in the log: they can no longer be undone."""
        self._entries.clear()

    def undo(self) -> None:
        for table, key, old in reversed(self._entries):
            if old is MISSING:
                table.pop(key, None)
            else:
                table[key] = old
        self._entries.clear()
