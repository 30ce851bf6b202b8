"""`__consumer_offsets` has Kafka's format: Kafka's dump tool and broker read the groups of Kavka,
and Kavka reads the groups of Kafka."""

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
OFFSETS_ONLY_GROUP = "only-offsets"


def create_groups(broker: Target, folder: Path) -> str:
    """Create a stable group with commits, a group with offsets only, and a deleted group. Return
    the id of the stable group's member."""
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
        for group, offset in ((OFFSETS_ONLY_GROUP, 7), ("deleted", 8)):
            consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
            consumer.commit(offsets=[TopicPartition(TOPIC, 1, offset, metadata="some metadata")], asynchronous=False)
            consumer.close()
        admin.delete_consumer_groups(["deleted"])["deleted"].result(20)
        description = admin.describe_consumer_groups([GROUP])[GROUP].result(20)
        return str(description.members[0].member_id)
    finally:
        member.process.kill()


def committed(broker: Target, group: str) -> list[int]:
    return committed_offsets(broker.bootstrap_servers, group, TOPIC, PARTITIONS)


def check_groups(broker: Target, member_id: str) -> None:
    """Assert that a broker has the groups of `create_groups`."""
    assert committed(broker, GROUP) == [10] * PARTITIONS
    assert committed(broker, OFFSETS_ONLY_GROUP) == [-1001, 7, -1001]
    assert committed(broker, "deleted") == [-1001] * PARTITIONS
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    description = admin.describe_consumer_groups([GROUP])[GROUP].result(20)
    assert description.state.name == "STABLE"
    (member,) = description.members
    assert (member.member_id, member.group_instance_id) == (member_id, "static-one")
    assert {(p.topic, p.partition) for p in member.assignment.topic_partitions} == {
        (TOPIC, number) for number in range(PARTITIONS)
    }


@pytest.fixture(scope="module")
def kavka_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The log directory of a stopped Kavka broker and the member id."""
    folder = tmp_path_factory.mktemp("kavka")
    with KavkaProcess(folder, overrides={"group.initial.rebalance.delay.ms": 0}) as broker:
        member_id = create_groups(broker, folder)
        broker.stop()
    return broker.log_dirs[0], member_id


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_the_offsets_decoder_of_the_dump_tool_reads_the_groups_of_kavka(
    kavka_files: tuple[Path, str], version: str
) -> None:
    folder, member_id = kavka_files
    files = [path for path in sorted(folder.glob("__consumer_offsets-*/*.log")) if path.stat().st_size]
    names = ",".join(str(path) for path in files)
    output = run_tool(version, "dump-log", "--offsets-decoder", "--files", names).stdout
    entries = [
        (json.loads(key), None if value in (None, "<DELETE>", "null") else json.loads(value))
        for key, value in re.findall(r"key: (\{.*?\}) payload: (.*)$", output, re.MULTILINE)
    ]
    offsets = {
        (key["data"]["group"], key["data"]["topic"], key["data"]["partition"]): value
        for key, value in entries
        if "topic" in key["data"]
    }
    last_commit = offsets[GROUP, TOPIC, 0]["data"]
    assert last_commit["offset"] == 10
    # The Python binding of librdkafka sends the terminating zero of the C string.
    assert offsets[OFFSETS_ONLY_GROUP, TOPIC, 1]["data"]["metadata"].rstrip("\0") == "some metadata"
    assert offsets["deleted", TOPIC, 1] is None
    groups = {key["data"]["group"]: value for key, value in entries if set(key["data"]) == {"group"}}
    group_metadata = groups[GROUP]["data"]
    assert (group_metadata["protocolType"], group_metadata["protocol"], group_metadata["leader"]) == (
        "consumer",
        "range",
        member_id,
    )
    assert [m["groupInstanceId"] for m in group_metadata["members"]] == ["static-one"]
    assert "rror" not in output


def test_an_apache_broker_reads_the_groups_of_kavka(kavka_files: tuple[Path, str], tmp_path: Path) -> None:
    folder, member_id = kavka_files
    log_dir = tmp_path / "logs"
    shutil.copytree(folder, log_dir)
    zookeeper = ZooKeeper(tmp_path / "zookeeper")
    try:
        create_zookeeper_nodes(zookeeper, log_dir)
        with ApacheKafka(
            tmp_path / "apache", version=LAST_WITH_ZOOKEEPER, zookeeper=zookeeper, log_dirs=(log_dir,)
        ) as broker:
            check_groups(broker, member_id)
    finally:
        zookeeper.stop()


@pytest.fixture(scope="module")
def apache_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, bytes]]:
    """The log directory of a stopped Apache broker, the member id, and the znodes of the topics."""
    folder = tmp_path_factory.mktemp("apache")
    with ApacheKafka(folder, version=LAST_WITH_ZOOKEEPER) as broker:
        member_id = create_groups(broker, folder)
        broker.stop()
        assert broker.zookeeper is not None
        client = KazooClient(hosts=broker.zookeeper.connect)
        client.start(timeout=20)
        znodes = {"/cluster/id": client.get("/cluster/id")[0]}
        for topic in client.get_children("/brokers/topics"):
            for path in (f"/brokers/topics/{topic}", f"/config/topics/{topic}"):
                znodes[path] = client.get(path)[0]
        client.stop()
        client.close()
    return broker.log_dirs[0], member_id, znodes


def test_kavka_reads_the_groups_of_an_apache_broker(
    apache_files: tuple[Path, str, dict[str, bytes]], tmp_path: Path
) -> None:
    folder, member_id, znodes = apache_files
    log_dir = tmp_path / "logs"
    shutil.copytree(folder, log_dir)
    broker = KavkaProcess(tmp_path / "kavka", log_dirs=(log_dir,), start=False)

    create_znodes(log_dir, znodes)
    broker.start()
    try:
        check_groups(broker, member_id)
    finally:
        broker.close()


def create_zookeeper_nodes(zookeeper: ZooKeeper, folder: Path) -> None:
    """Create the znodes that make broker 0 the leader of all topics of a log directory."""
    properties = dict(
        line.split("=", 1) for line in (folder / "meta.properties").read_text().splitlines() if "=" in line
    )
    topics: dict[str, dict[str, list[int]]] = {}
    topic_ids: dict[str, str] = {}
    for metadata_file in folder.glob("*/partition.metadata"):
        topic, _, number = metadata_file.parent.name.rpartition("-")
        topics.setdefault(topic, {})[number] = [0]
        topic_ids[topic] = dict(line.split(": ") for line in metadata_file.read_text().splitlines())["topic_id"]
    client = KazooClient(hosts=zookeeper.connect)
    client.start(timeout=20)
    client.create("/cluster/id", json.dumps({"version": "1", "id": properties["cluster.id"]}).encode(), makepath=True)
    for topic, partitions in topics.items():
        state = {
            "version": 3,
            "topic_id": topic_ids[topic],
            "partitions": partitions,
            "adding_replicas": {},
            "removing_replicas": {},
        }
        client.create(f"/brokers/topics/{topic}", json.dumps(state).encode(), makepath=True)
    client.stop()
    client.close()
