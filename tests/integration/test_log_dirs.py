"""Several log directories: partitions are spread over them, and one directory fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from tests.support import wire
from tests.support.kavka_process import KavkaProcess
from tests.support.material import read_all
from tests.support.processes import wait_until
from tests.support.strace import tracing
from tests.support.wire import FETCH, PRODUCE, Wire

pytestmark = pytest.mark.timeout(120)

STORAGE_ERROR = 56
WRITES = ("pwritev", "pwritev2")
TOPICS = ("a", "b", "c", "d")


def produce(broker: KavkaProcess, topic: str, value: bytes = b"x") -> int:
    with Wire(broker.address, 30) as connection:
        body = wire.produce_request(topic, 0, wire.batch([value]), version=7)
        return wire.produce_error(connection.call(PRODUCE, 7, body), 7)[0]


def fetch(broker: KavkaProcess, topic: str) -> int:
    with Wire(broker.address, 30) as connection:
        return wire.fetched(connection.call(FETCH, 4, wire.fetch_request(topic, 0, 0, version=4)), 4)[0]


def directory_of(broker: KavkaProcess, topic: str) -> Path:
    [directory] = [path for path in broker.log_dirs if (path / f"{topic}-0").is_dir()]
    return directory


def start(tmp_path: Path, **overrides: object) -> KavkaProcess:
    broker = KavkaProcess(
        tmp_path / "kavka",
        log_dirs=(tmp_path / "one", tmp_path / "two"),
        overrides={"metadata.dir": tmp_path / "metadata", **overrides},
    )
    for topic in TOPICS:
        assert wire.create_topic(broker.address, topic) == 0
        assert produce(broker, topic, topic.encode()) == 0
    return broker


def test_partitions_are_spread_over_the_directories_and_found_after_a_restart(tmp_path: Path) -> None:
    with start(tmp_path) as broker:
        assert [directory_of(broker, topic) for topic in TOPICS].count(broker.log_dirs[0]) == 2
        for stop in (broker.stop, broker.kill):
            stop()
            broker.start()
            records_by_partition = read_all(broker.bootstrap_servers, [(topic, 0) for topic in TOPICS])
            assert {
                partition[0]: [record[2] for record in records] for partition, records in records_by_partition.items()
            } == {topic: [topic.encode()] for topic in TOPICS}


@pytest.mark.parametrize("calls", [WRITES, ("fdatasync",)], ids=["write", "flush"])
def test_a_failed_disk_takes_only_its_directory_offline_until_a_restart(tmp_path: Path, calls: tuple[str, ...]) -> None:
    overrides = {"log.flush.interval.messages": 1} if "fdatasync" in calls else {}
    with start(tmp_path, **overrides) as broker:
        failed_directory = directory_of(broker, "a")
        offline_topics = [topic for topic in TOPICS if directory_of(broker, topic) == failed_directory]
        online_topics = [topic for topic in TOPICS if topic not in offline_topics]
        assert len(offline_topics) == len(online_topics) == 2
        log = failed_directory / "a-0" / f"{0:020}.log"
        with tracing(broker.pid, calls, tmp_path / "trace", inject="error=EIO", paths=[log]):
            assert produce(broker, "a") == STORAGE_ERROR
            for topic in offline_topics:
                assert produce(broker, topic) == STORAGE_ERROR
                assert fetch(broker, topic) == STORAGE_ERROR
            for topic in online_topics:
                assert produce(broker, topic) == 0
                assert fetch(broker, topic) == 0
            assert wire.create_topic(broker.address, "new") == 0
            assert produce(broker, "new") == 0
            assert directory_of(broker, "new") != failed_directory
            assert describe_errors(broker) == {str(failed_directory): STORAGE_ERROR, str(directory_of(broker, "b")): 0}
        # A failed directory stays offline until the next start, even if the disk works again.
        assert produce(broker, "a") == STORAGE_ERROR

        assert broker.stop() == 0
        broker.start()
        for topic in (*TOPICS, "new"):
            wait_until(lambda t=topic: produce(broker, t) == 0, timeout=10, what=f"{topic} online")
        records = read_all(broker.bootstrap_servers, [(topic, 0) for topic in TOPICS])
        for topic in TOPICS:
            assert records[topic, 0][0][2] == topic.encode()


def describe_errors(broker: KavkaProcess) -> dict[str, int]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        [response] = admin.describe_log_dirs()
    finally:
        admin.close()
    return {row["log_dir"]: row["error_code"] for row in response["log_dirs"]}


def test_a_broker_whose_only_directory_fails_stops_with_an_error(tmp_path: Path) -> None:
    """Kafka stops as well. A supervisor restarts the broker when the disk is repaired."""
    with KavkaProcess(tmp_path / "kavka") as broker:
        assert wire.create_topic(broker.address, "a") == 0
        assert produce(broker, "a", b"stored") == 0
        log = broker.log_dirs[0] / "a-0" / f"{0:020}.log"
        start_time = time.monotonic()
        with tracing(broker.pid, WRITES, tmp_path / "trace", inject="error=EIO", paths=[log]):
            assert produce(broker, "a") == STORAGE_ERROR
            wait_until(lambda: not broker.process.running(), timeout=20, what="the end of the broker")
        assert time.monotonic() - start_time < 20
        assert broker.process.returncode == 1
        assert broker.process.log_tail().splitlines()[-1] == "kavka: all log directories have failed"
        broker.start()
        records = read_all(broker.bootstrap_servers, [("a", 0)])["a", 0]
        assert [value for _, _, value, _ in records] == [b"stored"]
