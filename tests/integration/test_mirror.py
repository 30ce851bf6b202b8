"""Mirroring between two brokers: records, topics, topic settings and group offsets."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, Consumer, NewTopic, Producer
from kavka.client.admin.types import ConfigResource, NewPartitions
from kavka.common.types import TopicPartition
from kavka.pipeline.mirror import running
from kavka.pipeline.mirror.records import Checkpoint, Heartbeat, OffsetSync
from kavka.pipeline.mirror.running import Mirror
from kavka.pipeline.mirror.settings import flows_of
from kavka.pipeline.mirror.status import FlowStatus, StatusListener
from tests.support import jars, targets
from tests.support.kavka_process import KavkaProcess
from tests.support.missing import skip_loudly
from tests.support.our_consumer import read_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.records]

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240.0
PARTITIONS = 3
START_MS = 1_700_000_000_000


class Pair:
    """Two brokers, A and B, that are mirrored in both directions."""

    def __init__(self, folder: Path) -> None:
        self.a, self.b = (KavkaProcess(folder / name) for name in ("a", "b"))
        self.admin_a = Admin(bootstrap_servers=self.a.bootstrap_servers)
        self.admin_b = Admin(bootstrap_servers=self.b.bootstrap_servers)
        self.mirror: Mirror

    def close(self) -> None:
        self.mirror.stop()
        self.admin_a.close()
        self.admin_b.close()
        self.a.close()
        self.b.close()

    def status(self, name: str) -> FlowStatus:
        return next(status for status in self.mirror.statuses() if status.flow == name)


def contents_by_partition(records: list[Any]) -> dict[int, list[Any]]:
    """Return the records of each partition in order, without their offsets."""
    by_partition: dict[int, list[Any]] = {}
    for r in sorted(records, key=lambda r: (r.partition, r.offset)):
        by_partition.setdefault(r.partition, []).append((r.timestamp, r.key, r.value, r.headers))
    return by_partition


def wait_for_mirror(pair: Pair, topic: str, count: int, remote: str | None = None) -> list[Any]:
    """Wait until the mirrored topic has at least `count` records, and return them."""
    remote = remote or f"A.{topic}"
    records: list[Any] = []

    def has_records() -> bool:
        nonlocal records
        if remote not in pair.admin_b.list_topics():
            return False
        records = read_all(pair.b, remote)
        return len(records) >= count

    wait_until(has_records, timeout=TIMEOUT_S, what=f"{count} records in {remote}", interval=0.2)
    return records


def produce(pair: Pair, topic: str, numbers: range, **settings: Any) -> None:
    with Producer(bootstrap_servers=pair.a.bootstrap_servers, **settings) as producer:
        for n in numbers:
            headers = [("n", b"%d" % n), ("empty", None)] if n % 3 else None
            key, value = (None if n % 5 == 0 else b"k%d" % n), (None if n % 7 == 0 else b"v%d" % n)
            producer.send(topic, value, key, n % PARTITIONS, START_MS + n, headers)


@pytest.fixture(scope="module")
def pair(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("mirror"))
    pair.admin_a.create_topics(
        [
            NewTopic("orders", PARTITIONS, configs={"retention.ms": "86400000", "min.insync.replicas": "1"}),
            NewTopic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"}),
        ]
    )
    pair.admin_b.create_topics([NewTopic("back", 1)])
    for codec, numbers in (("none", range(200)), ("gzip", range(200, 400)), ("lz4", range(400, 402))):
        produce(pair, "orders", numbers, compression_type=codec)
    with Producer(bootstrap_servers=pair.a.bootstrap_servers, transactional_id="t") as producer:
        producer.init_transactions()
        for outcome in ("commit", "abort", "commit"):
            producer.begin_transaction()
            for n in range(10):
                producer.send("orders", b"%s %d" % (outcome.encode(), n), b"t", n % PARTITIONS, START_MS + n)
            producer.flush()
            producer.commit_transaction() if outcome == "commit" else producer.abort_transaction()
    with Producer(bootstrap_servers=pair.a.bootstrap_servers) as producer:
        for n in range(50):
            producer.send("stamped", b"%d" % n, timestamp=5)
    with Producer(bootstrap_servers=pair.b.bootstrap_servers) as producer:
        producer.send("back", b"from b").get(60)
    settings = {
        "clusters": "A, B",
        "A.bootstrap.servers": pair.a.bootstrap_servers,
        "B.bootstrap.servers": pair.b.bootstrap_servers,
        "A->B.enabled": "true",
        "B->A.enabled": "true",
        "A.consumer.isolation.level": "read_committed",
        "refresh.topics.interval.seconds": "1",
        "sync.topic.configs.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
    }
    pair.mirror = Mirror(flows_of(settings), spark)
    pair.mirror.start()
    try:
        yield pair
    finally:
        pair.close()


def test_records_are_mirrored_unchanged_to_the_same_partitions(pair: Pair) -> None:
    source = contents_by_partition(read_all(pair.a, "orders"))
    assert sum(map(len, source.values())) == 422
    assert contents_by_partition(wait_for_mirror(pair, "orders", 422)) == source
    assert contents_by_partition(wait_for_mirror(pair, "stamped", 50)) == contents_by_partition(
        read_all(pair.a, "stamped")
    )


def test_topic_settings_are_mirrored_except_excluded_ones(pair: Pair) -> None:
    wait_for_mirror(pair, "orders", 422)
    resource = ConfigResource.topic("A.orders")

    def settings() -> dict[str, str | None]:
        configs = pair.admin_b.describe_configs(resource)[resource]
        return {name: entry.value for name, entry in configs.items() if entry.source.name == "DYNAMIC_TOPIC_CONFIG"}

    assert settings() == {"retention.ms": "86400000"}
    pair.admin_a.incremental_alter_configs(
        {ConfigResource.topic("orders"): {"retention.ms": None, "max.message.bytes": "2000000"}}
    )
    wait_until(lambda: settings() == {"max.message.bytes": "2000000"}, timeout=TIMEOUT_S, what="the new settings")


def test_new_topics_and_partitions_are_mirrored(pair: Pair) -> None:
    pair.admin_a.create_topics([NewTopic("later", 1)])
    with Producer(bootstrap_servers=pair.a.bootstrap_servers) as producer:
        producer.send("later", b"one", partition=0).get(60)
    wait_for_mirror(pair, "later", 1)
    pair.admin_a.create_partitions({"later": NewPartitions(3)})
    with Producer(bootstrap_servers=pair.a.bootstrap_servers) as producer:
        producer.send("later", b"two", partition=2).get(60)
    records = wait_for_mirror(pair, "later", 2)
    assert sorted((r.partition, r.value) for r in records) == [(0, b"one"), (2, b"two")]


def test_mirrored_topics_are_not_mirrored_back(pair: Pair) -> None:
    wait_until(lambda: "B.back" in pair.admin_a.list_topics(), timeout=TIMEOUT_S, what="the topic of B in A")
    wait_for_mirror(pair, "orders", 422)
    produce(pair, "orders", range(500, 510))
    wait_for_mirror(pair, "orders", 432)
    for admin in (pair.admin_a, pair.admin_b):
        assert not [name for name in admin.list_topics() if "A.B." in name or "B.A." in name]


def test_a_group_resumes_in_the_target_at_its_offset_in_the_source(pair: Pair) -> None:
    pair.admin_a.create_topics([NewTopic("work", 1)])
    with Producer(bootstrap_servers=pair.a.bootstrap_servers) as producer:
        for n in range(300):
            producer.send("work", b"%d" % n)
            if n in (50, 120):
                producer.flush()
    wait_for_mirror(pair, "work", 300)
    settings = {"group_id": "workers", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Consumer(bootstrap_servers=pair.a.bootstrap_servers, **settings) as consumer:
        consumer.subscribe(["work"])
        source_values: list[int] = []
        while len(source_values) < 137:
            source_values += [int(r.value) for r in consumer.poll(0.2, 137 - len(source_values))]
        consumer.commit_sync()
    partition = TopicPartition("A.work", 0)
    wait_until(
        lambda: pair.admin_b.list_consumer_group_offsets("workers").get(partition) is not None,
        timeout=TIMEOUT_S, what="the group's offset in B", interval=0.2,
    )  # fmt: skip
    with Consumer(bootstrap_servers=pair.b.bootstrap_servers, **settings) as consumer:
        consumer.subscribe(["A.work"])
        target_values: list[int] = []
        while len(target_values) < 300 - 137:
            target_values += [int(r.value) for r in consumer.poll(0.2)]
        # The mirror does not overwrite offsets that an active group commits in the target.
        consumer.commit_sync()
        with Producer(bootstrap_servers=pair.a.bootstrap_servers) as producer:
            producer.send("work", b"300").get(60)
        wait_for_mirror(pair, "work", 301)
    assert source_values + target_values == list(range(300))
    committed = pair.admin_b.list_consumer_group_offsets("workers")[partition]
    assert committed is not None and committed.offset == 300


def test_offset_syncs_and_heartbeats_are_produced(pair: Pair) -> None:
    wait_for_mirror(pair, "orders", 422)
    syncs = [OffsetSync.read(r.key, r.value) for r in read_all(pair.a, "mm2-offset-syncs.B.internal")]
    source = {(r.partition, r.offset): r.value for r in read_all(pair.a, "orders")}
    target = {(r.partition, r.offset): r.value for r in read_all(pair.b, "A.orders")}
    order_syncs = [sync for sync in syncs if sync.topic == "orders"]
    assert order_syncs
    for sync in order_syncs:
        assert source[sync.partition, sync.upstream] == target[sync.partition, sync.downstream]
    heartbeats = [Heartbeat.read(r.key, r.value) for r in read_all(pair.b, "heartbeats")]
    assert {(heartbeat.source, heartbeat.target) for heartbeat in heartbeats} == {("A", "B")}


def test_mirrormakers_client_reads_checkpoints_and_heartbeats(pair: Pair) -> None:
    try:
        class_path = jars.class_path("mirror-3.9.1")
    except jars.JavaMissing as error:
        skip_loudly(str(error))
    wait_for_mirror(pair, "orders", 422)
    end_offsets = _end_offsets(pair, "orders")
    pair.admin_a.alter_consumer_group_offsets(
        "readers", {partition: end_offset // 2 for partition, end_offset in end_offsets.items()}
    )

    def checkpoint_offsets() -> dict[str, int]:
        records = [Checkpoint.read(r.key, r.value) for r in read_all(pair.b, "A.checkpoints.internal")]
        return {f"{c.topic}-{c.partition}": c.downstream for c in records if c.group == "readers"}

    wait_until(
        lambda: len(checkpoint_offsets()) == PARTITIONS,
        timeout=TIMEOUT_S,
        what="the checkpoints of the group",
        interval=0.2,
    )
    wait_until(lambda: "A.heartbeats" in pair.admin_b.list_topics(), timeout=TIMEOUT_S, what="heartbeats of A in B")
    probe = Path(__file__).parents[1] / "support" / "java" / "MirrorProbe.java"
    command = [jars.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path, str(probe)]
    result = subprocess.run(
        [*command, pair.b.bootstrap_servers, "A", "readers"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = dict(line.split(" ", 1) for line in result.stdout.splitlines())
    assert result.returncode == 0, result.stderr
    assert lines["upstream"] == "[A]"
    assert lines["hops"] == "1"
    assert "A.heartbeats" in lines["heartbeats"] and lines["checkpoints"] == "[A.checkpoints.internal]"
    assert (
        lines["offsets"]
        == "{" + ", ".join(f"{partition}={offset}" for partition, offset in sorted(checkpoint_offsets().items())) + "}"
    )
    # The offset in the target is correct: it follows the mirrored copies of the consumed records.
    for partition, end_offset in end_offsets.items():
        consumed = [
            r for r in read_all(pair.a, "orders") if r.partition == partition.partition and r.offset < end_offset // 2
        ]
        mirrored = sorted(
            (r for r in read_all(pair.b, "A.orders") if r.partition == partition.partition), key=lambda r: r.offset
        )
        remaining = [r for r in mirrored if r.offset >= checkpoint_offsets()[f"A.orders-{partition.partition}"]]
        assert len(consumed) + len(remaining) == len(mirrored)


def _end_offsets(pair: Pair, topic: str) -> dict[TopicPartition, int]:
    with Consumer(bootstrap_servers=pair.a.bootstrap_servers) as consumer:
        return consumer.end_offsets([TopicPartition(topic, partition) for partition in range(PARTITIONS)])


def test_the_status_shows_the_lag_until_it_is_zero(pair: Pair) -> None:
    wait_for_mirror(pair, "orders", 422)
    status = pair.status("A->B")
    listener = StatusListener("127.0.0.1", 0, pair.mirror.statuses)
    try:

        def fetch_status() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/status", timeout=10) as response:
                return next(flow for flow in json.load(response) if flow["flow"] == "A->B")

        wait_until(
            lambda: fetch_status()["records"] >= 422, timeout=TIMEOUT_S, what="the records in the status", interval=0.2
        )
        wait_until(
            lambda: fetch_status()["lag_by_partition"].get("orders") == {"0": 0, "1": 0, "2": 0},
            timeout=TIMEOUT_S, what="no lag", interval=0.2,
        )  # fmt: skip
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=10) as response:
            text = response.read().decode()
        assert 'kavka_mirror_up{flow="A->B"} 1.0' in text
        assert 'kavka_mirror_lag{flow="A->B",partition="0",topic="orders"} 0.0' in text
    finally:
        listener.close()
    assert "RUNNING" in status.line()
    # The flow commits its progress as a consumer group of the source.
    offsets = pair.admin_a.list_consumer_group_offsets("kavka-mirror-A->B")
    assert offsets[TopicPartition("stamped", 0)].offset == 50  # type: ignore[union-attr]


def test_the_mirror_continues_after_a_broker_was_killed(pair: Pair) -> None:
    wait_for_mirror(pair, "orders", 422)
    initial_values = Counter(r.value for r in read_all(pair.a, "orders"))
    for broker, numbers in ((pair.b, range(600, 630)), (pair.a, range(630, 660))):
        if broker is pair.b:
            broker.kill()
            produce(pair, "orders", numbers)
        else:
            produce(pair, "orders", numbers)
            broker.kill()
        broker.start()
    expected_values = Counter(r.value for r in read_all(pair.a, "orders"))
    assert sum((expected_values - initial_values).values()) == 60

    def is_complete() -> bool:
        return not expected_values - Counter(r.value for r in read_all(pair.b, "A.orders"))

    wait_until(is_complete, timeout=TIMEOUT_S, what="the records produced in the meantime", interval=0.5)


def test_a_flow_of_mirrormaker_1_mirrors_into_apache_kafka(
    spark: Any, pair: Pair, java_parts: None, tmp_path: Path
) -> None:
    from kavka.pipeline.mirror.settings import simple_flow

    apache = targets.start_target(targets.APACHE, tmp_path / "apache")
    try:
        flow = simple_flow(
            {
                "bootstrap.servers": pair.a.bootstrap_servers, "group.id": "mirror", "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            },
            {"bootstrap.servers": apache.bootstrap_servers},
            "orders|stamped",
        )  # fmt: skip
        mirror = Mirror([flow], spark)
        mirror.start()
        try:
            source = {name: contents_by_partition(read_all(pair.a, name)) for name in ("orders", "stamped")}
            with Admin(bootstrap_servers=apache.bootstrap_servers) as admin:
                wait_until(
                    lambda: {"orders", "stamped"} <= set(admin.list_topics()),
                    timeout=TIMEOUT_S,
                    what="topics in Apache",
                )
            for name, expected in source.items():
                count = sum(map(len, expected.values()))
                wait_until(
                    lambda name=name, count=count: len(read_all(apache, name)) >= count,  # type: ignore[misc]
                    timeout=TIMEOUT_S, what=f"{name} in Apache Kafka", interval=0.5,
                )  # fmt: skip
                assert contents_by_partition(read_all(apache, name)) == expected
        finally:
            mirror.stop()
    finally:
        apache.close()


def test_a_restarted_exactly_once_mirror_mirrors_all_records_of_a_recreated_topic(spark: Any, tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    settings = {
        "clusters": "A, B",
        "A.bootstrap.servers": pair.a.bootstrap_servers,
        "B.bootstrap.servers": pair.b.bootstrap_servers,
        "A->B.enabled": "true",
        "A->B.topics": "orders",
        "heartbeats.replication.enabled": "false",
        "emit.heartbeats.enabled": "false",
        "exactly.once.source.support": "enabled",
        "state.dir": str(tmp_path / "state"),
        "refresh.topics.interval.seconds": "1",
    }

    def mirror_values(values: list[bytes], expected: list[bytes]) -> None:
        """Create the topic with `values` and mirror it until the target has `expected`."""
        pair.admin_a.create_topics([NewTopic("orders", 1)])
        with Producer(bootstrap_servers=pair.a.bootstrap_servers) as producer:
            for value in values:
                producer.send("orders", value)
        pair.mirror = Mirror(flows_of(settings), spark)
        pair.mirror.start()
        mirrored = [r.value for r in wait_for_mirror(pair, "orders", len(expected))]
        pair.mirror.stop()
        assert mirrored == expected

    try:
        first_values, second_values = [b"old %d" % n for n in range(5)], [b"new %d" % n for n in range(9)]
        mirror_values(first_values, first_values)
        pair.admin_a.delete_topics(["orders"])
        wait_until(lambda: "orders" not in pair.admin_a.list_topics(), timeout=60, what="the topic is deleted")
        mirror_values(second_values, [*first_values, *second_values])
    finally:
        pair.close()


def test_the_documented_program_and_the_example_run(
    spark: Any, pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class SharedSession:
        """The session of all tests. `stop` does nothing."""

        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(running, "session", lambda *_: SharedSession())
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "mirror.md").read_text(), re.M | re.S)
    (program,) = (text for text in programs if "Mirror(" in text)
    program = program.replace("localhost:9092", pair.a.bootstrap_servers)
    exec(compile(program.replace("localhost:9192", pair.b.bootstrap_servers), "mirror.md", "exec"), {})
    assert "A->B: " in capsys.readouterr().out
    runpy.run_path(str(ROOT / "examples" / "mirror.py"))["main"]()
    assert "the group has handled 600 orders at two" in capsys.readouterr().out
