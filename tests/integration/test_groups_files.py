"""`__consumer_offsets` has Kafka's format: its dump tool reads ours, its broker continues our
groups, and ours continues theirs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from tests.support.apache import LAST_WITH_ZOOKEEPER, NEWEST, ApacheKafka, ZooKeeper
from tests.support.java_client import run_tool
from tests.support.kavka_process import KavkaProcess, create_znodes
from tests.support.members import Member, committed_offsets, wait_for_records, wait_for_split
from tests.support.processes import wait_until
from tests.support.targets import Target

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("java_parts"),
]

TOPIC = "orders"
PARTITIONS = 3
GROUP = "readers"
SIMPLE = "only-offsets"


def fill(broker: Target, folder: Path) -> str:
    """A stable group with commits, a group with offsets only, and one that was deleted; the
    member's id."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(30):
        producer.produce(TOPIC, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(20) == 0
    member = Member(
        "confluent", folder, broker.bootstrap_servers, GROUP, TOPIC, instance_id="static-one", session_ms=60_000
    )
    try:
        wait_for_split([member], PARTITIONS)
        wait_for_records([member], dict.fromkeys(range(PARTITIONS), 10))
        wait_until(lambda: committed(broker, GROUP) == [10] * PARTITIONS, timeout=20, what="commits", interval=0.1)
        for group, offset in ((SIMPLE, 7), ("deleted", 8)):
            consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
            consumer.commit(offsets=[TopicPartition(TOPIC, 1, offset, metadata="ein Wort dazu")], asynchronous=False)
            consumer.close()
        admin.delete_consumer_groups(["deleted"])["deleted"].result(20)
        described = admin.describe_consumer_groups([GROUP])[GROUP].result(20)
        return str(described.members[0].member_id)
    finally:
        member.process.kill()


def committed(broker: Target, group: str) -> list[int]:
    return committed_offsets(broker.bootstrap_servers, group, TOPIC, PARTITIONS)


def check_groups(broker: Target, member_id: str) -> None:
    """What `fill` left is known to another broker."""
    assert committed(broker, GROUP) == [10] * PARTITIONS
    assert committed(broker, SIMPLE) == [-1001, 7, -1001]
    assert committed(broker, "deleted") == [-1001] * PARTITIONS
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    described = admin.describe_consumer_groups([GROUP])[GROUP].result(20)
    assert described.state.name == "STABLE"
    (member,) = described.members
    assert (member.member_id, member.group_instance_id) == (member_id, "static-one")
    assert {(p.topic, p.partition) for p in member.assignment.topic_partitions} == {
        (TOPIC, number) for number in range(PARTITIONS)
    }


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("ours")
    with KavkaProcess(folder, overrides={"group.initial.rebalance.delay.ms": 0}) as broker:
        member_id = fill(broker, folder)
        broker.stop()
    return broker.log_dirs[0], member_id


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_the_dump_tool_with_its_offsets_decoder_reads_our_groups(ours: tuple[Path, str], version: str) -> None:
    folder, member_id = ours
    files = [path for path in sorted(folder.glob("__consumer_offsets-*/*.log")) if path.stat().st_size]
    names = ",".join(str(path) for path in files)
    output = run_tool(version, "dump-log", "--offsets-decoder", "--files", names).stdout
    payloads = [
        (json.loads(key), None if value in (None, "<DELETE>", "null") else json.loads(value))
        for key, value in re.findall(r"key: (\{.*?\}) payload: (.*)$", output, re.MULTILINE)
    ]
    offsets = {
        (key["data"]["group"], key["data"]["topic"], key["data"]["partition"]): value
        for key, value in payloads
        if "topic" in key["data"]
    }
    last = offsets[GROUP, TOPIC, 0]["data"]
    assert last["offset"] == 10
    # The Python binding of librdkafka sends the C string's zero along.
    assert offsets[SIMPLE, TOPIC, 1]["data"]["metadata"].rstrip("\0") == "ein Wort dazu"
    assert offsets["deleted", TOPIC, 1] is None
    groups = {key["data"]["group"]: value for key, value in payloads if set(key["data"]) == {"group"}}
    commits = groups[GROUP]["data"]
    assert (commits["protocolType"], commits["protocol"], commits["leader"]) == ("consumer", "range", member_id)
    assert [m["groupInstanceId"] for m in commits["members"]] == ["static-one"]
    assert "rror" not in output


def test_an_apache_broker_continues_our_groups(ours: tuple[Path, str], tmp_path: Path) -> None:
    folder, member_id = ours
    copy = tmp_path / "logs"
    shutil.copytree(folder, copy)
    zookeeper = ZooKeeper(tmp_path / "zookeeper")
    try:
        plant_in_zookeeper(zookeeper, copy)
        with ApacheKafka(
            tmp_path / "apache", version=LAST_WITH_ZOOKEEPER, zookeeper=zookeeper, log_dirs=(copy,)
        ) as broker:
            check_groups(broker, member_id)
    finally:
        zookeeper.stop()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, bytes]]:
    """Log directory, member id, and what ZooKeeper knew."""
    folder = tmp_path_factory.mktemp("theirs")
    with ApacheKafka(folder, version=LAST_WITH_ZOOKEEPER) as broker:
        member_id = fill(broker, folder)
        broker.stop()
        assert broker.zookeeper is not None
        client = KazooClient(hosts=broker.zookeeper.connect)
        client.start(timeout=20)
        nodes = {"/cluster/id": client.get("/cluster/id")[0]}
        for topic in client.get_children("/brokers/topics"):
            for path in (f"/brokers/topics/{topic}", f"/config/topics/{topic}"):
                nodes[path] = client.get(path)[0]
        client.stop()
        client.close()
    return broker.log_dirs[0], member_id, nodes


def test_our_broker_continues_the_groups_of_an_apache_broker(
    theirs: tuple[Path, str, dict[str, bytes]], tmp_path: Path
) -> None:
    folder, member_id, nodes = theirs
    copy = tmp_path / "logs"
    shutil.copytree(folder, copy)
    broker = KavkaProcess(tmp_path / "kavka", log_dirs=(copy,), start=False)

    create_znodes(copy, nodes)
    broker.start()
    try:
        check_groups(broker, member_id)
    finally:
        broker.close()


def plant_in_zookeeper(zookeeper: ZooKeeper, folder: Path) -> None:
    """What ZooKeeper has to hold so that broker 0 leads all topics of a log directory."""
    properties = dict(
        line.split("=", 1) for line in (folder / "meta.properties").read_text().splitlines() if "=" in line
    )
    topics: dict[str, dict[str, list[int]]] = {}
    ids: dict[str, str] = {}
    for marker in folder.glob("*/partition.metadata"):
        topic, _, number = marker.parent.name.rpartition("-")
        topics.setdefault(topic, {})[number] = [0]
        ids[topic] = dict(line.split(": ") for line in marker.read_text().splitlines())["topic_id"]
    client = KazooClient(hosts=zookeeper.connect)
    client.start(timeout=20)
    client.create("/cluster/id", json.dumps({"version": "1", "id": properties["cluster.id"]}).encode(), makepath=True)
    for topic, partitions in topics.items():
        state = {
            "version": 3,
            "topic_id": ids[topic],
            "partitions": partitions,
            "adding_replicas": {},
            "removing_replicas": {},
        }
        client.create(f"/brokers/topics/{topic}", json.dumps(state).encode(), makepath=True)
    client.stop()
    client.close()
