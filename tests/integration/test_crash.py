"""After SIGKILL during a produce, or with a full disk, every acknowledged record is in the log,
once and in order."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.support import wire
from tests.support.apache import NEWEST
from tests.support.kavka_process import KavkaProcess
from tests.support.material import dump, log_files, read_all
from tests.support.missing import skip_loudly
from tests.support.processes import wait_until
from tests.support.targets import KAVKA, Target, start_target
from tests.support.wire import PRODUCE, Wire

pytestmark = [pytest.mark.timeout(240), pytest.mark.records]

TOPIC = "crash"


class Writer:
    """Produces numbered records until it is stopped. `acknowledged` has the number and the offset
    of each acknowledged record."""

    def __init__(self, broker: Target, **config: object) -> None:
        self.acknowledged: list[tuple[int, int]] = []
        self.sent = 0
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "log_level": 0,
                **config,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append((int(message.key()), message.offset()))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(TOPIC, b"v" * 500, b"%d" % self.sent, partition=0, on_delivery=self._on_delivery)
                self.sent += 1
            except BufferError:
                pass
            self._producer.poll(0)
            if self.sent % 200 == 0:
                time.sleep(0.005)

    def stop(self, flush: float) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(flush)
        self._producer.purge()
        self._producer.flush(1)


def crash_and_restart(
    target_name: str, folder: Path, seed: int, rounds: int, idempotent: bool
) -> tuple[Target, list[list[tuple[int, int]]]]:
    """Kill the broker during writes and restart it, `rounds` times. Return the running broker and
    the acknowledged records of each round."""
    rng = random.Random(seed)
    # Small segments, so that the broker is sometimes killed while it rolls a segment.
    segment_bytes = 300_000 if target_name == KAVKA else 1 << 20
    settings = {"log.segment.bytes": segment_bytes, "log.index.interval.bytes": 500}
    broker = start_target(target_name, folder, settings)
    assert wire.create_topic(broker.address, TOPIC) == 0
    acknowledged_by_round = []
    for _ in range(rounds):
        writer = Writer(
            broker,
            acks=-1 if idempotent else 1,
            **{"enable.idempotence": idempotent, "retries": 0 if not idempotent else 1000},
        )
        try:
            wait_until(lambda w=writer: len(w.acknowledged) > 500, timeout=30, what="acknowledged records")
            time.sleep(rng.uniform(0, 0.3))
            broker.kill()
            if idempotent:
                broker.start()
                time.sleep(0.3)
        finally:
            writer.stop(flush=10 if idempotent else 0.1)
        if not idempotent:
            broker.start()
        acknowledged_by_round.append(writer.acknowledged)
    return broker, acknowledged_by_round


@pytest.mark.parametrize("seed", [1, 2])
def test_every_record_acknowledged_before_a_kill_is_stored_once_and_in_order(
    target_name: str, tmp_path: Path, seed: int
) -> None:
    broker, acknowledged_by_round = crash_and_restart(target_name, tmp_path, seed, rounds=3, idempotent=False)
    try:
        records = read_all(broker.bootstrap_servers, [(TOPIC, 0)])[TOPIC, 0]
        assert [offset for offset, *_ in records] == list(range(len(records)))
        number_by_offset = {offset: int(key or b"-1") for offset, key, _, _ in records}
        for acknowledged in acknowledged_by_round:
            assert len(acknowledged) > 500
            for number, offset in acknowledged:
                assert number_by_offset.get(offset) == number
        for first, last in _runs_of_numbers([number_by_offset[offset] for offset in sorted(number_by_offset)]):
            assert first == 0 and last > 0
    finally:
        broker.close()


def _runs_of_numbers(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of each writer. Fail on a repeated number and on a number out
    of order."""
    start = previous = numbers[0]
    for number in numbers[1:]:
        if number == previous + 1:
            previous = number
            continue
        assert number == 0, f"{number} after {previous}"
        yield start, previous
        start = previous = number
    yield start, previous


def test_an_idempotent_producer_survives_a_kill_without_loss_or_duplicates(target_name: str, tmp_path: Path) -> None:
    broker, acknowledged_by_round = crash_and_restart(target_name, tmp_path, 3, rounds=1, idempotent=True)
    try:
        records = read_all(broker.bootstrap_servers, [(TOPIC, 0)])[TOPIC, 0]
        keys = [int(key or b"-1") for _, key, _, _ in records]
        assert keys == list(range(len(keys)))
        assert len(keys) >= len(acknowledged_by_round[0])
    finally:
        broker.close()


