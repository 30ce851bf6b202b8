"""Errors that clients raise, in addition to `KafkaError` with an error code from a broker.

All of them are subclasses of KafkaError. Some are also subclasses of a built-in exception.
"""

from __future__ import annotations

from kavka.common.errors import ErrorCode, KafkaError


class _Local(KafkaError):
    """An error that the client detected. `str()` is the message without an error code."""

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
    """An operation took longer than a setting or an argument allows."""

    CODE = ErrorCode.REQUEST_TIMED_OUT


class Disconnected(_Local, ConnectionError):
    """A connection could not be opened, or was closed before the response arrived. The broker may
    or may not have processed the request."""

    CODE = ErrorCode.NETWORK_EXCEPTION


class ConnectionRefused(Disconnected):
    """The host responded that nothing listens on the port: the broker's process is not running."""


class AuthenticationFailed(_Local):
    """The broker is not trusted, or rejects the credentials. A retry needs other settings."""

    CODE = ErrorCode.SASL_AUTHENTICATION_FAILED


class UnsupportedVersion(_Local):
    """The broker does not support the request, or does not support a version with the required
    fields."""

    CODE = ErrorCode.UNSUPPORTED_VERSION


class BufferExhausted(KafkaTimeout):
    """`buffer.memory` stayed full for as long as `max.block.ms` and `buffer.full.policy` allow."""


class Purged(_Local):
    """The record was discarded by `purge()`, or to free memory with `buffer.full.policy=clear`."""


class SerializationError(_Local, ValueError):
    """A key, a value or a header could not be serialized or deserialized."""


class SchemaRegistryError(_Local):
    """A schema registry rejected a request. It says nothing about a record, so that no record is
    skipped. `status` is the HTTP status and `error_code` the registry's code; both are 0 if there
    was no response."""

    def __init__(self, message: str, status: int = 0, error_code: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.status, self.error_code)


class SchemaRegistryUnavailable(SchemaRegistryError, ConnectionError):
    """No schema registry can be reached. The call may be repeated: no record was skipped."""

    CODE = ErrorCode.NETWORK_EXCEPTION


class ClientClosed(_Local, RuntimeError):
    """The client was closed before or during the call."""


class IllegalState(_Local, RuntimeError):
    """The client's state does not allow the call, for example a commit outside a transaction."""


def error_of(code: int, message: str | None = None) -> KafkaError:
    """Return the exception for an error code of a response. An unknown code becomes
    UNKNOWN_SERVER_ERROR."""
    try:
        return KafkaError(ErrorCode(code), message)
    except ValueError:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message or f"the broker returned error code {code}")


def check(code: int, message: str | None = None) -> None:
    """Raise an error unless the code is NONE."""
    if code:
        raise error_of(code, message)
