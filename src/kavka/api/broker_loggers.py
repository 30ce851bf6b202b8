"""The loggers of this broker as a config resource. Levels have Kafka's names.

A changed level applies until the broker stops.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kavka.api import authorization
from kavka.common.errors import ErrorCode, KafkaError

ROOT = "root"
SET, DELETE = 0, 1

# Python has no TRACE level. 5 is below DEBUG, so that everything is logged.
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def levels() -> dict[str, str]:
    """Return the effective levels of the root logger, the authorizer log and all `kavka` loggers,
    by name."""
    names = [
        name
        for name in logging.root.manager.loggerDict
        if name in ("kavka", authorization.LOGGER_NAME) or name.startswith("kavka.")
    ]
    return {ROOT: _level_name(logging.root), **{name: _level_name(logging.getLogger(name)) for name in sorted(names)}}


def alter(changes: Sequence[tuple[str, int, str | None]], *, validate_only: bool) -> None:
    """Apply changes of the form (logger name, SET or DELETE, level). Raises KafkaError and applies
    no change if a change is invalid."""
    current_levels = levels()
    for name, operation, level in changes:
        if operation not in (SET, DELETE):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A logger's level can only be set or deleted.")
        if name not in current_levels:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"There is no logger '{name}'.")
        if operation == SET and level not in _LEVELS:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"'{level}' is not one of the levels {', '.join(_LEVELS)}.")
        if operation == DELETE and name == ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The level of the root logger cannot be deleted.")
    if validate_only:
        return
    for name, operation, level in changes:
        logger = logging.root if name == ROOT else logging.getLogger(name)
        logger.setLevel(_LEVELS[level] if operation == SET and level is not None else logging.NOTSET)


def _level_name(logger: logging.Logger) -> str:
    effective_level = logger.getEffectiveLevel()
    return next((name for name, level in reversed(_LEVELS.items()) if level <= effective_level), "TRACE")
