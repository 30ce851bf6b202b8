"""Brokers that commands start and stop, and brokers inside a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from kavka.testing import Broker, BrokerFailed

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "bin"


def has_ended(pid: int, timeout: float = 10.0) -> bool:
    """Whether the process has ended, also if its exit code was not collected yet."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def send(servers: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=servers)
    for value in values:
        producer.send("t", value)
    producer.flush(10)
    producer.close()


def receive(servers: str) -> list[bytes]:
    consumer = KafkaConsumer("t", bootstrap_servers=servers, auto_offset_reset="earliest", consumer_timeout_ms=1500)
    try:
        return [record.value for record in consumer]
    finally:
        consumer.close()


@pytest.fixture
def command(tmp_path, monkeypatch) -> Iterator:
    """Runs a command of bin/ in a separate folder. Brokers that are still running are killed after
    the test."""
    environment = {**os.environ, "KAVKA_RUN_DIR": str(tmp_path / "run"), "LOG_DIR": str(tmp_path / "out")}

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / name), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    yield run
    for path in (tmp_path / "run").glob("*.json"):
        os.kill(int(path.stem), signal.SIGKILL)


def test_a_broker_in_a_test_starts_quickly_and_leaves_nothing_behind():
    start_time = time.monotonic()
    with Broker() as broker:
        assert time.monotonic() - start_time < 10
        send(broker.bootstrap_servers, b"a", b"b")
        assert receive(broker.bootstrap_servers) == [b"a", b"b"]
        pid, folder = broker.pid, broker.log_dir
        assert (folder / "t-0").is_dir()
    assert has_ended(pid)
    assert not folder.exists()


def test_data_and_port_survive_a_restart_and_a_crash(tmp_path):
    with Broker(log_dir=tmp_path / "data", num_partitions=1) as broker:
        port = broker.port
        send(broker.bootstrap_servers, b"a")
        broker.restart()
        send(broker.bootstrap_servers, b"b")
        broker.kill()
        assert not broker.running
        broker.start()
        assert broker.port == port
        assert receive(broker.bootstrap_servers) == [b"a", b"b"]
        assert broker.stop() == 0
    assert (tmp_path / "data" / "t-0").is_dir()


def test_a_broker_that_cannot_start_reports_the_reason():
    with pytest.raises(BrokerFailed, match=r"log\.segment\.bytes: 1 is not allowed"), Broker(log_segment_bytes=1):
        pass


def test_a_broker_ends_when_the_process_that_started_it_dies():
    code = "import kavka.testing, os; print(kavka.testing.Broker().start().pid, flush=True); os._exit(1)"
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout)
    assert has_ended(pid)


def test_the_fixture_starts_a_broker_and_a_failing_test_shows_its_log(pytester_folder):
    (pytester_folder / "test_it.py").write_text("def test_it(kavka_broker):\n    assert kavka_broker.port == 0\n")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"],
        cwd=pytester_folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1, result.stdout
    assert "Kavka broker log" in result.stdout
    assert "is ready" in result.stdout


@pytest.fixture
def pytester_folder(tmp_path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_a_daemon_is_ready_when_the_start_command_returns_and_ends_with_the_stop_command(command, tmp_path):
    started = command("kafka-server-start.sh", "-daemon", "--override", "listeners=PLAINTEXT://127.0.0.1:0")
    assert started.returncode == 0, started.stderr
    [pid] = [int(path.stem) for path in (tmp_path / "run").glob("*.json")]
    port = int(started.stdout.partition("PLAINTEXT://127.0.0.1:")[2].partition(",")[0])
    send(f"127.0.0.1:{port}", b"x")
    assert (tmp_path / "kavka-data" / "t-0").is_dir()

    second = command("kafka-server-start", "-daemon", "--override", f"listeners=PLAINTEXT://127.0.0.1:{port}",
                     "--override", "log.dirs=other")  # fmt: skip
    assert second.returncode == 1
    address = f"PLAINTEXT://127.0.0.1:{port}"
    assert second.stderr == f"kavka: listeners: {address} is in use by another process: stop it, or use another port\n"
    same_data = command("kavka", "server", "--override", "listeners=PLAINTEXT://127.0.0.1:0")
    assert same_data.returncode == 1
    assert same_data.stderr.splitlines()[-1].startswith("kavka: ")
    assert "kavka-data" in same_data.stderr.splitlines()[-1]

    stopped = command("kafka-server-stop.sh")
    assert stopped.returncode == 0, stopped.stderr
    assert f"process {pid}" in stopped.stdout
    assert has_ended(pid)
    assert (tmp_path / "kavka-data" / ".kafka_cleanshutdown").exists()
    assert command("kafka-server-stop").returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_broker_cleanly(tmp_path, number):
    with Broker(log_dir=tmp_path) as broker:
        send(broker.bootstrap_servers, b"x")
        process = broker._process
        os.kill(broker.pid, number)
        assert process.wait(20) == 0
        assert (tmp_path / ".kafka_cleanshutdown").exists()
        assert "Traceback" not in broker.log_tail()
