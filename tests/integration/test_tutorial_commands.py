"""Command lines of Kafka tutorials, unchanged except for hosts, ports, placeholders for topics, and
the number of records.

Each tutorial starts ZooKeeper and a broker, uses them and stops them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka.cli.catalogue import find
from tests.support import wire
from tests.support.processes import free_port, wait_until

ROOT = Path(__file__).resolve().parents[2]
BROKERS = re.compile(r"(?:kafka地址|kafkaip|kafakip|\bip|192\.168\.31\.114):(?:端口|9092)")

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.usefixtures("java_parts")]


class Machine:
    """A folder with `bin` and `config` as in an installation, with free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zookeeper, self.port = f"localhost:{free_port()}", free_port()
        (folder / "bin").symlink_to(ROOT / "bin")
        for name in ("config", "conf"):
            (folder / name).mkdir()
        # The scripts use the virtual environment of the checkout. If there is none, they find the
        # Python of the tests on the PATH.
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "KAVKA_RUN_DIR": str(folder / "run"),
            "LOG_DIR": str(folder / "output"),
            "ZOOCFGDIR": str(folder / "conf"),
        }
        zoo = f"dataDir={folder / 'zookeeper'}\nclientPort={self.zookeeper.rpartition(':')[2]}\n"
        zoo += "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        (folder / "conf" / "zoo.cfg").write_text(zoo)
        (folder / "config" / "zookeeper.properties").write_text(zoo)
        settings = (ROOT / "config" / "server.properties").read_text()
        settings = re.sub(r"(?m)^zookeeper\.connect=.*", f"zookeeper.connect={self.zookeeper}", settings)
        settings = re.sub(r"(?m)^log\.dirs=.*", f"log.dirs={folder / 'data'}", settings)
        settings += f"\nlisteners=PLAINTEXT://localhost:{self.port}\n"
        (folder / "config" / "server.properties").write_text(settings)

    def command(self, line: str) -> str:
        line = re.sub(r"--zookeeper \S+", f"--zookeeper {self.zookeeper}", line)
        line = BROKERS.sub(f"localhost:{self.port}", line)
        return line.replace("localhost:2181", self.zookeeper).replace("主题", "benchmark")

    def run(self, line: str, stdin: str = "", folder: str = ".", timeout: float = 120) -> str:
        """Runs a command, which must succeed. Returns its output."""
        result = subprocess.run(
            ["sh", "-c", self.command(line)], cwd=self.folder / folder, env=self.environment, input=stdin,
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert result.returncode == 0, f"{line}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr
        return result.stdout

    def start(self, line: str) -> subprocess.Popen[str]:
        """Starts a command that runs until it is stopped."""
        return subprocess.Popen(
            ["sh", "-c", f"exec {self.command(line)}"], cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def consume(self, line: str, count: int) -> list[str]:
        """The first lines that a consumer prints. Ctrl-C ends it."""
        process = self.start(line)
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip("\n") for _ in range(count)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors
        return lines

    def wait_for_broker(self) -> None:
        wait_until(lambda: wire.lists_itself(("localhost", self.port)), timeout=90, what="the broker")

    def clean_up(self) -> None:
        for name in ("kafka-server-stop.sh", "zookeeper-server-stop.sh"):
            script = ROOT / "bin" / name
            subprocess.run([script], cwd=self.folder, env=self.environment, capture_output=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    try:
        yield machine
    finally:
        machine.clean_up()


def test_the_commands_of_the_first_tutorial_work(machine: Machine) -> None:
    machine.run("./zkServer.sh start", folder="bin")
    machine.run("bin/kafka-server-start.sh config/server.properties >server.out 2>&1 &")
    machine.wait_for_broker()
    created = machine.run(
        "bin/kafka-topics.sh --create --zookeeper localhost:2181 --replication-factor 1 --partitions 1 "
        "--topic jiangzh-topic"
    )
    assert created == "Created topic jiangzh-topic.\n"
    assert machine.run("bin/kafka-topics.sh --list --zookeeper localhost:2181") == "jiangzh-topic\n"
    machine.run(
        "bin/kafka-console-producer.sh --broker-list 192.168.31.114:9092 --topic jiangzh-topic", stdin="one\ntwo\n"
    )
    lines = machine.consume(
        "bin/kafka-console-consumer.sh --bootstrap-server 192.168.31.114:9092 --topic jiangzh-topic --from-beginning", 2
    )
    assert lines == ["one", "two"]
    machine.run("bin/kafka-server-stop.sh")


def test_the_commands_of_the_second_tutorial_work_including_its_typos(machine: Machine) -> None:
    # The tutorial starts the .bat for Windows.
    zookeeper = machine.start("./bin/zookeeper-server-start.sh config/zookeeper.properties")
    try:
        wait_until(
            lambda: machine.run("sh zkServer.sh status || true", folder="bin").count("Mode: standalone") == 1,
            timeout=60,
            what="ZooKeeper",
            interval=0.3,
        )
        machine.run("./bin/kafka-server-start -daemon config/server.properties")
        machine.wait_for_broker()
        assert machine.run("bin/kafka-topics.sh --bootstrap-server kafka地址:端口 --list") == ""
        machine.run("bin/kafka-topics.sh --create --bootstrap-server kafkaip:端口 --topic test")
        assert machine.run("bin/kafka-topics.sh --list --bootstrap-server kafkaip:端口 ") == "test\n"
        machine.run("bin/kafka-console producer.sh --broker-list kafkaip:端口 --topic test", stdin="hello\n")
        consume = "bin/kafka-console-consumer.sh --bootstrap-server kafkaip:端口 --topic test --from-beginning"
        assert machine.consume(consume, 1) == ["hello"]
        machine.run("bin/kafka-topics.sh --zookeeper kafkaip:端口 -alter --partition 2 --topic test")
        described = machine.run("bin/kafka-topics.sh --describe --topic test --bootstrap-server kafkaip:端口")
        assert "PartitionCount: 2" in described
        _benchmark(machine)
        machine.run("bin/kafka-server-stop.sh")
    finally:
        zookeeper.terminate()
        zookeeper.communicate(timeout=60)


def _benchmark(machine: Machine) -> None:
    machine.run("bin/kafka-topics.sh --create --bootstrap-server kafkaip:端口 --topic benchmark --partitions 3")
    sent = machine.run(
        "bin/kafka-producer-perf-test.sh --topic benchmark --num-records 5000000 --throughput -1 --record-size 1000 "
        "--producer-props bootstrap.servers=kafkaip:端口,kafkaip:端口 acks=1".replace("5000000", "20000")
    )
    assert "20000 records sent" in sent
    # A space is missing in the tutorial: the command reads a topic of that name, which is empty.
    empty = machine.run(
        "bin/kafka-consumer-perf-test.sh --broker-list kafakip:端口,ip:端口 --topic benchmark--fetch-size 1048576 "
        "--messages 5000000"
    )
    assert empty.startswith("start.time")
    read = machine.run(
        "bin/kafka-consumer-perf-test.sh --broker-list kafakip:端口,ip:端口 --topic benchmark --fetch-size 1048576 "
        "--messages 5000000".replace("5000000", "20000")
    )
    assert " 20000," in read.splitlines()[-1] or ", 20000" in read.splitlines()[-1]
    elected = machine.run(
        "bin/kafka-leader-election.sh --bootstrap-server ip:端口 --topic 主题 --partition=2 --election-type preferred"
    )
    assert elected == "Valid replica already elected for partitions benchmark-2\n"


SCRIPTS = (
    "kafka-configs",
    "kafka-console-consumer",
    "kafka-console-producer",
    "kafka-consumer-groups",
    "kafka-delete-records",
    "kafka-log-dirs",
    "kafka-preferred-replica-election",
    "kafka-producer-perf-test",
    "kafka-reassign-partitions",
    "kafka-replica-verification",
    "kafka-server-start",
    "kafka-server-stop",
    "kafka-topics",
    "kafka-verifiable-consumer",
    "kafka-verifiable-producer",
    "zookeeper-server-start",
    "zookeeper-server-stop",
    "zookeeper-shell",
)


def test_every_script_that_the_third_tutorial_lists_exists() -> None:
    for name in SCRIPTS:
        for script in (name, f"{name}.sh"):
            assert os.access(ROOT / "bin" / script, os.X_OK), script
            assert find(script) is not None, script
