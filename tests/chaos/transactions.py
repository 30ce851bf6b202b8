"""Transactions under faults: producers commit or abort transactions that write to several
partitions, and the check verifies that every transaction is stored once and completely, or not at
all.

A new producer with the same transactional id replaces a producer that fails, as after a restart of
a program. The outcome of a commit in flight is then in doubt: both outcomes are correct.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaException

from kavka import KafkaError, Producer
from kavka.records.batch import batches
from kavka.records.reader import batch_records
from tests.chaos.checker import Read, report
from tests.chaos.history import Violation
from tests.chaos.load import REQUEST_MS, Worker

TOPIC = "chaos-transactions"
STATE_TOPIC = "__transaction_state"
PARTITIONS = 3
# Records of one transaction, written to the partitions in turn.
RECORDS = 4
# The coordinator aborts open transactions after this time.
TIMEOUT_MS = 10_000
ABORT_MARKER = b"\x00\x00\x00\x00"
COMMIT_MARKER = b"\x00\x00\x00\x01"
CALL_TIMEOUT_S = 30.0


class Transaction(NamedTuple):
    producer: str
    number: int

    def __str__(self) -> str:
        return f"{self.producer}#{self.number}"

    def values(self) -> list[tuple[int, bytes]]:
        """Return the partition and the value of each record."""
        return [
            ((self.number + index) % PARTITIONS, f"{self.producer}:{self.number}:{index}".encode())
            for index in range(RECORDS)
        ]


def decode(value: bytes | None) -> Transaction | None:
    try:
        producer, number, index = (value or b"").decode().split(":")
        transaction = Transaction(producer, int(number))
        return transaction if 0 <= int(index) < RECORDS else None
    except ValueError:
        return None


class Outcomes:
    """Outcomes of the transactions as the producers saw them. Thread-safe."""

    def __init__(self) -> None:
        self.committed: set[Transaction] = set()
        self.aborted: set[Transaction] = set()
        self.in_doubt: set[Transaction] = set()
        self.restarts = 0
        self._lock = threading.Lock()

    def note(self, transaction: Transaction, outcome: str) -> None:
        with self._lock:
            getattr(self, outcome).add(transaction)

    def restarted(self) -> None:
        with self._lock:
            self.restarts += 1


def check(outcomes: Outcomes, final: Mapping[int, Sequence[Read]]) -> list[Violation]:
    """Check `final`, the committed records of every partition."""
    count: Counter[tuple[int, bytes]] = Counter()
    last_numbers: dict[tuple[int, str], int] = {}
    reordered: list[str] = []
    foreign: list[str] = []
    stored: set[Transaction] = set()
    for partition, reads in final.items():
        for offset, value in reads:
            transaction = decode(value)
            if transaction is None or value is None or (partition, value) not in transaction.values():
                foreign.append(f"offset {offset} of {partition} has {value!r:.100}")
                continue
            stored.add(transaction)
            count[partition, value] += 1
            last_number = last_numbers.get((partition, transaction.producer), -1)
            if transaction.number < last_number:
                reordered.append(f"{transaction} at {offset} of {partition} follows #{last_number}")
            last_numbers[partition, transaction.producer] = max(last_number, transaction.number)
    lost = [
        f"{transaction} was committed, but {value.decode()} is not in partition {partition}"
        for transaction in sorted(outcomes.committed)
        for partition, value in transaction.values()
        if not count[partition, value]
    ]
    aborted = [f"{transaction} was aborted, but is stored" for transaction in sorted(outcomes.aborted & stored)]
    torn = [
        f"{transaction} is stored partially"
        for transaction in sorted(outcomes.in_doubt & stored)
        if not all(count[record] for record in transaction.values())
    ]
    doubled = [f"{value.decode()} is {times} times in {p}" for (p, value), times in count.items() if times > 1]
    decided = outcomes.committed | outcomes.aborted | outcomes.in_doubt
    foreign += [f"{transaction} is stored, but was never committed" for transaction in sorted(stored - decided)]
    lists = {"lost": lost, "aborted": aborted, "torn": torn, "doubled": doubled, "reordered": reordered}
    return [
        violation
        for kind, texts in (lists | {"foreign": foreign}).items()
        for violation in report(kind, "transactions", texts)
    ]


def committed_records(log: bytes) -> tuple[list[Read], list[str]]:
    """Return the committed records of a log in offset order, and the open transactions."""
    committed: list[Read] = []
    pending: dict[int, list[Read]] = {}
    for batch in batches(log):
        records = list(batch_records(batch))
        if not batch.attributes & 0x10:
            committed += [(record.offset, record.value) for record in records]
        elif not batch.is_control:
            pending.setdefault(batch.producer_id, []).extend((record.offset, record.value) for record in records)
        elif (key := records[0].key) == COMMIT_MARKER:
            committed += pending.pop(batch.producer_id, [])
        elif key == ABORT_MARKER:
            pending.pop(batch.producer_id, None)
        else:
            raise ValueError(f"offset {batch.base_offset} is a marker of an unknown type: {key!r}")
    open_transactions = [
        f"producer id {producer_id} from offset {reads[0][0]}" for producer_id, reads in pending.items()
    ]
    return sorted(committed), open_transactions


class TransactionSender(Worker):
    """Runs transactions one after the other. A new producer replaces a producer that fails."""

    def __init__(self, name: str, outcomes: Outcomes, bootstrap: str, pause_s: float) -> None:
        super().__init__(name, TOPIC, bootstrap)
        self.outcomes = outcomes
        self._pause_s = pause_s
        self._sending = threading.Event()
        self._sending.set()
        self.idle = threading.Event()

    def pause(self) -> None:
        self._sending.clear()

    def resume(self) -> None:
        self._sending.set()

    def work(self) -> None:
        number = 0
        producer: Any = None
        while not self._ended.is_set():
            if not self._sending.is_set():
                self.idle.set()
                time.sleep(0.02)
                continue
            self.idle.clear()
            try:
                if producer is None:
                    producer = self.open()
                self._run_transaction(producer, Transaction(self.name, number))
            except (KafkaError, KafkaException):
                self.outcomes.restarted()
                self.close(producer)
                producer = None
                self._ended.wait(0.2)
            number += 1
            self._ended.wait(self._pause_s)
        self.idle.set()
        self.close(producer)

    def _run_transaction(self, producer: Any, transaction: Transaction) -> None:
        # The successor of a producer that failed before its commit aborts the transaction.
        outcome = "aborted"
        try:
            producer.begin_transaction()
            for partition, value in transaction.values():
                self.send(producer, partition, value)
            if transaction.number % 4 == 3:
                self.abort(producer)
            else:
                outcome = "in_doubt"
                self.commit(producer)
                outcome = "committed"
        finally:
            self.outcomes.note(transaction, outcome)

    def open(self) -> Any:
        raise NotImplementedError

    def send(self, producer: Any, partition: int, value: bytes) -> None:
        raise NotImplementedError

    def commit(self, producer: Any) -> None:
        raise NotImplementedError

    def abort(self, producer: Any) -> None:
        raise NotImplementedError

    def close(self, producer: Any) -> None:
        raise NotImplementedError


class OurTransactions(TransactionSender):
    def open(self) -> Producer:
        producer = Producer(
            bootstrap_servers=self.bootstrap,
            transactional_id=self.name,
            transaction_timeout_ms=TIMEOUT_MS,
            request_timeout_ms=REQUEST_MS,
            delivery_timeout_ms=20_000,
            socket_connection_setup_timeout_ms=REQUEST_MS,
        )
        try:
            producer.init_transactions(CALL_TIMEOUT_S)
        except BaseException:
            producer.close(0)
            raise
        return producer

    def send(self, producer: Any, partition: int, value: bytes) -> None:
        producer.send(self.topic, value, partition=partition)

    def commit(self, producer: Any) -> None:
        producer.commit_transaction(CALL_TIMEOUT_S)

    def abort(self, producer: Any) -> None:
        producer.abort_transaction(CALL_TIMEOUT_S)

    def close(self, producer: Any) -> None:
        if producer is not None:
            producer.close(0)


class RdkafkaTransactions(TransactionSender):
    def open(self) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": TIMEOUT_MS,
                "socket.timeout.ms": REQUEST_MS,
                "request.timeout.ms": REQUEST_MS,
                "socket.connection.setup.timeout.ms": REQUEST_MS,
                "log_level": 0,
            }
        )
        producer.init_transactions(CALL_TIMEOUT_S)
        return producer

    def send(self, producer: Any, partition: int, value: bytes) -> None:
        producer.produce(self.topic, value, partition=partition)
        producer.poll(0)

    def commit(self, producer: Any) -> None:
        self._retry(producer.commit_transaction)

    def abort(self, producer: Any) -> None:
        self._retry(producer.abort_transaction)

    def _retry(self, end: Any) -> None:
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                end(5)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def close(self, producer: Any) -> None:
        if producer is not None:
            with contextlib.suppress(KafkaException):
                producer.purge()
