"""Searches messages: backwards from the newest, forwards from the oldest, an offset or a time, or
live (tail).

A search reads the partitions with its own consumer and filters every message. `Search.events()`
yields hits, progress, notices and an end, and stops reading when it is closed. Its memory is
limited to the consumer's buffers (`MAX_BUFFER_BYTES`, for any number of partitions) and one round
of hits.

A search ends with a cursor: by partition the next offset, or in a backwards search the upper bound.
A search that continues at the cursor neither repeats nor omits a message.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from kavka.client.consumer.aio import Consumer
from kavka.client.consumer.errors import UnreadableBatch
from kavka.client.consumer.records import ConsumerRecord
from kavka.common.types import TopicPartition
from kavka.console.errors import Refused
from kavka.console.filters import Filter, Message
from kavka.console.workers import mapped

MAX_BUFFER_BYTES = 24 * 1024 * 1024
MAX_PARTITIONS_AT_ONCE = 32
MIN_FETCH_BYTES, MAX_FETCH_BYTES = 32 * 1024, 1024 * 1024
MAX_POLL_RECORDS = 1000
"""The maximum number of messages per poll."""
FLUSH_INTERVAL_S = 0.1
PROGRESS_INTERVAL_S = 0.25
ROUND_TARGET_S = 0.2
"""The target duration of a round of a backwards search. A round yields its hits at its end."""
MAX_ROUND_BYTES = 16 * 1024 * 1024
"""The maximum size of the hits of a round."""
STALL_TIMEOUT_S = 15.0
"""A search that receives no data for this long ends with a notice."""
MAX_TAIL_RATE = 500
"""The maximum number of messages per second of a tail. Further messages are only counted."""

Ranges = dict[TopicPartition, tuple[int, int]]


class Start:
    """The start positions of a search."""

    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"
    TAIL = "tail"
    ALL = (NEWEST, OLDEST, OFFSET, TIME, TAIL)


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of a search. `at` is the start offset (OFFSET) or the start time in ms (TIME).
    `cursor` continues an earlier search. Without `partitions` the search reads all partitions."""

    topic: str
    filter: Filter
    start: str = Start.NEWEST
    at: int = 0
    partitions: tuple[int, ...] = ()
    limit: int = 50
    cursor: str = ""
    committed: bool = False


class Event(NamedTuple):
    """An event of a search. Its data is a list of Message for the kind `hits`, a Progress for
    `progress` and `end`, and a line of text for `notice`."""

    kind: str
    data: Any


@dataclass(slots=True)
class Progress:
    """The progress of a search; also its result."""

    scanned: int = 0
    bytes: int = 0
    hits: int = 0
    total: int | None = None
    """The number of offsets in the range of the search. None for a tail."""
    seconds: float = 0.0
    dropped: int = 0
    cursor: str = ""
    done: bool = False
    """Whether all messages were searched. Otherwise the cursor continues the search."""


