"""The levels of Python's loggers, for `GET` and `PUT /admin/loggers`.

A level with `scope=cluster` is a record in the config topic. Every worker that runs when it is
written applies it; a worker that starts later does not, as in Kafka Connect.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any

logger = logging.getLogger(__name__)

RECORD_PREFIX = "logger-cluster-"
_LEVELS = {"TRACE": "DEBUG", "DEBUG": "DEBUG", "INFO": "INFO", "WARN": "WARNING", "ERROR": "ERROR", "FATAL": "CRITICAL"}
_modified_ms: dict[str, int] = {}
_lock = threading.Lock()


def is_level(level: str) -> bool:
    return level in _LEVELS


def levels() -> dict[str, Any]:
    """Returns the loggers that have a level."""
    loggers = {"root": level("root")}
    for name in sorted(logging.root.manager.loggerDict):
        if logging.getLogger(name).level:
            loggers[name] = level(name)
    return {name: entry for name, entry in loggers.items() if entry is not None}


def level(name: str) -> dict[str, Any] | None:
    """Returns the level of a logger; None if there is no such logger."""
    if name != "root" and name not in logging.root.manager.loggerDict:
        return None
    number = _logger(name).level
    text = logging.getLevelName(number) if number else None
    return {"level": "WARN" if text == "WARNING" else text, "last_modified": _modified_ms.get(name)}


def set_level(name: str, level: str) -> list[str]:
    """Sets the level of a logger. Returns it and its descendants."""
    with _lock:
        is_changed = _logger(name).level != logging.getLevelName(_LEVELS[level])
        _logger(name).setLevel(_LEVELS[level])
        names = [other for other in logging.root.manager.loggerDict if other == name or other.startswith(f"{name}.")]
        if is_changed:
            _modified_ms[name] = int(time.time() * 1000)
    return sorted({name, *names})


def record(name: str, level: str) -> tuple[str, str]:
    """Returns the record of the config topic that sets a level in all workers."""
    return f"{RECORD_PREFIX}{name}", json.dumps({"level": level}, separators=(",", ":"))


def apply_record(key: str, value: str | None) -> None:
    """Applies a record of the config topic, if it is one of a level."""
    if not key.startswith(RECORD_PREFIX):
        return
    try:
        level = str(json.loads(value or "null")["level"]).upper()
    except (ValueError, KeyError, TypeError):
        level = ""
    name = key.removeprefix(RECORD_PREFIX)
    if name and level in _LEVELS:
        set_level(name, level)
    else:
        logger.warning("Ignoring an invalid record of the config topic: %s", key)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == "root" else name)
