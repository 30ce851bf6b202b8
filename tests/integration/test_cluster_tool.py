"""`kavka cluster` starts and stops a cluster of real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from kavka.cli import running
from tests.support.processes import free_port, wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow]


class ClusterTool:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "KAVKA_RUN_DIR": str(folder / "run")}

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kavka.cli.main", "cluster", *args],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def members(self) -> list[dict[str, Any]]:
        return json.loads(self("status", "--json").stdout)  # type: ignore[no-any-return]

    def processes(self) -> list[int]:
        """Return the ids of all processes whose working directory is this folder."""
        processes = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "cwd").readlink() == self.folder:
                    processes.append(int(entry.name))
            except OSError:
                continue
        return processes


@pytest.fixture
def tool(java_parts: None, tmp_path: Path) -> Any:
    cluster = ClusterTool(tmp_path)
    yield cluster
    cluster("down")


def ports() -> list[str]:
    return ["--port", str(free_port()), "--zookeeper-port", str(free_port())]


def test_a_cluster_starts_survives_a_killed_broker_and_stops_without_leaving_processes(tool: ClusterTool) -> None:
    up = tool("up", "--brokers", "3", *ports(), "--override", "num.partitions=3")
    assert up.returncode == 0, up.stderr
    servers = up.stdout.splitlines()[-1].partition("--bootstrap-server ")[2]
    assert len(servers.split(",")) == 3

    members = tool.members()
    assert [(m["name"], m["id"], m["running"]) for m in members] == [
        ("zookeeper", None, True), ("broker 0", 0, True), ("broker 1", 1, True), ("broker 2", 2, True),
    ]  # fmt: skip
    assert sum(m["controller"] for m in members) == 1
    assert all((tool.folder / m["log"]).stat().st_size > 0 for m in members)
    status = tool("status")
    assert status.returncode == 0
    for member in members:
        assert f"{member['name']} at {member['address']}: running as process {member['pid']}" in status.stdout

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("t", 3, 2)])["t"].result(60)
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for n in range(30):
        producer.produce("t", str(n).encode())
    assert producer.flush(60) == 0

    assert tool("kill", "1").returncode == 0
    assert [m["running"] for m in tool.members()] == [True, True, False, True]
    status = tool("status")
    assert status.returncode == 1 and "broker 1 at" in status.stdout and ": stopped" in status.stdout
    second_kill = tool("kill", "1")
    assert (second_kill.returncode, second_kill.stderr) == (1, "kavka cluster: broker 1 is not running\n")
    assert read_all(servers, 30) == {str(n) for n in range(30)}

    start = tool("start", "1")
    assert start.returncode == 0, start.stderr
    assert tool("start", "1").stderr.startswith("kavka cluster: broker 1 is already running")
    assert tool("stop", "0").returncode == 0
    wait_until(
        lambda: {b.id for b in admin.list_topics(timeout=30).brokers.values()} == {1, 2},
        timeout=60,
        what="broker 0 leaves the cluster",
    )

    second_up = tool("up")
    assert second_up.returncode == 0, second_up.stderr
    assert all(m["running"] for m in tool.members())
    assert {m["name"]: m["address"] for m in tool.members()} == {m["name"]: m["address"] for m in members}
    smaller_up = tool("up", "--brokers", "2")
    assert smaller_up.returncode == 1 and "brokers cannot be removed" in smaller_up.stderr
    pids = [m["pid"] for m in tool.members()]

    down = tool("down", "--delete-data")
    assert down.returncode == 0, down.stderr
    assert not (tool.folder / "kavka-cluster").exists()
    assert not any(running.start_time(pid) for pid in pids)
    assert tool.processes() == []


def read_all(servers: str, count: int) -> set[str]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    values: set[str] = set()

    def has_enough() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.add(message.value().decode())
        return len(values) >= count

    wait_until(has_enough, timeout=90, what=f"{count} records", interval=0)
    consumer.close()
    return values


def test_each_usage_error_is_printed_in_one_line(tool: ClusterTool) -> None:
    for args, message in (
        (("status",), "there is no cluster in kavka-cluster"),
        (("kill", "0"), "there is no cluster in kavka-cluster"),
        (("up", "--brokers", "0"), "--brokers 0: it must be auto or a number from 1 to 256"),
        (("up", "--brokers", "many"), "many"),
        (("up", "--override", "nonsense"), "expected name=value"),
        (("fly",), "unknown command 'fly'"),
        ((), "a command is required"),
    ):
        result = tool(*args)
        assert result.returncode == 1, args
        assert result.stderr.count("\n") == 1 and message in result.stderr, result.stderr
    assert tool.processes() == []


def test_a_failed_broker_start_is_explained_in_one_line_and_the_cluster_can_be_stopped(tool: ClusterTool) -> None:
    result = tool("up", "--brokers", "1", *ports(), "--override", "num.partitions=none")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and "num.partitions" in result.stderr
    assert tool("down").returncode == 0
    assert tool.processes() == []
