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
    """Parse names such as `topic` and `topic:0,1,2`. Return the sorted partitions, and the error of
    each topic that cannot be described.

    The cluster need not have the partitions of `topic:0,1,2`. Raise ToolError for an invalid name.
    """
    partitions: set[TopicPartition] = set()
    topics: list[str] = []
    for name in names:
        topic, colon, partition_ids = name.partition(":")
        if not colon:
            topics.append(topic)
            continue
        try:
            partitions |= {TopicPartition(topic, int(text)) for text in partition_ids.split(",")}
        except ValueError:
            raise ToolError(f"Cannot parse '{name}': expected topic:partition,…") from None
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
    """Return the descriptions of those topics that exist. Raise AdminError for other errors."""
    names = sorted(set(topics))
    try:
        return list(admin.describe_topics(names).values()) if names else []
    except AdminError as error:
        if any(cause.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for cause in error.errors.values()):
            raise
        return list(error.results.values())


def read_json(path: str) -> Any:
    """Read a JSON file. Raise ToolError, with the line and column of a syntax error, if the file is
    invalid."""
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
    """Yield the elements of "partitions" in a JSON file: the partition, the element, and its
    location for error messages."""
    for index, entry in enumerate(member(data, "partitions", list, path), start=1):
        location = f"{path}: partition {index}"
        yield (
            TopicPartition(member(entry, "topic", str, location), member(entry, "partition", int, location)),
            entry,
            location,
        )


def member(value: Any, name: str, expected_type: type, location: str) -> Any:
    """Return a required member of a JSON object. Raise ToolError if it is missing or has another
    type."""
    if not isinstance(value, dict) or name not in value:
        raise ToolError(f'{location}: there is no "{name}"')
    content = value[name]
    if not isinstance(content, expected_type) or (expected_type is int and isinstance(content, bool)):
        type_names = {int: "a number", str: "text", list: "a list", dict: "an object"}
        raise ToolError(f'{location}: "{name}" must be {type_names.get(expected_type, expected_type.__name__)}')
    return content
