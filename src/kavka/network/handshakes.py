"""TLS handshakes of accepted connections.

A handshake takes a millisecond of CPU time, so the loop continues at most `MAX_STEPS_PER_TURN` of
them in a turn; the others wait for the next turns in the order of arrival. A peer that does not
complete its handshake in `TIMEOUT_S` is disconnected. After `MAX_PENDING` handshakes the oldest is
ended for a new one, so that idle peers cannot occupy all places.
"""

from __future__ import annotations

import logging
import socket
import ssl
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable

from kavka.network.listener_security import ListenerSecurity
from kavka.network.transport import TlsTransport
from kavka.security.principal import ANONYMOUS, Principal

logger = logging.getLogger(__name__)

MAX_STEPS_PER_TURN = 8
MAX_PENDING = 1024
TIMEOUT_S = 30.0
# The type of the TLS records of a handshake.
_HANDSHAKE_RECORD = 0x16

# Called with the transport, the address of the peer, and the principal of its certificate.
OnComplete = Callable[[TlsTransport, str, ListenerSecurity, Principal], None]
# Called with the listener and the address of a connection that ended before its handshake was
# complete.
OnEnd = Callable[[str, str], None]


class _Pending:
    """One incomplete handshake."""

    __slots__ = ("address", "fd", "has_failed", "security", "timer", "transport")

    def __init__(self, fd: int, transport: TlsTransport, address: str, security: ListenerSecurity) -> None:
        self.fd = fd
        self.transport = transport
        self.address = address
        self.security = security
        self.timer: TimerHandle | None = None
        self.has_failed = False


class Handshakes:
    """Owns the connections whose handshake is incomplete. Only the loop thread uses it."""

    def __init__(
        self, loop: AbstractEventLoop, receive_buffer: memoryview, on_complete: OnComplete, on_end: OnEnd
    ) -> None:
        self._loop = loop
        self._receive_buffer = receive_buffer
        self._on_complete = on_complete
        self._on_end = on_end
        self._pending: dict[_Pending, None] = {}
        self._ready: deque[_Pending] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, sock: socket.socket, address: str, security: ListenerSecurity) -> None:
        """Start the handshake of an accepted socket."""
        assert security.context is not None
        transport = TlsTransport(self._loop, sock, security.context, self._receive_buffer)
        pending = _Pending(sock.fileno(), transport, address, security)
        if len(self._pending) >= MAX_PENDING:
            self._end(next(iter(self._pending)))
        self._pending[pending] = None
        pending.timer = self._loop.call_later(TIMEOUT_S, self._on_timeout, pending)
        self._loop.add_reader(pending.fd, self._on_readable, pending)

    def close(self) -> None:
        for pending in list(self._pending):
            self._end(pending)

    def _on_readable(self, pending: _Pending) -> None:
        # The reader is added again when the step is done.
        self._loop.remove_reader(pending.fd)
        self._ready.append(pending)
        if not self._is_scheduled:
            self._run()

    def _run(self) -> None:
        self._is_scheduled = False
        for _ in range(min(len(self._ready), MAX_STEPS_PER_TURN)):
            pending = self._ready.popleft()
            if pending in self._pending:
                self._step(pending)
        # Also without work left, later arrivals of this turn wait for the next turn.
        self._is_scheduled = True
        self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        if self._ready:
            self._run()

    def _step(self, pending: _Pending) -> None:
        if pending.has_failed:
            # The peer sends more bytes, or closes, while its failure is delayed.
            self._end(pending)
            return
        try:
            is_complete = pending.transport.handshake()
        except (ConnectionResetError, BrokenPipeError):
            self._end(pending)
        except OSError as error:
            self._fail(pending, _reason(error, pending.transport))
        else:
            if is_complete:
                self._complete(pending)
            else:
                self._loop.add_reader(pending.fd, self._on_readable, pending)

    def _complete(self, pending: _Pending) -> None:
        security = pending.security
        principal = ANONYMOUS
        if not security.protocol.has_sasl:
            try:
                principal = security.principal_of(pending.transport.peer_certificate())
            except ValueError as error:
                self._fail(pending, str(error))
                return
            security.count_success()
        self._remove(pending)
        self._on_complete(pending.transport, pending.address, security, principal)

    def _fail(self, pending: _Pending, reason: str) -> None:
        security = pending.security
        security.count_failure()
        logger.info("Failed TLS handshake with %s on listener %s: %s", pending.address, security.name, reason)
        pending.has_failed = True
        if pending.timer is not None:
            pending.timer.cancel()
        pending.timer = self._loop.call_later(security.failure_delay_s, self._end, pending)

    def _on_timeout(self, pending: _Pending) -> None:
        logger.info(
            "Closing the connection from %s on listener %s: no TLS handshake within %g s",
            pending.address, pending.security.name, TIMEOUT_S,
        )  # fmt: skip
        pending.security.count_failure()
        self._end(pending)

    def _remove(self, pending: _Pending) -> bool:
        if pending not in self._pending:
            return False
        del self._pending[pending]
        self._loop.remove_reader(pending.fd)
        if pending.timer is not None:
            pending.timer.cancel()
        return True

    def _end(self, pending: _Pending) -> None:
        if self._remove(pending):
            pending.transport.close()
            self._on_end(pending.security.name, pending.address)


def _reason(error: OSError, transport: TlsTransport) -> str:
    first = transport.first_bytes()
    if first and first[0] != _HANDSHAKE_RECORD and "WRONG_VERSION_NUMBER" in str(getattr(error, "reason", "")):
        return "the peer does not use TLS; does its security.protocol match the listener?"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the client is not valid: {error.verify_message}"
    return str(getattr(error, "reason", None) or error)
