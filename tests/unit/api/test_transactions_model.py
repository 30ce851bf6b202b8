"""Random transactions on real logs: a read_committed consumer reads exactly the committed records.

Producers of both protocol versions use two transactional ids. Transactions time out, and the broker
is killed. The invariants after every step:
- a read_committed consumer reads exactly the values of the committed transactions, in order;
- a fenced producer cannot write to any log;
- without open transactions, the last stable offset is the end of the log.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.transaction.shard import ProducerIdAndEpoch
from kavka.coordinator.transaction.state import ONGOING
from kavka.records.control import parse_end_marker
from kavka.records.reader import batch_records
from kavka.storage.log import Log
from tests.support.logs import stored_batches
from tests.unit.api.test_transactional_produce import Broker, codes
from tests.unit.coordinator.transaction.node import STATE, Node

IDS = ("one", "two")
PARTITIONS = (TopicPartition("a", 0), TopicPartition("a", 1))


class Client:
    def __init__(self, name: str, uses_v2: bool, producer: ProducerIdAndEpoch) -> None:
        self.name = name
        self.uses_v2 = uses_v2
        self.producer = producer
        self.sequences = dict.fromkeys(PARTITIONS, 0)
        self.written: list[tuple[TopicPartition, bytes]] = []
        self.fenced = False


def committed_view(log: Log) -> list[bytes]:
    """The values that a read_committed consumer reads, up to the last stable offset and without
    aborted transactions."""
    aborted = sorted(log.aborted_transactions(0, log.last_stable_offset), key=lambda entry: entry.first_offset)
    skipped: set[int] = set()
    values = []
    for batch in stored_batches(log):
        if batch.last_offset >= log.last_stable_offset:
            break
        while aborted and aborted[0].first_offset <= batch.last_offset:
            skipped.add(aborted.pop(0).producer_id)
        if batch.is_control:
            marker = parse_end_marker(batch)
            if marker is not None and not marker.commit:
                skipped.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in skipped):
            values += [record.value or b"" for record in batch_records(batch)]
    return values


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.node = Node(Path(self.folder.name), transactional_id_expiration_ms=1 << 40)
        self.broker = Broker(self.node)
        for tp in (STATE, *PARTITIONS):
            self.node.lead(tp)
        self.clients: list[Client] = []
        self.committed: dict[TopicPartition, list[tuple[int, bytes]]] = {tp: [] for tp in PARTITIONS}
        self.offsets: dict[bytes, int] = {}
        self.epoch = 1
        self.count = 0

    def _abort(self, name: str) -> None:
        """Abort the open transaction of this id and fence its clients."""
        for client in self.clients:
            if client.name == name:
                client.fenced = True
                client.written = []

    def _is_open(self, client: Client) -> bool:
        transaction = self.node.transactions.host(client.name).shard.transactions[client.name]
        return transaction.state is ONGOING and transaction[:2] == client.producer[:2]

    # ---- actions

    @rule(name=st.sampled_from(IDS), uses_v2=st.booleans())
    def init(self, name: str, uses_v2: bool) -> None:
        for _ in range(2):
            try:
                producer = self.node.run(self.node.transactions.init_producer(name, 60_000))
                break
            except KafkaError as error:
                assert error.code is ErrorCode.CONCURRENT_TRANSACTIONS
        self._abort(name)
        self.clients.append(Client(name, uses_v2, producer))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), tp=st.sampled_from(PARTITIONS))
    def produce(self, data: Any, tp: TopicPartition) -> None:
        client = data.draw(st.sampled_from(self.clients))
        producer = client.producer
        if not client.uses_v2:
            try:
                adding = self.node.transactions.add_partitions(client.name, producer.producer_id, producer.epoch, [tp])
                self.node.run(adding)
            except KafkaError as error:
                assert client.fenced, error
        self.count += 1
        value = b"%d" % self.count
        request = self.broker.request(producer, tp, sequence=client.sequences[tp], name=client.name, value=value)
        end = self.node.log(tp).end_offset
        [code] = codes(self.broker.start(request, 12 if client.uses_v2 else 11))
        if client.fenced:
            assert code is not ErrorCode.NONE, "a fenced producer has written"
            assert self.node.log(tp).end_offset == end
            return
        assert code is ErrorCode.NONE
        client.sequences[tp] += 1
        client.written.append((tp, value))
        self.offsets[value] = end

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: Any, commit: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        was_open = self._is_open(client)
        version = 2 if client.uses_v2 else 0
        try:
            response = self.node.run(
                self.node.transactions.end(
                    client.name, client.producer.producer_id, client.producer.epoch, commit, version, lambda p: p
                )
            )
        except KafkaError:
            assert not was_open
            return
        if not was_open and client.fenced:
            # The coordinator had already started an abort: the abort of the producer succeeds.
            assert client.uses_v2 and not commit
            if any(c.name == client.name and not c.fenced for c in self.clients):
                raise AssertionError("a fenced producer continues")
            client.fenced = False
        if commit:
            for tp, value in client.written:
                self.committed[tp].append((self.offsets[value], value))
        client.written = []
        if client.uses_v2 and response != client.producer:
            client.producer = response
            client.sequences = dict.fromkeys(PARTITIONS, 0)

    @rule()
    def time_out(self) -> None:
        expired = {client.name for client in self.clients if self._is_open(client)}
        self.node.loop.advance(75_000)
        for name in expired:
            self._abort(name)

    @rule()
    def kill(self) -> None:
        self.epoch += 1
        self.node.restart(*PARTITIONS, STATE, epoch=self.epoch)
        self.node.loop.run_ready()

    # ---- invariants

    @invariant()
    def consumers_read_the_committed_records(self) -> None:
        for tp in PARTITIONS:
            log = self.node.log(tp)
            stable = [value for offset, value in sorted(self.committed[tp]) if offset < log.last_stable_offset]
            assert committed_view(log) == stable

    @invariant()
    def no_transaction_hangs(self) -> None:
        open_in = set()
        for name in IDS:
            transaction = self.node.transactions.host(name).shard.transactions.get(name)
            if transaction is not None and transaction.state is ONGOING:
                open_in |= transaction.partitions
        for tp in PARTITIONS:
            if tp not in open_in:
                assert self.node.log(tp).last_stable_offset == self.node.log(tp).end_offset

    def teardown(self) -> None:
        self.time_out()
        for tp in PARTITIONS:
            assert committed_view(self.node.log(tp)) == [value for _, value in sorted(self.committed[tp])]
            self.node.log(tp).abandon()
        self.node.log(STATE).abandon()
        self.folder.cleanup()


Transactions.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestTransactions = Transactions.TestCase