@dataclass
class Search:
    """A running search and its progress. `client` contains the settings of the consumer."""

    query: Query
    client: Mapping[str, Any]
    progress: Progress = field(default_factory=Progress)
    _is_stalled: bool = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run until the limit is reached, all messages were searched, no data arrives for
        STALL_TIMEOUT_S, or the iterator is closed. Raises KafkaError, and Refused if no partition
        has a leader."""
        began = time.monotonic()
        query = self.query
        async with _consumer(self.client, query) as consumer:
            partitions, leaderless = await _partitions(consumer, query)
            if leaderless:
                yield Event("notice", f"not read, because there is no leader: {_partition_list(leaderless)}")
            if not partitions:
                raise Refused("none of the partitions has a leader: try again when the brokers are running", 503)
            if query.start == Start.TAIL:
                steps = self._tail(consumer, partitions)
            elif query.start == Start.NEWEST:
                steps = self._backwards(consumer, partitions)
            else:
                steps = self._forwards(consumer, partitions)
            reported_at = time.monotonic()
            reported_undecided = 0
            async with aclosing(steps):
                async for result in steps:
                    now = time.monotonic()
                    self.progress.seconds = now - began
                    if query.filter.undecided_count and not reported_undecided:
                        reported_undecided = query.filter.undecided_count
                        yield Event("notice", f"not compared: {query.filter.first_undecided}")
                    if isinstance(result, str):
                        yield Event("notice", result)
                        continue
                    if result:
                        self.progress.hits += len(result)
                        yield Event("hits", result)
                    if now - reported_at >= PROGRESS_INTERVAL_S:
                        reported_at = now
                        yield Event("progress", self.progress)
            if query.filter.undecided_count > reported_undecided:
                yield Event("notice", f"{query.filter.undecided_count} messages were not compared")
            self.progress.seconds = time.monotonic() - began
            yield Event("end", self.progress)

    # --- forwards

    async def _forwards(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> AsyncGenerator[list[Message] | str, None]:
        query, progress = self.query, self.progress
        log_starts = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        next_offsets = await self._start_offsets(consumer, partitions, log_starts, ends)
        progress.total = sum(max(0, ends[tp] - next_offsets[tp]) for tp in partitions)
        hits: list[Message] = []
        flushed_at = time.monotonic()
        remaining = query.limit
        for group in _partition_chunks(tp for tp in partitions if next_offsets[tp] < ends[tp]):
            reading = self._read(consumer, {tp: (next_offsets[tp], ends[tp]) for tp in group})
            async with aclosing(reading):
                async for tp, records, next_offset in reading:
                    if isinstance(records, str):
                        yield records
                        continue
                    async with aclosing(self._matches(records)) as slices:
                        async for matches, scanned in slices:
                            hits += matches[:remaining]
                            remaining -= len(matches[:remaining])
                            next_offsets[tp] = (scanned[-1] if remaining else hits[-1].record).offset + 1
                            progress.cursor = _cursor(next_offsets)
                            if not remaining:
                                progress.scanned -= sum(record.offset >= next_offsets[tp] for record in scanned)
                                yield _by_time(hits)
                                return
                            if time.monotonic() - flushed_at >= FLUSH_INTERVAL_S:
                                flushed_at = time.monotonic()
                                yield _by_time(hits)
                                hits = []
                    next_offsets[tp] = next_offset
                    progress.cursor = _cursor(next_offsets)
            if self._is_stalled:
                yield _by_time(hits)
                return
        progress.cursor = _cursor({tp: max(next_offsets[tp], ends[tp]) for tp in partitions})
        progress.done = True
        yield _by_time(hits)

    async def _start_offsets(
        self,
        consumer: Consumer,
        partitions: list[TopicPartition],
        log_starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        query = self.query
        if query.cursor:
            cursor = _read_cursor(query.cursor, query.topic)
            return {tp: min(max(cursor.get(tp, log_starts[tp]), log_starts[tp]), ends[tp]) for tp in partitions}
        if query.start == Start.OFFSET:
            return {tp: min(max(query.at, log_starts[tp]), ends[tp]) for tp in partitions}
        if query.start == Start.TIME:
            by_time = await consumer.offsets_for_times(dict.fromkeys(partitions, max(0, query.at)))
            return {tp: ends[tp] if (start := by_time.get(tp)) is None else start.offset for tp in partitions}
        return {tp: log_starts[tp] for tp in partitions}

    # --- backwards

    async def _backwards(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> AsyncGenerator[list[Message] | str, None]:
        """Search in rounds, each in an earlier range of every partition. A round yields its newest
        hits, at most the remaining number. The next page finds the omitted hits again."""
        query, progress = self.query, self.progress
        log_starts = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        if query.cursor:
            cursor = _read_cursor(query.cursor, query.topic)
            ends = {tp: max(min(cursor.get(tp, ends[tp]), ends[tp]), log_starts[tp]) for tp in partitions}
        progress.total = sum(max(0, ends[tp] - log_starts[tp]) for tp in partitions)
        remaining = query.limit
        width = query.limit if query.filter.matches_all else max(query.limit, MAX_POLL_RECORDS)
        unfinished = [tp for tp in partitions if ends[tp] > log_starts[tp]]
        while unfinished and remaining:
            began = time.monotonic()
            starts = {tp: max(log_starts[tp], ends[tp] - width) for tp in unfinished}
            hits = _NewestHits(remaining)
            for group in _partition_chunks(unfinished):
                reading = self._read(consumer, {tp: (starts[tp], ends[tp]) for tp in group})
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
            newest = hits.newest()
            if self._is_stalled:
                yield newest
                return
            for tp in unfinished:
                offsets = [m.record.offset for m in newest if m.record.partition == tp.partition]
                ends[tp] = starts[tp] if len(offsets) == hits.counts[tp] else min(offsets, default=ends[tp])
            remaining -= len(newest)
            progress.cursor = _cursor(ends)
            yield newest
            unfinished = [tp for tp in partitions if ends[tp] > log_starts[tp]]
            duration = time.monotonic() - began
            if hits.is_full:
                width = max(width // 2, 1)
            elif duration < ROUND_TARGET_S / 2:
                width = min(width * 2, 1_000_000)
            elif duration > ROUND_TARGET_S:
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
        second_began, count = time.monotonic(), 0
        yield "waiting for messages"
        while True:
            try:
                records = await consumer.poll(FLUSH_INTERVAL_S * 2, MAX_POLL_RECORDS)
            except UnreadableBatch as error:
                yield await _skip(consumer, error)
                continue
            now = time.monotonic()
            if now - second_began >= 1:
                second_began, count = now, 0
            async with aclosing(self._matches(list(records))) as slices:
                async for matches, _ in slices:
                    hits = matches[: MAX_TAIL_RATE - count]
                    count += len(hits)
                    progress.dropped += len(matches) - len(hits)
                    yield _by_time(hits)
            # Yield without messages as well: only sending detects a disconnect.
            yield []

    # --- reading

    async def _read(
        self, consumer: Consumer, ranges: Ranges
    ) -> AsyncGenerator[tuple[TopicPartition, list[ConsumerRecord] | str, int], None]:
        """Yield (partition, records or notice, next offset) until every partition has reached the
        end of its range. Offsets without a record (deleted, compacted, transaction markers) are
        skipped. Sets `_is_stalled` and stops if no data arrives for STALL_TIMEOUT_S."""
        await consumer.assign(ranges)
        await consumer.resume(ranges)
        for tp, (start, _) in ranges.items():
            await consumer.seek(tp, start)
        unfinished = set(ranges)
        last_data_at = time.monotonic()
        while unfinished:
            try:
                records = await consumer.poll(FLUSH_INTERVAL_S, MAX_POLL_RECORDS)
            except UnreadableBatch as error:
                tp = error.topic_partition
                yield tp, await _skip(consumer, error), 0
                if error.next_offset is None:
                    unfinished.discard(tp)
                last_data_at = time.monotonic()
                continue
            now = time.monotonic()
            for tp in records.partitions:
                if tp not in unfinished:
                    continue
                batch = records.records(tp)
                last_data_at = now
                next_offset, end = batch[-1].offset + 1, ranges[tp][1]
                if next_offset >= end:
                    batch = [record for record in batch if record.offset < end]
                if batch:
                    yield tp, batch, min(next_offset, end)
            for tp in list(unfinished):
                position = await consumer.position(tp, 10)
                if position >= ranges[tp][1]:
                    unfinished.discard(tp)
                    last_data_at = now
                    await consumer.pause([tp])
                    yield tp, [], ranges[tp][1]
            if unfinished and now - last_data_at > STALL_TIMEOUT_S:
                self._is_stalled = True
                notice = f"no data for {STALL_TIMEOUT_S:.0f} s; not read to the end: {_partition_list(unfinished)}"
                yield next(iter(unfinished)), notice, 0
                return
            if not records:
                await asyncio.sleep(0)

    async def _matches(
        self, records: list[ConsumerRecord]
    ) -> AsyncGenerator[tuple[list[Message], list[ConsumerRecord]], None]:
        """Filter the records in slices. Yields the matching messages and the records of a slice."""
        start = 0
        async for matches in mapped(self.query.filter.match, records):
            scanned = records[start : start + len(matches)]
            start += len(matches)
            self.progress.scanned += len(scanned)
            self.progress.bytes += sum([max(0, record.serialized_value_size) for record in scanned])
            yield [message for message in matches if message is not None], scanned


async def _skip(consumer: Consumer, error: UnreadableBatch) -> str:
    """Skip an unreadable batch, or pause the partition if the end of the batch is unknown. Returns
    a notice."""
    tp = error.topic_partition
    if error.next_offset is None:
        await consumer.pause([tp])
        return f"partition {tp.partition} cannot be read from offset {error.offset}: {error.reason}"
    await consumer.seek(tp, error.next_offset)
    offsets = f"offsets {error.offset} to {error.next_offset - 1}"
    return f"{offsets} of partition {tp.partition} cannot be read: {error.reason}"


async def read_one(client: Mapping[str, Any], topic: str, partition: int, offset: int) -> ConsumerRecord | None:
    """Return the record at this offset, or None if it does not exist. Raises Refused if the
    partition does not exist or cannot be read."""
    tp = TopicPartition(topic, partition)
    query = Query(topic, Filter(topic), partitions=(partition,))
    async with _consumer(client, query) as consumer:
        await _partitions(consumer, query)
        log_starts, ends = await consumer.beginning_offsets([tp]), await consumer.end_offsets([tp])
        if not log_starts[tp] <= offset < ends[tp]:
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
                MAX_FETCH_BYTES
                if query.start != Start.TAIL and len(query.partitions) == 1
                else max(MIN_FETCH_BYTES, min(MAX_FETCH_BYTES, MAX_BUFFER_BYTES // (2 * MAX_PARTITIONS_AT_ONCE)))
            ),
            "fetch.max.bytes": str(MAX_BUFFER_BYTES // 3),
            "fetch.max.wait.ms": "100",
        }
    )


async def _partitions(consumer: Consumer, query: Query) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Return the selected partitions with a leader, and those without a leader. Raises Refused
    (404) if a selected partition does not exist."""
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


