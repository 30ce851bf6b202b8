"""[pure] The progress of a partition whose records are processed out of order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

NO_LIMIT = 1 << 63


class Progress:
    """Owns the tickets of one partition's records in offset order. The first record that is not
    done limits the offset to commit. Only the polling thread may call it; workers use only the
    tickets."""

    __slots__ = ("_committed", "_next", "_tickets", "limit")

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()
        self._next = -1
        self._committed = -1
        self.limit = NO_LIMIT
        """The processing of records after this offset must not start."""

    def begin(self, offset: int) -> Ticket:
        ticket = Ticket(self, offset)
        self._tickets.append(ticket)
        self._next = max(self._next, offset + 1)
        return ticket

    def passed(self, offset: int) -> None:
        """Advance to `offset`. All records before it are done or have a ticket."""
        self._next = max(self._next, offset)

    def _drop_done(self) -> None:
        """Remove the tickets of processed records from the front."""
        while self._tickets and self._tickets[0].done:
            self._tickets.popleft()

    @property
    def offset(self) -> int:
        """The offset to commit; -1 if no record was read."""
        self._drop_done()
        return self._tickets[0].offset if self._tickets else self._next

    def to_commit(self) -> int | None:
        """The offset to commit; None if it is already committed."""
        offset = self.offset
        return offset if offset > self._committed and offset >= 0 else None

    def committed(self, offset: int) -> None:
        self._committed = max(self._committed, offset)

    def close(self) -> None:
        """Start no more records, except those before a record that has started, so that all
        processed records can be committed. The caller holds the lock under which records start."""
        started = [ticket.offset for ticket in self._tickets if ticket.started]
        self.limit = min(self.limit, started[-1] if started else -1)

    @property
    def is_running(self) -> bool:
        """Whether any record has started and is not done."""
        return any(ticket.started and not ticket.done for ticket in self._tickets)

    @property
    def is_drained(self) -> bool:
        """Whether all records that may start are done."""
        return all(ticket.done or (not ticket.started and ticket.offset > self.limit) for ticket in self._tickets)


@dataclass(slots=True, eq=False)
class Ticket:
    """A record in progress. The worker sets `started`, under the lock, and `done`."""

    progress: Progress
    offset: int
    started: bool = False
    done: bool = False
