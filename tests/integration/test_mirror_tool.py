"""The command-line tools of the mirror: the commands of docs/mirror.md work, and a killed mirror
loses no record."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, Consumer, NewTopic, Producer, TopicPartition
from kavka.client.admin.types import OffsetSpec
from kavka.common.errors import KafkaError
from tests.integration.test_spark_crash import kill_session
from tests.integration.test_spark_sink import read_all
from tests.support.kavka_process import KavkaProcess
from tests.support.missing import need_command
from tests.support.processes import ManagedProcess, free_port, wait_until
from tests.support.spark import light_home

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "mirror.md").read_text()
TIMEOUT_S = 240.0


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


class MirrorSetup:
    """Two brokers and a folder in which the mirror tools run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.a, self.b = (KavkaProcess(folder / name) for name in ("a", "b"))
        self.admin_a = Admin(bootstrap_servers=self.a.bootstrap_servers)
        self.admin_b = Admin(bootstrap_servers=self.b.bootstrap_servers)
        self.status_port = free_port()
        (folder / "bin").symlink_to(ROOT / "bin")
        self.environment = {
            **os.environ,
            "SPARK_HOME": str(light_home(folder / "spark")),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": "--driver-memory 512m --conf spark.driver.host=127.0.0.1 pyspark-shell",
            "PYTHONPATH": str(ROOT / "src"),
        }

    def close(self) -> None:
        self.admin_a.close()
        self.admin_b.close()
        self.a.close()
        self.b.close()

    def with_addresses(self, text: str) -> str:
        """Replace the documented addresses by those of the test."""
        for documented, actual in (
            ("localhost:9092", self.a.bootstrap_servers),
            ("localhost:9192", self.b.bootstrap_servers),
            ("localhost:8083", f"127.0.0.1:{self.status_port}"),
        ):
            text = text.replace(documented, actual)
        return text

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.with_addresses(text))

    def start(self, command: str) -> ManagedProcess:
        arguments = shlex.split(self.with_addresses(command))
        return ManagedProcess(
            arguments, log=self.folder / "tool.log", cwd=self.folder, env=self.environment, before_exec=os.setsid
        )

    def end_offset(self, topic: str, partitions: int = 1) -> int:
        """Return the sum of the end offsets of a topic in the target, or 0 if the topic does not
        exist."""
        try:
            offsets = self.admin_b.list_offsets(
                {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
            )
        except KafkaError:
            return 0
        return sum(entry.offset for entry in offsets.values())


@pytest.fixture(scope="module")
def mirror_setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MirrorSetup]:
    need_command("java")
    mirror_setup = MirrorSetup(tmp_path_factory.mktemp("mirror-tool"))
    mirror_setup.admin_a.create_topics([NewTopic("orders", 1), NewTopic("payments", 1)])
    mirror_setup.admin_b.create_topics([NewTopic("stock", 1)])
    for broker, topic in ((mirror_setup.a, "orders"), (mirror_setup.a, "payments"), (mirror_setup.b, "stock")):
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for n in range(100):
                producer.send(topic, b"%d" % n)
    yield mirror_setup
    mirror_setup.close()


@pytest.fixture
def run(mirror_setup: MirrorSetup) -> Iterator[Callable[[str], ManagedProcess]]:
    """Return a function that starts a command. Its processes are killed after the test."""
    processes: list[ManagedProcess] = []

    def start(command: str) -> ManagedProcess:
        processes.append(mirror_setup.start(command))
        return processes[-1]

    yield start
    for process in processes:
        kill_session(process.pid, set())
        process.kill()


def wait(process: ManagedProcess, condition: Callable[[], bool], what: str) -> None:
    def is_met() -> bool:
        assert process.running(), process.log_tail()
        return condition()

    wait_until(is_met, timeout=TIMEOUT_S, what=what, interval=0.2)


def find_command(*words: str) -> str:
    (command,) = (line for block in blocks("sh") for line in block.splitlines() if all(word in line for word in words))
    return command


