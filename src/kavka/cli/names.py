"""Topic patterns and ids on command lines."""

from __future__ import annotations

import re
from uuid import UUID

from kavka.cli.tool import ToolError
from kavka.common import topics
from kavka.common.types import uuid_from_text

INTERNAL_TOPICS = topics.INTERNAL_TOPICS | {"__share_group_state"}
"""Internal topics of any cluster. Kavka's brokers have no `__share_group_state`."""
NO_ID = UUID(int=0)


class TopicFilter:
    """Kafka's include list: a regular expression for the whole name. Commas separate
    alternatives. Raises ToolError for an invalid expression."""

    def __init__(self, text: str) -> None:
        pattern = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            raise ToolError(f"{text} is an invalid regex ({error})") from None

    def allows(self, topic: str, *, exclude_internal: bool = False) -> bool:
        return self.pattern.fullmatch(topic) is not None and not (exclude_internal and topic in INTERNAL_TOPICS)


def uuid_of(text: str) -> UUID:
    """Parse a topic id. Raise ToolError if it is invalid."""
    try:
        return uuid_from_text(text)
    except ValueError:
        raise ToolError(f"'{text}' is not a topic id") from None


def ids(numbers: object) -> str:
    """Return broker ids, or the ids of nodes, as text separated by commas."""
    return ",".join(str(getattr(item, "id", item)) for item in numbers)  # type: ignore[attr-defined]
