"""What clients raise, beside `KafkaError` with a code that came from a broker.

All of them are KafkaErrors, so `except KafkaError` is enough for a program that does not care which; those that
Python has a class of its own for are that too.
"""

from __future__ import annotations

from kavka.common.errors import ErrorCode, KafkaError


class _Local(KafkaError):
    """One that was found on this side; `str()` is the message alone."""

    CODE = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(self.CODE if code is None else code, message)

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.code)


class KafkaTimeout(_Local, TimeoutError):
    """Something did not happen within the time that a setting or an argument gives it."""

    CODE = ErrorCode.REQUEST_TIMED_OUT


class Disconnected(_Local, ConnectionError):
    """A connection could not be made, or broke before the answer came: whether the request was done is not known."""

    CODE = ErrorCode.NETWORK_EXCEPTION


class UnsupportedVersion(_Local):
    """The broker does not know the request, or no version of it that can carry what is asked for."""

    CODE = ErrorCode.UNSUPPORTED_VERSION


class BufferExhausted(KafkaTimeout):
    """No room in `buffer.memory`, for as long as `max.block.ms` and `buffer.full.policy` allow."""


class Purged(_Local):
    """The record was thrown away by `purge()`, or to make room under `buffer.full.policy=clear`."""


class SerializationError(_Local, ValueError):
    """A key, a value or a header could not be turned into bytes, or bytes into one of them."""


class ClientClosed(_Local, RuntimeError):
    """The client was closed before, or while, this was asked of it."""


class IllegalState(_Local, RuntimeError):
    """The call does not fit what the client is doing: a commit outside a transaction, a second thread in a consumer."""


def error_of(code: int, message: str | None = None) -> KafkaError:
    """The exception for a code in an answer; a code that is not known here is UNKNOWN_SERVER_ERROR."""
    try:
        return KafkaError(ErrorCode(code), message)
    except ValueError:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message or f"the broker answered with error code {code}")


def check(code: int, message: str | None = None) -> None:
    """Raises unless the code is NONE."""
    if code:
        raise error_of(code, message)
