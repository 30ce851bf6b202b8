"""Groups of the new protocol in `__consumer_offsets`: Kafka's dump tool and a broker that was
killed read them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.java_client import run_tool
from tests.support.kavka_process import KavkaProcess
from tests.support.members import COOPERATIVE, Member, committed_offsets, wait_for_records, wait_for_split
from tests.support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPIC = "orders"
PARTITIONS = 6
GROUP = "readers"
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 30_000,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KavkaProcess]:
    with KavkaProcess(tmp_path / "broker", overrides=SETTINGS) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
        yield started


def produce(broker: KavkaProcess, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(TOPIC, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(20) == 0


def join(broker: KavkaProcess, folder: Path, protocol: str = "consumer", **options: Any) -> Member:
    return Member(
        "confluent", folder, broker.bootstrap_servers, GROUP, TOPIC, protocol=protocol, session_ms=30_000, **options
    )


def committed(broker: KavkaProcess) -> list[int]:
    return committed_offsets(broker.bootstrap_servers, GROUP, TOPIC, PARTITIONS)


@pytest.mark.java
@pytest.mark.usefixtures("java_parts")
@pytest.mark.parametrize("version", ["4.3.0", "3.9.1"])
def test_the_dump_tool_with_its_offsets_decoder_reads_our_groups(
    version: str, broker: KavkaProcess, tmp_path: Path
) -> None:
    members = [join(broker, tmp_path, instance_id="one"), join(broker, tmp_path)]
    classic = join(broker, tmp_path, "classic", assignors=COOPERATIVE)
    pattern = Member("confluent", tmp_path, broker.bootstrap_servers, GROUP, "^ord.*", protocol="consumer")
    try:
        wait_for_split([*members, classic, pattern], PARTITIONS, timeout=60)
        members[1].leave()
        time.sleep(1)
        broker.stop()
    finally:
        for member in (*members, classic, pattern):
            member.process.kill()
    files = [path for path in sorted(broker.log_dirs[0].glob("__consumer_offsets-*/*.log")) if path.stat().st_size]
    output = run_tool(version, "dump-log", "--offsets-decoder", "--files", ",".join(map(str, files))).stdout
    groups: dict[str, list[Any]] = {}
    for key, value in re.findall(r"key: (\{.*?\}) payload: (.*)$", output, re.MULTILINE):
        group_key = json.loads(key)
        kind = str(group_key.get("type", group_key.get("version")))
        groups.setdefault(kind, []).append(
            (group_key["data"], None if value in ("<DELETE>", "null") else json.loads(value))
        )
    assert {"3", "5", "6", "7", "8"} <= set(groups), output[:2000]
    epochs = [value["data"]["epoch"] for _, value in groups["3"] if value is not None]
    assert epochs == sorted(epochs) and len(epochs) >= 4
    said = [value["data"] for _, value in groups["5"] if value is not None]
    assert {member["instanceId"] for member in said} == {"one", None}
    assert any(entry["subscribedTopicNames"] == [TOPIC] for entry in said)
    assert any(value is None for _, value in groups["8"]), "the member that left"
    if version == "4.3.0":
        # 3.9 does not know of patterns that the broker resolves.
        (key, value) = groups["16"][0]
        assert ("^ord.*" in key["regularExpression"], value["data"]["topics"]) == (True, [TOPIC])
        assert any(entry.get("classicMemberMetadata") for entry in said)
    assert "rror" not in output


def test_members_keep_their_partitions_after_the_broker_was_killed(broker: KavkaProcess, tmp_path: Path) -> None:
    produce(broker, 60)
    members = [join(broker, tmp_path) for _ in range(2)]
    members.append(join(broker, tmp_path, "classic", assignors=COOPERATIVE))
    try:
        wait_for_split(members, PARTITIONS)
        wait_for_records(members, dict.fromkeys(range(PARTITIONS), 10))
        time.sleep(1)
        before = [member.read_events().partitions for member in members]
        broker.kill()
        broker.start()
        produce(broker, 60)
        wait_for_records(members, dict.fromkeys(range(PARTITIONS), 20), timeout=90)
        assert [member.read_events().partitions for member in members] == before
        wait_until(lambda: committed(broker) == [20] * PARTITIONS, timeout=30, what="all committed", interval=0.3)
    finally:
        for member in members:
            member.process.kill()


def test_a_broker_that_is_killed_in_the_middle_of_rebalances_loses_no_partition(
    broker: KavkaProcess, tmp_path: Path
) -> None:
    members = [join(broker, tmp_path)]
    try:
        for number in range(4):
            members.append(join(broker, tmp_path))
            time.sleep(0.15 * number + 0.3)
            broker.kill()
            broker.start()
        wait_for_split(members, PARTITIONS, timeout=90)
        members.pop(0).leave()
        wait_for_split(members, PARTITIONS, timeout=60)
    finally:
        for member in members:
            member.process.kill()
