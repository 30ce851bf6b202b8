"""Mirroring between two brokers: record by record, with topics, settings and groups that follow."""

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
PATIENCE = 240.0
PARTITIONS = 3
TIME = 1_700_000_000_000


class Pair:
    """Two brokers that mirror one another."""

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


def contents(records: list[Any]) -> dict[int, list[Any]]:
    """By partition, in order, all that a record is but its offset."""
    by_partition: dict[int, list[Any]] = {}
    for r in sorted(records, key=lambda r: (r.partition, r.offset)):
        by_partition.setdefault(r.partition, []).append((r.timestamp, r.key, r.value, r.headers))
    return by_partition


def wait_for_mirror(pair: Pair, topic: str, count: int, remote: str | None = None) -> list[Any]:
    """The records of a topic in the target, once it has so many."""
    remote = remote or f"A.{topic}"
    records: list[Any] = []

    def there() -> bool:
        nonlocal records
        if remote not in pair.admin_b.list_topics():
            return False
        records = read_all(pair.b, remote)
        return len(records) >= count

    wait_until(there, timeout=PATIENCE, what=f"{count} records in {remote}", interval=0.2)
    return records


def fill(pair: Pair, topic: str, numbers: range, **settings: Any) -> None:
    with Producer(bootstrap_servers=pair.a.bootstrap_servers, **settings) as producer:
        for n in numbers:
            headers = [("n", b"%d" % n), ("empty", None)] if n % 3 else None
            key, value = (None if n % 5 == 0 else b"k%d" % n), (None if n % 7 == 0 else b"v%d" % n)
            producer.send(topic, value, key, n % PARTITIONS, TIME + n, headers)


