"""Kills of a broker, and of a client that copies records in transactions, at random times: every
committed record exists exactly once."""

from __future__ import annotations

import random
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from tests.support import copier, wire
from tests.support.apache import NEWEST
from tests.support.java_client import JavaError
from tests.support.kavka_process import KavkaProcess
from tests.support.material import dump, read_all
from tests.support.processes import ManagedProcess, wait_until
from tests.support.targets import Target, start_target
from tests.support.transactions import JavaTransactions

pytestmark = [pytest.mark.timeout(300), pytest.mark.records]

PARTITIONS = 3


def create_topics(broker: Target, *names: str) -> None:
    for name in names:
        assert wire.create_topic(broker.address, name, PARTITIONS) == 0


def start_copier(broker: Target, folder: Path) -> ManagedProcess:
    argv = [sys.executable, copier.__file__, broker.bootstrap_servers, "in", "out", "copier"]
    return ManagedProcess(argv, log=folder / "copier.out")


def fill(broker: Target, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "log_level": 0})
    for n in range(first, first + count):
        producer.produce("in", b"%d" % n, partition=n % PARTITIONS)
    assert producer.flush(60) == 0


def copies(broker: Target) -> dict[int, list[bytes | None]]:
    records = read_all(broker.bootstrap_servers, [("out", p) for p in range(PARTITIONS)])
    return {p: [value for _, _, value, _ in records["out", p]] for p in range(PARTITIONS)}


def expected(total: int) -> dict[int, list[bytes]]:
    return {p: [b"copy of %d" % n for n in range(p, total, PARTITIONS)] for p in range(PARTITIONS)}


def wait_for_copies(broker: Target, copier_process: ManagedProcess, total: int) -> None:
    def is_done() -> bool:
        assert copier_process.running(), copier_process.log_tail()
        return sum(map(len, copies(broker).values())) >= total

    wait_until(is_done, timeout=90, what=f"{total} copies", interval=0.3)


def transactional_producer(broker: Target) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "t",
            "linger.ms": 0,
            "log_level": 0,
            **copier.KEEP_TO_KNOWN_BROKERS,
        }
    )
    producer.init_transactions(30)
    return producer


