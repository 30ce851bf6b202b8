"""kill -9 in the middle of a produce, and a disk that is full: what was acknowledged is there,
once, in order."""

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
    """Sends numbered records without end and remembers which of them were acknowledged."""

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

    def _done(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append((int(message.key()), message.offset()))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(TOPIC, b"v" * 500, b"%d" % self.sent, partition=0, on_delivery=self._done)
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
    """A broker that was killed while it was written to, running again, and what it had acknowledged
    in each life."""
    chance = random.Random(seed)
    # Small segments, so that some of the kills fall into a roll.
    segment = 300_000 if target_name == KAVKA else 1 << 20
    settings = {"log.segment.bytes": segment, "log.index.interval.bytes": 500}
    broker = start_target(target_name, folder, settings)
    assert wire.create_topic(broker.address, TOPIC) == 0
    lives = []
    for _ in range(rounds):
        writer = Writer(
            broker,
            acks=-1 if idempotent else 1,
            **{"enable.idempotence": idempotent, "retries": 0 if not idempotent else 1000},
        )
        try:
            wait_until(lambda w=writer: len(w.acknowledged) > 500, timeout=30, what="acknowledged records")
            time.sleep(chance.uniform(0, 0.3))
            broker.kill()
            if idempotent:
                broker.start()
                time.sleep(0.3)
        finally:
            writer.stop(flush=10 if idempotent else 0.1)
        if not idempotent:
            broker.start()
        lives.append(writer.acknowledged)
    return broker, lives


@pytest.mark.parametrize("seed", [1, 2])
def test_every_record_acknowledged_before_a_kill_is_there_once_and_in_order(
    target_name: str, tmp_path: Path, seed: int
) -> None:
    broker, lives = crash_and_restart(target_name, tmp_path, seed, rounds=3, idempotent=False)
    try:
        records = read_all(broker.bootstrap_servers, [(TOPIC, 0)])[TOPIC, 0]
        assert [offset for offset, *_ in records] == list(range(len(records)))
        at = {offset: int(key or b"-1") for offset, key, _, _ in records}
        for acknowledged in lives:
            assert len(acknowledged) > 500
            for number, offset in acknowledged:
                assert at.get(offset) == number
        for first, last in _lives_in_the_log([at[offset] for offset in sorted(at)]):
            assert first == 0 and last > 0
    finally:
        broker.close()


def _lives_in_the_log(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of each writer's run of numbers; a number twice, or out of order, is an
    assertion."""
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
    broker, lives = crash_and_restart(target_name, tmp_path, 3, rounds=1, idempotent=True)
    try:
        records = read_all(broker.bootstrap_servers, [(TOPIC, 0)])[TOPIC, 0]
        keys = [int(key or b"-1") for _, key, _, _ in records]
        assert keys == list(range(len(keys)))
        assert len(keys) >= len(lives[0])
    finally:
        broker.close()


@pytest.mark.java
def test_the_files_are_sane_after_a_kill_and_a_restart(target_name: str, java_parts: None, tmp_path: Path) -> None:
    broker, _ = crash_and_restart(target_name, tmp_path, 4, rounds=2, idempotent=False)
    try:
        broker.stop()
        logs = list(log_files(broker.log_dirs[0], ".log"))
        assert len(logs) > 1
        dump(NEWEST, logs, "--deep-iteration")
        indexes = list(log_files(broker.log_dirs[0], ".index"))
        checked = dump(NEWEST, indexes, "--index-sanity-check")
        assert checked.count("passed sanity check.") + checked.count("is empty.") == len(indexes)
        dump(NEWEST, indexes)
        dump(NEWEST, list(log_files(broker.log_dirs[0], ".timeindex")))
    finally:
        broker.close()


def test_a_torn_batch_at_the_end_is_truncated(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path / "kavka") as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        for number in range(10):
            assert _produce(broker, TOPIC, b"%d" % number) == (0, number)
        broker.kill()
        log = next(log_files(broker.log_dirs[0], ".log"))
        torn = wire.batch([b"never acknowledged"], base_offset=10, leader_epoch=0)
        with log.open("ab") as file:
            file.write(torn[:-7])
        broker.start()
        assert _produce(broker, TOPIC, b"next") == (0, 10)
        records = read_all(broker.bootstrap_servers, [(TOPIC, 0)])[TOPIC, 0]
        assert [value for _, _, value, _ in records] == [b"%d" % n for n in range(10)] + [b"next"]


def test_indexes_that_were_lost_are_made_again(tmp_path: Path) -> None:
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
    """Eight megabytes, mounted for this test."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        skip_loudly("only root can mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        skip_loudly(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def _until(condition: Callable[[], tuple[int, int]], expected: int, timeout: float) -> tuple[int, int]:
    result = (99, -1)

    def check() -> bool:
        nonlocal result
        result = condition()
        return result[0] == expected

    wait_until(check, timeout=timeout, what=f"error code {expected}", interval=0.1)
    return result


def test_a_full_disk_is_an_error_for_its_topics_only_and_is_forgotten_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    """56 is KAFKA_STORAGE_ERROR. Topics go to the log directory with the fewest partitions, in
    turn."""
    roomy = tmp_path / "roomy"
    with KavkaProcess(
        tmp_path / "kavka",
        log_dirs=(roomy, small_disk),
        overrides={"log.index.size.max.bytes": 4096, "metadata.dir": tmp_path / "metadata"},
    ) as broker:
        for topic in ("one", "two", "three", "four"):
            assert wire.create_topic(broker.address, topic) == 0
            assert _produce(broker, topic, b"first")[0] == 0
        full = [topic for topic in ("one", "two", "three", "four") if (small_disk / f"{topic}-0").exists()]
        well = [topic for topic in ("one", "two", "three", "four") if (roomy / f"{topic}-0").exists()]
        assert len(full) == 2 and len(well) == 2

        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        codes = {_produce(broker, full[0], b"x" * 50_000)[0] for _ in range(5)}
        assert codes == {56}
        for topic in well:
            assert _produce(broker, topic, b"goes on")[0] == 0
        assert wire.create_topic(broker.address, "while-full") in (0, 56)
        assert broker.process.running()

        filler.unlink()
        for topic in full:
            code, offset = _until(lambda topic=topic: _produce(broker, topic, b"room again"), 0, timeout=20)
            assert (code, offset) == (0, 1)
        records = read_all(broker.bootstrap_servers, [(topic, 0) for topic in full])
        for topic in full:
            assert [value for _, _, value, _ in records[topic, 0]] == [b"first", b"room again"]

        assert broker.stop() == 0
        broker.start()
        records = read_all(broker.bootstrap_servers, [(topic, 0) for topic in (*full, *well)])
        assert all(records[topic, 0][0][2] == b"first" for topic in (*full, *well))