@pytest.mark.java
def test_the_files_are_valid_after_a_kill_and_a_restart(target_name: str, java_parts: None, tmp_path: Path) -> None:
    broker, _ = crash_and_restart(target_name, tmp_path, 4, rounds=2, idempotent=False)
    try:
        broker.stop()
        logs = list(log_files(broker.log_dirs[0], ".log"))
        assert len(logs) > 1
        dump(NEWEST, logs, "--deep-iteration")
        indexes = list(log_files(broker.log_dirs[0], ".index"))
        output = dump(NEWEST, indexes, "--index-sanity-check")
        assert output.count("passed sanity check.") + output.count("is empty.") == len(indexes)
        dump(NEWEST, indexes)
        dump(NEWEST, list(log_files(broker.log_dirs[0], ".timeindex")))
    finally:
        broker.close()


def test_an_incomplete_batch_at_the_end_is_truncated(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path / "kavka") as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        for number in range(10):
            assert _produce(broker, TOPIC, b"%d" % number) == (0, number)
        broker.kill()
        log = next(log_files(broker.log_dirs[0], ".log"))
        batch = wire.batch([b"never acknowledged"], base_offset=10, leader_epoch=0)
        with log.open("ab") as file:
            file.write(batch[:-7])
        broker.start()
        assert _produce(broker, TOPIC, b"next") == (0, 10)
        records = read_all(broker.bootstrap_servers, [(TOPIC, 0)])[TOPIC, 0]
        assert [value for _, _, value, _ in records] == [b"%d" % n for n in range(10)] + [b"next"]


def test_missing_indexes_are_rebuilt(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path / "kavka", overrides={"log.index.interval.bytes": 100}) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        for number in range(200):
            assert _produce(broker, TOPIC, b"%d" % number) == (0, number)
        broker.kill()
        for suffix in (".index", ".timeindex"):
            for path in log_files(broker.log_dirs[0], suffix):
                path.unlink()
        broker.start()
        records = read_all(broker.bootstrap_servers, [(TOPIC, 0)])[TOPIC, 0]
        assert [value for _, _, value, _ in records] == [b"%d" % n for n in range(200)]


def _produce(broker: KavkaProcess, topic: str, value: bytes) -> tuple[int, int]:
    with Wire(broker.address, 30.0) as connection:
        body = wire.produce_request(topic, 0, wire.batch([value]), version=7)
        return wire.produce_error(connection.call(PRODUCE, 7, body), 7)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        skip_loudly("only root can mount a small disk")
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mount.returncode != 0:
        skip_loudly(f"a small disk cannot be mounted here: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def _wait_for_code(produce: Callable[[], tuple[int, int]], expected: int, timeout: float) -> tuple[int, int]:
    result = (99, -1)

    def has_code() -> bool:
        nonlocal result
        result = produce()
        return result[0] == expected

    wait_until(has_code, timeout=timeout, what=f"error code {expected}", interval=0.1)
    return result


def test_a_full_disk_fails_only_its_topics_until_there_is_free_space(tmp_path: Path, small_disk: Path) -> None:
    """Error code 56 is KAFKA_STORAGE_ERROR. A new topic goes to the log directory with the fewest
    partitions."""
    large_disk = tmp_path / "large"
    with KavkaProcess(
        tmp_path / "kavka",
        log_dirs=(large_disk, small_disk),
        overrides={"log.index.size.max.bytes": 4096, "metadata.dir": tmp_path / "metadata"},
    ) as broker:
        for topic in ("one", "two", "three", "four"):
            assert wire.create_topic(broker.address, topic) == 0
            assert _produce(broker, topic, b"first")[0] == 0
        full_topics = [topic for topic in ("one", "two", "three", "four") if (small_disk / f"{topic}-0").exists()]
        healthy_topics = [topic for topic in ("one", "two", "three", "four") if (large_disk / f"{topic}-0").exists()]
        assert len(full_topics) == 2 and len(healthy_topics) == 2

        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        codes = {_produce(broker, full_topics[0], b"x" * 50_000)[0] for _ in range(5)}
        assert codes == {56}
        for topic in healthy_topics:
            assert _produce(broker, topic, b"accepted")[0] == 0
        assert wire.create_topic(broker.address, "while-full") in (0, 56)
        assert broker.process.running()

        filler.unlink()
        for topic in full_topics:
            code, offset = _wait_for_code(lambda topic=topic: _produce(broker, topic, b"after cleanup"), 0, timeout=20)
            assert (code, offset) == (0, 1)
        records = read_all(broker.bootstrap_servers, [(topic, 0) for topic in full_topics])
        for topic in full_topics:
            assert [value for _, _, value, _ in records[topic, 0]] == [b"first", b"after cleanup"]

        assert broker.stop() == 0
        broker.start()
        records = read_all(broker.bootstrap_servers, [(topic, 0) for topic in (*full_topics, *healthy_topics)])
        assert all(records[topic, 0][0][2] == b"first" for topic in (*full_topics, *healthy_topics))
