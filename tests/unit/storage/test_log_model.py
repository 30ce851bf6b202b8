"""A log compared with a plain list of batches, over appends, rolls, truncation, deletion, flushes,
clean shutdowns, and crashes that tear or corrupt unflushed data."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kavka.records.batch import batches
from kavka.records.control import end_marker
from kavka.storage.log import Log
from kavka.storage.log_append import AppendOrigin
from kavka.storage.log_config import LogConfig
from tests.support.logs import TP, FakeClock, build

PRODUCERS = st.integers(0, 2)


@dataclass(frozen=True)
class ModelBatch:
    """One batch of the model."""

    first: int
    last: int
    data: bytes
    epoch: int
    timestamp: int
    producer: int = -1
    sequence: int = -1
    transactional: bool = False
    marker: bool | None = None


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.clock = FakeClock()
        self.batches: list[ModelBatch] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.staged = 0
        self.trimmed = False

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.abandon()
        shutil.rmtree(self.root)

    @initialize(
        segment_bytes=st.sampled_from([300, 700, 3000, 1 << 20]),
        index_bytes=st.sampled_from([8, 24, 96, 10 << 20]),
        interval=st.sampled_from([0, 100, 4096]),
        preallocate=st.booleans(),
        from_offset=st.sampled_from([0, 7, 5_000_000_000]),
    )
    def begin(self, segment_bytes: int, index_bytes: int, interval: int, preallocate: bool, from_offset: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            segment_index_bytes=index_bytes,
            index_interval_bytes=interval,
            preallocate=preallocate,
            retention_bytes=-1,
            retention_ms=1000,
            file_delete_delay_ms=0,
        )
        self.start = self.end = from_offset
        self.log = self.open(clean=True, recovery_point=0)
        self.next_sequence = dict.fromkeys(range(3), 0)
        self.open_txns: dict[int, int] = {}

    def open(self, *, clean: bool, recovery_point: int) -> Log:
        return Log.open(
            self.root / "orders-0",
            TP,
            self.config,
            self.clock,
            recovery_point=recovery_point,
            start_offset=self.start,
            clean_shutdown=clean,
        )

    # --- actions

    @rule(
        count=st.integers(1, 3),
        size=st.integers(0, 60),
        producer=st.none() | PRODUCERS,
        transactional=st.booleans(),
        age=st.integers(0, 500),
    )
    def stage(self, count: int, size: int, producer: int | None, transactional: bool, age: int) -> None:
        options: dict[str, object] = {}
        if producer is not None:
            transactional = transactional or producer in self.open_txns
            options = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": self.next_sequence[producer],
                "transactional": transactional,
            }
        self.clock.advance(1)
        timestamp = self.clock.ms - age
        data = build([(b"k", b"v" * size)] * count, timestamp, **options)
        info = self.log.stage_as_leader(memoryview(data), self.epoch)
        assert (info.first_offset, info.last_offset, info.duplicate) == (self.end, self.end + count - 1, False)
        batch = ModelBatch(self.end, self.end + count - 1, bytes(data), self.epoch, timestamp)
        if producer is not None:
            batch = replace(
                batch, producer=producer, sequence=self.next_sequence[producer] + count - 1, transactional=transactional
            )
            self.next_sequence[producer] += count
            if transactional:
                self.open_txns.setdefault(producer, self.end)
        self.batches.append(batch)
        self.end += count
        self.staged += 1
        # The log uses the buffer until the write, so the model keeps a copy.
        self.buffers = [*getattr(self, "buffers", []), data]

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        data = bytearray(end_marker(commit, producer, 0, 0, self.clock.ms))
        info = self.log.stage_as_leader(memoryview(data), self.epoch, origin=AppendOrigin.COORDINATOR)
        assert info.first_offset == self.end
        self.batches.append(
            ModelBatch(self.end, self.end, bytes(data), self.epoch, self.clock.ms, producer, -1, True, commit)
        )
        self.open_txns.pop(producer, None)
        self.end += 1
        self.staged += 1
        self.buffers = [*getattr(self, "buffers", []), data]

    @rule()
    def write(self) -> None:
        self.log.write_staged()
        self.buffers = []
        self.staged = 0

    @rule(fraction=st.floats(0, 1))
    def replicate(self, fraction: float) -> None:
        self.write()
        target = self.start + int((self.end - self.start) * fraction)
        boundary = max([b.last + 1 for b in self.batches if b.last < target], default=self.start)
        self.log.set_high_watermark(max(boundary, self.log.high_watermark))

    @rule()
    def roll(self) -> None:
        self.write()
        self.log.roll()

    @rule()
    def new_leader(self) -> None:
        self.write()
        self.epoch += 1
        self.log.start_epoch(self.epoch)

    @rule()
    def flush(self) -> None:
        self.write()
        self.log.flush()
        assert self.log.flushed_offset == self.end

    @rule(fraction=st.floats(0, 1))
    def truncate(self, fraction: float) -> None:
        self.write()
        target = self.start + int((self.end - self.start) * fraction)
        self.log.truncate_to(target)
        self.truncate_model(target)

    def adjust_end(self) -> None:
        """Adjust the model after a log was truncated within a batch and reopened: the log then ends
        with the previous batch."""
        if self.log.end_offset != self.end:
            assert self.log.end_offset == max([b.last + 1 for b in self.batches], default=self.log.end_offset)
            assert self.start <= self.log.end_offset < self.end
            self.end = self.log.end_offset
            self.rebuild()

    def truncate_model(self, target: int) -> None:
        """Truncate the model. Complete batches are removed, but the log ends at `target`."""
        self.batches = [b for b in self.batches if b.last < target]
        self.end = target
        self.rebuild()

    def rebuild(self) -> None:
        self.next_sequence = dict.fromkeys(range(3), 0)
        self.open_txns = {}
        for b in self.batches:
            if b.marker is not None:
                self.open_txns.pop(b.producer, None)
            elif b.producer >= 0:
                self.next_sequence[b.producer] = b.sequence + 1
                if b.transactional:
                    self.open_txns.setdefault(b.producer, b.first)
        producers = {entry.producer_id for entry in self.log.producers()}
        if self.trimmed:
            for entry in self.log.producers():
                if entry.txn_first_offset >= 0:
                    self.open_txns.setdefault(entry.producer_id, entry.txn_first_offset)
                else:
                    self.open_txns.pop(entry.producer_id, None)
                self.next_sequence[entry.producer_id] = entry.last_sequence + 1
            for producer in set(self.next_sequence) - producers:
                self.open_txns.pop(producer, None)

    @rule(fraction=st.floats(0, 1))
    def delete_records(self, fraction: float) -> None:
        self.write()
        self.log.set_high_watermark(self.end)
        target = self.start + int((self.end - self.start) * fraction)
        assert self.log.delete_records_before(target) == target
        self.trimmed = self.trimmed or target > self.start
        self.start = target
        self.batches = [b for b in self.batches if b.last >= target]

    @rule(wait=st.integers(0, 2000))
    def retention(self, wait: int) -> None:
        self.write()
        self.log.set_high_watermark(self.end)
        self.clock.advance(wait)
        previous_bases = {s.base_offset for s in self.log.segments}
        deleted = self.log.delete_old_segments()
        for deletion in self.log.take_due_deletions(self.clock.ms):
            deletion.run()
        remaining_bases = {s.base_offset for s in self.log.segments}
        assert len(previous_bases - remaining_bases) == deleted
        if deleted:
            first = min(remaining_bases)
            if first > self.start:
                self.trimmed = True
                self.start = first
                assert all(self.clock.ms - b.timestamp > 1000 for b in self.batches if b.last < first)
                self.batches = [b for b in self.batches if b.last >= first]

    @rule()
    def stop_and_start(self) -> None:
        self.write()
        high_watermark = self.log.high_watermark
        self.log.close()
        self.log = self.open(clean=True, recovery_point=0)
        self.adjust_end()
        assert self.log.flushed_offset == self.end
        self.log.set_high_watermark(high_watermark)
        for segment in self.log.segments:
            assert os.path.getsize(segment.offset_index.path) == 8 * segment.offset_index.entries
            assert os.path.getsize(segment.time_index.path) == 12 * segment.time_index.entries
            segment.check()

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), damage=st.sampled_from(["none", "torn", "corrupt", "garbage"]))
    def crash(self, data: st.DataObject, damage: str) -> None:
        self.write()
        log = self.log
        high_watermark, recovery_point = log.high_watermark, log.flushed_offset
        stored = []
        for segment in log.segments:
            position = 0
            for at, header in segment.batches():
                stored.append((segment.file.path, at, header))
                position = at + header.size
            assert position == segment.size
        log.abandon()
        unflushed = [batch for batch in stored if batch[2].base_offset >= recovery_point]
        lost_from, lost_to, remaining_end = None, self.end, 0
        if unflushed and damage in ("torn", "corrupt"):
            path, at, header = data.draw(st.sampled_from(unflushed))
            lost_from = header.base_offset
            if damage == "torn":
                remaining = data.draw(st.integers(0, header.size - 1))
                os.truncate(path, at + remaining)
                if not remaining:
                    # The loss of complete batches cannot be detected. Later segments remain, even
                    # an empty one.
                    later_bases = [s.base_offset for s in log.segments if s.base_offset > lost_from]
                    lost_to, remaining_end = (later_bases[0], later_bases[-1]) if later_bases else (lost_to, 0)
            else:
                corrupt_byte(path, at + data.draw(st.integers(17, header.size - 1)))
        elif damage == "garbage":
            with open(log.active_segment.file.path, "r+b") as file:
                file.seek(log.active_segment.size)
                file.write(data.draw(st.binary(min_size=1, max_size=100)) + bytes(20))
        self.log = self.open(clean=False, recovery_point=recovery_point)
        if lost_from is not None:
            self.batches = [b for b in self.batches if not lost_from <= b.first < lost_to]
            self.end = max([remaining_end, *(b.last + 1 for b in self.batches)])
            if not self.batches:
                assert self.log.end_offset >= self.start
                self.end = self.log.end_offset
                self.start = self.log.start_offset
            self.rebuild()
        else:
            self.adjust_end()
        self.log.set_high_watermark(min(high_watermark, self.end))
        self.epoch += 1

    @rule(
        fraction=st.floats(0, 1), limit_fraction=st.floats(0, 1), max_bytes=st.integers(0, 1000), min_one=st.booleans()
    )
    def read(self, fraction: float, limit_fraction: float, max_bytes: int, min_one: bool) -> None:
        visible = self.log.written_end
        offset = self.start + int((self.end - self.start) * fraction)
        limit = self.start + int((visible - self.start) * limit_fraction)
        limit = max([b.last + 1 for b in self.batches if b.last < limit], default=self.start)
        result = self.log.read(offset, max_bytes, limit=limit, min_one_batch=min_one)
        expected = [b for b in self.batches if b.last >= offset and b.last < limit]
        if result is None:
            assert not expected or (max_bytes == 0 and not min_one)
            return
        data = result.slice.read()
        assert len(data) == len(result.slice)
        stream = b"".join(b.data for b in expected)
        assert stream.startswith(data)
        assert result.first_batch_size == len(expected[0].data)
        if min_one:
            assert len(data) >= len(expected[0].data)
        assert len(data) <= max(max_bytes, len(expected[0].data) if min_one else 0)
        next_base = min([s.base_offset for s in self.log.segments if s.base_offset > expected[0].last], default=limit)
        segment_data = b"".join(b.data for b in expected if b.first < next_base)
        assert len(data) == len(segment_data) or len(data) >= max_bytes
        complete_batches = list(batches(data))
        if complete_batches:
            assert result.upper_bound() > complete_batches[-1].last_offset

    @rule(age=st.integers(-10, 600))
    def find_by_time(self, age: int) -> None:
        self.write()
        timestamp = self.clock.ms - age
        result = self.log.offset_for_timestamp(timestamp)
        expected = next((b for b in self.batches if b.timestamp >= timestamp and b.last >= self.start), None)
        if expected is None:
            assert result is None
        else:
            assert result is not None
            assert result.offset == max(expected.first, self.start)
            assert result.timestamp == expected.timestamp
            assert result.leader_epoch == expected.epoch

    # --- invariants

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert log.end_offset == self.end
        assert log.start_offset == self.start
        assert log.start_offset <= log.last_stable_offset <= log.high_watermark <= log.written_end <= log.end_offset
        if not self.staged:
            on_disk = []
            for segment in log.segments:
                for _, header in segment.batches():
                    on_disk.append((header.base_offset, header.last_offset))
            assert [pair for pair in on_disk if pair[1] >= self.start] == [(b.first, b.last) for b in self.batches]

    @invariant()
    def producers_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        entries = {entry.producer_id: entry for entry in self.log.producers()}
        last = {b.producer: b for b in self.batches if b.producer >= 0 and b.marker is None}
        for producer, batch in last.items():
            assert entries[producer].last_sequence == batch.sequence
            assert entries[producer].last_offset == batch.last
        if not self.trimmed:
            assert {
                e.producer_id: e.txn_first_offset for e in entries.values() if e.txn_first_offset >= 0
            } == self.open_txns
            first = min(self.open_txns.values(), default=None)
            if first is not None:
                assert self.log.last_stable_offset <= first

    @invariant()
    def aborted_transactions_agree(self) -> None:
        if not hasattr(self, "log") or self.staged or self.trimmed:
            return
        aborted = []
        first_offsets: dict[int, int] = {}
        for b in self.batches:
            if b.marker is not None:
                first = first_offsets.pop(b.producer, None)
                if first is not None and not b.marker:
                    aborted.append((b.producer, first, b.first))
            elif b.transactional:
                first_offsets.setdefault(b.producer, b.first)
        indexed = self.log.aborted_transactions(self.start, self.end)
        assert [txn[:3] for txn in indexed] == aborted

    @invariant()
    def epochs_agree(self) -> None:
        if hasattr(self, "log"):
            for b in self.batches:
                assert self.log.epochs.epoch_for(max(b.first, self.start)) == b.epoch


def corrupt_byte(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x55]))


LogMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("KAVKA_MODEL_EXAMPLES", "40")),
    stateful_step_count=int(os.environ.get("KAVKA_MODEL_STEPS", "30")),
    deadline=None,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.usefixtures("no_fsync")
class TestLogModel(LogMachine.TestCase):  # type: ignore[name-defined,misc]
    pass
