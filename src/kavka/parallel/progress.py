"""[pure] How far a partition is done, when its records are not finished in their order."""

from __future__ import annotations

from collections import deque

NO_LIMIT = 1 << 63


class Progress:
    """The records of one partition that are being handled, in order; what may be committed is up to the first of them
    that is not done. Belongs to the thread that polls; those that handle only see tickets."""

    __slots__ = ("_committed", "_next", "_open", "limit")

    def __init__(self) -> None:
        self._open: deque[Ticket] = deque()
        self._next = -1
        self._committed = -1
        self.limit = NO_LIMIT
        """Records after this offset are not to begin any more."""

    def begin(self, offset: int) -> Ticket:
        ticket = Ticket(self, offset)
        self._open.append(ticket)
        self._next = max(self._next, offset + 1)
        return ticket

    def passed(self, offset: int) -> None:
        """Everything before `offset` is done, or being handled."""
        self._next = max(self._next, offset)

    def finished(self) -> None:
        """Forget what is done from the front."""
        tickets = self._open
        while tickets and tickets[0].done:
            tickets.popleft()

    @property
    def offset(self) -> int:
        """What may be committed; -1 where nothing was read."""
        self.finished()
        return self._open[0].offset if self._open else self._next

    def to_commit(self) -> int | None:
        """What should be committed now, if that is news."""
        offset = self.offset
        return offset if offset > self._committed and offset >= 0 else None

    def committed(self, offset: int) -> None:
        self._committed = max(self._committed, offset)

    def close(self) -> None:
        """Begin nothing more but what stands before a record that has begun: when those are done, all that was done can
        be committed. For who holds the lock under which records begin."""
        begun = [ticket.offset for ticket in self._open if ticket.begun]
        self.limit = min(self.limit, begun[-1] if begun else -1)

    @property
    def running(self) -> bool:
        """Whether any has begun and is not done."""
        return any(ticket.begun and not ticket.done for ticket in self._open)

    @property
    def settled(self) -> bool:
        """Whether nothing is being handled, or still to be after `close`."""
        return all(ticket.done or (not ticket.begun and ticket.offset > self.limit) for ticket in self._open)


class Ticket:
    """One record on its way. `begun` and `done` are set by the thread that handles it, the first under the lock."""

    __slots__ = ("begun", "done", "offset", "progress")

    def __init__(self, progress: Progress, offset: int) -> None:
        self.progress = progress
        self.offset = offset
        self.begun = False
        self.done = False
