"""Messages: search, read, produce and copy."""

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
    MAX_RUNNING,
    MessageQuery,
    client_of,
    find_topic,
    running_searches,
)
from kavka.console.registry import Bounds, Done, action, query
from kavka.console.showing import MessageRow

LONGEST_S = 60.0
MAX_SCHEMA_IN_URL = 20_000


@dataclass(frozen=True, slots=True)
class Found:
    """The messages of a search. `cursor` continues the search; `done` means that no messages are
    left."""

    messages: list[MessageRow]
    scanned: int
    cursor: str
    done: bool
    notices: list[str] = field(default_factory=list)


@query("/messages", "Messages of a topic that fit")
async def find_messages(
    context: Context,
    topic: str,
    start: Annotated[str, "newest, oldest, offset or time"] = Start.NEWEST,
    at: Annotated[str, "The offset, or the time (ISO 8601, or milliseconds)"] = "",
    partition: Annotated[str, "As in 0, 2, 5-7; all if empty"] = "",
    limit: Annotated[int, "How many at most", Bounds(1, MAX_ROWS)] = DEFAULT_ROWS,
    key: Annotated[str, "A part of the key"] = "",
    text: Annotated[str, "A part of the key, the value or a header"] = "",
    header: Annotated[str, "The name of a header, or name=part of its value"] = "",
    path: Annotated[str, "A JSON path into the value, alone or compared: $.user.id == 42"] = "",
    expression: Annotated[str, "See docs/console.md"] = "",
    key_format: Annotated[str, "auto, text, json, avro, number, double or hex"] = "auto",
    value_format: Annotated[str, "The same for values"] = "auto",
    key_schema: Annotated[str, "Of Avro", Bounds(0, MAX_SCHEMA_IN_URL)] = "",
    value_schema: Annotated[str, "Of Avro", Bounds(0, MAX_SCHEMA_IN_URL)] = "",
    cursor: Annotated[str, "Of the last answer: go on behind it"] = "",
    committed: Annotated[bool, "Leave out what transactions have not committed"] = False,
    seconds: Annotated[float, "How long to look at most", Bounds(0.1, LONGEST_S)] = 10.0,
) -> Found:
    """Newest first, or in order from an offset or a time on. `cursor` continues after an earlier
    response. A search that ran out of time returns fewer messages than `limit`."""
    inputs = MessageQuery(
        topic, start, at, partition, limit, key, text, header, path, expression, key_format, value_format, key_schema,
        value_schema, cursor, committed,
    )  # fmt: skip
    if start == Start.TAIL:
        raise Refused("a tail has no end: it is for the page", field="start")
    search = await inputs.start_search(context)
    rows: list[MessageRow] = []
    notices: list[str] = []
    until = time.monotonic() + seconds
    async with running_searches, aclosing(search.events()) as events:
        async for event in events:
            if event.kind == "hits":
                rows += await showing.rows(event.data, showing.LIST_TEXT)
            elif event.kind == "notice":
                notices.append(event.data)
            elif event.kind == "progress" and time.monotonic() > until:
                notices.append(f"the time of {seconds:g} s was up")
                break
    progress = search.progress
    return Found(rows, progress.scanned, progress.cursor, progress.done, notices)


@query("/searches", "How many searches run in this console now", everywhere=True)
async def count_searches(context: Context) -> dict[str, int]:
    return {"running": running_searches.count, "most": MAX_RUNNING}


@query("/messages/one", "One message, whole")
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
    message = await read_message(context, topic, partition, offset, key_format, value_format, key_schema, value_schema)
    return (await showing.rows([message], showing.MAX_TEXT))[0]


async def read_message(
    context: Context,
    topic: str,
    partition: int,
    offset: int,
    key_format: str = "auto",
    value_format: str = "auto",
    key_schema: str = "",
    value_schema: str = "",
) -> Message:
    inputs = MessageQuery(
        topic, key_format=key_format, value_format=value_format, key_schema=key_schema, value_schema=value_schema
    )
    search = await inputs.start_search(context)
    return Message(await read_record(context, topic, partition, offset), search.query.filter)


async def read_record(context: Context, topic: str, partition: int, offset: int) -> ConsumerRecord:
    record = await read_one(client_of(context), topic, partition, offset)
    if record is None:
        raise Refused(f"{topic} has no message at offset {offset} of partition {partition} (any more)", 404)
    return record


@action("/messages/produce", "Produce a message")
async def produce_message(
    context: Context,
    topic: str,
    value: Annotated[str, "As its format says"] = "",
    key: str = "",
    value_format: Annotated[str, ", ".join(writing.FORMATS)] = "text",
    key_format: Annotated[str, "The same for the key; null: no key"] = "null",
    headers: Annotated[str, "A line for each: name: value"] = "",
    partition: Annotated[int | None, "Chosen by the key if empty", Bounds(0)] = None,
    value_schema: Annotated[str, "Of Avro"] = "",
    key_schema: Annotated[str, "Of Avro"] = "",
) -> Done:
    await _check_topic(context, topic, partition, "topic", "partition")
    if key and key_format == "null":
        key_format = "text"
    sent = await writing.send(
        client_of(context),
        topic,
        partition,
        writing.encoded("key", key, key_format, key_schema),
        writing.encoded("value", value, value_format, value_schema),
        writing.headers_of(headers),
    )
    context.cluster.changed()
    return Done(f"produced to {topic}, partition {sent.partition}, offset {sent.offset}")


@action("/messages/copy", "Copy a message: the same bytes and headers, once more")
async def copy_message(
    context: Context,
    topic: str,
    partition: Annotated[int, Bounds(0)],
    offset: Annotated[int, Bounds(0)],
    to_topic: str,
    to_partition: Annotated[int | None, "Chosen by the key if empty", Bounds(0)] = None,
) -> Done:
    await _check_topic(context, to_topic, to_partition, "to_topic", "to_partition")
    record = await read_record(context, topic, partition, offset)
    sent = await writing.copy(client_of(context), record, to_topic, to_partition)
    context.cluster.changed()
    return Done(f"copied to {to_topic}, partition {sent.partition}, offset {sent.offset}")


async def _check_topic(context: Context, topic: str, partition: int | None, topic_field: str, field: str) -> None:
    """Raise Refused unless the topic exists and is not internal: producing creates no topic."""
    target = await find_topic(context, topic)
    if target is None:
        raise Refused(f"there is no topic '{topic[:250]}'; nothing was sent", 404, topic_field)
    if target.internal:
        raise Refused(f"{topic} is internal: nothing is written to it by hand", field=topic_field)
    if partition is not None and partition >= len(target.partitions):
        raise Refused(f"{topic} has {len(target.partitions)} partitions, from 0 on; nothing was sent", field=field)
