"""ZooKeeper's tools: scripts that start and stop the server, and the shell, compared with
ZooKeeper's own shell."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import jars
from tests.support.processes import free_port
from tests.support.zookeeper import ZooKeeper

pytestmark = pytest.mark.java

BIN = Path(__file__).resolve().parents[2] / "bin"
APACHE_SHELL = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"


def run(folder: Path, *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KAVKA_RUN_DIR": str(folder / "run"), "PATH": os.environ["PATH"]}
    return subprocess.run(
        argv, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


def tool(folder: Path, name: str, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return run(folder, sys.executable, "-m", "kavka.cli.main", name, *args, stdin=stdin)


def zoo_cfg(folder: Path, name: str = "zoo.cfg") -> tuple[Path, int]:
    port = free_port()
    path = folder / name
    path.write_text(f"dataDir={folder / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n")
    return path, port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_scripts_start_and_stop_a_server_in_the_background(java_parts: None, tmp_path: Path) -> None:
    path, port = zoo_cfg(tmp_path)
    other, _ = zoo_cfg(tmp_path, "other.cfg")
    started = tool(tmp_path, "zookeeper-server-start.sh", "-daemon", str(path))
    try:
        assert started.returncode == 0, started.stderr
        assert started.stdout.startswith("ZooKeeper is running as process ")
        assert f"at 127.0.0.1:{port}" in started.stdout
        assert "binding to port" in (tmp_path / "kavka-logs" / "zookeeper.out").read_text()
        second_start = tool(tmp_path, "zookeeper-server-start", "-daemon", str(path))
        assert (second_start.returncode, second_start.stderr.count("\n")) == (1, 1)
        assert "already running at 127.0.0.1" in second_start.stderr
        other_stop = tool(tmp_path, "zookeeper-server-stop", str(other))
        assert other_stop.returncode == 1 and listens(port)
    finally:
        stopped = tool(tmp_path, "zookeeper-server-stop.sh")
    assert (stopped.returncode, stopped.stdout[:17]) == (0, "stopped ZooKeeper")
    assert not listens(port)
    second_stop = tool(tmp_path, "zookeeper-server-stop")
    assert (second_stop.returncode, second_stop.stderr) == (
        1,
        "kavka zookeeper-server-stop: no ZooKeeper server to stop\n",
    )


def test_zkserver_starts_stops_and_prints_the_status_like_zookeepers_script(java_parts: None, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    path, port = zoo_cfg(tmp_path, "conf/zoo.cfg")
    down = tool(tmp_path, "zkServer.sh", "status")
    assert down.returncode == 1 and "probably not running" in down.stdout
    try:
        started = tool(tmp_path, "zkServer.sh", "start")
        assert started.stdout == "Starting zookeeper ... STARTED\n", started.stderr
        assert started.stderr == f"Using config: {path}\n"
        second_start = tool(tmp_path, "zkServer.sh", "start")
        assert second_start.returncode == 1 and "already running as process" in second_start.stdout
        status = tool(tmp_path, "zkServer.sh", "status")
        assert status.returncode == 0
        assert status.stdout.splitlines() == [
            f"Client port found: {port}. Client address: 127.0.0.1. Client SSL: false.",
            "Mode: standalone",
        ]
    finally:
        stopped = tool(tmp_path, "zkServer.sh", "stop")
    assert stopped.stdout == "Stopping zookeeper ... STOPPED\n"
    assert tool(tmp_path, "zkServer.sh", "stop").returncode == 1
    version = tool(tmp_path, "zkServer.sh", "version")
    assert version.stdout.startswith("Apache ZooKeeper, version 3.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file or directory"),
        ("clientPort=2181\n", "dataDir is missing"),
        ("dataDir=/tmp/x\nclientPort=many\n", "clientPort=many is not a port"),
    ],
)
def test_an_invalid_file_is_reported_in_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "zoo.cfg"
    if text is not None:
        path.write_text(text)
    failed = tool(tmp_path, "zookeeper-server-start", str(path))
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1 and message in failed.stderr


def test_missing_jars_are_reported_with_the_setting_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = zoo_cfg(tmp_path)
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    failed = tool(tmp_path, "zookeeper-server-start", str(path))
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1 and "ZOOKEEPER_HOME" in failed.stderr


@pytest.fixture(scope="module")
def zookeeper(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


SCRIPT = """\
create {0} hello
create {0}
create -e {0}/e eph
create -s {0}/n- x
create {0}/b
get {0}/b
get {0}
get -s {0}
ls -s {0}
ls -R {0}
set {0} "two words"
get {0}
set -s {0} three
set -v 9 {0} x
stat {0}
stat {0}/missing
delete {0}
delete {0}/missing
delete -v 4 {0}/b
getAllChildrenNumber {0}
getEphemerals {0}
getAcl {0}
set {0}/b {{"version":1,"x":[1,2]}}
get {0}/b
create {0}/c/d x
create {0}/e/x y
sync {0}
deleteall {0}
get {0}
"""


def comparable_lines(text: str) -> list[str]:
    """The output without greetings, and without values that differ between runs: times, zxids and
    sessions."""
    lines = []
    for line in text.splitlines():
        name, equals, _value = line.partition(" = ")
        is_variable = equals and name in ("cZxid", "ctime", "mZxid", "mtime", "pZxid", "ephemeralOwner")
        lines.append(name if is_variable else line)
    return [line for line in lines if line and not line.startswith(("Connecting", "Welcome", "JLine", "WATCHER"))]


def test_the_shell_runs_a_script_like_zookeepers_shell(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    apache = run(
        tmp_path, jars.java(), "-XX:TieredStopAtLevel=1", "-cp", jars.class_path("server-3.9.1"), APACHE_SHELL,
        "-server", zookeeper.connect, stdin=SCRIPT.format("/apache"),
    )  # fmt: skip
    kavka = tool(tmp_path, "zookeeper-shell", zookeeper.connect, stdin=SCRIPT.format("/kavka-"))
    expected = [line for line in comparable_lines(apache.stdout) if "state:Closed" not in line]
    assert comparable_lines(kavka.stdout.replace("/kavka-", "/apache")) == expected
    expected_errors = [line for line in apache.stderr.splitlines() if not line.startswith("log4j")]
    assert kavka.stderr.replace("/kavka-", "/apache").splitlines() == expected_errors


def test_the_shell_runs_a_single_command_and_returns_1_if_it_fails(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    listed = tool(tmp_path, "zookeeper-shell.sh", zookeeper.connect, "ls", "-R", "/zookeeper")
    assert (listed.returncode, listed.stdout.splitlines()[-3:]) == (
        0,
        ["/zookeeper", "/zookeeper/config", "/zookeeper/quota"],
    )
    missing = tool(tmp_path, "zookeeper-shell", f"{zookeeper.connect}/nowhere", "get", "/x")
    assert (missing.returncode, missing.stderr) == (1, "Node does not exist: /x\n")
    unknown = tool(tmp_path, "zookeeper-shell", zookeeper.connect, "nonsense")
    assert unknown.returncode == 1 and unknown.stderr.endswith("Command not found: Command not found nonsense\n")
    incomplete = tool(tmp_path, "zookeeper-shell", zookeeper.connect, "set", "/x")
    assert (incomplete.returncode, incomplete.stderr) == (1, "set [-s] [-v version] path data\n")


def test_the_shell_reports_an_unreachable_server(tmp_path: Path) -> None:
    failed = tool(tmp_path, "zookeeper-shell", "--timeout", "500", "127.0.0.1:1", "ls", "/")
    assert failed.returncode == 1
    assert failed.stderr == "kavka zookeeper-shell: no ZooKeeper server is reachable at 127.0.0.1:1\n"
