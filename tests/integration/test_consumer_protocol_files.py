"""Groups of the consumer protocol (KIP-848) in `__consumer_offsets`: Kafka's dump tool and a
restarted broker read them."""

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
    with KavkaProcess(tmp_path / "broker", overrides=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
        yield broker


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
def test_the_offsets_decoder_of_the_dump_tool_reads_the_groups(
    version: str, broker: KavkaProcess, tmp_path: Path
) -> None:
    members = [join(broker, tmp_path, instance_id="one"), join(broker, tmp_path)]
    classic_member = join(broker, tmp_path, "classic", assignors=COOPERATIVE)
    pattern_member = Member("confluent", tmp_path, broker.bootstrap_servers, GROUP, "^ord.*", protocol="consumer")
    try:
        wait_for_split([*members, classic_member, pattern_member], PARTITIONS, timeout=60)
        members[1].leave()
        time.sleep(1)
        broker.stop()
    finally:
        for member in (*members, classic_member, pattern_member):
            member.process.kill()
    files = [path for path in sorted(broker.log_dirs[0].glob("__consumer_offsets-*/*.log")) if path.stat().st_size]
    output = run_tool(version, "dump-log", "--offsets-decoder", "--files", ",".join(map(str, files))).stdout
    records_by_type: dict[str, list[Any]] = {}
    for key, value in re.findall(r"key: (\{.*?\}) payload: (.*)$", output, re.MULTILINE):
        decoded_key = json.loads(key)
        record_type = str(decoded_key.get("type", decoded_key.get("version")))
        records_by_type.setdefault(record_type, []).append(
            (decoded_key["data"], None if value in ("<DELETE>", "null") else json.loads(value))
        )
    assert {"3", "5", "6", "7", "8"} <= set(records_by_type), output[:2000]
    epochs = [value["data"]["epoch"] for _, value in records_by_type["3"] if value is not None]
    assert epochs == sorted(epochs) and len(epochs) >= 4
    member_records = [value["data"] for _, value in records_by_type["5"] if value is not None]
    assert {record["instanceId"] for record in member_records} == {"one", None}
    assert any(record["subscribedTopicNames"] == [TOPIC] for record in member_records)
    assert any(value is None for _, value in records_by_type["8"]), "no tombstone of the member that left"
    if version == "4.3.0":
        # Kafka 3.9 has no patterns that the broker resolves.
        (key, value) = records_by_type["16"][0]
        assert ("^ord.*" in key["regularExpression"], value["data"]["topics"]) == (True, [TOPIC])
        assert any(record.get("classicMemberMetadata") for record in member_records)
    assert "rror" not in output


def test_members_keep_their_partitions_after_the_broker_was_killed(broker: KavkaProcess, tmp_path: Path) -> None:
    produce(broker, 60)
    members = [join(broker, tmp_path) for _ in range(2)]
    members.append(join(broker, tmp_path, "classic", assignors=COOPERATIVE))
    try:
        wait_for_split(members, PARTITIONS)
        wait_for_records(members, dict.fromkeys(range(PARTITIONS), 10))
        time.sleep(1)
        assignments = [member.read_events().partitions for member in members]
        broker.kill()
        broker.start()
        produce(broker, 60)
        wait_for_records(members, dict.fromkeys(range(PARTITIONS), 20), timeout=90)
        assert [member.read_events().partitions for member in members] == assignments
        wait_until(
            lambda: committed(broker) == [20] * PARTITIONS, timeout=30, what="all records committed", interval=0.3
        )
    finally:
        for member in members:
            member.process.kill()


def test_all_partitions_are_assigned_after_the_broker_was_killed_during_rebalances(
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
