"""Searches messages: backwards from the newest, forwards from the oldest, an offset or a time, or
live (tail).

A search reads the partitions with its own consumer and filters every message. `Search.events()`
yields hits, progress, notices and an end, and stops reading when it is closed. It holds only the
consumer's buffers (bounded by `BUFFER`, for any number of partitions) and one round of hits.

A search ends with a cursor: the next offset of each partition, or backwards the upper bound. With
it the next page neither repeats nor omits a message.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kavka.client.consumer.aio import Consumer
from kavka.client.consumer.errors import UnreadableBatch
from kavka.client.consumer.records import ConsumerRecord
from kavka.common.types import TopicPartition
from kavka.console.errors import Refused
from kavka.console.filters import Filter, Message
from kavka.console.workers import mapped

BUFFER = 24 * 1024 * 1024
MAX_PARTITIONS_AT_ONCE = 32
SMALLEST_FETCH, LARGEST_FETCH = 32 * 1024, 1024 * 1024
CHUNK = 1000
"""The maximum number of messages of a poll."""
FLUSH_S = 0.1
PROGRESS_S = 0.25
ROUND_S = 0.2
"""The target time of a round of a backwards search; hits are yielded at the end of a round."""
ROUND_BYTES = 16 * 1024 * 1024
"""The maximum size of the hits of a round."""
STALL_S = 15.0
"""A search without data from any partition for this long ends with a notice."""
MAX_TAILED = 500
"""The maximum number of messages per second of a tail; the others are only counted."""

Ranges = dict[TopicPartition, tuple[int, int]]


class Start:
    """Where a search starts."""

    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"
    TAIL = "tail"
    ALL = (NEWEST, OLDEST, OFFSET, TIME, TAIL)


@dataclass(frozen=True, slots=True)
class Query:
    """A search. `at` is the offset or the time (ms) of those starts. `cursor` continues another
    search. No `partitions` means all."""

    topic: str
    filter: Filter
    start: str = Start.NEWEST
    at: int = 0
    partitions: tuple[int, ...] = ()
    limit: int = 50
    cursor: str = ""
    committed: bool = False


class Event(NamedTuple):
    """`kind`: hits (a list of Message), progress and end (a Progress), notice (a line)."""

    kind: str
    data: Any


@dataclass(slots=True)
class Progress:
    """The progress of a search; also its result."""

    scanned: int = 0
    bytes: int = 0
    hits: int = 0
    total: int | None = None
    """The number of offsets in the range of the search; None for a tail."""
    seconds: float = 0.0
    dropped: int = 0
    cursor: str = ""
    done: bool = False
    """Whether all messages were searched. Otherwise the cursor continues the search."""


@dataclass
class Search:
    """A running search and its progress. `client` has the settings of the consumer."""

    query: Query
    client: Mapping[str, Any]
    progress: Progress = field(default_factory=Progress)
    _stalled: bool = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run until the limit is reached, all messages were searched, or the iterator is closed.
        Raises the errors of the cluster."""
        began = time.monotonic()
        query = self.query
        async with _consumer(self.client, query) as consumer:
            partitions, leaderless = await _partitions(consumer, query)
            if leaderless:
                yield Event("notice", f"no leader, so not read: {_numbers(leaderless)}")
            if not partitions:
                raise Refused("none of the partitions has a leader now: try again when its brokers are back", 503)
            if query.start == Start.TAIL:
                steps = self._tail(consumer, partitions)
            elif query.start == Start.NEWEST:
                steps = self._backwards(consumer, partitions)
            else:
                steps = self._forwards(consumer, partitions)
            reported = time.monotonic()
            undecided = 0
            async with aclosing(steps):
                async for result in steps:
                    now = time.monotonic()
                    self.progress.seconds = now - began
                    if query.filter.undecided and not undecided:
                        undecided = query.filter.undecided
                        yield Event("notice", f"not compared: {query.filter.first_undecided}")
                    if isinstance(result, str):
                        yield Event("notice", result)
                        continue
                    if result:
                        self.progress.hits += len(result)
                        yield Event("hits", result)
                    if now - reported >= PROGRESS_S:
                        reported = now
                        yield Event("progress", self.progress)
            if query.filter.undecided > undecided:
                yield Event("notice", f"{query.filter.undecided} messages were not compared")
            self.progress.seconds = time.monotonic() - began
            yield Event("end", self.progress)

    # --- forwards

    async def _forwards(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> AsyncGenerator[list[Message] | str, None]:
        query, progress = self.query, self.progress
        first = await consumer.beginning_offsets(partitions)
        last = await consumer.end_offsets(partitions)
        at = await self._starts(consumer, partitions, first, last)
        progress.total = sum(max(0, last[tp] - at[tp]) for tp in partitions)
        hits: list[Message] = []
        flushed = time.monotonic()
        left = query.limit
        for group in _groups(tp for tp in partitions if at[tp] < last[tp]):
            reading = self._read(consumer, {tp: (at[tp], last[tp]) for tp in group})
            async with aclosing(reading):
                async for tp, records, after in reading:
                    if isinstance(records, str):
                        yield records
                        continue
                    async with aclosing(self._matches(records)) as slices:
                        async for matches, seen in slices:
                            hits += matches[:left]
                            left -= len(matches[:left])
                            at[tp] = (hits[-1].record if not left else seen[-1]).offset + 1
                            progress.cursor = _cursor(at)
                            if not left:
                                progress.scanned -= sum(record.offset >= at[tp] for record in seen)
                                yield _by_time(hits)
                                return
                            if time.monotonic() - flushed >= FLUSH_S:
                                flushed = time.monotonic()
                                yield _by_time(hits)
                                hits = []
                    at[tp] = after
                    progress.cursor = _cursor(at)
            if self._stalled:
                yield _by_time(hits)
                return
        progress.cursor = _cursor({tp: max(at[tp], last[tp]) for tp in partitions})
        progress.done = True
        yield _by_time(hits)

    async def _starts(
        self,
        consumer: Consumer,
        partitions: list[TopicPartition],
        first: Mapping[TopicPartition, int],
        last: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        query = self.query
        if query.cursor:
            cursor = _read_cursor(query.cursor, query.topic)
            return {tp: min(max(cursor.get(tp, first[tp]), first[tp]), last[tp]) for tp in partitions}
        if query.start == Start.OFFSET:
            return {tp: min(max(query.at, first[tp]), last[tp]) for tp in partitions}
        if query.start == Start.TIME:
            by_time = await consumer.offsets_for_times(dict.fromkeys(partitions, max(0, query.at)))
            return {tp: last[tp] if (start := by_time.get(tp)) is None else start.offset for tp in partitions}
        return {tp: first[tp] for tp in partitions}

    # --- backwards

    async def _backwards(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> AsyncGenerator[list[Message] | str, None]:
        """Search rounds of ranges, each further back. The hits of a round, newest first, are
        limited to the remaining number; the next page finds the omitted hits again."""
        query, progress = self.query, self.progress
        first = await consumer.beginning_offsets(partitions)
        below = await consumer.end_offsets(partitions)
        if query.cursor:
            cursor = _read_cursor(query.cursor, query.topic)
            below = {tp: max(min(cursor.get(tp, below[tp]), below[tp]), first[tp]) for tp in partitions}
        progress.total = sum(max(0, below[tp] - first[tp]) for tp in partitions)
        left = query.limit
        width = query.limit if query.filter.takes_all else max(query.limit, CHUNK)
        unfinished = [tp for tp in partitions if below[tp] > first[tp]]
        while unfinished and left:
            began = time.monotonic()
            floor = {tp: max(first[tp], below[tp] - width) for tp in unfinished}
            hits = _Newest(left)
            for group in _groups(unfinished):
                reading = self._read(consumer, {tp: (floor[tp], below[tp]) for tp in group})
                async with aclosing(reading):
                    async for tp, records, _ in reading:
                        if isinstance(records, str):
                            yield records
                            continue
                        async with aclosing(self._matches(records)) as slices:
                            async for matches, _ in slices:
                                hits.add(tp, matches)
                                # Yield so that progress is sent and a disconnect is detected.
                                yield []
            shown = hits.take()
            if self._stalled:
                yield shown
                return
            for tp in unfinished:
                mine = [m.record.offset for m in shown if m.record.partition == tp.partition]
                below[tp] = floor[tp] if len(mine) == hits.seen[tp] else min(mine, default=below[tp])
            left -= len(shown)
            progress.cursor = _cursor(below)
            yield shown
            unfinished = [tp for tp in partitions if below[tp] > first[tp]]
            took = time.monotonic() - began
            if hits.full:
                width = max(width // 2, 1)
            elif took < ROUND_S / 2:
                width = min(width * 2, 1_000_000)
            elif took > ROUND_S:
                width = max(width // 2, query.limit, 100)
        progress.done = not unfinished

    # --- tail

    async def _tail(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> AsyncGenerator[list[Message] | str, None]:
        progress = self.progress
        ends = await consumer.end_offsets(partitions)
        await consumer.assign(partitions)
        for tp in partitions:
            await consumer.seek(tp, ends[tp])
        second, shown = time.monotonic(), 0
        yield "waiting for messages"
        while True:
            try:
                records = await consumer.poll(FLUSH_S * 2, CHUNK)
            except UnreadableBatch as error:
                yield await _skip(consumer, error)
                continue
            now = time.monotonic()
            if now - second >= 1:
                second, shown = now, 0
            async with aclosing(self._matches(list(records))) as slices:
                async for matches, _ in slices:
                    hits = matches[: MAX_TAILED - shown]
                    shown += len(hits)
                    progress.dropped += len(matches) - len(hits)
                    yield _by_time(hits)
            # Yield without messages as well: a disconnect is detected when something is sent.
            yield []

    # --- reading

    async def _read(
        self, consumer: Consumer, ranges: Ranges
    ) -> AsyncGenerator[tuple[TopicPartition, list[ConsumerRecord] | str, int], None]:
        """Read the ranges: (partition, records or notice, next offset). Ends when every partition
        has reached its end. Offsets without a record (deleted, compacted, transaction markers) are
        skipped."""
        await consumer.assign(ranges)
        await consumer.resume(ranges)
        for tp, (start, _) in ranges.items():
            await consumer.seek(tp, start)
        left = set(ranges)
        last_data = time.monotonic()
        while left:
            try:
                records = await consumer.poll(FLUSH_S, CHUNK)
            except UnreadableBatch as error:
                tp = error.topic_partition
                yield tp, await _skip(consumer, error), 0
                if error.next_offset is None:
                    left.discard(tp)
                last_data = time.monotonic()
                continue
            now = time.monotonic()
            for tp in records.partitions:
                if tp not in left:
                    continue
                batch = records.records(tp)
                last_data = now
                after, end = batch[-1].offset + 1, ranges[tp][1]
                if after >= end:
                    batch = [record for record in batch if record.offset < end]
                if batch:
                    yield tp, batch, min(after, end)
            for tp in list(left):
                position = await consumer.position(tp, 10)
                if position >= ranges[tp][1]:
                    left.discard(tp)
                    last_data = now
                    await consumer.pause([tp])
                    yield tp, [], ranges[tp][1]
            if left and now - last_data > STALL_S:
                self._stalled = True
                yield next(iter(left)), f"nothing came for {STALL_S:.0f} s; not read to the end: {_numbers(left)}", 0
                return
            if not records:
                await asyncio.sleep(0)

    async def _matches(
        self, records: list[ConsumerRecord]
    ) -> AsyncGenerator[tuple[list[Message], list[ConsumerRecord]], None]:
        """The matching messages of a slice, and the records of the slice."""
        start = 0
        async for matches in mapped(self.query.filter.match, records):
            seen = records[start : start + len(matches)]
            start += len(matches)
            self.progress.scanned += len(seen)
            self.progress.bytes += sum([max(0, record.serialized_value_size) for record in seen])
            yield [message for message in matches if message is not None], seen


async def _skip(consumer: Consumer, error: UnreadableBatch) -> str:
    """Skip an unreadable batch and return a notice. If its end is unknown, the partition is
    paused."""
    tp = error.topic_partition
    if error.next_offset is None:
        await consumer.pause([tp])
        return f"partition {tp.partition} is not read from offset {error.offset} on: {error.reason}"
    await consumer.seek(tp, error.next_offset)
    return f"offsets {error.offset} to {error.next_offset - 1} of partition {tp.partition} are not read: {error.reason}"


async def read_one(client: Mapping[str, Any], topic: str, partition: int, offset: int) -> ConsumerRecord | None:
    """The message at this offset, None if it does not exist."""
    tp = TopicPartition(topic, partition)
    query = Query(topic, Filter(topic), partitions=(partition,))
    async with _consumer(client, query) as consumer:
        await _partitions(consumer, query)
        first, last = await consumer.beginning_offsets([tp]), await consumer.end_offsets([tp])
        if not first[tp] <= offset < last[tp]:
            return None
        search = Search(query, client)
        reading = search._read(consumer, {tp: (offset, offset + 1)})
        async with aclosing(reading):
            async for _, records, _ in reading:
                if isinstance(records, str):
                    raise Refused(records, 504)
                for record in records:
                    return record if record.offset == offset else None
    return None


def _consumer(client: Mapping[str, Any], query: Query) -> Consumer:
    return Consumer(
        {
            **client,
            "enable.auto.commit": "false",
            "allow.auto.create.topics": "false",
            "auto.offset.reset": "earliest",
            "exclude.internal.topics": "false",
            "isolation.level": "read_committed" if query.committed else "read_uncommitted",
            "max.partition.fetch.bytes": str(
                LARGEST_FETCH
                if query.start != Start.TAIL and len(query.partitions) == 1
                else max(SMALLEST_FETCH, min(LARGEST_FETCH, BUFFER // (2 * MAX_PARTITIONS_AT_ONCE)))
            ),
            "fetch.max.bytes": str(BUFFER // 3),
            "fetch.max.wait.ms": "100",
        }
    )


async def _partitions(consumer: Consumer, query: Query) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """The partitions to read, and those without a leader."""
    infos = await consumer.partitions_for(query.topic, 10)
    leaders = {p.partition: p.leader for p in infos}
    for partition in query.partitions:
        if partition not in leaders:
            raise Refused(f"{query.topic} has no partition {partition}", 404, "partition")
    selected = sorted(query.partitions or leaders)
    return (
        [TopicPartition(query.topic, p) for p in selected if leaders[p] >= 0],
        [TopicPartition(query.topic, p) for p in selected if leaders[p] < 0],
    )


def _groups(partitions: Iterable[TopicPartition]) -> list[list[TopicPartition]]:
    remaining = list(partitions)
    return [remaining[i : i + MAX_PARTITIONS_AT_ONCE] for i in range(0, len(remaining), MAX_PARTITIONS_AT_ONCE)]


def _by_time(messages: list[Message]) -> list[Message]:
    return sorted(messages, key=lambda m: m.record.timestamp)


class _Newest:
    """The newest hits of a round, limited in number and to `ROUND_BYTES`; `seen` counts all hits by
    partition."""

    def __init__(self, limit: int) -> None:
        self.seen: Counter[TopicPartition] = Counter()
        self.full = False
        """Whether hits were dropped because of their size."""
        self._limit = limit
        self._held: dict[TopicPartition, deque[Message]] = {}
        self._bytes = 0

    def add(self, tp: TopicPartition, messages: list[Message]) -> None:
        """Add hits in the order of their offsets."""
        self.seen[tp] += len(messages)
        for message in messages:
            held = self._held.setdefault(tp, deque())
            held.append(message)
            self._bytes += message.size
            if len(held) > self._limit:
                self._bytes -= held.popleft().size
            while self._bytes > ROUND_BYTES and sum(map(len, self._held.values())) > 1:
                self.full = True
                oldest = min((h for h in self._held.values() if h), key=lambda h: h[0].record.timestamp)
                self._bytes -= oldest.popleft().size

    def take(self) -> list[Message]:
        """The hits of all partitions, newest first. Within a partition they are ordered by
        offset."""
        merged = heapq.merge(
            *(reversed(held) for held in self._held.values()),
            key=lambda m: (-m.record.timestamp, m.record.partition),
        )
        return [message for message, _ in zip(merged, range(self._limit), strict=False)]


def _numbers(partitions: Iterable[TopicPartition]) -> str:
    numbers = sorted(tp.partition for tp in partitions)
    more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:10]))}{more}"


def _cursor(offsets: Mapping[TopicPartition, int]) -> str:
    return ",".join(f"{tp.partition}:{offset}" for tp, offset in sorted(offsets.items()))


def _read_cursor(text: str, topic: str) -> dict[TopicPartition, int]:
    try:
        pairs = [piece.split(":") for piece in text.split(",")]
        return {TopicPartition(topic, int(partition)): int(offset) for partition, offset in pairs}
    except ValueError:
        raise Refused("the address of this page is damaged: search again", 400, "cursor") from None
