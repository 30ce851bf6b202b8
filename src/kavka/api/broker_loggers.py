"""The loggers of this broker as a resource with settings: a logger's name, and its level by Kafka's name.

A level that is set holds until the broker stops.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kavka.common.errors import ErrorCode, KafkaError

ROOT = "root"
SET, DELETE = 0, 1

# Python has no TRACE; what is set to it says all there is.
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def levels() -> dict[str, str]:
    """Every logger of ours with the level in force."""
    names = [name for name in logging.root.manager.loggerDict if name == "kavka" or name.startswith("kavka.")]
    return {ROOT: _name(logging.root), **{name: _name(logging.getLogger(name)) for name in sorted(names)}}


def alter(changes: Sequence[tuple[str, int, str | None]], *, validate_only: bool) -> None:
    """(logger, SET or DELETE, level): nothing is changed when one of them is wrong."""
    known = levels()
    for name, operation, level in changes:
        if operation not in (SET, DELETE):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A logger's level can be set or deleted, no more.")
        if name not in known:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"There is no logger '{name}'.")
        if operation == SET and level not in _LEVELS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"A logger's level is one of {', '.join(_LEVELS)}; '{level}' is none."
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
