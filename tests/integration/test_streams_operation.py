"""Streams on Spark when topics change, and when there is nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from kavka import Admin, NewTopic, Producer, TopicPartition
from kavka.cli import job_status
from kavka.pipeline.streams.status import lag_seconds
from kavka.streams import KafkaStreams, Materialized, Produced, Serdes, StreamsBuilder, StreamsException, Topology
from tests.support import streams_cases
from tests.support.our_consumer import read_all
from tests.support.processes import free_port, wait_until
from tests.support.targets import Target
from tests.support.tools import run_kavka_process

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.records]


@pytest.fixture
def admin(target: Target) -> Iterator[Admin]:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


def fill(target: Target, topic: str, partition: int, *records: tuple[str, str]) -> None:
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for key, value in records:
            producer.send(topic, value=value.encode(), key=key.encode(), partition=partition)


def config(target: Target, topic: str, folder: Path, **more: Any) -> dict[str, Any]:
    settings = {"bootstrap.servers": target.bootstrap_servers, "application.id": f"app-{topic}"}
    return {**settings, "state.dir": str(folder), **{name.replace("_", "."): value for name, value in more.items()}}


def counts_by_key(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    counted = builder.stream(source).group_by_key().count(Materialized.as_("counts"))
    counted.to_stream().to(output, Produced.with_(Serdes.String(), Serdes.Long()))
    return builder.build()


def values(target: Target, topic: str) -> list[tuple[bytes, Any]]:
    return sorted((record.key, record.value) for record in read_all(target, topic))


def test_an_application_follows_retention_and_refuses_moved_keys(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    output = f"{topic}-out"
    admin.create_topics([NewTopic(topic, 1), NewTopic(output, 1)])
    fill(target, topic, 0, ("a", "1"), ("a", "2"))
    settings = config(target, topic, tmp_path)
    with KafkaStreams(counts_by_key(topic, output), settings, spark) as streams:
        streams.process_all_available()
    fill(target, topic, 0, *(("a", "lost") for _ in range(5)), ("a", "8"), ("b", "9"))
    admin.delete_records({TopicPartition(topic, 0): 7})
    without_policy = KafkaStreams(counts_by_key(topic, output), {**settings, "auto.offset.reset": "none"}, spark)
    without_policy.start()
    assert without_policy.wait(60)
    lost = f"{topic}-0: offsets 2 to 6 no longer exist, the first is now 7, and there is no reset policy"
    assert lost in str(without_policy.exception())
    with KafkaStreams(counts_by_key(topic, output), settings, spark) as streams:
        streams.process_all_available()
        last = {key: int.from_bytes(value) for key, value in values(target, output)}
        assert last == {b"a": 3, b"b": 1}
        admin.create_partitions({topic: 3})
        assert streams.wait(60)
    changed = f"the topic {topic} had 1 partitions and has 3"
    assert changed in str(streams.exception())
    with pytest.raises(StreamsException, match=f"{changed}.*kavka streams-application-reset"):
        KafkaStreams(counts_by_key(topic, output), settings, spark).start()


def test_a_stateless_application_follows_new_partitions(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    output = f"{topic}-out"
    admin.create_topics([NewTopic(topic, 1), NewTopic(output, 1)])
    builder = StreamsBuilder()
    builder.stream(topic).map_values(lambda value: value.upper()).to(output)
    fill(target, topic, 0, ("a", "x"))
    with KafkaStreams(builder.build(), config(target, topic, tmp_path), spark) as streams:
        streams.process_all_available()
        admin.create_partitions({topic: 2})
        fill(target, topic, 1, ("b", "y"))
        wait_until(lambda: len(read_all(target, output)) == 2, timeout=60, what="the record of the new partition")
    assert values(target, output) == [(b"a", b"X"), (b"b", b"Y")]


def test_an_application_with_a_processor_rests_without_input(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    output = f"{topic}-out"
    admin.create_topics([NewTopic(topic, 1), NewTopic(output, 1)])
    topology = (
        Topology().add_source("in", topic).add_processor("p", streams_cases.Passing, "in").add_sink("out", output, "p")
    )
    fill(target, topic, 0, ("a", "1"))
    with KafkaStreams(topology, config(target, topic, tmp_path), spark) as streams:
        streams.process_all_available()
        assert streams.query is not None
        streams.query.processAllAvailable()
        before = streams.query.lastProgress.batchId
        assert not streams.wait(5)
        assert streams.query.lastProgress.batchId == before
        fill(target, topic, 0, ("a", "2"))
        streams.process_all_available()
    assert values(target, output) == [(b"a", b"1"), (b"a", b"2")]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_records_that_cannot_be_read_or_written_go_to_the_dead_letter_queue(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path, guarantee: str
) -> None:
    output, queue = f"{topic}-out", f"{topic}-dlq"
    admin.create_topics([NewTopic(topic, 1), NewTopic(output, 1, configs={"max.message.bytes": "500"})])
    admin.create_topics([NewTopic(queue, 1)])
    builder = StreamsBuilder()
    builder.stream(topic).map_values(lambda value: value * 1000 if value == "large" else value).to(output)
    settings = config(target, topic, tmp_path)
    settings |= {
        "processing.guarantee": guarantee,
        "errors.dead.letter.queue.topic.name": queue,
        "deserialization.exception.handler": "LogAndContinueExceptionHandler",
        "production.exception.handler": "tests.support.streams_cases:Parking",
        "producer.max.request.size": "4000" if guarantee == "exactly_once_v2" else "1000000",
    }
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for value in (b"1", b"\xff", b"large", b"2"):
            producer.send(topic, value=value, key=b"k")
    with KafkaStreams(builder.build(), settings, spark) as streams:
        streams.process_all_available()
    assert values(target, output) == [(b"k", b"1"), (b"k", b"2")]
    unread, large = sorted(read_all(target, queue), key=lambda record: record.value != b"\xff")
    headers = dict(unread.headers)
    assert (unread.key, unread.value, headers["__streams.errors.offset"]) == (b"k", b"\xff", b"1")
    assert (large.key, large.value) == (b"k", b"parked")


JOB = """
from kavka.streams import Materialized, Produced, Serdes, StreamsBuilder

