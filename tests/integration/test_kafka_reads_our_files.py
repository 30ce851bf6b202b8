"""Log directories have Kafka's format: Apache's dump tool and broker read those of Kavka, and Kavka
reads those of Apache Kafka."""

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
class LogDirectory:
    """The log directory of a stopped broker and the records that were produced to it."""

    path: Path
    material: Material


@pytest.fixture(scope="module")
def kavka_directory(target_name: str, java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> LogDirectory:
    if target_name == APACHE:
        pytest.skip("Apache Kafka 4 does not write segments this small")
    folder = tmp_path_factory.mktemp("kavka")
    with start_target(target_name, folder) as broker:
        material = fill(broker)
        broker.stop()
    return LogDirectory(broker.log_dirs[0], material)


@pytest.fixture(scope="module")
def apache_directory(
    java_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LogDirectory, ZooKeeper]]:
    """A log directory of Apache Kafka 3.9 and the ZooKeeper with its topics."""
    folder = tmp_path_factory.mktemp("apache")
    with ApacheKafka(folder, version=LAST_WITH_ZOOKEEPER) as broker:
        material = fill(broker)
        broker.stop()
        assert broker.zookeeper is not None
        yield LogDirectory(broker.log_dirs[0], material), broker.zookeeper


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_the_dump_tool_reads_every_record_of_every_segment(kavka_directory: LogDirectory, version: str) -> None:
    files = list(log_files(kavka_directory.path, ".log"))
    assert len(files) > len(kavka_directory.material.records), "no segment was rolled"
    output = dump(version, files, "--deep-iteration", "--print-data-log")
    dumped: dict[tuple[str, int], list[tuple[int, str]]] = {}
    partition = ("", -1)
    for line in output.splitlines():
        if line.startswith("Dumping "):
            topic, _, number = Path(line.removeprefix("Dumping ")).parent.name.rpartition("-")
            partition = topic, int(number)
        elif match := re.match(r"\| offset: (\d+) .*?(?: payload: (.*))?$", line):
            dumped.setdefault(partition, []).append((int(match[1]), match[2] or ""))
    for partition, records in kavka_directory.material.records.items():
        expected = [(offset, (value or b"").decode()) for offset, _, value, _ in records]
        start = dumped[partition][0][0]
        assert dumped[partition] == expected[start:], partition
        assert start <= kavka_directory.material.start_offsets.get(partition, 0)


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_batches_have_the_codec_of_the_producer_or_the_topic(kavka_directory: LogDirectory, version: str) -> None:
    for topic, codec in [(f"plain-{codec}", codec) for codec in CODECS] + [("own-gzip", "gzip"), ("own-zstd", "zstd")]:
        output = dump(version, [next((kavka_directory.path / f"{topic}-0").glob("*.log"))])
        codecs = {word.lower() for word in re.findall(r"compresscodec: (\w+)", output)}
        assert codecs == {codec}


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_both_indexes_pass_the_sanity_check_of_the_dump_tool(kavka_directory: LogDirectory, version: str) -> None:
    offset_indexes = list(log_files(kavka_directory.path, ".index"))
    assert any(path.stat().st_size > 0 for path in offset_indexes)
    output = dump(version, offset_indexes, "--index-sanity-check")
    assert output.count("passed sanity check.") + output.count("is empty.") == len(offset_indexes)
    dump(version, offset_indexes, "--verify-index-only")
    entries = dump(version, offset_indexes)
    assert entries.count("offset: ") > 30

    time_indexes = list(log_files(kavka_directory.path, ".timeindex"))
    assert len(time_indexes) == len(offset_indexes)
    dump(version, time_indexes, "--index-sanity-check")
    assert dump(version, time_indexes).count("timestamp: ") >= len([p for p in time_indexes if p.stat().st_size])


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_the_dump_tool_reads_the_producer_snapshots(kavka_directory: LogDirectory, version: str) -> None:
    snapshots = sorted((kavka_directory.path / "idempotent-0").glob("*.snapshot"))
    assert snapshots and snapshots[-1].name == "00000000000000000300.snapshot"
    output = dump(version, snapshots[-1:])
    assert re.search(r"producerId: \d+ producerEpoch: 0 .*lastSequence: 299", output) or re.search(
        r"firstSequence: \d+ lastSequence: 299 lastOffset: 299", output
    )


