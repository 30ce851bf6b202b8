"""dump-log prints exactly the output of Kafka's DumpLogSegments, for files of Kavka and of Apache
Kafka."""

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
    """The log folder of a stopped broker with topics of every kind, groups and transactions."""
    settings = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    if request.param != targets.KAVKA:
        settings |= {"offsets.topic.replication.factor": 1, "transaction.state.log.replication.factor": 1}
        settings["transaction.state.log.min.isr"] = 1
    broker = targets.start_target(request.param, tmp_path_factory.mktemp(request.param), settings)
    try:
        material.fill(broker)
        _add_transactions_and_group(broker.bootstrap_servers)
    finally:
        broker.stop()
    return broker.log_dirs[0]


def _add_transactions_and_group(server: str) -> None:
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
    """Runs both tools, whose results must be equal. Returns output and errors."""
    args = ("--files", ",".join(map(str, files)), *options)
    kavka, apache = run_kavka("dump-log", *args), run_tool("3.9.1", "dump-log", *args)
    assert kavka.out == apache.stdout
    assert (kavka.code, kavka.err) == (apache.returncode, apache.stderr)
    return kavka.out, kavka.err


def test_segments_are_printed_as_by_kafka(folder: Path) -> None:
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


def test_indexes_and_snapshots_are_printed_as_by_kafka(folder: Path) -> None:
    files = [path for suffix in (".index", ".timeindex", ".txnindex", ".snapshot") for path in
             material.log_files(folder, suffix)]  # fmt: skip
    output, errors = both(files)
    for pattern in (
        r"^offset: \d+ position: \d+$",
        r"^timestamp: \d+ offset: \d+$",
        r"^version: 0 producerId: \d+ firstOffset: \d+ lastOffset: \d+ lastStableOffset: \d+$",
        r"^producerId: \d+ producerEpoch: \d+ coordinatorEpoch: -?\d+ currentTxnFirstOffset: OptionalLong",
    ):
        assert re.search(pattern, output, re.MULTILINE)
    assert errors == ""
    checked = [path for path in files if path.suffix in (".index", ".timeindex")]
    assert "passed sanity check" in both(checked, "--index-sanity-check")[0]
    assert "position" not in both(checked, "--verify-index-only")[0]


def without_new_fields(text: str) -> str:
    """The text without fields that versions after 3.9 added to records."""
    for name in ("topicId", "metadataHash", "assignmentTimestamp", "assignmentEpochs"):
        text = re.sub(rf',"{name}":(\[[^]]*\]|"[^"]*"|-?\d+)', "", text)
    return text


def test_internal_topics_are_decoded(folder: Path) -> None:
    for option, internal, words in (
        ("--offsets-decoder", "__consumer_offsets", ('"group":"g"', '"subscription":{"topics":["idempotent"]')),
        ("--transaction-log-decoder", "__transaction_state", ("transactionalId=tx", "state=CompleteAbort")),
    ):
        files = ",".join(str(path) for path in sorted((folder / f"{internal}-0").glob("*.log")))
        kavka = run_kavka("dump-log", "--files", files, option)
        apache = run_tool("3.9.1", "dump-log", "--files", files, option)
        assert without_new_fields(kavka.out) == apache.stdout
        assert kavka.code == 0
        for word in words:
            assert word in kavka.out


def test_corruption_is_reported_as_by_kafka(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()

    def batch(offset: int, codec: int = 0) -> bytes:
        builder = BatchBuilder(base_offset=offset, codec=codec)
        for number in range(3):
            builder.append(Record(timestamp=1000 + number, key=b"k", value=b"v%d" % number))
        return bytes(builder.build())

    old_formats = b"".join(down_convert(batch(0, codec), magic) for codec in (0, 1) for magic in (0, 1))
    corrupt = bytearray(batch(20))
    corrupt[-2] ^= 1
    log = folder / "00000000000000000000.log"
    log.write_bytes(old_formats + batch(10) + corrupt + b"torn")
    output, errors = both([log], "--print-data-log")
    assert "isValid: true crc: " in output
    assert "isvalid: false" in output
    assert "Found 4 invalid bytes at the end of" in output
    assert "is followed by 20" in errors
    (folder / "00000000000000000000.index").write_bytes(struct.pack(">iiii", 1, 0, 12, len(old_formats)))
    (folder / "00000000000000000000.timeindex").write_bytes(struct.pack(">qiqiqi", 900, 12, 800, 22, 700, 23))
    indexes = [folder / f"00000000000000000000{suffix}" for suffix in (".index", ".timeindex")]
    output, errors = both(indexes)
    for word in ("Mismatches in", "timestamp mismatch", "out of order", "not found in the log"):
        assert word in errors
    snapshot = folder / "00000000000000000005.snapshot"
    snapshot.write_bytes(struct.pack(">hIi", 1, zlib.crc32(b"x"), 0))
    kavka = run_kavka("dump-log", "--files", str(snapshot))
    assert (kavka.code, kavka.out) == (0, f"Dumping {snapshot}\n")
    assert "the CRC does not match" in kavka.err


def test_other_files_are_reported_in_one_line(tmp_path: Path) -> None:
    name = tmp_path / "notes.txt"
    name.write_text(json.dumps({}))
    assert run_kavka("dump-log", "--files", str(name)).err == f"Ignoring unknown file {name}\n"
    for file in ("nothing.log", "00000000000000000000.log", "00000000000000000000.index"):
        failed = run_kavka("dump-log", "--files", str(tmp_path / file))
        assert failed.code == 1
        assert len(failed.err.splitlines()) == 1