def _partition_chunks(partitions: Iterable[TopicPartition]) -> list[list[TopicPartition]]:
    """Split the partitions into lists of at most MAX_PARTITIONS_AT_ONCE."""
    all_partitions = list(partitions)
    starts = range(0, len(all_partitions), MAX_PARTITIONS_AT_ONCE)
    return [all_partitions[start : start + MAX_PARTITIONS_AT_ONCE] for start in starts]


def _by_time(messages: list[Message]) -> list[Message]:
    return sorted(messages, key=lambda m: m.record.timestamp)


class _NewestHits:
    """The newest hits of a round, limited in number and to `MAX_ROUND_BYTES`."""

    def __init__(self, limit: int) -> None:
        self.counts: Counter[TopicPartition] = Counter()
        """The number of all hits by partition, including dropped hits."""
        self.is_full = False
        """Whether hits were dropped because of their size."""
        self._limit = limit
        self._hits: dict[TopicPartition, deque[Message]] = {}
        self._bytes = 0

    def add(self, tp: TopicPartition, messages: list[Message]) -> None:
        """Add hits in the order of their offsets."""
        self.counts[tp] += len(messages)
        for message in messages:
            hits = self._hits.setdefault(tp, deque())
            hits.append(message)
            self._bytes += message.size
            if len(hits) > self._limit:
                self._bytes -= hits.popleft().size
            while self._bytes > MAX_ROUND_BYTES and sum(map(len, self._hits.values())) > 1:
                self.is_full = True
                oldest = min(filter(None, self._hits.values()), key=lambda hits: hits[0].record.timestamp)
                self._bytes -= oldest.popleft().size

    def newest(self) -> list[Message]:
        """Return the newest hits of all partitions, newest first and at most the limit. The hits of
        a partition are in descending order of their offsets."""
        merged = heapq.merge(
            *(reversed(hits) for hits in self._hits.values()),
            key=lambda m: (-m.record.timestamp, m.record.partition),
        )
        return list(islice(merged, self._limit))


def _partition_list(partitions: Iterable[TopicPartition]) -> str:
    """Return the first ten partition numbers and the number of the others, as text."""
    numbers = sorted(tp.partition for tp in partitions)
    more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:10]))}{more}"


def _cursor(offsets: Mapping[TopicPartition, int]) -> str:
    return ",".join(f"{tp.partition}:{offset}" for tp, offset in sorted(offsets.items()))


def _read_cursor(text: str, topic: str) -> dict[TopicPartition, int]:
    try:
        pairs = [pair.split(":") for pair in text.split(",")]
        return {TopicPartition(topic, int(partition)): int(offset) for partition, offset in pairs}
    except ValueError:
        raise Refused("the cursor is invalid: search again", 400, "cursor") from None
