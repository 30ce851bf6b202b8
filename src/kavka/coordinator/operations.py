"""[pure] The interface between the coordinators' state machines and their runtime.

A state machine has no I/O. An operation returns an `Outcome`: the records that make the change
durable, and the response. The runtime appends the records to the shard's partition, replays them
into the state, and responds when they are committed. `Timers` schedules operations that run later.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kavka.common.errors import KafkaError

OnAppend = Callable[[KafkaError | None], None]


class Outcome(NamedTuple):
    """The result of an operation. `on_append` is called when the records are committed, or with
    the error if the write failed.

    `replay=False`: the operation or its `on_append` changes the state. The records are replayed
    only when the shard is loaded.

    `atomic=False`: the records may be written in several batches if they do not fit into one batch.
    """

    records: Sequence[Any] = ()
    response: Any = None
    on_append: OnAppend | None = None
    replay: bool = True
    atomic: bool = True


NOTHING = Outcome()

TimerOperation = Callable[[], Outcome]


def call_all(callbacks: Iterable[OnAppend | None], error: KafkaError | None) -> None:
    for callback in callbacks:
        if callback is not None:
            callback(error)


class Timers(Protocol):
    """The timers of one shard, by key. A new timer replaces an earlier timer with the same key."""

    def schedule(self, key: Hashable, delay_ms: float, operation: TimerOperation) -> None: ...

    def cancel(self, key: Hashable) -> None: ...


MISSING: Any = object()


class Tables(Protocol):
    """Changes dicts: with an undo log (`Journal`) or without (`DirectTables`)."""

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None: ...

    def drop(self, table: dict[Any, Any], key: Any) -> None: ...


class DirectTables:
    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        table[key] = value

    def drop(self, table: dict[Any, Any], key: Any) -> None:
        table.pop(key, None)


DIRECT = DirectTables()


def put_or_drop(tables: Tables, table: dict[Any, Any], key: Any, value: Any | None) -> None:
    """Replay a record: store its value, or drop the key if the record is a tombstone."""
    if value is not None:
        tables.put(table, key, value)
    else:
        tables.drop(table, key)


def inner_table(tables: Tables, table: dict[Any, dict[Any, Any]], key: Any) -> dict[Any, Any]:
    """Return the dict at `key` of a nested dict. Create an empty dict if there is none."""
    inner = table.get(key)
    if inner is None:
        inner = {}
        tables.put(table, key, inner)
    return inner


@dataclass(slots=True, eq=False, repr=False)
class Journal:
    """An undo log: the changes since the last write, so that they can be undone if the next write
    fails.

    Replayed state is in dicts whose values are replaced, never mutated. Every change goes through
    `put` and `drop`.
    """

    # (table, key, previous value)
    _entries: list[tuple[dict[Any, Any], Any, Any]] = field(default_factory=list)

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._entries.append((table, key, table.get(key, MISSING)))
        table[key] = value

    def drop(self, table: dict[Any, Any], key: Any) -> None:
        previous_value = table.pop(key, MISSING)
        if previous_value is not MISSING:
            self._entries.append((table, key, previous_value))

    def __len__(self) -> int:
        return len(self._entries)

    def changes_after(self, count: int) -> list[tuple[dict[Any, Any], Any, Any]]:
        """Return all changes except the first `count`."""
        return self._entries[count:]

    def restore(self, entries: list[tuple[dict[Any, Any], Any, Any]]) -> None:
        """Add changes again that `clear` removed, although they are not in the log yet."""
        self._entries += entries

    def clear(self) -> None:
        """Forget the changes, because they are in the log."""
        self._entries.clear()

    def undo(self) -> None:
        """Restore the previous values in all tables, and clear the journal."""
        for table, key, previous_value in reversed(self._entries):
            if previous_value is MISSING:
                table.pop(key, None)
            else:
                table[key] = previous_value
        self._entries.clear()