@pytest.fixture(scope="module")
def pair(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    both = Pair(tmp_path_factory.mktemp("mirror"))
    both.admin_a.create_topics(
        [
            NewTopic("orders", PARTITIONS, configs={"retention.ms": "86400000", "min.insync.replicas": "1"}),
            NewTopic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"}),
        ]
    )
    both.admin_b.create_topics([NewTopic("back", 1)])
    for codec, numbers in (("none", range(200)), ("gzip", range(200, 400)), ("lz4", range(400, 402))):
        fill(both, "orders", numbers, compression_type=codec)
    with Producer(bootstrap_servers=both.a.bootstrap_servers, transactional_id="t") as producer:
        producer.init_transactions()
        for outcome in ("commit", "abort", "commit"):
            producer.begin_transaction()
            for n in range(10):
                producer.send("orders", b"%s %d" % (outcome.encode(), n), b"t", n % PARTITIONS, TIME + n)
            producer.flush()
            producer.commit_transaction() if outcome == "commit" else producer.abort_transaction()
    with Producer(bootstrap_servers=both.a.bootstrap_servers) as producer:
        for n in range(50):
            producer.send("stamped", b"%d" % n, timestamp=5)
    with Producer(bootstrap_servers=both.b.bootstrap_servers) as producer:
        producer.send("back", b"from b").get(60)
    file = {
        "clusters": "A, B",
        "A.bootstrap.servers": both.a.bootstrap_servers,
        "B.bootstrap.servers": both.b.bootstrap_servers,
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
    both.mirror = Mirror(flows_of(file), spark)
    both.mirror.start()
    try:
        yield both
    finally:
        both.close()


def test_records_are_as_they_were_and_in_the_same_partitions(pair: Pair) -> None:
    source = contents(read_all(pair.a, "orders"))
    assert sum(map(len, source.values())) == 422
    assert contents(wait_for_mirror(pair, "orders", 422)) == source
    assert contents(wait_for_mirror(pair, "stamped", 50)) == contents(read_all(pair.a, "stamped"))


def test_settings_of_topics_follow_but_those_that_are_the_targets_affair(pair: Pair) -> None:
    wait_for_mirror(pair, "orders", 422)
    resource = ConfigResource.topic("A.orders")

    def settings() -> dict[str, str | None]:
        configs = pair.admin_b.describe_configs(resource)[resource]
        return {name: entry.value for name, entry in configs.items() if entry.source.name == "DYNAMIC_TOPIC_CONFIG"}

    assert settings() == {"retention.ms": "86400000"}
    pair.admin_a.incremental_alter_configs(
        {ConfigResource.topic("orders"): {"retention.ms": None, "max.message.bytes": "2000000"}}
    )
    wait_until(lambda: settings() == {"max.message.bytes": "2000000"}, timeout=PATIENCE, what="the new settings")


def test_new_topics_and_partitions_are_followed(pair: Pair) -> None:
    pair.admin_a.create_topics([NewTopic("later", 1)])
    with Producer(bootstrap_servers=pair.a.bootstrap_servers) as producer:
        producer.send("later", b"one", partition=0).get(60)
    wait_for_mirror(pair, "later", 1)
    pair.admin_a.create_partitions({"later": NewPartitions(3)})
    with Producer(bootstrap_servers=pair.a.bootstrap_servers) as producer:
        producer.send("later", b"two", partition=2).get(60)
    records = wait_for_mirror(pair, "later", 2)
    assert sorted((r.partition, r.value) for r in records) == [(0, b"one"), (2, b"two")]


def test_nothing_goes_round_in_circles(pair: Pair) -> None:
    wait_until(lambda: "B.back" in pair.admin_a.list_topics(), timeout=PATIENCE, what="the topic of B in A")
    wait_for_mirror(pair, "orders", 422)
    fill(pair, "orders", range(500, 510))
    wait_for_mirror(pair, "orders", 432)
    for admin in (pair.admin_a, pair.admin_b):
        assert not [name for name in admin.list_topics() if "A.B." in name or "B.A." in name]


def test_a_group_continues_in_the_target_where_it_stopped_in_the_source(pair: Pair) -> None:
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
        seen: list[int] = []
        while len(seen) < 137:
            seen += [int(r.value) for r in consumer.poll(0.2, 137 - len(seen))]
        consumer.commit_sync()
    tp = TopicPartition("A.work", 0)
    wait_until(
        lambda: pair.admin_b.list_consumer_group_offsets("workers").get(tp) is not None,
        timeout=PATIENCE, what="the group's offset in B", interval=0.2,
    )  # fmt: skip
    with Consumer(bootstrap_servers=pair.b.bootstrap_servers, **settings) as consumer:
        consumer.subscribe(["A.work"])
        rest: list[int] = []
        while len(rest) < 300 - 137:
            rest += [int(r.value) for r in consumer.poll(0.2)]
        # Offsets that it commits while it consumes here are not overwritten by the source's.
        consumer.commit_sync()
        with Producer(bootstrap_servers=pair.a.bootstrap_servers) as producer:
            producer.send("work", b"300").get(60)
        wait_for_mirror(pair, "work", 301)
    assert seen + rest == list(range(300))
    at = pair.admin_b.list_consumer_group_offsets("workers")[tp]
    assert at is not None and at.offset == 300


def test_mirrormakers_own_records_are_written(pair: Pair) -> None:
    wait_for_mirror(pair, "orders", 422)
    syncs = [OffsetSync.read(r.key, r.value) for r in read_all(pair.a, "mm2-offset-syncs.B.internal")]
    source = {(r.partition, r.offset): r.value for r in read_all(pair.a, "orders")}
    target = {(r.partition, r.offset): r.value for r in read_all(pair.b, "A.orders")}
    of_orders = [sync for sync in syncs if sync.topic == "orders"]
    assert of_orders
    for sync in of_orders:
        assert source[sync.partition, sync.upstream] == target[sync.partition, sync.downstream]
    beats = [Heartbeat.read(r.key, r.value) for r in read_all(pair.b, "heartbeats")]
    assert {(beat.source, beat.target) for beat in beats} == {("A", "B")}


def test_mirrormakers_own_client_reads_what_was_written(pair: Pair) -> None:
    try:
        path = jars.class_path("mirror-3.9.1")
    except jars.JavaMissing as error:
        skip_loudly(str(error))
    wait_for_mirror(pair, "orders", 422)
    ends = {tp: end for tp, end in _ends(pair, "orders").items()}
    pair.admin_a.alter_consumer_group_offsets("readers", {tp: end // 2 for tp, end in ends.items()})

    def reported_offsets() -> dict[str, int]:
        records = [Checkpoint.read(r.key, r.value) for r in read_all(pair.b, "A.checkpoints.internal")]
        return {f"{c.topic}-{c.partition}": c.downstream for c in records if c.group == "readers"}

    wait_until(
        lambda: len(reported_offsets()) == PARTITIONS,
        timeout=PATIENCE,
        what="the checkpoints of the group",
        interval=0.2,
    )
    wait_until(lambda: "A.heartbeats" in pair.admin_b.list_topics(), timeout=PATIENCE, what="heartbeats of A in B")
    probe = Path(__file__).parents[1] / "support" / "java" / "MirrorProbe.java"
    done = subprocess.run(
        [jars.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, str(probe), pair.b.bootstrap_servers, "A",
         "readers"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert lines["upstream"] == "[A]"
    assert lines["hops"] == "1"
    assert "A.heartbeats" in lines["heartbeats"] and lines["checkpoints"] == "[A.checkpoints.internal]"
    assert lines["offsets"] == "{" + ", ".join(f"{tp}={at}" for tp, at in sorted(reported_offsets().items())) + "}"
    # And it is right: before it in the target are the records that are before the group in the
    # source.
    for tp, end in ends.items():
        before = [r for r in read_all(pair.a, "orders") if r.partition == tp.partition and r.offset < end // 2]
        mirrored = sorted(
            (r for r in read_all(pair.b, "A.orders") if r.partition == tp.partition), key=lambda r: r.offset
        )
        rest = [r for r in mirrored if r.offset >= reported_offsets()[f"A.orders-{tp.partition}"]]
        assert len(before) + len(rest) == len(mirrored)


def _ends(pair: Pair, topic: str) -> dict[TopicPartition, int]:
    with Consumer(bootstrap_servers=pair.a.bootstrap_servers) as consumer:
        return consumer.end_offsets([TopicPartition(topic, partition) for partition in range(PARTITIONS)])


def test_the_lag_is_shown_and_goes_back_to_zero(pair: Pair) -> None:
    wait_for_mirror(pair, "orders", 422)
    status = pair.status("A->B")
    listener = StatusListener("127.0.0.1", 0, pair.mirror.statuses)
    try:

        def shown() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/status", timeout=10) as answer:
                return next(flow for flow in json.load(answer) if flow["flow"] == "A->B")

        wait_until(lambda: shown()["records"] >= 422, timeout=PATIENCE, what="the records in the status", interval=0.2)
        wait_until(
            lambda: shown()["lag_by_partition"].get("orders") == {"0": 0, "1": 0, "2": 0},
            timeout=PATIENCE, what="no lag", interval=0.2,
        )  # fmt: skip
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert 'kavka_mirror_up{flow="A->B"} 1.0' in text
        assert 'kavka_mirror_lag{flow="A->B",partition="0",topic="orders"} 0.0' in text
    finally:
        listener.close()
    assert "RUNNING" in status.line()
    # The group of the flow shows the same to every tool.
    done = pair.admin_a.list_consumer_group_offsets("kavka-mirror-A->B")
    assert done[TopicPartition("stamped", 0)].offset == 50  # type: ignore[union-attr]


def test_the_mirror_continues_after_either_broker_was_down(pair: Pair) -> None:
    wait_for_mirror(pair, "orders", 422)
    before = Counter(r.value for r in read_all(pair.a, "orders"))
    for broker, numbers in ((pair.b, range(600, 630)), (pair.a, range(630, 660))):
        if broker is pair.b:
            broker.kill()
            fill(pair, "orders", numbers)
        else:
            fill(pair, "orders", numbers)
            broker.kill()
        broker.start()
    expected = Counter(r.value for r in read_all(pair.a, "orders"))
    assert sum((expected - before).values()) == 60

    def all_there() -> bool:
        return not expected - Counter(r.value for r in read_all(pair.b, "A.orders"))

    wait_until(all_there, timeout=PATIENCE, what="what was written meanwhile", interval=0.5)


def test_the_older_mirrormaker_into_apache_kafka(spark: Any, pair: Pair, java_parts: None, tmp_path: Path) -> None:
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
            source = {name: contents(read_all(pair.a, name)) for name in ("orders", "stamped")}
            with Admin(bootstrap_servers=apache.bootstrap_servers) as admin:
                wait_until(
                    lambda: {"orders", "stamped"} <= set(admin.list_topics()), timeout=PATIENCE, what="topics in Apache"
                )
            for name, expected in source.items():
                count = sum(map(len, expected.values()))
                wait_until(
                    lambda name=name, count=count: len(read_all(apache, name)) >= count,  # type: ignore[misc]
                    timeout=PATIENCE, what=f"{name} in Apache Kafka", interval=0.5,
                )  # fmt: skip
                assert contents(read_all(apache, name)) == expected
        finally:
            mirror.stop()
    finally:
        apache.close()


def test_an_exactly_once_mirror_that_starts_again_mirrors_all_of_a_topic_that_was_created_again(
    spark: Any, tmp_path: Path
) -> None:
    both = Pair(tmp_path)
    file = {
        "clusters": "A, B",
        "A.bootstrap.servers": both.a.bootstrap_servers,
        "B.bootstrap.servers": both.b.bootstrap_servers,
        "A->B.enabled": "true",
        "A->B.topics": "orders",
        "heartbeats.replication.enabled": "false",
        "emit.heartbeats.enabled": "false",
        "exactly.once.source.support": "enabled",
        "state.dir": str(tmp_path / "state"),
        "refresh.topics.interval.seconds": "1",
    }

    def run(values: list[bytes], expected: list[bytes]) -> None:
        """Create the topic with these records, and mirror until the target has what is expected."""
        both.admin_a.create_topics([NewTopic("orders", 1)])
        with Producer(bootstrap_servers=both.a.bootstrap_servers) as producer:
            for value in values:
                producer.send("orders", value)
        both.mirror = Mirror(flows_of(file), spark)
        both.mirror.start()
        mirrored = [r.value for r in wait_for_mirror(both, "orders", len(expected))]
        both.mirror.stop()
        assert mirrored == expected

    try:
        old, new = [b"old %d" % n for n in range(5)], [b"new %d" % n for n in range(9)]
        run(old, old)
        both.admin_a.delete_topics(["orders"])
        wait_until(lambda: "orders" not in both.admin_a.list_topics(), timeout=60, what="the topic to be gone")
        run(new, [*old, *new])
    finally:
        both.close()


def test_the_program_of_the_document_and_the_example_run(
    spark: Any, pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Shared:
        """The session of all tests, which no test stops."""

        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(running, "session", lambda *_: Shared())
    (program,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "mirror.md").read_text(), re.M | re.S)
    program = program.replace("localhost:9092", pair.a.bootstrap_servers)
    exec(compile(program.replace("localhost:9192", pair.b.bootstrap_servers), "mirror.md", "exec"), {})
    assert "A->B: " in capsys.readouterr().out
    runpy.run_path(str(ROOT / "examples" / "mirror.py"))["main"]()
    assert "the group has handled 600 orders at two" in capsys.readouterr().out
