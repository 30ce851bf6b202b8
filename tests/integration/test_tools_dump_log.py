"""dump-log beside Kafka's DumpLogSegments: the same output, byte for byte, of our files and of
Apache's."""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path

import pytest

from kavka import Consumer, Producer
from kavka.records.builder import BatchBuilder
from kavka.records.convert import down_convert
from kavka.records.record import Record
from tests.support import material, targets
from tests.support.java_client import run_tool
from tests.support.tools import run_kavka

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.usefixtures("java_parts")]


@pytest.fixture(scope="module", params=[targets.KAVKA, targets.APACHE_39])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log folder of a broker that has stopped: topics of every kind, groups, transactions."""
    few = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    if request.param != targets.KAVKA:
        few |= {"offsets.topic.replication.factor": 1, "transaction.state.log.replication.factor": 1}
        few["transaction.state.log.min.isr"] = 1
    broker = targets.start_target(request.param, tmp_path_factory.mktemp(request.param), few)
    try:
        material.fill(broker)
        _use(broker.bootstrap_servers)
    finally:
        broker.stop()
    return broker.log_dirs[0]


def _use(server: str) -> None:
    with Producer(bootstrap_servers=server, transactional_id="tx") as producer:
        producer.init_transactions()
        for commit in (True, False):
            producer.begin_transaction()
            producer.send("whole", "in a transaction", partition=0)
            producer.flush()
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    with Consumer(bootstrap_servers=server, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["idempotent"])
        while not consumer.poll(1.0):
            pass
        consumer.commit_sync()


def both(files: list[Path], *options: str) -> tuple[str, str]:
    """Our output and errors, which must equal Apache's."""
    args = ("--files", ",".join(map(str, files)), *options)
    mine, theirs = run_kavka("dump-log", *args), run_tool("3.9.1", "dump-log", *args)
    assert mine.out == theirs.stdout
    assert (mine.code, mine.err) == (theirs.returncode, theirs.stderr)
    return mine.out, mine.err


def test_segments_are_shown_as_kafka_shows_them(folder: Path) -> None:
    files = list(material.log_files(folder, ".log"))
    assert len(files) > 20
    batches, _ = both(files)
    for word in ("compresscodec: zstd", "isTransactional: true isControl: true", "LogAppendTime: "):
        assert word in batches
    records, _ = both(files, "--print-data-log")
    assert "headerKeys: [number,none] key: key-3 payload: value 3 of plain-none" in records
    assert "endTxnMarker: ABORT coordinatorEpoch: 0" in records
    assert both(files[:3], "--deep-iteration")[0].count("| offset: ") > 10
    both(files[:3], "--print-data-log", "--skip-record-metadata")
    both(files[:1], "--print-data-log", "--max-bytes", "3000")


def test_indexes_and_snapshots_are_shown_as_kafka_shows_them(folder: Path) -> None:
    files = [path for suffix in (".index", ".timeindex", ".txnindex", ".snapshot") for path in
             material.log_files(folder, suffix)]  # fmt: skip
    shown, complaints = both(files)
    for pattern in (
        r"^offset: \d+ position: \d+$",
        r"^timestamp: \d+ offset: \d+$",
        r"^version: 0 producerId: \d+ firstOffset: \d+ lastOffset: \d+ lastStableOffset: \d+$",
        r"^producerId: \d+ producerEpoch: \d+ coordinatorEpoch: -?\d+ currentTxnFirstOffset: OptionalLong",
    ):
        assert re.search(pattern, shown, re.MULTILINE)
    assert complaints == ""
    checked = [path for path in files if path.suffix in (".index", ".timeindex")]
    assert "passed sanity check" in both(checked, "--index-sanity-check")[0]
    assert "position" not in both(checked, "--verify-index-only")[0]


def without_new_fields(text: str) -> str:
    """3.9 does not know what later versions put into a record beside the old fields."""
    for name in ("topicId", "metadataHash", "assignmentTimestamp", "assignmentEpochs"):
        text = re.sub(rf',"{name}":(\[[^]]*\]|"[^"]*"|-?\d+)', "", text)
    return text


def test_the_clusters_own_topics_are_decoded(folder: Path) -> None:
    for option, internal, words in (
        ("--offsets-decoder", "__consumer_offsets", ('"group":"g"', '"subscription":{"topics":["idempotent"]')),
        ("--transaction-log-decoder", "__transaction_state", ("transactionalId=tx", "state=CompleteAbort")),
    ):
        files = ",".join(str(path) for path in sorted((folder / f"{internal}-0").glob("*.log")))
        mine = run_kavka("dump-log", "--files", files, option)
        theirs = run_tool("3.9.1", "dump-log", "--files", files, option)
        assert without_new_fields(mine.out) == theirs.stdout
        assert mine.code == 0
        for word in words:
            assert word in mine.out


def test_corruption_is_reported_as_kafka_reports_it(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()

    def batch(offset: int, codec: int = 0) -> bytes:
        builder = BatchBuilder(base_offset=offset, codec=codec)
        for number in range(3):
            builder.append(Record(timestamp=1000 + number, key=b"k", value=b"v%d" % number))
        return bytes(builder.build())

    old = b"".join(down_convert(batch(0, codec), magic) for codec in (0, 1) for magic in (0, 1))
    flipped = bytearray(batch(20))
    flipped[-2] ^= 1
    log = folder / "00000000000000000000.log"
    log.write_bytes(old + batch(10) + flipped + b"torn")
    shown, complaints = both([log], "--print-data-log")
    assert "isValid: true crc: " in shown
    assert "isvalid: false" in shown
    assert "Found 4 invalid bytes at the end of" in shown
    assert "is followed by 20" in complaints
    (folder / "00000000000000000000.index").write_bytes(struct.pack(">iiii", 1, 0, 12, len(old)))
    (folder / "00000000000000000000.timeindex").write_bytes(struct.pack(">qiqiqi", 900, 12, 800, 22, 700, 23))
    indexes = [folder / f"00000000000000000000{suffix}" for suffix in (".index", ".timeindex")]
    shown, complaints = both(indexes)
    for word in ("Mismatches in", "timestamp mismatch", "out of order", "not found in the log"):
        assert word in complaints
    wrong = folder / "00000000000000000005.snapshot"
    wrong.write_bytes(struct.pack(">hIi", 1, zlib.crc32(b"x"), 0))
    mine = run_kavka("dump-log", "--files", str(wrong))
    assert (mine.code, mine.out) == (0, f"Dumping {wrong}\n")
    assert "checksum" in mine.err


def test_files_that_are_none_of_a_log_are_one_line(tmp_path: Path) -> None:
    name = tmp_path / "notes.txt"
    name.write_text(json.dumps({}))
    assert run_kavka("dump-log", "--files", str(name)).err == f"Ignoring unknown file {name}\n"
    for file in ("nothing.log", "00000000000000000000.log", "00000000000000000000.index"):
        done = run_kavka("dump-log", "--files", str(tmp_path / file))
        assert done.code == 1
        assert len(done.err.splitlines()) == 1
