"""Partitions as command lines and JSON files name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kavka.cli.tool import ToolError
from kavka.client.admin.base import AdminError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import TopicDescription


def named_partitions(admin: Admin, names: Iterable[str]) -> tuple[list[TopicPartition], dict[str, KafkaError]]:
    """`topic` and `topic:0,1,2`: the partitions, sorted, and the topics that cannot be described with the reason.
    Partitions that are named are taken as they are."""
    found: set[TopicPartition] = set()
    whole: list[str] = []
    for name in names:
        topic, colon, numbers = name.partition(":")
        if not colon:
            whole.append(topic)
            continue
        try:
            found |= {TopicPartition(topic, int(number)) for number in numbers.split(",")}
        except ValueError:
            raise ToolError(f"'{name}' is not topic:partition,…") from None
    unknown: dict[str, KafkaError] = {}
    if whole:
        descriptions: dict[Any, Any]
        try:
            descriptions = admin.describe_topics(whole)
        except AdminError as error:
            descriptions, unknown = error.results, {str(key): why for key, why in error.errors.items()}
        for key, description in descriptions.items():
            found |= {TopicPartition(str(key), info.partition) for info in description.partitions}
    return sorted(found), unknown


def described_topics(admin: Admin, topics: Iterable[str]) -> list[TopicDescription]:
    """Those of the topics that exist."""
    names = sorted(set(topics))
    try:
        return list(admin.describe_topics(names).values()) if names else []
    except AdminError as error:
        if any(why.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for why in error.errors.values()):
            raise
        return list(error.results.values())


def read_json(path: str) -> Any:
    """A JSON file; what is wrong with it is said with line and column."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except json.JSONDecodeError as error:
        raise ToolError(f"{path}: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError:
        raise ToolError(f"{path}: this is not text in UTF-8") from None
    except RecursionError:
        raise ToolError(f"{path}: lists in lists in lists, too many of them") from None


def member(value: Any, name: str, kind: type, where: str) -> Any:
    """A member of a JSON object that must be there and of this type."""
    if not isinstance(value, dict) or name not in value:
        raise ToolError(f'{where}: there is no "{name}"')
    found = value[name]
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        words = {int: "a number", str: "text", list: "a list", dict: "an object"}
        raise ToolError(f'{where}: "{name}" must be {words.get(kind, kind.__name__)}')
    return found
