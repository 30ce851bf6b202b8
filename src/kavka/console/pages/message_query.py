"""Converts the inputs of a request to a `Search`, and limits the number of running searches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kavka.common.times import milliseconds_of
from kavka.console.avro import BadSchema
from kavka.console.cluster import CLIENT_DEFAULTS
from kavka.console.context import Context
from kavka.console.decoders import DECODERS
from kavka.console.errors import Refused
from kavka.console.expressions import BadExpression
from kavka.console.filters import Filter
from kavka.console.messages import Query, Search, Start
from kavka.console.state import Topic

MAX_ROWS = 1000
DEFAULT_ROWS = 50


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """The inputs of a message search, as received. `search` validates them."""

    topic: str
    start: str = Start.NEWEST
    at: str = ""
    partition: str = ""
    limit: int = DEFAULT_ROWS
    key: str = ""
    text: str = ""
    header: str = ""
    path: str = ""
    expression: str = ""
    key_format: str = "auto"
    value_format: str = "auto"
    key_schema: str = ""
    value_schema: str = ""
    cursor: str = ""
    committed: bool = False

    async def start_search(self, context: Context) -> Search:
        """Create the search like `search`. Raises Refused (404) if the topic does not exist."""
        if await find_topic(context, self.topic) is None:
            raise Refused(f"there is no topic '{self.topic[:250]}'", 404, "topic")
        return self.search(context)

    def search(self, context: Context) -> Search:
        """Validate the inputs and create the search. Raises Refused for an invalid input."""
        if self.start not in Start.ALL:
            raise Refused(f"start must be one of {', '.join(Start.ALL)}", field="start")
        for name in ("key_format", "value_format"):
            if getattr(self, name) not in DECODERS:
                raise Refused(f"{name} must be one of {', '.join(DECODERS)}", field=name)
        at = 0
        if self.start == Start.OFFSET:
            at = _parse_offset(self.at)
        elif self.start == Start.TIME:
            at = _parse_time(self.at)
        # Create a filter for each input alone, so that an error names the input.
        for name in ("header", "path", "expression"):
            self._check_filter(name, **{name: getattr(self, name)})
        for name in ("key_schema", "value_schema"):
            schema, decoder = getattr(self, name), getattr(self, name.replace("schema", "format"))
            if schema.strip() and decoder == "avro":
                self._check_filter(name, **{name: schema, name.replace("schema", "decoder"): "avro"})
        message_filter = Filter(
            self.topic,
            key=self.key,
            text=self.text,
            header=self.header,
            path=self.path,
            expression=self.expression,
            key_decoder=self.key_format,
            value_decoder=self.value_format,
            key_schema=self.key_schema,
            value_schema=self.value_schema,
            masks=context.cluster.masks.of(self.topic),
        )
        partitions = _parse_partitions(self.partition)
        query = Query(self.topic, message_filter, self.start, at, partitions, self.limit, self.cursor, self.committed)
        return Search(query, client_settings(context))

    def _check_filter(self, field: str, **filters: str) -> None:
        try:
            Filter(self.topic, **filters)  # type: ignore[arg-type]
        except (BadExpression, BadSchema) as error:
            raise Refused(f"{field}: {error}", field=field) from None


def client_settings(context: Context) -> dict[str, Any]:
    return {**CLIENT_DEFAULTS, **context.cluster.settings.client}


def _parse_offset(text: str) -> int:
    # The console writes offsets with spaces between the thousands.
    digits = re.sub(r"\s", "", text[:60])
    if not re.fullmatch(r"\d{1,19}", digits):
        raise Refused(f"expected an offset, not '{text[:60]}'", field="at")
    return int(digits)


def _parse_time(text: str) -> int:
    """Parse milliseconds since the epoch, or an ISO 8601 time."""
    text = text.strip()
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        return milliseconds_of(text)
    except (ValueError, OverflowError):
        raise Refused(
            f"expected a time (2026-01-31T12:00:00Z, or milliseconds since 1970), not '{text[:60]}'", field="at"
        ) from None


def _parse_partitions(text: str) -> tuple[int, ...]:
    """Parse `0, 2, 5-7`. An empty result means all partitions."""
    numbers: set[int] = set()
    for item in text.replace(",", " ").split():
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", item)
        if match is None or (match[2] and int(match[2]) - int(match[1]) > 10_000):
            raise Refused(f"expected partition numbers such as 0, 2, 5-7, not '{item[:60]}'", field="partition")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(numbers))


async def find_topic(context: Context, name: str) -> Topic | None:
    """Return the topic, or None if it does not exist. Takes a new sample if the last one lacks the
    topic, which may have been created since."""
    topic = (await context.cluster.state()).topics.get(name)
    if topic is None and name:
        context.cluster.mark_stale()
        topic = (await context.cluster.state()).topics.get(name)
    return topic
