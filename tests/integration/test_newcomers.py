"""The first five minutes: `kavka quickstart`, and the errors of new users, each in one line that
says what to do."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from kavka import Admin, NewTopic
from kavka.cli.config_files import FOLDER
from kavka.cli.quickstart import WORD_COUNT
from kavka.testing import Broker
from tests.support.missing import need_command
from tests.support.processes import free_port, wait_until

KAVKA = (sys.executable, "-m", "kavka.cli.main")


def kavka(
    *arguments: str, cwd: Path, stdin: str = "", timeout: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KAVKA, *arguments], cwd=cwd, env={**os.environ, **environment}, input=stdin, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


def only_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1, result.stdout + result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith("starting ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    empty = tmp_path / "empty"
    empty.mkdir()
    return {"PATH": str(empty), "JAVA_HOME": ""}


@pytest.fixture
def word_count_broker(kavka_broker: Broker) -> Broker:
    with Admin(bootstrap_servers=kavka_broker.bootstrap_servers) as admin:
        names = ("streams-plaintext-input", "streams-plaintext-output")
        admin.create_topics([NewTopic(name, 1) for name in names if name not in admin.list_topics()])
    return kavka_broker


def test_the_steps_without_java_run(tmp_path: Path) -> None:
    steps = [argument for step in ("broker", "records", "console") for argument in ("--step", step)]
    result = kavka("quickstart", *steps, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("Step ")] == [
        "Step 1 of 3: Start a broker",
        "Step 2 of 3: Create a topic, produce and consume a record",
        "Step 3 of 3: Look at it in the console",
    ]
    assert sum(line.startswith("Next: ") for line in lines) == 2
    assert "hello" in lines
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_lacks_java_is_skipped_with_the_remedy(tmp_path: Path, without_java: dict[str, str]) -> None:
    result = kavka("quickstart", "--step", "cluster", "--step", "words", cwd=tmp_path, **without_java)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Skipped: Java is neither on the PATH nor in JAVA_HOME: install Java 17") == 2
    assert "doctor" in result.stdout.splitlines()[-1]


@pytest.mark.java
@pytest.mark.slow
def test_the_cluster_step_survives_a_killed_broker(tmp_path: Path) -> None:
    need_command("java")
    result = kavka("quickstart", "--step", "cluster", cwd=tmp_path, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr
    assert {"before the failure", "after the failure"} <= set(result.stdout.splitlines())
    assert "stopped" in result.stdout


def test_a_port_in_use_is_named_with_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        result = kavka("server", "--override", f"listeners=PLAINTEXT://127.0.0.1:{port}", cwd=tmp_path)
    assert result.stderr.splitlines()[-1] == (
        f"kavka: listeners: PLAINTEXT://127.0.0.1:{port} is in use by another process: stop it, or use another port"
    )


def test_a_cluster_without_java_names_the_package(tmp_path: Path, without_java: dict[str, str]) -> None:
    ports = ("--port", str(free_port()), "--zookeeper-port", str(free_port()))
    line = only_line(kavka("cluster", "up", *ports, cwd=tmp_path, **without_java))
    assert "ZooKeeper requires Java: Java is neither on the PATH nor in JAVA_HOME: install Java 17 or newer" in line


def run_word_count(broker: Broker, folder: Path, **environment: str) -> str:
    result = kavka(
        "pipeline", "run", str(WORD_COUNT), "--bootstrap-server", broker.bootstrap_servers, "--config",
        f"state.dir={folder}/state", cwd=folder, KAVKA_PIPELINE_DIR=str(folder / "jobs"), **environment,
    )  # fmt: skip
    return only_line(result)


def test_a_pipeline_without_java_names_the_package(
    word_count_broker: Broker, tmp_path: Path, without_java: dict[str, str]
) -> None:
    line = run_word_count(word_count_broker, tmp_path, **without_java)
    assert "runs on Spark: Java is neither on the PATH nor in JAVA_HOME: install Java 17 or newer" in line


def test_a_pipeline_with_an_old_pyspark_names_the_upgrade(word_count_broker: Broker, tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "pyspark-3.5.1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 3.5.1\n")
    line = run_word_count(word_count_broker, tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert "PySpark 3.5.1 is older than 4.2: pip install 'pyspark>=4.2'" in line


def test_a_pipeline_with_the_spark_of_another_version_names_both(word_count_broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core_2.13-3.5.1.jar").touch()
    line = run_word_count(word_count_broker, tmp_path, SPARK_HOME=str(tmp_path / "spark"))
    assert "has Spark 3.5.1, but PySpark is " in line
    assert "unset SPARK_HOME" in line


def test_an_unreachable_advertised_listener_is_named(tmp_path: Path) -> None:
    advertised = f"127.0.0.1:{free_port()}"
    remedy = "change advertised.listeners of the broker)"
    with Broker(advertised_listeners=f"PLAINTEXT://{advertised}") as broker:
        server = ("--bootstrap-server", broker.bootstrap_servers)
        create = kavka("topics", *server, "--create", "--topic", "t", "--timeout", "1500", cwd=tmp_path)
        line = only_line(create)
        assert advertised in line
        assert line.endswith(remedy)

        producer = ("--producer-property", "delivery.timeout.ms=1500", "--producer-property", "linger.ms=0")
        producer += ("--producer-property", "request.timeout.ms=1000")
        sent = kavka("console-producer", *server, "--topic", "t", *producer, cwd=tmp_path, stdin="x\n")
        warnings = [text for text in sent.stderr.splitlines() if text.startswith("WARNING ")]
        assert len(warnings) == 1
        assert advertised in warnings[0]
        assert warnings[0].endswith(remedy)

        doctor = kavka("doctor", *server, cwd=tmp_path)
        assert doctor.returncode == 1
        assert f"it advertises {advertised}, not reachable here" in doctor.stdout


def test_a_client_with_unsupported_versions_is_named_once_in_the_log(tmp_path: Path) -> None:
    with Broker(log_dir=tmp_path / "data") as broker:
        for version in (99, 99, -1):
            with socket.create_connection(("127.0.0.1", broker.port)) as client:
                request = struct.pack(">hhih", 3, version, 1, 1) + b"c"
                client.sendall(struct.pack(">i", len(request)) + request)
                assert client.recv(1) == b""
        wait_until(lambda: "is too old" in broker.log_tail(), timeout=10, what="the warnings")
        log = broker.log_tail()
    assert log.count("is too new: it sends Metadata v99, and this broker serves v0 to v") == 1
    assert log.count("is too old: it sends Metadata v-1, and this broker serves v0 to v") == 1
    assert "use an older client, or let it negotiate versions" in log


def test_the_config_files_are_listed_printed_and_copied_once(tmp_path: Path) -> None:
    names = [path.name for path in sorted(FOLDER.iterdir())]
    assert kavka("config-files", cwd=tmp_path).stdout.split() == names
    printed = kavka("config-files", "server.properties", cwd=tmp_path).stdout
    assert printed == (FOLDER / "server.properties").read_text()
    assert kavka("config-files", "--copy", "config", "server.properties", cwd=tmp_path).returncode == 0
    again = only_line(kavka("config-files", "--copy", "config", cwd=tmp_path))
    assert again.startswith("kavka config-files: server.properties exist in config")
    assert [path.name for path in (tmp_path / "config").iterdir()] == ["server.properties"]
    assert "there is no file x" in only_line(kavka("config-files", "x", cwd=tmp_path))
