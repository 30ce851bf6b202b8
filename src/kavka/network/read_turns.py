"""Reads from all producers that are ready, then writes their appends and sends their responses.

    epoll reports the ready connections -> each receives into its own part of the buffer and handles
    its requests -> one write of all staged appends (one writev per log) -> each sends its responses

All of this is one callback of the event loop, so no other code sees staged appends. A request that
reads (`Connection.handle`) writes the staged appends first, also those of other connections.

With few producers, one is ready at a time, and the additional call of epoll costs more than a
shared write saves. So the event loop watches each connection until there are `MIN_PRODUCERS`.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from kavka.network.transport import Readers
from kavka.replication.staged_appends import StagedAppends

RECEIVE_BUFFER_BYTES = 512 * 1024
MIN_PRODUCERS = 8
# The maximum number of connections that one call of epoll reports.
MAX_READY = 256
# How long connections are read in one turn of the loop. The last one may take longer.
MAX_TURN_S = 0.002
# A connection that is read after others has at least this much of the buffer. This is more than the
# bytes that a connection carries over.
MIN_FREE_BYTES = RECEIVE_BUFFER_BYTES // 2


class Producer(Protocol):
    """A connection with Produce requests."""

    def read_with(self, readers: Readers) -> None:
        """Let `readers` watch the connection, instead of the event loop."""

    def finish_common_turn(self) -> None:
        """Write the staged appends, and send the responses."""


class ReadTurns:
    """Owns the receive buffer and the epoll set of the producers. Only the loop thread uses it.

    The event loop watches the epoll set as one file. `add_reader` and `remove_reader` are those of
    an event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, staged_appends: StagedAppends) -> None:
        self.buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        # Whether several connections are read before the appends are written.
        self.is_common = False
        self._loop = loop
        self._staged_appends = staged_appends
        self._producers: set[Producer] = set()
        self._epoll: select.epoll | None = None
        self._readers: dict[int, Callable[[], None]] = {}
        # The ready connections for which the last turn had no time.
        self._remaining: list[tuple[int, int]] = []
        # The connections of this turn that have handled their requests.
        self._handled: list[Producer] = []
        self._used_bytes = 0

    def add_producer(self, producer: Producer) -> None:
        self._producers.add(producer)
        if self._epoll is not None:
            producer.read_with(self)
        elif len(self._producers) == MIN_PRODUCERS:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._on_ready)
            for member in self._producers:
                member.read_with(self)

    def forget(self, producer: Producer) -> None:
        self._producers.discard(producer)

    def close(self) -> None:
        """Release the epoll set. All connections must be closed."""
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> None:
        assert self._epoll is not None
        self._epoll.register(fd, select.EPOLLIN)
        self._readers[fd] = callback

    def remove_reader(self, fd: int, /) -> None:
        assert self._epoll is not None
        del self._readers[fd]
        self._epoll.unregister(fd)

    def free_buffer(self) -> memoryview:
        """The part of the buffer that no staged append uses."""
        if not self._used_bytes:
            return self.buffer
        if self._staged_appends.is_empty:
            self._used_bytes = 0
        elif len(self.buffer) - self._used_bytes < MIN_FREE_BYTES:
            self._finish()
        return self.buffer[self._used_bytes :]

    def finish_later(self, producer: Producer, received_bytes: int) -> None:
        """Finish the turn of this connection when the other ready connections are read. Until then
        the bytes that it has received stay in the buffer."""
        self._handled.append(producer)
        self._used_bytes += received_bytes

    def _on_ready(self) -> None:
        assert self._epoll is not None
        ready = self._remaining or self._epoll.poll(0, MAX_READY)
        self._remaining = []
        readers = self._readers
        if len(ready) == 1:
            on_readable = readers.get(ready[0][0])
            if on_readable is not None:
                on_readable()
            return
        deadline = perf_counter() + MAX_TURN_S
        self.is_common = True
        try:
            for count, (fd, _) in enumerate(ready, 1):
                # None if an earlier connection of this turn has closed this one.
                on_readable = readers.get(fd)
                if on_readable is not None:
                    on_readable()
                    if perf_counter() > deadline:
                        self._remaining = ready[count:]
                        break
        finally:
            self.is_common = False
            self._finish()

    def _finish(self) -> None:
        handled, self._handled = self._handled, []
        for producer in handled:
            producer.finish_common_turn()
        self._used_bytes = 0
