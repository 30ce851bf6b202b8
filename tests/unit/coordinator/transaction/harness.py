"""A shard of transactional ids with its records in a list, and partitions that note which markers
they get."""

from __future__ import annotations

from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.operations import Outcome
from kavka.coordinator.transaction import records
from kavka.coordinator.transaction.config import TransactionConfig
from kavka.coordinator.transaction.shard import NeedsProducerId, Producer, TransactionShard
from kavka.coordinator.transaction.state import PREPARE_COMMIT, Transaction
from tests.unit.coordinator.fakes import FakeClock, FakeTimers

ID = "an-id"
TIMEOUT = 60_000
A = TopicPartition("a", 0)
B = TopicPartition("b", 7)


class Harness:
    """`failure` makes the appends that follow fail; `hold_markers` keeps the markers from being
    written."""

    def __init__(self, version: int = 2, **config: Any) -> None:
        self.clock = FakeClock()
        self.config = TransactionConfig(**config)
        self.version = version
        self.log: list[tuple[bytes, bytes | None]] = []
        self.failure: ErrorCode | None = None
        self.late: ErrorCode | None = None
        self.hold_markers = False
        self.held: list[tuple[str, Transaction]] = []
        # Per partition: (producer id, epoch, committed), in the order in which they were written.
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
        """As the runtime does: replayed at once, undone where the write fails. `late`: written, but
        not in time."""
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
        """The coordinator loses its state; another one loads the records."""
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
    ) -> Producer:
        return self._with_new_id(lambda new: self.shard.init_producer(transactional_id, timeout, expected, new))

    def init_again(self, transactional_id: str = ID, **options: Any) -> Producer:
        """As a client does: for as long as it is asked to try again."""
        for _ in range(5):
            answer = self.init(transactional_id, **options)
            if answer.error is ErrorCode.NONE:
                return answer
            assert answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
        raise AssertionError("retried forever")

    def add(
        self, producer: Producer, *partitions: TopicPartition, transactional_id: str = ID, version: int = 0
    ) -> None:
        self.submit(
            self.shard.add_partitions(transactional_id, producer.producer_id, producer.epoch, partitions, version)
        )

    def end(self, producer: Producer, commit: bool, *, transactional_id: str = ID, version: int = 0) -> Producer:
        return self._with_new_id(
            lambda new: self.shard.end(transactional_id, producer.producer_id, producer.epoch, commit, version, new)
        )

    def _with_new_id(self, operation: Any) -> Producer:
        try:
            answer = self.submit(operation(None))
        except NeedsProducerId:
            self.next_producer_id += 1
            answer = self.submit(operation(self.next_producer_id))
        assert isinstance(answer, Producer)
        return answer

    def abort_timed_out(self) -> int:
        outcomes = self.shard.abort_timed_out()
        for outcome in outcomes:
            self.submit(outcome)
        return len(outcomes)

    # ---- looking

    @property
    def transaction(self) -> Transaction:
        return self.shard.transactions[ID]

    @property
    def state(self) -> str:
        return self.transaction.state.value

    def at_epoch(self, epoch: int) -> Producer:
        """The producer of ID, as if it had come to this epoch."""
        producer = self.init_again()
        transaction = self.transaction
        self.submit(Outcome((records.TransactionRecord(ID, transaction._replace(epoch=epoch)),)))
        return Producer(producer.producer_id, epoch)
