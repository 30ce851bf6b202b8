"""The tools of the mirror as people run them: the commands of docs/mirror.md, and a mirror that is
killed."""

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
TEXT = (ROOT / "docs" / "mirror.md").read_text()
PATIENCE = 240.0


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


class World:
    """Two brokers, and tools that are run between them."""

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

    def placed(self, text: str) -> str:
        """With the addresses of these brokers."""
        for usual, here in (
            ("localhost:9092", self.a.bootstrap_servers),
            ("localhost:9192", self.b.bootstrap_servers),
            ("localhost:8083", f"127.0.0.1:{self.status_port}"),
        ):
            text = text.replace(usual, here)
        return text

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.placed(text))

    def start(self, command: str) -> ManagedProcess:
        words = shlex.split(self.placed(command))
        return ManagedProcess(
            words, log=self.folder / "tool.log", cwd=self.folder, env=self.environment, before_exec=os.setsid
        )

    def end(self, topic: str, partitions: int = 1) -> int:
        """How many offsets the target has of a topic."""
        try:
            offsets = self.admin_b.list_offsets(
                {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
            )
        except KafkaError:
            return 0
        return sum(entry.offset for entry in offsets.values())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    need_command("java")
    world = World(tmp_path_factory.mktemp("mirror-tool"))
    world.admin_a.create_topics([NewTopic("orders", 1), NewTopic("payments", 1)])
    world.admin_b.create_topics([NewTopic("stock", 1)])
    for servers, topic in ((world.a, "orders"), (world.a, "payments"), (world.b, "stock")):
        with Producer(bootstrap_servers=servers.bootstrap_servers) as producer:
            for n in range(100):
                producer.send(topic, b"%d" % n)
    yield world
    world.close()


@pytest.fixture
def running(world: World) -> Iterator[Callable[[str], ManagedProcess]]:
    made: list[ManagedProcess] = []

    def start(command: str) -> ManagedProcess:
        made.append(world.start(command))
        return made[-1]

    yield start
    for process in made:
        kill_session(process.pid, set())
        process.kill()


def wait(process: ManagedProcess, condition: Callable[[], bool], what: str) -> None:
    def checked() -> bool:
        assert process.running(), process.log_tail()
        return condition()

    wait_until(checked, timeout=PATIENCE, what=what, interval=0.2)


def command_with(*words: str) -> str:
    (command,) = (line for block in blocks("sh") for line in block.splitlines() if all(word in line for word in words))
    return command


def test_the_file_that_is_shipped_mirrors_topics_and_groups(world: World, running: Any) -> None:
    with Consumer(
        bootstrap_servers=world.a.bootstrap_servers, group_id="shop", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        assert consumer.poll(60.0, 30)
        consumer.commit_sync()
        stopped = consumer.position(TopicPartition("orders", 0))
    name = "config/connect-mirror-maker.properties"
    world.write(name, (ROOT / name).read_text())
    process = running(command_with(name) + " --report-interval-ms 200")
    wait(process, lambda: world.end("A.orders") == 100, "the orders")
    tp = TopicPartition("A.orders", 0)

    def synced() -> bool:
        at = world.admin_b.list_consumer_group_offsets("shop").get(tp)
        return at is not None and at.offset == stopped

    wait(process, synced, "the group's offset")
    wait(process, lambda: "lag 0" in process.log_tail(), "a line that says how far it is")
    assert re.search(r"^A->B: RUNNING, [\d,]+ records, [\d,]+/s, lag 0$", process.log_tail(), re.MULTILINE)
    assert process.stop(60.0) in (0, 143)


def test_two_clusters_mirror_one_another_by_the_file_of_the_document(world: World, running: Any) -> None:
    world.write("mm2.properties", next(text for text in blocks("properties") if "clusters" in text))
    process = running(command_with("mm2.properties"))
    wait(process, lambda: world.end("berlin.orders") == 100 and world.end("berlin.payments") == 100, "both topics")
    wait(process, lambda: "oslo.stock" in world.admin_a.list_topics(), "the topic of the other way")

    def status() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{world.status_port}/status", timeout=30) as answer:
            return {flow["flow"]: flow for flow in json.load(answer)}

    wait(process, lambda: status()["berlin->oslo"]["records"] >= 200, "the status")
    wait(process, lambda: status()["berlin->oslo"]["lag_by_partition"].get("orders") == {"0": 0}, "no lag")
    tool = shlex.split(world.placed(command_with("kafka-consumer-groups")))

    def shown() -> str:
        done = subprocess.run(
            tool, cwd=world.folder, env=world.environment, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout

    wait(process, lambda: bool(re.search(r"orders +0 +100 +100 +0 ", shown())), "the lag as that of a group")


def test_the_older_tool_copies_topics_under_their_names(world: World, running: Any) -> None:
    world.write("source.properties", next(text for text in blocks("properties") if "group.id" in text))
    world.write("target.properties", "bootstrap.servers = localhost:9192\n")
    process = running(command_with("--whitelist"))
    wait(process, lambda: world.end("orders") == 100 and world.end("payments") == 100, "both topics")
    assert [r.value for r in read_all(world.b, "orders")] == [r.value for r in read_all(world.a, "orders")]


def test_an_error_is_one_line(world: World) -> None:
    world.write("none.properties", "bootstrap.servers = localhost:9092\n")
    world.write("circle.properties", "clusters = A\nA.bootstrap.servers = localhost:9092\n")
    for command, message in (
        ("bin/kafka-mirror-maker.sh --producer.config none.properties --include x", "consumer.config"),
        ("bin/kafka-mirror-maker.sh --consumer.config none.properties --producer.config none.properties", "include"),
        (
            "bin/kafka-mirror-maker.sh --consumer.config none.properties --producer.config none.properties --include x",
            "--consumer.config has no group.id",
        ),
        ("bin/kafka-mirror-maker.sh --message.handler x", "--message.handler is not supported"),
        ("bin/connect-mirror-maker.sh circle.properties", "no pair of clusters is enabled"),
        ("bin/connect-mirror-maker.sh nowhere.properties", "nowhere.properties"),
    ):
        done = subprocess.run(
            shlex.split(command), cwd=world.folder, env=world.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


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
def test_a_mirror_that_is_killed_leaves_nothing_out_and_exactly_once_nothing_twice(world: World, running: Any) -> None:
    """`A.numbers` is mirrored exactly once, `numbers` at least once; all processes die at the same
    moment."""
    world.admin_a.create_topics([NewTopic("numbers", 2)])
    with Producer(bootstrap_servers=world.a.bootstrap_servers) as producer:
        for n in range(RECORDS):
            producer.send("numbers", b"%d" % n, partition=n % 2)
    world.write("crash.properties", CRASH_FILE.format(folder=world.folder))
    command = "bin/connect-mirror-maker.sh crash.properties"
    process = running(command)
    topics = ("A.numbers", "numbers")
    wait(process, lambda: all(world.end(topic, 2) > RECORDS // 6 for topic in topics), "some batches of both")
    kill_session(process.pid, set())
    process.kill()
    before = {topic: len(read_all(world.b, topic, "read_uncommitted")) for topic in topics}
    assert all(count < RECORDS for count in before.values()), before
    process = running(command)
    for topic in topics:
        wait(process, lambda topic=topic: world.end(topic, 2) >= RECORDS, f"all of {topic}")  # type: ignore[misc]
    wait(process, lambda: len(read_all(world.b, "A.numbers")) >= RECORDS, "all that is committed")
    once = Counter(int(r.value) for r in read_all(world.b, "A.numbers"))
    assert sorted(once) == list(range(RECORDS)) and set(once.values()) == {1}
    wait(process, lambda: len({r.value for r in read_all(world.b, "numbers")}) == RECORDS, "every number at least once")
    for topic in topics:
        for r in read_all(world.b, topic):
            assert int(r.value) % 2 == r.partition
