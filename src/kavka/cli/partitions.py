"""Partitions named on command lines and in JSON files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kavka.cli.tool import ToolError
from kavka.client.admin.base import AdminError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import TopicDescription


def named_partitions(admin: Admin, names: Iterable[str]) -> tuple[list[TopicPartition], dict[str, KafkaError]]:
    """Return the sorted partitions of `topic` and `topic:0,1,2`, and the error of each topic that
    cannot be described. Explicit partitions are not checked."""
    partitions: set[TopicPartition] = set()
    topics: list[str] = []
    for name in names:
        topic, colon, numbers = name.partition(":")
        if not colon:
            topics.append(topic)
            continue
        try:
            partitions |= {TopicPartition(topic, int(number)) for number in numbers.split(",")}
        except ValueError:
            raise ToolError(f"'{name}' is not topic:partition,…") from None
    unknown: dict[str, KafkaError] = {}
    if topics:
        descriptions: dict[Any, Any]
        try:
            descriptions = admin.describe_topics(topics)
        except AdminError as error:
            descriptions, unknown = error.results, {str(key): cause for key, cause in error.errors.items()}
        for key, description in descriptions.items():
            partitions |= {TopicPartition(str(key), info.partition) for info in description.partitions}
    return sorted(partitions), unknown


def described_topics(admin: Admin, topics: Iterable[str]) -> list[TopicDescription]:
    """Describe those of the topics that exist."""
    names = sorted(set(topics))
    try:
        return list(admin.describe_topics(names).values()) if names else []
    except AdminError as error:
        if any(cause.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for cause in error.errors.values()):
            raise
        return list(error.results.values())


def read_json(path: str) -> Any:
    """Read a JSON file. Errors contain the line and the column."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except json.JSONDecodeError as error:
        raise ToolError(f"{path}: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError:
        raise ToolError(f"{path}: not valid UTF-8") from None
    except RecursionError:
        raise ToolError(f"{path}: nested too deeply") from None


def partition_entries(data: Any, path: str) -> Iterator[tuple[TopicPartition, Any, str]]:
    """Yield the members of "partitions" in a JSON file: the partition, the entry, and its place in
    the file for error messages."""
    for number, entry in enumerate(member(data, "partitions", list, path), start=1):
        where = f"{path}: partition {number}"
        yield TopicPartition(member(entry, "topic", str, where), member(entry, "partition", int, where)), entry, where


def member(value: Any, name: str, kind: type, where: str) -> Any:
    """Return a required member of a JSON object. Raise ToolError if it is missing or has another
    type."""
    if not isinstance(value, dict) or name not in value:
        raise ToolError(f'{where}: there is no "{name}"')
    content = value[name]
    if not isinstance(content, kind) or (kind is int and isinstance(content, bool)):
        type_names = {int: "a number", str: "text", list: "a list", dict: "an object"}
        raise ToolError(f'{where}: "{name}" must be {type_names.get(kind, kind.__name__)}')
    return content
