"""The word count with Apache's console producer and consumer, on Kavka and on Apache Kafka, and on
a standalone Spark cluster."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, NewTopic
from kavka.pipeline.streams.progress import end_offsets
from kavka.streams import KafkaStreams
from tests.integration.test_streams_spark import config, fill, lasting, word_count
from tests.support.our_consumer import read_all
from tests.support.processes import ManagedProcess, wait_until
from tests.support.spark_standalone import Standalone
from tests.support.targets import Target
from tests.support.tools import ApacheTools

pytestmark = [pytest.mark.java, pytest.mark.timeout(700), pytest.mark.records]

LONGS = "org.apache.kafka.common.serialization.LongDeserializer"


@pytest.fixture
def admin(either: Target) -> Iterator[Admin]:
    with Admin(bootstrap_servers=either.bootstrap_servers) as admin:
        yield admin


def test_the_word_count_works_with_apaches_console_tools(
    spark: Any, either: Target, admin: Admin, apache_tools: ApacheTools, topic: str, tmp_path: Path
) -> None:
    output = f"{topic}-out"
    at = "--bootstrap-server", either.bootstrap_servers
    admin.create_topics([NewTopic(topic, 2), NewTopic(output, 2)])
    there = 0

    def write(*lines: str) -> None:
        nonlocal there
        text = "".join(f"{line}\n" for line in lines)
        done = apache_tools.run("console-producer", *at, "--topic", topic, stdin=text)
        assert done.code == 0, done.err
        there += len(lines)
        # The tool runs in a shared JVM and may return before its producer has sent the lines.
        wait_until(lambda: sum(end_offsets(admin, [topic], False).values()) == there, timeout=60, what="the lines")

    def read(count: int) -> list[str]:
        done = apache_tools.run(
            "console-consumer", *at, "--topic", output, "--from-beginning", "--isolation-level", "read_committed",
            "--max-messages", str(count), "--timeout-ms", "60000",
            "--formatter-property", "print.key=true", "--formatter-property", f"value.deserializer={LONGS}",
        )  # fmt: skip
        assert done.code == 0, done.err
        return sorted(done.out.splitlines())

    write("all streams lead to kafka", "hello kafka streams")
    settings = config(either, f"app-{topic}", tmp_path, processing_guarantee="exactly_once_v2")
    with KafkaStreams(word_count(topic, output).build(), settings, spark) as streams:
        streams.process_all_available()
        first = ["all\t1", "hello\t1", "kafka\t2", "lead\t1", "streams\t2", "to\t1"]
        assert read(6) == first
        write("all again")
        streams.process_all_available()
    assert read(8) == sorted([*first, "again\t1", "all\t2"])
    assert sum(offset.offset for offset in admin.list_consumer_group_offsets(f"app-{topic}").values()) == 3


@pytest.mark.slow
@pytest.mark.matrix
def test_the_word_count_runs_on_a_standalone_cluster_with_two_workers(
    target: Target, topic: str, tmp_path: Path
) -> None:
    output = f"{topic}-out"
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topics([lasting(topic, 4), lasting(output, 2)])
    words = [f"w{number % 7} w{number % 3}" for number in range(400)]
    fill(target, topic, [(str(index).encode(), line.encode(), 1000 + index) for index, line in enumerate(words)])
    with Standalone(tmp_path / "spark", workers=2) as cluster:
        settings = {
            "spark.master": cluster.master,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
            "cache.max.bytes.buffering": "1000000",
            "max.records.per.batch": "150",
        }
        job = ManagedProcess(
            [sys.executable, "-m", "tests.support.streams_job", target.bootstrap_servers, topic, output,
             f"file://{tmp_path}/state", *(f"{name}={value}" for name, value in settings.items())],
            log=tmp_path / "job.log",
            env={"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip
        try:

            def counts() -> dict[str, int]:
                assert job.running(), job.log_tail()
                counts: dict[str, int] = {}
                for record in read_all(target, output):
                    counts[record.key.decode()] = max(counts.get(record.key.decode(), 0), int.from_bytes(record.value))
                return counts

            expected = dict(Counter(word for line in words for word in line.split(" ")))
            wait_until(lambda: counts() == expected, timeout=500, what="the counts", interval=0.5)
            assert cluster.executors() == [1, 1]
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {job.log_tail()}") from None
        finally:
            job.kill()