@pytest.mark.slow
def test_a_client_that_is_killed_repeatedly_writes_every_output_once(target_name: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    broker = start_target(target_name, tmp_path / "broker", {"group.initial.rebalance.delay.ms": 0})
    try:
        create_topics(broker, "in", "out")
        total = 0
        for _ in range(6):
            fill(broker, total, 300)
            total += 300
            copier_process = start_copier(broker, tmp_path)
            wait_for_copies(broker, copier_process, total - 299)
            time.sleep(rng.uniform(0, 0.1))
            copier_process.kill()
        copier_process = start_copier(broker, tmp_path)
        wait_for_copies(broker, copier_process, total)
        copier_process.kill()
        assert copies(broker) == expected(total)
    finally:
        broker.close()


@pytest.mark.slow
def test_a_client_writes_every_output_once_despite_kills_of_its_broker(tmp_path: Path) -> None:
    rng = random.Random(8)
    overrides = {"group.initial.rebalance.delay.ms": 0, "log.segment.bytes": 20_000}
    with KavkaProcess(tmp_path / "broker", overrides=overrides) as broker:
        create_topics(broker, "in", "out")
        copier_process = start_copier(broker, tmp_path)
        total = 0
        for _ in range(5):
            fill(broker, total, 500)
            total += 500
            time.sleep(rng.uniform(0, 0.5))
            broker.kill()
            broker.start()
        wait_for_copies(broker, copier_process, total)
        copier_process.kill()
        assert copies(broker) == expected(total)


def test_acknowledged_commits_survive_kills_of_the_broker(tmp_path: Path) -> None:
    rng = random.Random(9)
    with KavkaProcess(tmp_path / "broker", overrides={"log.segment.bytes": 50_000}) as broker:
        create_topics(broker, "out")
        producer = transactional_producer(broker)
        committed: list[int] = []
        number = 0
        for _ in range(6):
            deadline = time.monotonic() + rng.uniform(0.05, 0.4)
            while time.monotonic() < deadline:
                _transact(producer, number, number % 3 == 2)
                committed += [number] if number % 3 != 2 else []
                number += 1
            producer.begin_transaction()
            producer.produce("out", b"%d" % number, partition=0)
            producer.flush(10)
            broker.kill()
            broker.start()
            copier.retry(producer.commit_transaction, 30)
            committed.append(number)
            number += 1
        records = read_all(broker.bootstrap_servers, [("out", p) for p in range(PARTITIONS)])
        assert [int(value or b"-1") for _, _, value, _ in records["out", 0]] == committed
        for partition in (1, 2):
            values = [int(value or b"-1") for _, _, value, _ in records["out", partition]]
            assert values == sorted(set(values))
            assert set(values) <= set(committed)


def _transact(producer: Producer, number: int, abort: bool) -> None:
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce("out", b"%d" % number, partition=partition)
    if abort:
        producer.flush(10)
        copier.retry(producer.abort_transaction, 30)
    else:
        copier.retry(producer.commit_transaction, 30)


@pytest.mark.java
def test_transactions_epochs_and_producer_ids_survive_a_kill(java_parts: None, tmp_path: Path) -> None:
    with KavkaProcess(tmp_path / "broker") as broker, JavaTransactions(NEWEST, broker.bootstrap_servers) as client:
        create_topics(broker, "out")
        ids = ("empty", "open", "committed", "aborted")
        producers = {name: client.producer(name, transaction_timeout_ms=60_000) for name in ids}
        for name in ids[1:]:
            for _ in range(2):
                producers[name].begin()
                producers[name].send("out", [name], None)
                if name != "open":
                    producers[name].commit() if name == "committed" else producers[name].abort()
                else:
                    break
        descriptions = {name: client.call("describeTransaction", id=name) for name in ids}
        assert [descriptions[name]["state"] for name in ids] == ["Empty", "Ongoing", "CompleteCommit", "CompleteAbort"]
        states = _producer_states(client)
        broker.kill()
        broker.start()
        assert {name: client.call("describeTransaction", id=name) for name in ids} == descriptions
        assert _producer_states(client) == states
        producers["open"].send("out", ["continued"], None)
        producers["open"].commit()
        assert client.call("describeTransaction", id="open")["state"] == "CompleteCommit"
        new_producer = client.producer("new")
        used_ids = {entry["producerId"] for entry in descriptions.values()}
        assert client.call("describeTransaction", id="new")["producerId"] not in used_ids
        new_producer.close()


def _producer_states(client: JavaTransactions) -> list[list[dict[str, object]]]:
    """The producers of each partition."""
    states = (client.call("producers", topic="out", partition=p) for p in range(PARTITIONS))
    return [sorted(partition_states, key=str) for partition_states in states]


@pytest.mark.java
def test_a_fenced_producer_stays_fenced_after_a_kill(java_parts: None, tmp_path: Path) -> None:
    with KavkaProcess(tmp_path / "broker") as broker, JavaTransactions(NEWEST, broker.bootstrap_servers) as client:
        create_topics(broker, "out")
        old = client.producer("old", transactional_id="id")
        old.begin()
        old.send("out", ["old"])
        client.producer("new", transactional_id="id")
        broker.kill()
        broker.start()
        with pytest.raises(JavaError):
            old.send("out", ["older"])
        with pytest.raises(JavaError):
            old.commit()
        assert read_all(broker.bootstrap_servers, [("out", 0)])["out", 0] == []


@pytest.mark.java
@pytest.mark.parametrize("version", ["3.9.1", "4.3.0"])
def test_apaches_dump_tool_reads_the_transaction_log(java_parts: None, tmp_path: Path, version: str) -> None:
    overrides = {"transaction.state.log.num.partitions": 1}
    with KavkaProcess(tmp_path / "broker", overrides=overrides) as broker:
        create_topics(broker, "out")
        with JavaTransactions(version, broker.bootstrap_servers) as client:
            producer = client.producer("dumped", transaction_timeout_ms=12_345)
            for end in (producer.commit, producer.abort):
                producer.begin()
                producer.send("out", ["x"], 2)
                end()
            producer.close()
        broker.stop()
        logs = sorted((broker.log_dirs[0] / "__transaction_state-0").glob("*.log"))
        output = dump(NEWEST, logs, "--transaction-log-decoder")
        states = re.findall(r'"transactionStatus":(\d)', output) or re.findall(r"state=(\w+)", output)
        assert len(states) == 7, output
        assert "dumped" in output and "12345" in output and '"topic":"out"' in output
        data = sorted((broker.log_dirs[0] / "out-2").glob("*.log"))
        markers = re.findall(r"endTxnMarker: (\w+)", dump(NEWEST, data, "--print-data-log"))
        assert markers == ["COMMIT", "ABORT"]


def test_the_broker_completes_a_decided_transaction_after_a_kill(tmp_path: Path) -> None:
    """The commit is in the coordinator's log, but in none of the partitions."""
    with KavkaProcess(tmp_path / "broker", overrides={"transaction.state.log.num.partitions": 1}) as broker:
        create_topics(broker, "out")
        producer = transactional_producer(broker)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce("out", b"decided", partition=partition)
        producer.flush(10)
        sizes = {p: _log(broker, f"out-{p}").stat().st_size for p in range(PARTITIONS)}
        producer.commit_transaction(10)
        broker.kill()
        for partition, size in sizes.items():
            with _log(broker, f"out-{partition}").open("r+b") as file:
                file.truncate(size)
        state = _log(broker, "__transaction_state-0")
        with state.open("r+b") as file:
            file.truncate(_start_of_last_batch(state.read_bytes()))
        broker.start()
        records = read_all(broker.bootstrap_servers, [("out", p) for p in range(PARTITIONS)])
        assert [[value for _, _, value, _ in records["out", p]] for p in range(PARTITIONS)] == [
            [b"decided"]
        ] * PARTITIONS
        with pytest.raises(KafkaException):
            producer.commit_transaction(1)


def _log(broker: KavkaProcess, partition: str) -> Path:
    return next(iter((broker.log_dirs[0] / partition).glob("*.log")))


def _start_of_last_batch(data: bytes) -> int:
    """The position of the last batch, which records that the markers are written."""
    position = last = 0
    while position < len(data):
        last = position
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return last


@pytest.mark.java
@pytest.mark.parametrize("version", ["3.9.1", "4.3.0"])
def test_the_java_client_commits_despite_kills_of_its_broker(java_parts: None, tmp_path: Path, version: str) -> None:
    """The broker is killed before, during or after the commit, and the client retries."""
    rng = random.Random(10)
    with KavkaProcess(tmp_path / "broker") as broker, JavaTransactions(version, broker.bootstrap_servers) as client:
        create_topics(broker, "out")
        producer = client.producer("java", request_timeout_ms=5000, reconnect_backoff_max_ms=200)
        for number in range(8):
            producer.begin()
            for partition in range(PARTITIONS):
                producer.send("out", [str(number)], partition)
            with ThreadPoolExecutor(1) as pool:
                commit = pool.submit(producer.commit)
                time.sleep(rng.uniform(0, 0.01))
                broker.kill()
                broker.start()
                commit.result()
        records = read_all(broker.bootstrap_servers, [("out", p) for p in range(PARTITIONS)])
        for partition in range(PARTITIONS):
            values = [int(value or b"-1") for _, _, value, _ in records["out", partition]]
            assert values == list(range(8))
