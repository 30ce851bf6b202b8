"""Workers of Connect on Apache Kafka: records, and the workers' own topics, are kept there as they
are on Kavka."""

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

MADE = {"topic.creation.default.partitions": "1", "topic.creation.default.replication.factor": "1"}


@pytest.fixture(scope="module")
def apache(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    quick = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    with ApacheKafka(tmp_path_factory.mktemp("apache"), overrides=quick) as broker:
        yield broker


def test_a_standalone_worker_brings_lines_of_a_file_through_a_topic_to_another_file(
    apache: ApacheKafka, tmp_path: Path, topic: str
) -> None:
    lines, out = tmp_path / "lines.txt", tmp_path / "out.txt"
    lines.write_text("".join(f"{number}\n" for number in range(500)))
    text = "org.apache.kafka.connect.storage.StringConverter"
    worker = {
        "bootstrap.servers": apache.bootstrap_servers,
        "key.converter": text,
        "value.converter": text,
        "listeners": f"http://127.0.0.1:{free_port()}",
        "file.connectors.enable": "true",
        "offset.storage.file.filename": tmp_path / "offsets",
        "checkpoint.dir": tmp_path / "points",
        **spark_settings(tmp_path),
    }
    source = {"name": "in", "connector.class": SOURCE, "file": lines, "topic": topic, **MADE}
    sink = {"name": "out", "connector.class": SINK, "file": out, "topics": topic}
    configurations = {"worker": worker, "source": source, "sink": sink}
    files = [str(write_properties(tmp_path / f"{name}.properties", values)) for name, values in configurations.items()]
    command = [sys.executable, "-m", "kavka.cli.main", "connect-standalone", *files]
    home = {"SPARK_HOME": str(light_home(tmp_path / "home"))}
    with ManagedProcess(command, log=tmp_path / "worker.out", env=home, cwd=tmp_path) as process:
        expect_lines(out, 500, process)
        with lines.open("a") as file:
            file.write("".join(f"{number}\n" for number in range(500, 1000)))
        expect_lines(out, 1000, process)
        assert process.stop(120) == 0, process.log_tail()
    assert [int(bytes(record.value)) for record in read_all(apache, topic)] == list(range(1000))


def expect_lines(file: Path, count: int, process: ManagedProcess) -> None:
    def there() -> bool:
        assert process.running(), process.log_tail()
        return file.exists() and file.read_text().count("\n") >= count

    wait_until(there, timeout=TIMEOUT_S, what=f"{count} lines", interval=0.2)
    assert file.read_text().split() == [str(number) for number in range(count)]


def test_a_distributed_worker_keeps_configurations_states_and_offsets_in_topics_there(
    apache: ApacheKafka, tmp_path: Path, topic: str
) -> None:
    group, servers = f"connect-{topic}", apache.bootstrap_servers
    lines, out = tmp_path / "lines.txt", tmp_path / "out.txt"
    lines.write_text("".join(f"{number}\n" for number in range(500)))
    source = {"name": "in", "connector.class": SOURCE, "file": str(lines), "topic": topic, **MADE}
    sink = {"name": "out", "connector.class": SINK, "file": str(out), "topics": topic, "exactly.once": "true"}
    worker = ConnectWorker(tmp_path, servers, group, tmp_path, **{"exactly.once.source.support": "enabled"})
    try:
        worker.wait_until_ready()
        worker.create("in", source)
        worker.create("out", sink)
        expect_lines(out, 500, worker.process)
        with lines.open("a") as file:
            file.write("".join(f"{number}\n" for number in range(500, 1000)))
        expect_lines(out, 1000, worker.process)
        assert worker.ask("PUT", "/connectors/in/pause")[0] == 202
        worker.wait_for_task("in", "PAUSED")
        offsets = worker.ask("GET", "/connectors/in/offsets")[1]["offsets"]
        assert [(offset["partition"], offset["offset"]["position"]) for offset in offsets] == [
            ({"filename": str(lines)}, lines.stat().st_size)
        ]
        # A worker whose Spark has ended exits, so that others take over its connectors.
        os.kill(spark_of(worker.process.pid), signal.SIGKILL)
        assert worker.process.wait(TIMEOUT_S) == 1, worker.process.log_tail()
        assert "Spark's process ended" in worker.log()
    finally:
        worker.process.kill()

    with Admin(bootstrap_servers=servers) as admin:
        topics = [f"{group}-{what}" for what in ("config", "offset", "status")]
        topic_configs = admin.describe_configs([ConfigResource.topic(name) for name in topics])
        assert [entry["cleanup.policy"].value for entry in topic_configs.values()] == ["compact"] * 3
    client = {"bootstrap.servers": servers}
    tables = [TopicTable(client, name, 1, 1) for name in topics]
    try:
        configs, store, states = ConfigStore(tables[0]), OffsetStore(tables[1]), StatusStore(tables[2])
        assert (configs.config("in"), configs.target("in")) == (source, "PAUSED")
        assert (configs.config("out"), configs.target("out")) == (sink, "STARTED")
        assert [{"partition": part, "offset": offset} for part, offset in store.entries("in")] == offsets
        assert (states.topics("in"), states.topics("out")) == ([topic], [topic])
    finally:
        for table in tables:
            table.close()


def spark_of(pid: int) -> int:
    """The process of Java that the worker has started."""
    children = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    (child_pid,) = (child for child in children if b"java" in Path(f"/proc/{child}/cmdline").read_bytes())
    return child_pid
