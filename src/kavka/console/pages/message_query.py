"""The inputs of a message search, from a request to a `Search`, and the limit on searches."""

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
MAX_RUNNING = 8
"""The maximum number of searches that run in this console at a time."""


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """The inputs of a request, by name. Not validated until `search`."""

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
        """As `search`; raises Refused (404) if the topic does not exist."""
        if await find_topic(context, self.topic) is None:
            raise Refused(f"there is no topic '{self.topic[:250]}'", 404, "topic")
        return self.search(context)

    def search(self, context: Context) -> Search:
        """Validate the inputs and create the search. Raises Refused with the invalid input."""
        if self.start not in Start.ALL:
            raise Refused(f"start must be one of {', '.join(Start.ALL)}", field="start")
        for name in ("key_format", "value_format"):
            if getattr(self, name) not in DECODERS:
                raise Refused(f"{name} must be one of {', '.join(DECODERS)}", field=name)
        at = 0
        if self.start == Start.OFFSET:
            at = _number("at", self.at, "an offset")
        elif self.start == Start.TIME:
            at = _moment(self.at)
        filters: dict[str, Any] = {}
        for name in ("key", "text", "header", "path", "expression"):
            filters[name] = getattr(self, name)
            if name in ("header", "path", "expression") and filters[name]:
                _checked(name, lambda name=name: Filter(self.topic, **{name: getattr(self, name)}))
        for name in ("key_schema", "value_schema"):
            schema, decoder = getattr(self, name), getattr(self, name.replace("schema", "format"))
            if schema.strip() and decoder == "avro":
                _checked(name, lambda name=name, schema=schema: Filter(
                    self.topic, **{name: schema, name.replace("schema", "decoder"): "avro"}
                ))  # fmt: skip
        message_filter = Filter(
            self.topic,
            **filters,
            key_decoder=self.key_format,
            value_decoder=self.value_format,
            key_schema=self.key_schema,
            value_schema=self.value_schema,
        )
        query = Query(
            self.topic,
            message_filter,
            self.start,
            at,
            _partitions(self.partition),
            self.limit,
            self.cursor,
            self.committed,
        )
        return Search(query, client_of(context))


def client_of(context: Context) -> dict[str, Any]:
    return {**CLIENT_DEFAULTS, **context.cluster.settings.client}


def _checked(name: str, make: Any) -> None:
    try:
        make()
    except (BadExpression, BadSchema) as error:
        raise Refused(f"{name}: {error}", field=name) from None


def _number(name: str, text: str, expected: str) -> int:
    if not re.fullmatch(r"\d{1,19}", text.strip()):
        raise Refused(f"{expected} is expected, not '{text[:60]}'", field=name)
    return int(text)


def _moment(text: str) -> int:
    """Parse milliseconds since the epoch, or an ISO 8601 time."""
    text = text.strip()
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        return milliseconds_of(text)
    except (ValueError, OverflowError):
        raise Refused(
            f"a time is expected: 2026-01-31T12:00:00Z, or milliseconds since 1970, not '{text[:60]}'", field="at"
        ) from None


def _partitions(text: str) -> tuple[int, ...]:
    """Parse `0, 2, 5-7`. An empty result means all partitions."""
    numbers: set[int] = set()
    for piece in text.replace(",", " ").split():
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", piece)
        if match is None or (match[2] and int(match[2]) - int(match[1]) > 10_000):
            raise Refused(f"partitions are numbers, as in 0, 2, 5-7; not '{piece[:60]}'", field="partition")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(numbers))


async def find_topic(context: Context, name: str) -> Topic | None:
    """The topic, if necessary from a new sample: the last one lacks a topic created since."""
    topic = (await context.cluster.state()).topics.get(name)
    if topic is None and name:
        context.cluster.changed()
        topic = (await context.cluster.state()).topics.get(name)
    return topic


class RunningSearches:
    """Counts the running searches of this console. A search runs inside `async with`, which raises
    Refused (429) above MAX_RUNNING."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> None:
        if self.count >= MAX_RUNNING:
            raise Refused(f"{MAX_RUNNING} searches are running in this console: stop one, or wait", 429)
        self.count += 1

    async def __aexit__(self, *exc: object) -> None:
        self.count -= 1


running_searches = RunningSearches()
