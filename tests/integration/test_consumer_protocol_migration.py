"""A group migrates from the classic protocol to the consumer protocol (KIP-848) and back while its
members consume."""

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
    target = start_target(target_name, tmp_path_factory.mktemp("groups"), SETTINGS)
    try:
        yield target
        assert target.process.running(), target.process.log_tail()
    finally:
        target.close()


class BackgroundProducer:
    """Produces records until it is stopped and counts them per partition."""

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


class Scenario:
    """A topic, its background producer and the members of one group."""

    def __init__(self, broker: Target, topic: str, folder: Path) -> None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)
        self.group = f"group-of-{topic}"
        self.members: list[Member] = []
        self.producer = BackgroundProducer(broker.bootstrap_servers, topic)
        self._broker = broker
        self._topic = topic
        self._folder = folder

    def join(self, client: str, protocol: str, **options: object) -> Member:
        settings: dict[str, object] = {"protocol": protocol, **options}
        member = Member(
            client,
            self._folder,
            self._broker.bootstrap_servers,
            self.group,
            self._topic,
            **settings,  # type: ignore[arg-type]
        )
        self.members.append(member)
        return member

    def close(self) -> None:
        self.producer.stop()
        for member in self.members:
            member.process.kill()


@pytest.fixture
def scenario(broker: Target, topic: str, tmp_path: Path) -> Iterator[Scenario]:
    scenario = Scenario(broker, topic, tmp_path)
    yield scenario
    scenario.close()


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
def test_a_group_is_upgraded_and_downgraded_member_by_member_under_load(
    client: str, assignors: tuple[str, ...], broker: Target, scenario: Scenario, request: pytest.FixtureRequest
) -> None:
    if client == "confluent" and assignors == COOPERATIVE and broker.version != "kavka":
        pytest.skip("Apache Kafka rejects the user data of librdkafka's sticky assignors")
    if client.startswith("java-"):
        request.getfixturevalue("java_parts")
    new_client = "confluent" if client == "java-3.9.1" else client
    classic = [scenario.join(client, "classic", assignors=assignors) for _ in range(2)]
    wait_for_split(classic, PARTITIONS)
    assert group_type(broker, scenario.group) == "CLASSIC"
    # Upgrade: the group has members of both protocols.
    upgraded = [scenario.join(new_client, "consumer")]
    wait_for_split([*classic, *upgraded], PARTITIONS, timeout=60)
    assert group_type(broker, scenario.group) == "CONSUMER"
    classic.pop().leave()
    wait_for_split([*classic, *upgraded], PARTITIONS, timeout=60)
    upgraded.append(scenario.join(new_client, "consumer"))
    classic.pop().leave()
    wait_for_split(upgraded, PARTITIONS, timeout=60)
    # Downgrade.
    classic = [scenario.join(client, "classic", assignors=assignors)]
    wait_for_split([*classic, *upgraded], PARTITIONS, timeout=60)
    for member in upgraded:
        member.leave()
    wait_for_split(classic, PARTITIONS, timeout=60)
    assert group_type(broker, scenario.group) == "CLASSIC"
    sent_counts = scenario.producer.stop()
    wait_for_records(scenario.members, sent_counts, timeout=60)


def test_partitions_of_a_crashed_member_of_a_mixed_group_are_reassigned(scenario: Scenario) -> None:
    classic = scenario.join("confluent", "classic", assignors=COOPERATIVE)
    upgraded = scenario.join("confluent", "consumer")
    other = scenario.join("confluent", "consumer")
    wait_for_split([classic, upgraded, other], PARTITIONS, timeout=60)
    upgraded.crash()
    wait_for_split([classic, other], PARTITIONS, timeout=60)
    classic.crash()
    wait_for_split([other], PARTITIONS, timeout=60)
    wait_for_records(scenario.members, scenario.producer.stop(), timeout=60)


@pytest.mark.java
def test_a_group_description_shows_which_members_are_upgraded(
    java_parts: None, broker: Target, scenario: Scenario
) -> None:
    classic = scenario.join("confluent", "classic")
    wait_for_split([classic], PARTITIONS)
    upgraded = scenario.join("confluent", "consumer")
    wait_for_split([classic, upgraded], PARTITIONS, timeout=60)
    with JavaGroups(broker.bootstrap_servers) as groups:
        wait_until(
            lambda: groups.describe(scenario.group)["state"] == "Stable",
            timeout=30,
            what="a stable group",
            interval=0.5,
        )
        description = groups.describe(scenario.group)
        assert description["type"] == "Consumer"
        assert sorted(member["upgraded"] for member in description["members"]) == [False, True]


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(broker: Target, scenario: Scenario) -> None:
    for protocol in ("classic", "consumer", "classic"):
        member = scenario.join("confluent", protocol)
        wait_for_split([member], PARTITIONS)
        assert group_type(broker, scenario.group) == protocol.upper()
        time.sleep(1)
        member.leave()
    sent_counts = scenario.producer.stop()
    last_member = scenario.join("confluent", "consumer")
    wait_for_records(scenario.members, sent_counts, timeout=60)
    last_member.leave()
    consumed = [
        (partition, offset)
        for member in scenario.members
        for partition, offsets in member.offsets().items()
        for offset in offsets
    ]
    assert len(consumed) == len(set(consumed)), "a record was consumed twice"
