"""The folder on disk is Kafka's: Apache's tool and an Apache broker read ours, and we read
theirs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.support.apache import LAST_WITH_ZOOKEEPER, NEWEST, ApacheKafka, ZooKeeper
from tests.support.kavka_process import KavkaProcess, create_znodes
from tests.support.material import CODECS, Material, dump, fill, log_files, read_all
from tests.support.processes import wait_until
from tests.support.targets import APACHE, KAVKA, start_target

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.usefixtures("java_parts"), pytest.mark.records]


@dataclass
class Folder:
    """The log directory of a broker that was filled and stopped."""

    path: Path
    material: Material


@pytest.fixture(scope="module")
def ours(target_name: str, java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    if target_name == APACHE:
        pytest.skip("Apache Kafka 4 does not write segments this small")
    folder = tmp_path_factory.mktemp("ours")
    with start_target(target_name, folder) as broker:
        material = fill(broker)
        broker.stop()
    return Folder(broker.log_dirs[0], material)


@pytest.fixture(scope="module")
def theirs(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Folder, ZooKeeper]]:
    """A folder that Apache Kafka 3.9 wrote, and the ZooKeeper that knows its topics."""
    folder = tmp_path_factory.mktemp("theirs")
    with ApacheKafka(folder, version=LAST_WITH_ZOOKEEPER) as broker:
        material = fill(broker)
        broker.stop()
        assert broker.zookeeper is not None
        yield Folder(broker.log_dirs[0], material), broker.zookeeper


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_the_dump_tool_reads_every_record_of_every_segment(ours: Folder, version: str) -> None:
    files = list(log_files(ours.path, ".log"))
    assert len(files) > len(ours.material.records), "segments were rolled"
    output = dump(version, files, "--deep-iteration", "--print-data-log")
    dumped: dict[tuple[str, int], list[tuple[int, str]]] = {}
    partition = ("", -1)
    for line in output.splitlines():
        if line.startswith("Dumping "):
            topic, _, number = Path(line.removeprefix("Dumping ")).parent.name.rpartition("-")
            partition = topic, int(number)
        elif match := re.match(r"\| offset: (\d+) .*?(?: payload: (.*))?$", line):
            dumped.setdefault(partition, []).append((int(match[1]), match[2] or ""))
    for partition, records in ours.material.records.items():
        expected = [(offset, (value or b"").decode()) for offset, _, value, _ in records]
        start = dumped[partition][0][0]
        assert dumped[partition] == expected[start:], partition
        assert start <= ours.material.start_offsets.get(partition, 0)


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_the_dump_tool_finds_the_batches_packed_as_the_producer_or_the_topic_said(ours: Folder, version: str) -> None:
    for topic, codec in [(f"plain-{codec}", codec) for codec in CODECS] + [("own-gzip", "gzip"), ("own-zstd", "zstd")]:
        output = dump(version, [next((ours.path / f"{topic}-0").glob("*.log"))])
        codecs = {word.lower() for word in re.findall(r"compresscodec: (\w+)", output)}
        assert codecs == {codec}


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_the_dump_tool_finds_both_indexes_sane(ours: Folder, version: str) -> None:
    offset_indexes = list(log_files(ours.path, ".index"))
    assert any(path.stat().st_size > 0 for path in offset_indexes)
    checked = dump(version, offset_indexes, "--index-sanity-check")
    assert checked.count("passed sanity check.") + checked.count("is empty.") == len(offset_indexes)
    dump(version, offset_indexes, "--verify-index-only")
    entries = dump(version, offset_indexes)
    assert entries.count("offset: ") > 30

    time_indexes = list(log_files(ours.path, ".timeindex"))
    assert len(time_indexes) == len(offset_indexes)
    dump(version, time_indexes, "--index-sanity-check")
    assert dump(version, time_indexes).count("timestamp: ") >= len([p for p in time_indexes if p.stat().st_size])


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_the_dump_tool_reads_the_producer_snapshots(ours: Folder, version: str) -> None:
    snapshots = sorted((ours.path / "idempotent-0").glob("*.snapshot"))
    assert snapshots and snapshots[-1].name == "00000000000000000300.snapshot"
    output = dump(version, snapshots[-1:])
    assert re.search(r"producerId: \d+ producerEpoch: 0 .*lastSequence: 299", output) or re.search(
        r"firstSequence: \d+ lastSequence: 299 lastOffset: 299", output
    )


def _znodes_of(folder: Path) -> dict[str, bytes]:
    """What a ZooKeeper has to hold so that broker 0 leads the topics of a log directory."""
    lines = [line.partition("=") for line in (folder / "meta.properties").read_text().splitlines()]
    properties = {name: value for name, _, value in lines}
    assert properties["broker.id"] == "0"
    nodes = {
        "/cluster/id": json.dumps({"version": "1", "id": properties["cluster.id"]}).encode(),
    }
    topics: dict[str, dict[str, list[int]]] = {}
    ids: dict[str, str] = {}
    for marker in folder.glob("*/partition.metadata"):
        topic, _, number = marker.parent.name.rpartition("-")
        if topic.startswith("__"):
            continue
        topics.setdefault(topic, {})[number] = [0]
        ids[topic] = dict(line.split(": ") for line in marker.read_text().splitlines())["topic_id"]
    for topic, partitions in topics.items():
        state = {
            "version": 3,
            "topic_id": ids[topic],
            "partitions": partitions,
            "adding_replicas": {},
            "removing_replicas": {},
        }
        nodes[f"/brokers/topics/{topic}"] = json.dumps(state).encode()
    return nodes


def test_an_apache_broker_started_on_our_folder_serves_every_record(
    ours: Folder, target_name: str, tmp_path: Path
) -> None:
    copy = tmp_path / "logs"
    shutil.copytree(ours.path, copy)
    zookeeper = ZooKeeper(tmp_path / "zookeeper")
    try:
        client = KazooClient(hosts=zookeeper.connect)
        client.start(timeout=20)
        for path, data in _znodes_of(copy).items():
            client.create(path, data, makepath=True)
        client.stop()
        client.close()
        with ApacheKafka(
            tmp_path / "apache", version=LAST_WITH_ZOOKEEPER, zookeeper=zookeeper, log_dirs=(copy,)
        ) as broker:
            expected = ours.material.expected()
            assert read_all(broker.bootstrap_servers, expected) == expected
            output = broker.process.log_tail(1_000_000)
            assert "clean shutdown file was found" in output or "Skipping recovery" in output
            assert "corrupt" not in output.lower()
    finally:
        zookeeper.stop()


def test_our_reader_reads_every_record_that_apache_kafka_wrote(theirs: tuple[Folder, ZooKeeper]) -> None:
    from kavka.records.reader import read_records

    folder, _ = theirs
    for (topic, partition), expected in folder.material.records.items():
        files = sorted((folder.path / f"{topic}-{partition}").glob("*.log"))
        records = [
            (record.offset, record.key, record.value, tuple(record.headers))
            for path in files
            for record in read_records(path.read_bytes())
        ]
        assert records == expected[records[0][0] :], topic


def test_our_broker_started_on_the_folder_of_an_apache_broker_serves_every_record(
    theirs: tuple[Folder, ZooKeeper], tmp_path: Path
) -> None:
    """The tree that ZooKeeper held comes along: it is the same tree, only kept in a file."""
    folder, zookeeper = theirs
    copy = tmp_path / "logs"
    shutil.copytree(folder.path, copy, ignore=shutil.ignore_patterns("__consumer_offsets-*", "__transaction_state-*"))
    broker = KavkaProcess(tmp_path / "kavka", log_dirs=(copy,), start=False)

    client = KazooClient(hosts=zookeeper.connect)
    client.start(timeout=20)
    nodes: dict[str, bytes] = {"/cluster/id": client.get("/cluster/id")[0]}
    for topic in client.get_children("/brokers/topics"):
        if not topic.startswith("__"):
            nodes[f"/brokers/topics/{topic}"] = client.get(f"/brokers/topics/{topic}")[0]
            nodes[f"/config/topics/{topic}"] = client.get(f"/config/topics/{topic}")[0]
    client.stop()
    client.close()

    create_znodes(copy, nodes)
    broker.start()
    try:
        expected = folder.material.expected()
        assert read_all(broker.bootstrap_servers, expected) == expected
    finally:
        broker.close()


def test_a_running_brokers_folder_can_be_dumped(target_name: str, java_parts: None, tmp_path: Path) -> None:
    """Index files are larger than what is in them while they are written to."""
    if target_name != KAVKA:
        pytest.skip("about Kavka's files only")
    with KavkaProcess(tmp_path) as broker:
        material = fill(broker, old_formats=False)
        wait_until(lambda: bool(list(log_files(broker.log_dirs[0], ".log"))), timeout=5, what="log files")
        output = dump(NEWEST, list(log_files(broker.log_dirs[0], ".log")), "--deep-iteration")
        assert output.count("| offset: ") >= sum(len(records) for records in material.expected().values())
