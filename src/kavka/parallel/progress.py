"""[pure] The progress of a partition whose records are processed out of order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

NO_LIMIT = 1 << 63


class Progress:
    """Owns the tickets of one partition's records in offset order. The offset to commit is that of
    the first record that is not processed. Only the polling thread may call this object; workers
    read `limit` and change the tickets."""

    __slots__ = ("_committed", "_next", "_tickets", "limit")

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()
        self._next = -1
        self._committed = -1
        self.limit = NO_LIMIT
        """Records after this offset must not start."""

    def begin(self, offset: int) -> Ticket:
        """Add a record that was read, and return its ticket."""
        ticket = Ticket(self, offset)
        self._tickets.append(ticket)
        self._next = max(self._next, offset + 1)
        return ticket

    def advance(self, offset: int) -> None:
        """Advance to `offset`. All records before `offset` are processed or have a ticket."""
        self._next = max(self._next, offset)

    def _drop_done(self) -> None:
        """Remove the tickets of processed records from the front."""
        while self._tickets and self._tickets[0].done:
            self._tickets.popleft()

    @property
    def offset(self) -> int:
        """The offset to commit, or -1 if no record was read."""
        self._drop_done()
        return self._tickets[0].offset if self._tickets else self._next

    def to_commit(self) -> int | None:
        """Return the offset to commit, or None if it is already committed or no record was read."""
        offset = self.offset
        return offset if offset > self._committed and offset >= 0 else None

    def mark_committed(self, offset: int) -> None:
        self._committed = max(self._committed, offset)

    def close(self) -> None:
        """Allow no more records to start, except records before a record that has started, so that
        all processed records can be committed. The caller holds the lock under which records
        start."""
        started = [ticket.offset for ticket in self._tickets if ticket.started]
        self.limit = min(self.limit, started[-1] if started else -1)

    @property
    def is_running(self) -> bool:
        """Whether any record has started and is not processed."""
        return any(ticket.started and not ticket.done for ticket in self._tickets)

    @property
    def is_drained(self) -> bool:
        """Whether all records that have started or may start are processed."""
        return all(ticket.done or (not ticket.started and ticket.offset > self.limit) for ticket in self._tickets)


@dataclass(slots=True, eq=False)
class Ticket:
    """A record that was read. The worker sets `started` and `done` (processed), under the lock."""

    progress: Progress
    offset: int
    started: bool = False
    done: bool = False
