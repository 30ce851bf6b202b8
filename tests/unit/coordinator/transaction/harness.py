"""A transaction shard whose log is a list, and partitions that store their markers."""

from __future__ import annotations

from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.operations import Outcome
from kavka.coordinator.transaction import records
from kavka.coordinator.transaction.config import TransactionConfig
from kavka.coordinator.transaction.shard import NeedsProducerId, ProducerIdAndEpoch, TransactionShard
from kavka.coordinator.transaction.state import PREPARE_COMMIT, Transaction
from tests.unit.coordinator.fakes import FakeClock, FakeTimers

ID = "an-id"
TIMEOUT = 60_000
A = TopicPartition("a", 0)
B = TopicPartition("b", 7)


class Harness:
    """A transaction shard. With `failure`, writes fail. With `late`, records are written but not
    committed in time. With `hold_markers`, markers are written by `write_markers`."""

    def __init__(self, version: int = 2, **config: Any) -> None:
        self.clock = FakeClock()
        self.config = TransactionConfig(**config)
        self.version = version
        self.log: list[tuple[bytes, bytes | None]] = []
        self.failure: ErrorCode | None = None
        self.late: ErrorCode | None = None
        self.hold_markers = False
        self.held: list[tuple[str, Transaction]] = []
        # By partition: (producer id, epoch, commit) of its markers, in log order.
        self.markers: dict[TopicPartition, list[tuple[int, int, bool]]] = {}
        self.next_producer_id = 1000
        self.timers = FakeTimers(self.clock, self.submit)
        self.shard = self._shard()

    def _shard(self) -> TransactionShard:
        return TransactionShard(self.clock, self.timers, self.config, self._prepared, lambda: self.version)

    def _prepared(self, transactional_id: str, prepared: Transaction) -> None:
        if self.hold_markers:
            self.held.append((transactional_id, prepared))
            return
        commit = prepared.state is PREPARE_COMMIT
        for tp in prepared.partitions:
            self.markers.setdefault(tp, []).append((prepared.producer_id, prepared.epoch, commit))
        self.submit(self.shard.complete(transactional_id, prepared))

    def write_markers(self) -> None:
        held, self.held, self.hold_markers = self.held, [], False
        for transactional_id, prepared in held:
            self._prepared(transactional_id, prepared)

    def submit(self, outcome: Outcome) -> Any:
        """Replay and write the records like the runtime. Undo the replay if the write fails."""
        for record in outcome.records:
            self.shard.replay(record)
        error = None
        if outcome.records and self.failure is not None:
            self.shard.journal.undo()
            error = KafkaError(self.failure)
        else:
            self.log += [records.encode(record) for record in outcome.records]
            self.shard.journal.clear()
            if outcome.records and self.late is not None:
                error = KafkaError(self.late)
        if outcome.on_append is not None:
            outcome.on_append(error)
        if error is not None:
            raise error
        return outcome.response

    def restart(self) -> None:
        """Discard the shard, and load a new shard from the log."""
        self.timers.timers.clear()
        self.held.clear()
        self.shard = self._shard()
        for key, value in self.log:
            decoded = records.decode(memoryview(key), None if value is None else memoryview(value))
            assert decoded is not None
            self.shard.replay(decoded)
        self.shard.journal.clear()
        for outcome in self.shard.on_loaded():
            self.submit(outcome)

    def advance(self, ms: float) -> None:
        self.timers.advance(ms)

    # ---- requests

    def init(
        self, transactional_id: str = ID, *, timeout: int = TIMEOUT, expected: tuple[int, int] | None = None
    ) -> ProducerIdAndEpoch:
        return self._with_new_id(lambda new_id: self.shard.init_producer(transactional_id, timeout, expected, new_id))

    def init_again(self, transactional_id: str = ID, **options: Any) -> ProducerIdAndEpoch:
        """Initialize like a client: retry on CONCURRENT_TRANSACTIONS."""
        for _ in range(5):
            response = self.init(transactional_id, **options)
            if response.error is ErrorCode.NONE:
                return response
            assert response.error is ErrorCode.CONCURRENT_TRANSACTIONS
        raise AssertionError("the transaction does not end")

    def add(
        self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, transactional_id: str = ID, version: int = 0
    ) -> None:
        self.submit(
            self.shard.add_partitions(transactional_id, producer.producer_id, producer.epoch, partitions, version)
        )

    def end(
        self, producer: ProducerIdAndEpoch, commit: bool, *, transactional_id: str = ID, version: int = 0
    ) -> ProducerIdAndEpoch:
        return self._with_new_id(
            lambda new_id: self.shard.end(
                transactional_id, producer.producer_id, producer.epoch, commit, version, new_id
            )
        )

    def _with_new_id(self, operation: Any) -> ProducerIdAndEpoch:
        try:
            response = self.submit(operation(None))
        except NeedsProducerId:
            self.next_producer_id += 1
            response = self.submit(operation(self.next_producer_id))
        assert isinstance(response, ProducerIdAndEpoch)
        return response

    def abort_timed_out(self) -> int:
        outcomes = self.shard.abort_timed_out()
        for outcome in outcomes:
            self.submit(outcome)
        return len(outcomes)

    # ---- state

    @property
    def transaction(self) -> Transaction:
        return self.shard.transactions[ID]

    @property
    def state(self) -> str:
        return self.transaction.state.value

    def at_epoch(self, epoch: int) -> ProducerIdAndEpoch:
        """Set the epoch of the producer of ID, and return the producer."""
        producer = self.init_again()
        transaction = self.transaction
        self.submit(Outcome((records.TransactionRecord(ID, transaction._replace(epoch=epoch)),)))
        return ProducerIdAndEpoch(producer.producer_id, epoch)
