"""Operations on messages: search, read, produce and copy."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated

from kavka.client.consumer.records import ConsumerRecord
from kavka.console import showing, writing
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.filters import Message
from kavka.console.messages import Start, read_one
from kavka.console.pages.message_query import (
    DEFAULT_ROWS,
    MAX_ROWS,
    MessageQuery,
    client_settings,
    find_topic,
)
from kavka.console.registry import Bounds, Done, action, query
from kavka.console.searches import MAX_RUNNING_SEARCHES, running_searches
from kavka.console.showing import MessageRow

MAX_SEARCH_S = 60.0
MAX_SCHEMA_IN_URL = 20_000


@dataclass(frozen=True, slots=True)
class Found:
    """The messages of a search. `cursor` continues the search. `done` means that all messages were
    searched."""

    messages: list[MessageRow]
    scanned: int
    cursor: str
    done: bool
    notices: list[str] = field(default_factory=list)


@query("/messages", "Search the messages of a topic", topics=("topic",))
async def find_messages(
    context: Context,
    topic: str,
    start: Annotated[str, "newest, oldest, offset or time"] = Start.NEWEST,
    at: Annotated[str, "The offset or the time (ISO 8601 or milliseconds) of the start"] = "",
    partition: Annotated[str, "Partitions such as 0, 2, 5-7. Default: all"] = "",
    limit: Annotated[int, "Maximum number of messages", Bounds(1, MAX_ROWS)] = DEFAULT_ROWS,
    key: Annotated[str, "Part of the key"] = "",
    text: Annotated[str, "Part of the key, the value or a header"] = "",
    header: Annotated[str, "The name of a header, or name=part of its value"] = "",
    path: Annotated[str, "A JSON path into the value, alone or in a comparison: $.user.id == 42"] = "",
    expression: Annotated[str, "A filter expression, see docs/console-messages.md"] = "",
    key_format: Annotated[str, "auto, text, json, avro, number, double or hex"] = "auto",
    value_format: Annotated[str, "auto, text, json, avro, number, double or hex"] = "auto",
    key_schema: Annotated[str, "Avro schema of the key", Bounds(0, MAX_SCHEMA_IN_URL)] = "",
    value_schema: Annotated[str, "Avro schema of the value", Bounds(0, MAX_SCHEMA_IN_URL)] = "",
    cursor: Annotated[str, "The cursor of an earlier response, to continue its search"] = "",
    committed: Annotated[bool, "Omit messages of transactions that are not committed"] = False,
    seconds: Annotated[float, "Maximum duration of the search", Bounds(0.1, MAX_SEARCH_S)] = 10.0,
) -> Found:
    """Returns the newest messages first, or messages in the order from the oldest, an offset or a
    time. A search that exceeds `seconds` returns fewer messages than `limit`."""
    inputs = MessageQuery(
        topic, start, at, partition, limit, key, text, header, path, expression, key_format, value_format, key_schema,
        value_schema, cursor, committed,
    )  # fmt: skip
    if start == Start.TAIL:
        raise Refused("start cannot be tail: a tail has no end", field="start")
    search = await inputs.start_search(context)
    rows: list[MessageRow] = []
    notices: list[str] = []
    deadline = time.monotonic() + seconds
    async with running_searches, aclosing(search.events()) as events:
        async for event in events:
            if event.kind == "hits":
                rows += await showing.rows(event.data, showing.MAX_LIST_TEXT)
            elif event.kind == "notice":
                notices.append(event.data)
            elif event.kind == "progress" and time.monotonic() > deadline:
                notices.append(f"the search was stopped after {seconds:g} s")
                break
    progress = search.progress
    return Found(rows, progress.scanned, progress.cursor, progress.done, notices)


@query("/searches", "Count the running searches of this console", everywhere=True)
async def count_searches(context: Context) -> dict[str, int]:
    return {"running": running_searches.count, "most": MAX_RUNNING_SEARCHES}


@query("/messages/one", "Read a message", topics=("topic",))
async def get_message(
    context: Context,
    topic: str,
    partition: Annotated[int, Bounds(0)],
    offset: Annotated[int, Bounds(0)],
    key_format: str = "auto",
    value_format: str = "auto",
    key_schema: Annotated[str, Bounds(0, MAX_SCHEMA_IN_URL)] = "",
    value_schema: Annotated[str, Bounds(0, MAX_SCHEMA_IN_URL)] = "",
) -> MessageRow:
    inputs = MessageQuery(
        topic, key_format=key_format, value_format=value_format, key_schema=key_schema, value_schema=value_schema
    )
    message = await read_message(context, inputs, partition, offset)
    return (await showing.rows([message], showing.MAX_TEXT))[0]


async def read_message(context: Context, inputs: MessageQuery, partition: int, offset: int) -> Message:
    """Return the message at this offset, with the decoders of `inputs`. Raises Refused if the topic
    or the message does not exist."""
    search = await inputs.start_search(context)
    return Message(await read_record(context, inputs.topic, partition, offset), search.query.filter)


async def read_record(context: Context, topic: str, partition: int, offset: int) -> ConsumerRecord:
    """Return the record at this offset. Raises Refused (404) if there is none."""
    record = await read_one(client_settings(context), topic, partition, offset)
    if record is None:
        raise Refused(f"{topic} has no message at offset {offset} of partition {partition}", 404)
    return record


@action("/messages/produce", "Produce a message", topics=("topic",))
async def produce_message(
    context: Context,
    topic: str,
    value: Annotated[str, "The value in its format"] = "",
    key: Annotated[str, "The key in its format"] = "",
    value_format: Annotated[str, ", ".join(writing.FORMATS)] = "text",
    key_format: Annotated[str, ", ".join(writing.FORMATS)] = "null",
    headers: Annotated[str, "A header per line: name: value"] = "",
    partition: Annotated[int | None, "Default: selected by the key", Bounds(0)] = None,
    value_schema: Annotated[str, "Avro schema of the value"] = "",
    key_schema: Annotated[str, "Avro schema of the key"] = "",
) -> Done:
    await _check_topic(context, topic, partition, "topic", "partition")
    if key and key_format == "null":
        key_format = "text"
    sent = await writing.send(
        client_settings(context),
        topic,
        partition,
        writing.encode("key", key, key_format, key_schema),
        writing.encode("value", value, value_format, value_schema),
        writing.headers_of(headers),
    )
    context.cluster.mark_stale()
    return Done(f"produced to {topic}, partition {sent.partition}, offset {sent.offset}")


@action(
    "/messages/copy", "Produce a copy of a message with the same key, value and headers", topics=("topic", "to_topic")
)
async def copy_message(
    context: Context,
    topic: str,
    partition: Annotated[int, Bounds(0)],
    offset: Annotated[int, Bounds(0)],
    to_topic: str,
    to_partition: Annotated[int | None, "Default: selected by the key", Bounds(0)] = None,
) -> Done:
    await _check_topic(context, to_topic, to_partition, "to_topic", "to_partition")
    if context.cluster.masks.of(topic) and to_topic != topic:
        raise Refused(f"parts of the messages of {topic} are masked: they cannot be copied", 403, "to_topic")
    record = await read_record(context, topic, partition, offset)
    sent = await writing.copy(client_settings(context), record, to_topic, to_partition)
    context.cluster.mark_stale()
    return Done(f"copied to {to_topic}, partition {sent.partition}, offset {sent.offset}")


async def _check_topic(context: Context, topic: str, partition: int | None, topic_field: str, field: str) -> None:
    """Raise Refused unless the topic exists, is not internal and has the partition. Producing must
    not create a topic."""
    target = await find_topic(context, topic)
    if target is None:
        raise Refused(f"there is no topic '{topic[:250]}'; nothing was sent", 404, topic_field)
    if target.internal:
        raise Refused(f"{topic} is internal; nothing was sent", field=topic_field)
    if partition is not None and partition >= len(target.partitions):
        raise Refused(f"{topic} has {len(target.partitions)} partitions; nothing was sent", field=field)
