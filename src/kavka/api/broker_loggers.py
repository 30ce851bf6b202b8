"""The loggers of this broker as a config resource: logger names, and levels with Kafka's names.

Changed levels apply until the broker stops.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kavka.common.errors import ErrorCode, KafkaError

ROOT = "root"
SET, DELETE = 0, 1

# Python has no TRACE: it logs everything.
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def levels() -> dict[str, str]:
    """All our loggers with their effective levels."""
    names = [name for name in logging.root.manager.loggerDict if name == "kavka" or name.startswith("kavka.")]
    return {ROOT: _name(logging.root), **{name: _name(logging.getLogger(name)) for name in sorted(names)}}


def alter(changes: Sequence[tuple[str, int, str | None]], *, validate_only: bool) -> None:
    """(logger, SET or DELETE, level). Changes nothing if one of them is invalid."""
    names = levels()
    for name, operation, level in changes:
        if operation not in (SET, DELETE):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A logger's level can only be set or deleted.")
        if name not in names:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"There is no logger '{name}'.")
        if operation == SET and level not in _LEVELS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"A logger's level is one of {', '.join(_LEVELS)}; '{level}' is not."
            )
        if operation == DELETE and name == ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The level of the root logger cannot be deleted.")
    if validate_only:
        return
    for name, operation, level in changes:
        logger = logging.root if name == ROOT else logging.getLogger(name)
        logger.setLevel(_LEVELS[level] if operation == SET and level is not None else logging.NOTSET)


def _name(logger: logging.Logger) -> str:
    effective = logger.getEffectiveLevel()
    return next((name for name, level in reversed(_LEVELS.items()) if level <= effective), "TRACE")
