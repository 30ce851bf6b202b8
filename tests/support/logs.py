"""Helpers for tests of logs: a fake clock, appends, and reads of the stored records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kavka.common.types import TopicPartition
from kavka.records.batch import Batch, batches
from kavka.records.builder import BatchBuilder
from kavka.records.control import end_marker
from kavka.records.reader import read_records
from kavka.records.record import Record
from kavka.storage.log import Log
from kavka.storage.log_append import AppendOrigin
from kavka.storage.log_config import LogConfig

TP = TopicPartition("orders", 0)
START_MS = 1_700_000_000_000


class FakeClock:
    """A clock that only `advance` moves."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def advance(self, ms: int) -> None:
        self.ms += ms


KeyValue = tuple[bytes | None, bytes | None]


def build(records: Sequence[KeyValue], timestamp: int = START_MS, **options: object) -> bytearray:
    builder = BatchBuilder(**options)  # type: ignore[arg-type]
    for key, value in records:
        builder.append(Record(timestamp=timestamp, key=key, value=value))
    return bytearray(builder.build())


def append(log: Log, records: Sequence[KeyValue], *, epoch: int = 0, replicated: bool = True, **options: object) -> int:
    """Append one batch and return its first offset. `replicated` advances the high watermark past
    it."""
    options.setdefault("timestamp", log.clock.now_ms())
    info = log.stage_as_leader(memoryview(build(records, **options)), epoch)  # type: ignore[arg-type]
    log.write_staged()
    if replicated:
        log.set_high_watermark(log.end_offset)
    return info.first_offset


def append_marker(log: Log, producer_id: int, *, commit: bool, producer_epoch: int = 0) -> int:
    data = end_marker(commit, producer_id, producer_epoch, 0, log.clock.now_ms())
    info = log.stage_as_leader(memoryview(bytearray(data)), 0, origin=AppendOrigin.COORDINATOR)
    log.write_staged()
    log.set_high_watermark(log.end_offset)
    return info.first_offset


def open_log(path: Path, config: LogConfig | None = None, clock: FakeClock | None = None, **options: object) -> Log:
    path.parent.mkdir(parents=True, exist_ok=True)
    return Log.open(path, TP, config or LogConfig(), clock or FakeClock(), **options)  # type: ignore[arg-type]


def stored_batches(log: Log) -> list[Batch]:
    """Return the batches in the files of all segments."""
    return [batch for segment in log.segments for batch in batches(segment.file.read(0, segment.size))]


def stored_records(log: Log) -> list[Record]:
    return [record for segment in log.segments for record in read_records(segment.file.read(0, segment.size))]


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in stored_records(log)]


def latest(records: Iterable[tuple[int, bytes | None, bytes | None]]) -> dict[bytes, tuple[int, bytes | None]]:
    """Return the last offset and value of each key."""
    state: dict[bytes, tuple[int, bytes | None]] = {}
    for offset, key, value in records:
        assert key is not None
        state[key] = (offset, value)
    return state
