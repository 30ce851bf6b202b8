"""[pure] What the coordinators' state machines and the runtime that hosts them say to each other.

A state machine has no I/O. A call gives an `Outcome`: the records that make the change durable, and the answer that the
caller may have once they are. The runtime appends the records to the shard's partition, replays them into the state and
answers when they are committed. What must happen at a time is asked for through `Timers`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from kavka.common.errors import KafkaError

OnAppend = Callable[[KafkaError | None], None]


class Outcome(NamedTuple):
    """`on_append` is called when the records are committed, or with the error that kept them from being written.

    With `replay` False the records only say what the state machine has done (or does in `on_append`) by itself: they
    are replayed when the shard is loaded, not now.

    With `atomic` False some of the records may be in the log without the others: where they are too many for one batch,
    they are written in several.
    """

    records: Sequence[Any] = ()
    response: Any = None
    on_append: OnAppend | None = None
    replay: bool = True
    atomic: bool = True


NOTHING = Outcome()

TimerOperation = Callable[[], Outcome]


class Timers(Protocol):
    """Timers of one shard, by key: a new one under the same key takes the place of the old."""

    def schedule(self, key: Hashable, delay_ms: float, operation: TimerOperation) -> None: ...

    def cancel(self, key: Hashable) -> None: ...


MISSING: Any = object()


class Journal:
    """What replay changed since the last write, so that a write that fails leaves the state as it was.

    State that is replayed lives in dicts whose values are replaced, never changed in place; every change goes through
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
        """All changes but the first `count`."""
        return self._entries[count:]

    def keep(self, entries: list[tuple[dict[Any, Any], Any, Any]]) -> None:
        """They were forgotten, and are not in the log."""
        self._entries += entries

    def forget(self) -> None:
        """What was replayed is in the log now."""
        self._entries.clear()

    def undo(self) -> None:
        for table, key, old in reversed(self._entries):
            if old is MISSING:
                table.pop(key, None)
            else:
                table[key] = old
        self._entries.clear()
