"""The subject in which a schema is registered. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from kavka.client import classes
from kavka.client.errors import SerializationError
from kavka.common.config import ConfigError

SubjectName: TypeAlias = Callable[[str, bool, str | None], str]
"""A function from (topic, whether the data is a key, full name of the record type) to a subject."""


def topic_name(topic: str, is_key: bool, record: str | None) -> str:
    return f"{topic}-{'key' if is_key else 'value'}"


def record_name(topic: str, is_key: bool, record: str | None) -> str:
    if record is None:
        raise SerializationError("RecordNameStrategy requires a schema with a name: a record, a message or a title")
    return record


def topic_record_name(topic: str, is_key: bool, record: str | None) -> str:
    if record is None:
        raise SerializationError("TopicRecordNameStrategy requires a schema with a name")
    return f"{topic}-{record}"


_HERE = "kavka.client.schemas.subjects"
STRATEGIES = {
    "TopicNameStrategy": f"{_HERE}:topic_name",
    "RecordNameStrategy": f"{_HERE}:record_name",
    "TopicRecordNameStrategy": f"{_HERE}:topic_record_name",
}


def strategy(name: str, value: Any) -> SubjectName:
    """Return the strategy that a setting names: Confluent's class with or without its package, or a
    function. Raises ConfigError."""
    function = classes.load(name, value, STRATEGIES, "a subject name strategy")
    if not callable(function):
        raise ConfigError(name, f"'{value}' is not a function of (topic, is_key, record name)")
    strategy: SubjectName = function
    return strategy