def _znodes_of(folder: Path) -> dict[str, bytes]:
    """Return the znodes that make broker 0 the leader of all topics of a log directory."""
    lines = [line.partition("=") for line in (folder / "meta.properties").read_text().splitlines()]
    properties = {name: value for name, _, value in lines}
    assert properties["broker.id"] == "0"
    znodes = {
        "/cluster/id": json.dumps({"version": "1", "id": properties["cluster.id"]}).encode(),
    }
    topics: dict[str, dict[str, list[int]]] = {}
    topic_ids: dict[str, str] = {}
    for metadata_file in folder.glob("*/partition.metadata"):
        topic, _, number = metadata_file.parent.name.rpartition("-")
        if topic.startswith("__"):
            continue
        topics.setdefault(topic, {})[number] = [0]
        topic_ids[topic] = dict(line.split(": ") for line in metadata_file.read_text().splitlines())["topic_id"]
    for topic, partitions in topics.items():
        state = {
            "version": 3,
            "topic_id": topic_ids[topic],
            "partitions": partitions,
            "adding_replicas": {},
            "removing_replicas": {},
        }
        znodes[f"/brokers/topics/{topic}"] = json.dumps(state).encode()
    return znodes


def test_an_apache_broker_serves_every_record_of_a_kavka_log_directory(
    kavka_directory: LogDirectory, target_name: str, tmp_path: Path
) -> None:
    log_dir = tmp_path / "logs"
    shutil.copytree(kavka_directory.path, log_dir)
    zookeeper = ZooKeeper(tmp_path / "zookeeper")
    try:
        client = KazooClient(hosts=zookeeper.connect)
        client.start(timeout=20)
        for path, data in _znodes_of(log_dir).items():
            client.create(path, data, makepath=True)
        client.stop()
        client.close()
        with ApacheKafka(
            tmp_path / "apache", version=LAST_WITH_ZOOKEEPER, zookeeper=zookeeper, log_dirs=(log_dir,)
        ) as broker:
            expected = kavka_directory.material.expected()
            assert read_all(broker.bootstrap_servers, expected) == expected
            output = broker.process.log_tail(1_000_000)
            assert "clean shutdown file was found" in output or "Skipping recovery" in output
            assert "corrupt" not in output.lower()
    finally:
        zookeeper.stop()


def test_read_records_decodes_every_record_of_apache_kafka(apache_directory: tuple[LogDirectory, ZooKeeper]) -> None:
    from kavka.records.reader import read_records

    folder, _ = apache_directory
    for (topic, partition), expected in folder.material.records.items():
        files = sorted((folder.path / f"{topic}-{partition}").glob("*.log"))
        records = [
            (record.offset, record.key, record.value, tuple(record.headers))
            for path in files
            for record in read_records(path.read_bytes())
        ]
        assert records == expected[records[0][0] :], topic


def test_kavka_serves_every_record_of_an_apache_log_directory(
    apache_directory: tuple[LogDirectory, ZooKeeper], tmp_path: Path
) -> None:
    """The znodes of the topics are copied from ZooKeeper to the embedded metadata store."""
    folder, zookeeper = apache_directory
    log_dir = tmp_path / "logs"
    shutil.copytree(
        folder.path, log_dir, ignore=shutil.ignore_patterns("__consumer_offsets-*", "__transaction_state-*")
    )
    broker = KavkaProcess(tmp_path / "kavka", log_dirs=(log_dir,), start=False)

    client = KazooClient(hosts=zookeeper.connect)
    client.start(timeout=20)
    znodes: dict[str, bytes] = {"/cluster/id": client.get("/cluster/id")[0]}
    for topic in client.get_children("/brokers/topics"):
        if not topic.startswith("__"):
            znodes[f"/brokers/topics/{topic}"] = client.get(f"/brokers/topics/{topic}")[0]
            znodes[f"/config/topics/{topic}"] = client.get(f"/config/topics/{topic}")[0]
    client.stop()
    client.close()

    create_znodes(log_dir, znodes)
    broker.start()
    try:
        expected = folder.material.expected()
        assert read_all(broker.bootstrap_servers, expected) == expected
    finally:
        broker.close()


def test_the_log_directory_of_a_running_broker_can_be_dumped(
    target_name: str, java_parts: None, tmp_path: Path
) -> None:
    """While a segment is active, its index files are larger than their content."""
    if target_name != KAVKA:
        pytest.skip("the test is for files of Kavka only")
    with KavkaProcess(tmp_path) as broker:
        material = fill(broker, old_formats=False)
        wait_until(lambda: bool(list(log_files(broker.log_dirs[0], ".log"))), timeout=5, what="log files")
        output = dump(NEWEST, list(log_files(broker.log_dirs[0], ".log")), "--deep-iteration")
        assert output.count("| offset: ") >= sum(len(records) for records in material.expected().values())
