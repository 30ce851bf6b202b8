"""A clock, a loop, timers and a log that tests control."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.group.consumer.topics import CachedTopics
from kavka.coordinator.operations import Outcome, TimerOperation
from kavka.records.batch import assign_offsets, batches
from kavka.replication.metadata_cache import MetadataCache
from kavka.storage.log_append import AppendOrigin

NO_TOPICS = CachedTopics(MetadataCache())


class FakeClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.ms = 0.0
        self._start = now_ms

    def now_ms(self) -> int:
        return self._start + int(self.ms)

    def monotonic(self) -> float:
        return self.ms / 1000


class FakeTimers:
    """Timers that fire in order when the test advances the clock."""

    def __init__(self, clock: FakeClock, submit: Callable[[Outcome], Any]) -> None:
        self._clock = clock
        self._submit = submit
        self._count = 0
        self.timers: dict[Hashable, tuple[float, int, TimerOperation]] = {}

    def schedule(self, key: Hashable, delay_ms: float, operation: TimerOperation) -> None:
        self._count += 1
        self.timers[key] = (self._clock.ms + max(delay_ms, 0), self._count, operation)

    def cancel(self, key: Hashable) -> None:
        self.timers.pop(key, None)

    def advance(self, ms: float) -> None:
        end = self._clock.ms + ms
        while self.timers:
            key = min(self.timers, key=lambda key: self.timers[key][:2])
            fires_at, _, operation = self.timers[key]
            if fires_at > end:
                break
            del self.timers[key]
            self._clock.ms = max(self._clock.ms, fires_at)
            self._submit(operation())
        self._clock.ms = end


class _Handle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """The methods of an event loop that futures and the runtime use. Only `advance` changes the
    time."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._ready: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._timers: list[tuple[float, int, _Handle, Callable[..., Any], tuple[Any, ...]]] = []
        self._count = 0

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(context)

    def time(self) -> float:
        return self._clock.ms / 1000

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> _Handle:
        self._ready.append((callback, args))
        return _Handle()

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> _Handle:
        self._count += 1
        handle = _Handle()
        heapq.heappush(self._timers, (when * 1000, self._count, handle, callback, args))
        return handle

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> _Handle:
        return self.call_at(self.time() + delay, callback, *args)

    def run_ready(self) -> None:
        """Run callbacks until no callback is ready."""
        while self._ready:
            ready, self._ready = self._ready, []
            for callback, args in ready:
                callback(*args)

    def advance(self, ms: float) -> None:
        end = self._clock.ms + ms
        self.run_ready()
        while self._timers and self._timers[0][0] <= end + 1e-6:
            fires_at, _, handle, callback, args = heapq.heappop(self._timers)
            self._clock.ms = max(self._clock.ms, fires_at)
            if not handle.cancelled:
                callback(*args)
            self.run_ready()
        self._clock.ms = end


class _FakeSlice:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> bytes:
        return self._data


class FakeLog:
    def __init__(self, max_message_bytes: int = 1_048_588) -> None:
        self.config = SimpleNamespace(max_message_bytes=max_message_bytes)
        self.batches: list[tuple[int, int, bytes]] = []  # first offset, next offset, bytes
        self.start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0

    def append(self, batch: memoryview, leader_epoch: int) -> tuple[int, int]:
        parsed = next(batches(batch))
        count = parsed.last_offset - parsed.base_offset + 1
        assign_offsets(batch, self.end_offset, leader_epoch)
        first = self.end_offset
        self.end_offset += count
        self.batches.append((first, self.end_offset, bytes(batch)))
        return first, self.end_offset - 1

    def read(self, offset: int, max_bytes: int, *, limit: int, min_one_batch: bool) -> Any:
        data = b""
        for _, next_offset, batch in self.batches:
            if next_offset <= offset or next_offset > limit:
                continue
            if data and len(data) + len(batch) > max_bytes:
                data += batch[: max_bytes - len(data)]
                break
            data += batch
        return SimpleNamespace(slice=_FakeSlice(data)) if data else None


class FakePartition:
    """A partition that this broker leads by default. With `hold_high_watermark`, the high watermark
    does not advance. With `failure`, writes fail."""

    def __init__(self, index: int = 0, topic: str = "__consumer_offsets", log: FakeLog | None = None) -> None:
        self.topic_partition = TopicPartition(topic, index)
        self.log: FakeLog | None = log or FakeLog()
        self.is_leader = True
        self.leader_epoch = 1
        self.maximal_isr = frozenset((1, 2, 3))
        self.pending_appends: set[Any] = set()
        self.on_storage_failure: Any = None
        self.hold_high_watermark = False
        self.failure: KafkaError | None = None
        self.origins: list[AppendOrigin] = []
        self._staged: list[memoryview] = []

    def append(self, batch: bytearray) -> Any:
        info = self.stage(memoryview(batch), -1, None, AppendOrigin.COORDINATOR)
        self.write_staged()
        return info

    def report_storage_failure(self, error: KafkaError) -> None:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR and self.on_storage_failure is not None:
            self.on_storage_failure(self, error.__cause__ or error)

    def stage(self, records: memoryview, acks: int, api_version: int | None, origin: AppendOrigin) -> Any:
        if self.failure is not None and self.failure.code is ErrorCode.NOT_ENOUGH_REPLICAS:
            raise self.failure
        assert self.log is not None
        self.origins.append(origin)
        self._staged.append(records)
        info = next(batches(records))
        count = info.last_offset - info.base_offset + 1
        return SimpleNamespace(last_offset=self.log.end_offset + count - 1)

    def write_staged(self) -> None:
        assert self.log is not None
        staged, self._staged = self._staged, []
        if self.failure is not None:
            raise self.failure
        for records in staged:
            self.log.append(records, self.leader_epoch)

    def advance(self) -> None:
        assert self.log is not None
        if not self.hold_high_watermark:
            self.log.high_watermark = self.log.end_offset
        for waiter in list(self.pending_appends):
            waiter.check(self)

    def resign(self) -> None:
        self.is_leader = False
        for waiter in list(self.pending_appends):
            waiter.fail(self, ErrorCode.NOT_LEADER_OR_FOLLOWER)