def test_the_default_configuration_mirrors_topics_and_groups(mirror_setup: MirrorSetup, run: Any) -> None:
    with Consumer(
        bootstrap_servers=mirror_setup.a.bootstrap_servers, group_id="shop", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        assert consumer.poll(60.0, 30)
        consumer.commit_sync()
        position = consumer.position(TopicPartition("orders", 0))
    name = "config/connect-mirror-maker.properties"
    mirror_setup.write(name, (ROOT / name).read_text())
    process = run(find_command(name) + " --report-interval-ms 200")
    wait(process, lambda: mirror_setup.end_offset("A.orders") == 100, "the orders")
    partition = TopicPartition("A.orders", 0)

    def is_synced() -> bool:
        committed = mirror_setup.admin_b.list_consumer_group_offsets("shop").get(partition)
        return committed is not None and committed.offset == position

    wait(process, is_synced, "the group's offset")
    wait(process, lambda: "lag 0" in process.log_tail(), "a progress line")
    assert re.search(r"^A->B: RUNNING, [\d,]+ records, [\d,]+/s, lag 0$", process.log_tail(), re.MULTILINE)
    assert process.stop(60.0) in (0, 143)


def test_the_documented_configuration_mirrors_in_both_directions(mirror_setup: MirrorSetup, run: Any) -> None:
    mirror_setup.write("mm2.properties", next(text for text in blocks("properties") if "clusters" in text))
    process = run(find_command("mm2.properties"))
    wait(
        process,
        lambda: mirror_setup.end_offset("berlin.orders") == 100 and mirror_setup.end_offset("berlin.payments") == 100,
        "both topics",
    )
    wait(process, lambda: "oslo.stock" in mirror_setup.admin_a.list_topics(), "the topic of the other direction")

    def status() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{mirror_setup.status_port}/status", timeout=30) as response:
            return {flow["flow"]: flow for flow in json.load(response)}

    wait(process, lambda: status()["berlin->oslo"]["records"] >= 200, "the status")
    wait(process, lambda: status()["berlin->oslo"]["lag_by_partition"].get("orders") == {"0": 0}, "no lag")
    command = shlex.split(mirror_setup.with_addresses(find_command("kafka-consumer-groups")))

    def group_description() -> str:
        result = subprocess.run(
            command,
            cwd=mirror_setup.folder,
            env=mirror_setup.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return result.stdout

    wait(
        process,
        lambda: bool(re.search(r"orders +0 +100 +100 +0 ", group_description())),
        "the lag in the description of the group",
    )


def test_mirrormaker_1_mirrors_topics_without_renaming_them(mirror_setup: MirrorSetup, run: Any) -> None:
    mirror_setup.write("source.properties", next(text for text in blocks("properties") if "auto.offset.reset" in text))
    mirror_setup.write("target.properties", "bootstrap.servers = localhost:9192\n")
    process = run(find_command("--whitelist"))
    wait(
        process,
        lambda: mirror_setup.end_offset("orders") == 100 and mirror_setup.end_offset("payments") == 100,
        "both topics",
    )
    assert [r.value for r in read_all(mirror_setup.b, "orders")] == [
        r.value for r in read_all(mirror_setup.a, "orders")
    ]


def test_an_error_is_printed_in_one_line(mirror_setup: MirrorSetup) -> None:
    mirror_setup.write("bare.properties", "bootstrap.servers = localhost:9092\n")
    mirror_setup.write("one-cluster.properties", "clusters = A\nA.bootstrap.servers = localhost:9092\n")
    for command, message in (
        ("bin/kafka-mirror-maker.sh --producer.config bare.properties --include x", "consumer.config"),
        (
            "bin/kafka-mirror-maker.sh --consumer.config bare.properties --producer.config bare.properties",
            "include",
        ),
        (
            "bin/kafka-mirror-maker.sh --consumer.config bare.properties --producer.config bare.properties --include x",
            "--consumer.config has no group.id",
        ),
        ("bin/kafka-mirror-maker.sh --message.handler x", "--message.handler is not supported"),
        ("bin/connect-mirror-maker.sh one-cluster.properties", "no pair of clusters is enabled"),
        ("bin/connect-mirror-maker.sh nowhere.properties", "nowhere.properties"),
    ):
        result = subprocess.run(
            shlex.split(command),
            cwd=mirror_setup.folder,
            env=mirror_setup.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 1
        assert message in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr


RECORDS = 9_000
CRASH_FILE = """
clusters = A, B, C
A.bootstrap.servers = localhost:9092
B.bootstrap.servers = localhost:9192
C.bootstrap.servers = localhost:9192
A->B.enabled = true
A->C.enabled = true
topics = numbers
A->B.exactly.once.source.support = enabled
A->B.state.dir = {folder}/state
A->C.replication.policy.class = IdentityReplicationPolicy
max.records.per.batch = 1500
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
"""


@pytest.mark.slow
def test_a_killed_mirror_loses_nothing_and_exactly_once_duplicates_nothing(mirror_setup: MirrorSetup, run: Any) -> None:
    """`A.numbers` is mirrored exactly once, `numbers` at least once. All processes are killed
    together."""
    mirror_setup.admin_a.create_topics([NewTopic("numbers", 2)])
    with Producer(bootstrap_servers=mirror_setup.a.bootstrap_servers) as producer:
        for n in range(RECORDS):
            producer.send("numbers", b"%d" % n, partition=n % 2)
    mirror_setup.write("crash.properties", CRASH_FILE.format(folder=mirror_setup.folder))
    command = "bin/connect-mirror-maker.sh crash.properties"
    process = run(command)
    topics = ("A.numbers", "numbers")
    wait(
        process,
        lambda: all(mirror_setup.end_offset(topic, 2) > RECORDS // 6 for topic in topics),
        "some batches of both topics",
    )
    kill_session(process.pid, set())
    process.kill()
    mirrored_counts = {topic: len(read_all(mirror_setup.b, topic, "read_uncommitted")) for topic in topics}
    assert all(count < RECORDS for count in mirrored_counts.values()), mirrored_counts
    process = run(command)
    for topic in topics:
        wait(process, lambda topic=topic: mirror_setup.end_offset(topic, 2) >= RECORDS, f"all of {topic}")  # type: ignore[misc]
    wait(process, lambda: len(read_all(mirror_setup.b, "A.numbers")) >= RECORDS, "all committed records")
    occurrences = Counter(int(r.value) for r in read_all(mirror_setup.b, "A.numbers"))
    assert sorted(occurrences) == list(range(RECORDS)) and set(occurrences.values()) == {1}
    wait(
        process,
        lambda: len({r.value for r in read_all(mirror_setup.b, "numbers")}) == RECORDS,
        "every number at least once",
    )
    for topic in topics:
        for r in read_all(mirror_setup.b, topic):
            assert int(r.value) % 2 == r.partition
