"""Apache's command-line tools of versions 3.9 and 4.3 work with the broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.java_client import run_tool
from tests.support.processes import wait_until
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.usefixtures("java_parts")]


def run(version: str, target: Target, name: str, *args: str, stdin: str = "") -> str:
    return run_tool(version, name, "--bootstrap-server", target.bootstrap_servers, *args, stdin=stdin).stdout


def test_topics_are_created_altered_described_listed_and_deleted(java_version: str, target: Target, topic: str) -> None:
    output = run(java_version, target, "topics", "--create", "--topic", topic, "--partitions", "2")
    assert f"Created topic {topic}." in output
    run(java_version, target, "topics", "--alter", "--topic", topic, "--partitions", "3")
    description = run(java_version, target, "topics", "--describe", "--topic", topic)
    assert "PartitionCount: 3" in description
    assert "ReplicationFactor: 1" in description
    assert description.count("Isr: ") == 3
    assert topic in run(java_version, target, "topics", "--list").split()
    run(java_version, target, "topics", "--delete", "--topic", topic)
    wait_until(
        lambda: topic not in run(java_version, target, "topics", "--list").split(),
        timeout=20,
        what="the topic is deleted",
    )


def test_the_console_consumer_reads_lines_of_the_console_producer(
    java_version: str, target: Target, topic: str
) -> None:
    run(java_version, target, "topics", "--create", "--topic", topic)
    lines = "a:one\nb:two\nc:three\n"
    key_properties = "parse.key=true", "--property", "key.separator=:"
    run_tool(
        java_version,
        "console-producer",
        "--bootstrap-server",
        target.bootstrap_servers,
        "--topic",
        topic,
        "--property",
        *key_properties,
        stdin=lines,
    )
    output = run(
        java_version,
        target,
        "console-consumer",
        "--topic",
        topic,
        "--partition",
        "0",
        "--offset",
        "1",
        "--max-messages",
        "2",
        "--property",
        "print.key=true",
        "--timeout-ms",
        "20000",
    )
    assert output.splitlines()[-2:] == ["b\ttwo", "c\tthree"]


def test_the_end_offset_is_the_number_of_records_of_producer_performance(
    java_version: str, target: Target, topic: str
) -> None:
    run(java_version, target, "topics", "--create", "--topic", topic)
    result = run_tool(
        java_version,
        "producer-perf",
        "--topic",
        topic,
        "--num-records",
        "20000",
        "--record-size",
        "1000",
        "--throughput",
        "-1",
        "--producer-props",
        f"bootstrap.servers={target.bootstrap_servers}",
        "acks=1",
    )
    assert "20000 records sent" in result.stdout
    offsets = run(java_version, target, "get-offsets", "--topic", topic)
    assert offsets.strip() == f"{topic}:0:20000"
    earliest = run(java_version, target, "get-offsets", "--topic", topic, "--time", "-2")
    assert earliest.strip() == f"{topic}:0:0"


def test_configs_are_set_described_and_removed(java_version: str, target: Target, topic: str) -> None:
    run(java_version, target, "topics", "--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run(java_version, target, "configs", *entity, "--alter", "--add-config", "retention.ms=1234567")
    assert "retention.ms=1234567" in run(java_version, target, "configs", *entity, "--describe")
    run(java_version, target, "configs", *entity, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in run(java_version, target, "configs", *entity, "--describe")


def test_records_are_deleted_and_log_dirs_described(
    java_version: str, target: Target, topic: str, tmp_path: Path
) -> None:
    run(java_version, target, "topics", "--create", "--topic", topic)
    run_tool(
        java_version,
        "console-producer",
        "--bootstrap-server",
        target.bootstrap_servers,
        "--topic",
        topic,
        stdin="1\n2\n3\n4\n",
    )
    offsets_file = tmp_path / "delete.json"
    offsets_file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 3}]}))
    output = run(java_version, target, "delete-records", "--offset-json-file", str(offsets_file))
    assert "low_watermark: 3" in output
    description = run(java_version, target, "log-dirs", "--describe", "--topic-list", topic)
    log_dirs = json.loads(next(line for line in description.splitlines() if line.startswith("{")))
    folders = log_dirs["brokers"][0]["logDirs"]
    assert [entry["partition"] for folder in folders for entry in folder["partitions"]] == [f"{topic}-0"]


def test_the_api_versions_of_the_broker_are_usable(java_version: str, target: Target) -> None:
    output = run(java_version, target, "broker-api-versions")
    for name in ("Produce(0)", "Fetch(1)", "ListOffsets(2)", "Metadata(3)", "CreateTopics(19)", "InitProducerId(22)"):
        line = next(line for line in output.splitlines() if name in line)
        assert "usable" in line and "UNSUPPORTED" not in line
