"""A group goes from the classic protocol to the new one and back while its members read on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.java_groups import JavaGroups
from tests.support.members import COOPERATIVE, Member, wait_for_records, wait_for_split
from tests.support.processes import wait_until
from tests.support.targets import Target, start_target

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

PARTITIONS = 6
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 6_000,
}


@pytest.fixture(scope="module")
def broker(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    started = start_target(target_name, tmp_path_factory.mktemp("groups"), SETTINGS)
    try:
        yield started
        assert started.process.running(), started.process.log_tail()
    finally:
        started.close()


class Stream:
    """Records that keep coming, and how many there were in each partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._topic = topic
        self._stop = threading.Event()
        self.sent = dict.fromkeys(range(PARTITIONS), 0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.01):
            partition = number % PARTITIONS
            self._producer.produce(self._topic, str(number).encode(), partition=partition)
            self._producer.poll(0)
            self.sent[partition] += 1
            number += 1

    def stop(self) -> dict[int, int]:
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            assert self._producer.flush(20) == 0
        return self.sent


class Setting:
    def __init__(self, broker: Target, topic: str, folder: Path) -> None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)
        self.group = f"group-of-{topic}"
        self.members: list[Member] = []
        self.stream = Stream(broker.bootstrap_servers, topic)
        self._broker = broker
        self._topic = topic
        self._folder = folder

    def join(self, client: str, protocol: str, **options: object) -> Member:
        chosen: dict[str, object] = {"protocol": protocol, **options}
        member = Member(
            client,
            self._folder,
            self._broker.bootstrap_servers,
            self.group,
            self._topic,
            **chosen,  # type: ignore[arg-type]
        )
        self.members.append(member)
        return member

    def close(self) -> None:
        self.stream.stop()
        for member in self.members:
            member.process.kill()


@pytest.fixture
def setting(broker: Target, topic: str, tmp_path: Path) -> Iterator[Setting]:
    made = Setting(broker, topic, tmp_path)
    yield made
    made.close()


def group_type(broker: Target, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    types = {group.group_id: group.type.name for group in admin.list_consumer_groups().result().valid}
    return types[group]


@pytest.mark.parametrize(
    ("client", "assignors"),
    [
        ("confluent", ("range",)),
        ("confluent", COOPERATIVE),
        pytest.param("java-4.3.0", ("range",), marks=pytest.mark.java),
        pytest.param("java-4.3.0", COOPERATIVE, marks=pytest.mark.java),
        pytest.param("java-3.9.1", COOPERATIVE, marks=pytest.mark.java),
    ],
)
def test_a_group_is_upgraded_member_by_member_and_back_while_records_flow(
    client: str, assignors: tuple[str, ...], broker: Target, setting: Setting, request: pytest.FixtureRequest
) -> None:
    if client == "confluent" and assignors == COOPERATIVE and broker.version != "kavka":
        pytest.skip("Apache Kafka refuses the data that librdkafka's sticky assignors put into assignments")
    if client.startswith("java-"):
        request.getfixturevalue("java_parts")
    newer = "confluent" if client == "java-3.9.1" else client
    classic = [setting.join(client, "classic", assignors=assignors) for _ in range(2)]
    wait_for_split(classic, PARTITIONS)
    assert group_type(broker, setting.group) == "CLASSIC"
    # Up: one of each kind meanwhile.
    new = [setting.join(newer, "consumer")]
    wait_for_split([*classic, *new], PARTITIONS, timeout=60)
    assert group_type(broker, setting.group) == "CONSUMER"
    classic.pop().leave()
    wait_for_split([*classic, *new], PARTITIONS, timeout=60)
    new.append(setting.join(newer, "consumer"))
    classic.pop().leave()
    wait_for_split(new, PARTITIONS, timeout=60)
    # Down again.
    classic = [setting.join(client, "classic", assignors=assignors)]
    wait_for_split([*classic, *new], PARTITIONS, timeout=60)
    for member in new:
        member.leave()
    wait_for_split(classic, PARTITIONS, timeout=60)
    assert group_type(broker, setting.group) == "CLASSIC"
    sent = setting.stream.stop()
    wait_for_records(setting.members, sent, timeout=60)


def test_a_consumer_that_crashes_in_a_mixed_group_is_replaced_by_the_others(setting: Setting) -> None:
    classic = setting.join("confluent", "classic", assignors=COOPERATIVE)
    new = setting.join("confluent", "consumer")
    other = setting.join("confluent", "consumer")
    wait_for_split([classic, new, other], PARTITIONS, timeout=60)
    new.crash()
    wait_for_split([classic, other], PARTITIONS, timeout=60)
    classic.crash()
    wait_for_split([other], PARTITIONS, timeout=60)
    wait_for_records(setting.members, setting.stream.stop(), timeout=60)


@pytest.mark.java
def test_an_administrator_sees_which_members_are_upgraded(java_parts: None, broker: Target, setting: Setting) -> None:
    classic = setting.join("confluent", "classic")
    wait_for_split([classic], PARTITIONS)
    new = setting.join("confluent", "consumer")
    wait_for_split([classic, new], PARTITIONS, timeout=60)
    with JavaGroups(broker.bootstrap_servers) as groups:
        wait_until(
            lambda: groups.describe(setting.group)["state"] == "Stable", timeout=30, what="a stable group", interval=0.5
        )
        description = groups.describe(setting.group)
        assert description["type"] == "Consumer"
        assert sorted(member["upgraded"] for member in description["members"]) == [False, True]


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(broker: Target, setting: Setting) -> None:
    for protocol in ("classic", "consumer", "classic"):
        member = setting.join("confluent", protocol)
        wait_for_split([member], PARTITIONS)
        assert group_type(broker, setting.group) == protocol.upper()
        time.sleep(1)
        member.leave()
    sent = setting.stream.stop()
    last = setting.join("confluent", "consumer")
    wait_for_records(setting.members, sent, timeout=60)
    last.leave()
    seen = [
        (partition, offset)
        for member in setting.members
        for partition, offsets in member.offsets().items()
        for offset in offsets
    ]
    assert len(seen) == len(set(seen)), "nothing is read twice"
