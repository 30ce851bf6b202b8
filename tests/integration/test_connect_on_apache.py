"""Connect workers store records, configurations, offsets and states in Apache Kafka as in Kavka."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka import Admin, ConfigResource
from kavka.pipeline.connect.stores import ConfigStore, OffsetStore, StatusStore
from kavka.pipeline.connect.topic_table import TopicTable
from tests.support.apache import ApacheKafka, write_properties
from tests.support.connect_requests import SINK, SOURCE
from tests.support.connect_worker import TIMEOUT_S, ConnectWorker, spark_settings
from tests.support.our_consumer import read_all
from tests.support.processes import ManagedProcess, free_port, wait_until
from tests.support.spark import light_home

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

TOPIC_CREATION = {"topic.creation.default.partitions": "1", "topic.creation.default.replication.factor": "1"}


@pytest.fixture(scope="module")
def apache(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    overrides = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    with ApacheKafka(tmp_path_factory.mktemp("apache"), overrides=overrides) as broker:
        yield broker


def test_a_standalone_worker_copies_a_file_through_a_topic(apache: ApacheKafka, tmp_path: Path, topic: str) -> None:
    source_file, sink_file = tmp_path / "lines.txt", tmp_path / "out.txt"
    source_file.write_text("".join(f"{number}\n" for number in range(500)))
    string_converter = "org.apache.kafka.connect.storage.StringConverter"
    worker = {
        "bootstrap.servers": apache.bootstrap_servers,
        "key.converter": string_converter,
        "value.converter": string_converter,
        "listeners": f"http://127.0.0.1:{free_port()}",
        "file.connectors.enable": "true",
        "offset.storage.file.filename": tmp_path / "offsets",
        "checkpoint.dir": tmp_path / "points",
        **spark_settings(tmp_path),
    }
    source = {"name": "in", "connector.class": SOURCE, "file": source_file, "topic": topic, **TOPIC_CREATION}
    sink = {"name": "out", "connector.class": SINK, "file": sink_file, "topics": topic}
    configurations = {"worker": worker, "source": source, "sink": sink}
    files = [str(write_properties(tmp_path / f"{name}.properties", values)) for name, values in configurations.items()]
    command = [sys.executable, "-m", "kavka.cli.main", "connect-standalone", *files]
    home = {"SPARK_HOME": str(light_home(tmp_path / "home"))}
    with ManagedProcess(command, log=tmp_path / "worker.out", env=home, cwd=tmp_path) as process:
        expect_lines(sink_file, 500, process)
        with source_file.open("a") as file:
            file.write("".join(f"{number}\n" for number in range(500, 1000)))
        expect_lines(sink_file, 1000, process)
        assert process.stop(120) == 0, process.log_tail()
    assert [int(bytes(record.value)) for record in read_all(apache, topic)] == list(range(1000))


def expect_lines(file: Path, count: int, process: ManagedProcess) -> None:
    def has_lines() -> bool:
        assert process.running(), process.log_tail()
        return file.exists() and file.read_text().count("\n") >= count

    wait_until(has_lines, timeout=TIMEOUT_S, what=f"{count} lines", interval=0.2)
    assert file.read_text().split() == [str(number) for number in range(count)]


def test_a_distributed_worker_stores_configurations_states_and_offsets_in_topics(
    apache: ApacheKafka, tmp_path: Path, topic: str
) -> None:
    group, servers = f"connect-{topic}", apache.bootstrap_servers
    source_file, sink_file = tmp_path / "lines.txt", tmp_path / "out.txt"
    source_file.write_text("".join(f"{number}\n" for number in range(500)))
    source = {"name": "in", "connector.class": SOURCE, "file": str(source_file), "topic": topic, **TOPIC_CREATION}
    sink = {"name": "out", "connector.class": SINK, "file": str(sink_file), "topics": topic, "exactly.once": "true"}
    worker = ConnectWorker(tmp_path, servers, group, tmp_path, **{"exactly.once.source.support": "enabled"})
    try:
        worker.wait_until_ready()
        worker.create("in", source)
        worker.create("out", sink)
        expect_lines(sink_file, 500, worker.process)
        with source_file.open("a") as file:
            file.write("".join(f"{number}\n" for number in range(500, 1000)))
        expect_lines(sink_file, 1000, worker.process)
        assert worker.request("PUT", "/connectors/in/pause")[0] == 202
        worker.wait_for_task("in", "PAUSED")
        offsets = worker.request("GET", "/connectors/in/offsets")[1]["offsets"]
        assert [(offset["partition"], offset["offset"]["position"]) for offset in offsets] == [
            ({"filename": str(source_file)}, source_file.stat().st_size)
        ]
        # A worker exits when its Spark process ends. Other workers then take over its connectors.
        os.kill(find_spark(worker.process.pid), signal.SIGKILL)
        assert worker.process.wait(TIMEOUT_S) == 1, worker.process.log_tail()
        assert "Spark's process ended" in worker.log()
    finally:
        worker.process.kill()

    with Admin(bootstrap_servers=servers) as admin:
        topics = [f"{group}-{suffix}" for suffix in ("config", "offset", "status")]
        topic_configs = admin.describe_configs([ConfigResource.topic(name) for name in topics])
        assert [entry["cleanup.policy"].value for entry in topic_configs.values()] == ["compact"] * 3
    client = {"bootstrap.servers": servers}
    tables = [TopicTable(client, name, 1, 1) for name in topics]
    try:
        configs, store, states = ConfigStore(tables[0]), OffsetStore(tables[1]), StatusStore(tables[2])
        assert (configs.config("in"), configs.target("in")) == (source, "PAUSED")
        assert (configs.config("out"), configs.target("out")) == (sink, "STARTED")
        assert [{"partition": partition, "offset": offset} for partition, offset in store.entries("in")] == offsets
        assert (states.topics("in"), states.topics("out")) == ([topic], [topic])
    finally:
        for table in tables:
            table.close()


def find_spark(pid: int) -> int:
    """Return the process id of the JVM that the worker started."""
    children = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    (child_pid,) = (child for child in children if b"java" in Path(f"/proc/{child}/cmdline").read_bytes())
    return child_pid
