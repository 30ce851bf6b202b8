"""The durable copy of a task's state: a log of its changes in Spark's map state.

An entry of the map state is a segment: its number, and marshalled {map: {key: value or None}} of up
to about 1 MB. Segments are replayed in the order of their numbers, which have no gaps. A segment is
written once and removed when its live entries have been copied to a later segment, as a log cleaner
does: each micro-batch cleans a few of the oldest segments while more than half of the log is dead.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kavka.pipeline.streams.local_state import LocalState, Values

_SEGMENT_BYTES = 1 << 20
# A log of this size is not cleaned.
_SMALL_LOG = 1 << 20


@dataclass
class LogPosition:
    """The numbers of the segments, the size of the log, and the size of its live entries. Spark
    stores it with the log."""

    first: int = 0
    next: int = 0
    bytes: int = 0
    live: int = 0


def segments(changes: Mapping[str, Values]) -> Iterator[bytes]:
    segment: dict[str, Values] = {}
    size = 0
    for name, values in changes.items():
        for key, value in values.items():
            segment.setdefault(name, {})[key] = value
            size += len(key) + len(value or b"")
            if size >= _SEGMENT_BYTES:
                yield marshal.dumps(segment)
                segment, size = {}, 0
    if segment:
        yield marshal.dumps(segment)


class StateLog:
    """`states` is Spark's map state of the task."""

    def __init__(self, states: Any, position: LogPosition) -> None:
        self._states, self.position = states, position

    def replay(self, state: LocalState) -> None:
        for number in range(self.position.first, self.position.next):
            for name, values in self._read(number)[0].items():
                state.map(name).restore(values)

    def append(self, state: LocalState) -> None:
        """Append the changes of a micro-batch, and clean as many segments as it added."""
        changes, growth = state.write()
        self.position.live += growth
        written = self._append(changes)
        for _ in range(2 * written):
            if self.position.bytes <= 2 * self.position.live + _SMALL_LOG:
                break
            self._clean_first(state)

    def _append(self, changes: Mapping[str, Values]) -> int:
        count = 0
        for data in segments(changes):
            self._states.updateValue((self.position.next,), (data,))
            self.position.next += 1
            self.position.bytes += len(data)
            count += 1
        return count

    def _clean_first(self, state: LocalState) -> None:
        """Copy the entries of the first segment that the state still has to the end of the log.
        A removed entry is not copied: no earlier segment has it."""
        changes, size = self._read(self.position.first)
        live: dict[str, Values] = {}
        for name, values in changes.items():
            get = state.map(name).get
            live[name] = {key: value for key, value in values.items() if value is not None and get(key) == value}
        self._append(live)
        self._states.removeKey((self.position.first,))
        self.position.first += 1
        self.position.bytes -= size

    def _read(self, number: int) -> tuple[dict[str, Values], int]:
        (data,) = self._states.getValue((number,))
        return marshal.loads(data), len(data)
