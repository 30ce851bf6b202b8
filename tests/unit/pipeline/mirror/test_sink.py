"""The batches that a mirror task sends, and the runs that it reports."""

from __future__ import annotations

from typing import Any

import pytest

from kavka.client.consumer.buffer import WholeBatch
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.mirror import sink
from kavka.pipeline.mirror.runs import Run
from kavka.pipeline.mirror.sink import LAYOUT, Transfer
from kavka.pipeline.mirror.source import row_of
from kavka.pipeline.spark.offsets import Range
from kavka.records.builder import BatchBuilder
from kavka.records.reader import read_records
from kavka.records.record import Record
from tests.unit.pipeline.mirror.test_names import flow


def batch(*offsets: int) -> WholeBatch:
    builder = BatchBuilder(base_offset=offsets[0])
    for offset in offsets:
        builder.append(Record(offset=offset, timestamp=1, value=b"v"))
    return WholeBatch(offsets[0], offsets[-1] + 1, memoryview(bytes(builder.build())))


class Future:
    """The future of a batch that is stored at `offset`, or failed with `error`."""

    def __init__(self, offset: int, count: int, error: KafkaError | None) -> None:
        self.count, self._offset, self._error = count, offset, error

    def done(self) -> bool:
        return True

    def get(self, timeout: float | None = None) -> str:
        if self._error is not None:
            raise self._error
        return "stored"

    def offsets(self) -> list[tuple[int, int]]:
        return [(self._offset if self._error is None else -1, self.count)]


class Target:
    """Replaces a producer. It assigns consecutive offsets, and rejects records from the offset
    `reject_from`."""

    def __init__(self, reject_from: int = 1 << 60) -> None:
        self.next_offset, self._reject_from = 0, reject_from
        self.sent: list[tuple[str, int]] = []

    def send_batch(self, topic: str, partition: int, data: Any, first: int, end: int) -> Future:
        count = sum(first <= record.offset < end for record in read_records(data))
        is_rejected = self.next_offset >= self._reject_from
        error = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large") if is_rejected else None
        future = Future(self.next_offset, count, error)
        self.next_offset += count
        self.sent.append((topic, partition))
        return future


def transferred(monkeypatch: pytest.MonkeyPatch, target: Target, *batches: WholeBatch, **settings: Any) -> Transfer:
    transfer = Transfer(flow(**settings))
    monkeypatch.setattr(sink, "read_pieces", lambda *_: [[item] for item in batches])
    rows = row_of(Range("orders", 2, batches[0].first, batches[-1].end), transfer.flow.remote_topic("orders"))
    for future in transfer.send(target, rows, LAYOUT):  # type: ignore[arg-type]
        future.get(0)
    return transfer


def test_batches_are_sent_to_the_same_partition_as_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target()
    transfer = transferred(monkeypatch, target, batch(10, 11, 12), batch(13, 14))
    assert set(target.sent) == {("A.orders", 2)}
    assert transfer.runs() == {("orders", 2): [Run(10, 0, 5)]}
    assert transfer.records == 5


def test_a_compacted_batch_has_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    transfer = transferred(monkeypatch, Target(), batch(10, 12, 13, 17))
    assert transfer.runs() == {("orders", 2): [Run(10, 0, 1), Run(12, 1, 2), Run(17, 3, 1)]}


def test_completed_batches_are_removed_while_others_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [batch(number) for number in range(sink._MAX_SENT_BATCHES * 2)]
    transfer = transferred(monkeypatch, Target(), *batches)
    assert len(transfer._sent) <= sink._MAX_SENT_BATCHES
    assert transfer.runs() == {("orders", 2): [Run(0, 0, sink._MAX_SENT_BATCHES * 2)]}


def test_a_rejected_batch_fails_the_task_or_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaError, match="too large"):
        transferred(monkeypatch, Target(reject_from=2), batch(0, 1), batch(2))
    transfer = transferred(monkeypatch, Target(reject_from=2), batch(0, 1), batch(2), abort_on_failure=False)
    assert transfer.runs() == {("orders", 2): [Run(0, 0, 2)]}
