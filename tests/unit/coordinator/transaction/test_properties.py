"""Random sequences of requests, timeouts, failed writes and restarts. Only the last producer of an
id may write.

Invariants:
- A transaction whose commit was acknowledged finally has commit markers in all its partitions, and
  never an abort marker.
- No transaction has both kinds of markers.
- A fenced producer never adds a partition to a transaction or ends a transaction.
- Epochs never decrease while the producer id stays the same.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.transaction.shard import ProducerIdAndEpoch
from kavka.coordinator.transaction.state import AT_REST, ENDING, ONGOING
from tests.unit.coordinator.transaction.harness import TIMEOUT, Harness

IDS = ("one", "two")
PARTITIONS = tuple(TopicPartition("t", n) for n in range(3))


class Client:
    """The state of a producer."""

    def __init__(self, transactional_id: str, version: int, producer: ProducerIdAndEpoch) -> None:
        self.transactional_id = transactional_id
        self.version = version
        self.producer = producer
        self.open: set[TopicPartition] = set()
        self.is_fenced = False


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness()
        self.clients: list[Client] = []
        self.owner: dict[str, Client] = {}
        # The acknowledged decisions: producer, epoch of the marker, commit, partitions.
        self.acknowledged: list[tuple[ProducerIdAndEpoch, int, bool, frozenset[TopicPartition]]] = []
        self.highest: dict[int, int] = {}

    def _try(self, call: Any, *args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except KafkaError as error:
            return error.code

    # ---- rules

    @rule(transactional_id=st.sampled_from(IDS), version=st.sampled_from([0, 2]))
    def init(self, transactional_id: str, version: int) -> None:
        response = self._try(self.harness.init, transactional_id, timeout=TIMEOUT)
        if isinstance(response, ProducerIdAndEpoch) and response.error is ErrorCode.NONE:
            for client in self.clients:
                if client.transactional_id == transactional_id:
                    client.is_fenced = True
            client = Client(transactional_id, version, response)
            self.clients.append(client)
            self.owner[transactional_id] = client

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def add(self, data: Any, partitions: set[TopicPartition]) -> None:
        client = data.draw(st.sampled_from(self.clients))
        response = self._try(
            self.harness.add,
            client.producer,
            *partitions,
            transactional_id=client.transactional_id,
            version=client.version,
        )
        if response is None:
            assert not client.is_fenced, "a fenced producer added a partition"
            transaction = self.harness.shard.transactions[client.transactional_id]
            if client.open - transaction.partitions:
                client.open = set()
            client.open |= partitions

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: Any, commit: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        previous = self.harness.shard.transactions.get(client.transactional_id)
        response = self._try(
            self.harness.end,
            client.producer,
            commit,
            transactional_id=client.transactional_id,
            version=client.version,
        )
        if not isinstance(response, ProducerIdAndEpoch):
            return
        assert not client.is_fenced, "a fenced producer ended a transaction"
        if previous is not None and previous.state is ONGOING:
            epoch = client.producer.epoch + (1 if client.version == 2 else 0)
            self.acknowledged.append((client.producer, epoch, commit, previous.partitions))
        client.open = set()
        if client.version == 2:
            client.producer = ProducerIdAndEpoch(response.producer_id, response.epoch)

    @rule(ms=st.sampled_from([10, TIMEOUT // 2, TIMEOUT + 1]))
    def wait(self, ms: int) -> None:
        self.harness.advance(ms)
        self._try(self.harness.abort_timed_out)

    @rule(hold=st.booleans())
    def markers_are_slow(self, hold: bool) -> None:
        if hold:
            self.harness.hold_markers = True
        else:
            self._try(self.harness.write_markers)

    @rule(code=st.sampled_from([None, ErrorCode.COORDINATOR_NOT_AVAILABLE]))
    def writes_fail_or_succeed(self, code: ErrorCode | None) -> None:
        self.harness.failure = code

    @rule()
    def restart(self) -> None:
        self.harness.failure = None
        self.harness.restart()

    @precondition(lambda self: self.owner)
    @rule(data=st.data())
    def nearly_out_of_epochs(self, data: Any) -> None:
        """Set the epoch of an id at rest to one of the last epochs."""
        transactional_id = data.draw(st.sampled_from(sorted(self.owner)))
        transaction = self.harness.shard.transactions[transactional_id]
        client = self.owner[transactional_id]
        if (
            transaction.state not in AT_REST
            or transaction.epoch != client.producer.epoch
            or self.harness.failure is not None
        ):
            return
        if transaction.producer_id != client.producer.producer_id or transaction.epoch >= 32765:
            return
        transaction = transaction._replace(epoch=32765)
        self.harness.submit(self.harness.shard._write(transactional_id, transaction, None))
        client.producer = ProducerIdAndEpoch(transaction.producer_id, 32765)

    # ---- invariants

    @invariant()
    def no_transaction_has_both_kinds_of_markers(self) -> None:
        for tp, markers in self.harness.markers.items():
            kinds: dict[tuple[int, int], set[bool]] = {}
            for producer, epoch, commit, partitions in self.acknowledged:
                if epoch != producer.epoch and tp in partitions:
                    kinds.setdefault((producer.producer_id, epoch), set()).add(commit)
            for producer_id, epoch, commit in markers:
                if (producer_id, epoch) in kinds:
                    kinds[(producer_id, epoch)].add(commit)
            assert all(len(kind) == 1 for kind in kinds.values())

    @invariant()
    def epochs_never_decrease(self) -> None:
        for transaction in self.harness.shard.transactions.values():
            assert 0 <= transaction.epoch <= 32767
            if self.harness.failure is None:
                assert transaction.epoch >= self.highest.get(transaction.producer_id, 0)
                self.highest[transaction.producer_id] = transaction.epoch

    @invariant()
    def the_log_has_the_state_of_the_coordinator(self) -> None:
        transactions = self.harness.shard.transactions
        copy = Harness()
        copy.hold_markers = True
        copy.log = list(self.harness.log)
        copy.restart()
        assert {n: t._replace(last_epoch=-1) for n, t in transactions.items()} == copy.shard.transactions

    def teardown(self) -> None:
        """Check that every acknowledged decision has a marker in every partition when there are no
        more faults."""
        self.harness.failure = None
        self.harness.hold_markers = False
        self.harness.restart()
        assert not any(transaction.state in ENDING for transaction in self.harness.shard.transactions.values())
        for producer, epoch, commit, partitions in self.acknowledged:
            for tp in partitions:
                assert (producer.producer_id, epoch, commit) in self.harness.markers.get(tp, []), (tp, producer, commit)


Transactions.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTransactions = Transactions.TestCase