CONFIG = {"application.id": "app-TOPIC", "spark.driver.memory": "512m", "spark.ui.enabled": "false"}

def build():
    builder = StreamsBuilder()
    counts = builder.stream("TOPIC").repartition().group_by_key().count(Materialized.as_("counts"))
    counts.to_stream().to("TOPIC-out", Produced.with_(Serdes.String(), Serdes.Long()))
    return builder.build()
"""


def test_a_bounded_run_processes_what_is_there_and_exits(
    target: Target, admin: Admin, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = f"{topic}-out"
    admin.create_topics([NewTopic(topic, 1), NewTopic(output, 1)])
    fill(target, topic, 0, ("a", "1"), ("b", "2"), ("a", "3"))
    (tmp_path / "job.py").write_text(JOB.replace("TOPIC", topic))
    options = ["--available-now", "--bootstrap-server", target.bootstrap_servers, "--master", "local[2]"]
    options += ["--config", f"state.dir={tmp_path}/state", "--config", "cache.max.bytes.buffering=0"]
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path / "jobs"))
    job = str(tmp_path / "job.py")
    ended = run_kavka_process("pipeline", "run", job, *options, timeout=250)
    assert ended.code == 0, ended.err
    assert [int.from_bytes(value) for key, value in values(target, output) if key == b"a"] == [1, 2]
    logged = run_kavka_process("pipeline", "logs", f"app-{topic}")
    assert f"starting app-{topic} on Spark" in logged.out
    refused = run_kavka_process("pipeline", "run", job, *options, "--from-timestamp", "0", timeout=250)
    assert refused.code == 1
    assert "has state, and continues from its offsets" in refused.err
    status = ["--bootstrap-server", target.bootstrap_servers, "--json"]
    listed = run_kavka_process("pipeline", "status", *status)
    assert f"app-{topic}" not in listed.out
    assert job_status.TOPIC in admin.list_topics(list_internal=True)


def test_a_new_application_starts_at_a_time_and_serves_metrics(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    output = f"{topic}-out"
    admin.create_topics([NewTopic(topic, 1, configs={"retention.ms": "-1"}), NewTopic(output, 1)])
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, value=str(number).encode(), key=b"k", timestamp=1000 + number)
        producer.flush()
    builder = StreamsBuilder()
    builder.stream(topic).group_by_key().reduce(lambda total, value: total + value).to_stream().to(output)
    port = free_port()
    settings = config(target, topic, tmp_path, metrics_listener=f"127.0.0.1:{port}")
    streams = KafkaStreams(builder.build(), settings, spark)
    streams.start(from_timestamp=1007)
    with closing(streams):
        streams.process_all_available()
        assert [value for _, value in values(target, output)][-1] == b"789"

        def metrics() -> list[str]:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                return [line for line in response.read().decode().splitlines() if line.startswith("kavka_streams_task")]

        label = f'{{application_id="app-{topic}",task="0_0"}}'
        wait_until(lambda: f"kavka_streams_task_records{label} 3.0" in metrics(), timeout=60, what="the report")
        assert f"kavka_streams_task_restores{label} 0.0" in metrics()
        with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
            producer.send(topic, value=b"x", key=b"k", timestamp=int(time.time() * 1000) - 50_000).get(10)
        tp = TopicPartition(topic, 0)
        assert 49 < lag_seconds({"bootstrap.servers": target.bootstrap_servers}, {tp: 10})[tp] < 100


def test_the_status_of_a_job_is_in_a_topic_of_the_cluster(target: Target, topic: str) -> None:
    client = {"bootstrap.servers": target.bootstrap_servers}
    writer = job_status.StatusWriter(client, "app", topic)
    writer.update({"state": "RUNNING", "batch": 7})
    wait_until(lambda: bool(job_status.read_statuses(client, topic)), timeout=30, what="the status")
    (status,) = job_status.read_statuses(client, topic)
    assert (status["application.id"], status["state"], status["batch"], status["running"]) == (
        "app",
        "RUNNING",
        7,
        True,
    )
    assert status["host"]
    writer.close({"state": "FAILED", "error": "no"})
    (status,) = job_status.read_statuses(client, topic)
    assert (status["state"], status["running"]) == ("FAILED", False)
    job_status.StatusWriter(client, "app", topic).close(None)
    assert job_status.read_statuses(client, topic) == []
