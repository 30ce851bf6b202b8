"""`kavka server --shards` and `kavka cluster run` with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka import Admin, NewTopic
from tests.integration.test_cluster_tool import ClusterTool
from tests.support import wire
from tests.support.processes import ManagedProcess, free_port, wait_until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
START = str(ROOT / "bin" / "kafka-server-start.sh")
STOP = str(ROOT / "bin" / "kafka-server-stop.sh")


class Unit:
    """A unit of two brokers with the ids 4 and 5, its settings and its files in one folder."""

    def __init__(self, folder: Path, zookeeper: ZooKeeper) -> None:
        self.folder = folder
        self.port, self.metrics_port = free_port_range(2), free_port_range(3)
        self.environment = {"KAVKA_RUN_DIR": str(folder / "run"), "LOG_DIR": str(folder / "out")}
        self.config = folder / "server.properties"
        self.config.write_text(
            f"broker.id=4\nlisteners=PLAINTEXT://127.0.0.1:{self.port}\nlog.dirs={folder / 'data'}\n"
            f"zookeeper.connect={zookeeper.connect}\nzookeeper.session.timeout.ms=6000\n"
            f"metrics.listener=http://127.0.0.1:{self.metrics_port}\n"
            "offsets.topic.replication.factor=2\noffsets.topic.num.partitions=2\nauto.leader.rebalance.enable=false\n"
        )
        self.processes: list[ManagedProcess] = []

    def start(self, shards: str = "2") -> ManagedProcess:
        process = ManagedProcess(
            [START, str(self.config), "--shards", shards], log=self.folder / "unit.out", env=self.environment
        )
        self.processes.append(process)
        return process

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=120, check=False
        )

    def pids(self) -> dict[int, int]:
        """Return the pids of the brokers that are registered, by broker id."""
        entries = [json.loads(path.read_text()) for path in (self.folder / "run").glob("*.json")]
        return {entry["broker_id"]: entry["pid"] for entry in entries if is_alive(entry["pid"])}

    def wait_for_brokers(self) -> None:
        """Wait until the metadata of each broker contains both."""
        wait_until(
            lambda: all(wire.brokers_in_metadata(("127.0.0.1", self.port + n)) == [4, 5] for n in (0, 1)),
            timeout=60,
            what="two brokers in the metadata",
        )

    def metrics(self) -> dict[str, float]:
        return metrics_of(self.metrics_port)


def metrics_of(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def free_port_range(count: int) -> int:
    """Return the first of several consecutive free ports."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError):
            continue
        return first


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def unit(java_parts: None, tmp_path: Path) -> Iterator[Unit]:
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        unit = Unit(tmp_path, zookeeper)
        yield unit
        for process in unit.processes:
            process.kill()
        wait_until(lambda: not unit.pids(), timeout=60, what="the brokers end with their supervisor")


