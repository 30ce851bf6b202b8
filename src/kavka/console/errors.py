"""Converts errors to one line for the user and an HTTP status."""

from __future__ import annotations

from collections.abc import Mapping

from kavka.common.config import ConfigError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.primitives import ProtocolError


class Refused(Exception):
    """A request that was rejected or failed, with its HTTP status. `field` names the invalid input,
    if any, and `fields` has the error of each invalid input, if there may be several. After a
    timeout or an error of another server the request may have had an effect."""

    def __init__(
        self, message: str, status: int = 400, field: str = "", fields: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.fields = dict(fields or {})


_NOT_FOUND = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.GROUP_ID_NOT_FOUND})


def explain(error: Exception) -> tuple[int, str] | None:
    """Return the HTTP status and the line that users see. None for a bug of the console."""
    if isinstance(error, Refused):
        return error.status, str(error)
    if isinstance(error, (KafkaError, ConfigError, ProtocolError)):
        return _status(error), reason(error)
    if isinstance(error, TimeoutError):
        return 504, "the cluster did not respond in time"
    return None


def reason(error: Exception) -> str:
    """Return the message of an error as one line. An error that combines errors and has only one is
    replaced by that error."""
    errors = getattr(error, "errors", None)
    if errors and len(errors) == 1:
        error = next(iter(errors.values()))
    text = error.message if isinstance(error, KafkaError) else str(error)
    return " ".join(text.split()) or type(error).__name__


def _status(error: Exception) -> int:
    if isinstance(error, TimeoutError):
        return 504
    if isinstance(error, KafkaError):
        if error.code in _NOT_FOUND:
            return 404
        if error.code is ErrorCode.NETWORK_EXCEPTION:
            return 502
    return 400