def test_unit_restarts_a_killed_broker_and_leaves_no_broker_behind(unit: Unit) -> None:
    supervisor = unit.start()
    unit.wait_for_brokers()
    assert sorted(path.name for path in (unit.folder / "data").iterdir()) == ["broker.4", "broker.5"]

    # The state of the supervisor follows the metadata of the brokers.
    ready = ['kavka_broker_ready{broker="4"}', 'kavka_broker_ready{broker="5"}']
    wait_until(lambda: all(unit.metrics()[name] == 1.0 for name in ready), timeout=30, what="ready")
    metrics = unit.metrics()
    assert sorted(name for name in metrics if name.startswith("kavka_controller_active")) == [
        'kavka_controller_active{broker="4"}', 'kavka_controller_active{broker="5"}'
    ]  # fmt: skip

    before = unit.pids()
    os.kill(before[5], signal.SIGKILL)
    wait_until(
        lambda: unit.pids().get(5, before[5]) != before[5] and unit.metrics()['kavka_broker_ready{broker="5"}'] > 0,
        timeout=60,
        what="broker 5 is started again",
    )  # fmt: skip
    assert unit.pids()[4] == before[4]
    unit.wait_for_brokers()
    assert unit.metrics()['kavka_broker_restarts_total{broker="5"}'] == 1.0
    assert "broker 5 died: killed by SIGKILL; starting it again in 1 s" in supervisor.log_tail()

    # The ports and the folders are in use.
    second = unit.run(START, str(unit.config), "--shards", "2", "--override", "metrics.listener=")
    assert second.returncode == 1
    assert "broker 4: " in second.stderr.splitlines()[-1] and "Traceback" not in second.stderr
    assert second.stderr.splitlines()[-1].count("broker 5: ") == 1

    supervisor.signal(signal.SIGKILL)
    wait_until(lambda: not unit.pids(), timeout=60, what="the brokers end with their supervisor")
    for broker_id in (4, 5):
        assert (unit.folder / "data" / f"broker.{broker_id}" / ".kafka_cleanshutdown").exists()

    # The data is served again, and the brokers stop one after another.
    supervisor = unit.start()
    unit.wait_for_brokers()
    with Admin(bootstrap_servers=f"127.0.0.1:{unit.port}") as admin:
        admin.create_topics([NewTopic("orders", 2)])
    wait_until(
        lambda: [len(list((unit.folder / "data").glob(f"broker.{id}/orders-*"))) for id in (4, 5)] == [1, 1],
        timeout=30,
        what="a partition on each broker",
    )
    stopped = unit.run(STOP, str(unit.config))
    assert stopped.returncode == 0, stopped.stderr
    assert re.findall(r"stopped (broker \d|supervisor)", stopped.stdout) == ["broker 4", "broker 5", "supervisor"]
    assert supervisor.wait(10) == 0
    log = supervisor.log_tail(2000)
    assert log.index("Stopping broker 5") < log.index("Stopping broker 4")
    assert "Stopping without a completed controlled shutdown" not in log

    fewer = unit.run(START, str(unit.config), "--shards", "1")
    assert (fewer.returncode, fewer.stderr.count("\n")) == (1, 1)
    assert "has partitions of broker 5" in fewer.stderr


def test_unit_that_cannot_start_stops_with_the_reason(unit: Unit) -> None:
    with socket.create_server(("127.0.0.1", unit.port + 1)):
        failed = unit.run(START, str(unit.config), "--shards", "2")
    assert failed.returncode == 1
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("kavka: broker 5: ") and f"127.0.0.1:{unit.port + 1} is in use" in last
    assert unit.pids() == {}

    unit.config.write_text(unit.config.read_text() + "log.segment.bytes=1\n")
    invalid = unit.run(START, str(unit.config), "--shards", "auto")
    assert (invalid.returncode, invalid.stderr.count("\n")) == (1, 1)
    assert "log.segment.bytes: 1 is not allowed" in invalid.stderr


def test_cluster_in_the_foreground_restarts_a_broker_and_stops_everything(java_parts: None, tmp_path: Path) -> None:
    tool = ClusterTool(tmp_path)
    ports = ["--port", str(free_port_range(2)), "--zookeeper-port", str(free_port())]
    metrics_port = free_port_range(3)
    command = [str(ROOT / "bin" / "kavka"), "cluster", "run", "--brokers", "2", *ports]
    command += ["--metrics-port", str(metrics_port)]
    with ManagedProcess(command, log=tmp_path / "out", cwd=tmp_path, env=tool.environment) as supervisor:
        wait_until(lambda: "The cluster is up" in supervisor.log_tail(), timeout=90, what="the cluster is up")
        metrics = metrics_of(metrics_port)
        assert {f'kavka_partitions{{broker="{id}"}}' for id in (0, 1)} <= metrics.keys()
        pid = tool.members()[2]["pid"]
        assert tool("kill", "1").returncode == 0
        wait_until(
            lambda: tool.members()[2]["running"] and tool.members()[2]["pid"] != pid, timeout=60, what="a new broker 1"
        )
        assert tool("stop", "0").returncode == 0
        wait_until(lambda: "broker 0 (process" in supervisor.log_tail(), timeout=30, what="broker 0 stays stopped")
        assert [member["running"] for member in tool.members()] == [True, False, True]
        assert supervisor.stop(60) == 0
        assert not any(member["running"] for member in tool.members())
    assert tool.processes() == []
