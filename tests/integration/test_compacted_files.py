"""Cleaned segments have Kafka's format: Apache's dump tool reads them without errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kavka.storage.cleaner import CleanerSettings, LogCleaning
from kavka.storage.cleaner_manager import measure
from kavka.storage.log_config import LogConfig
from tests.support.apache import LAST_WITH_ZOOKEEPER, NEWEST
from tests.support.java_client import run_tool
from tests.support.jobs import clean_now
from tests.support.logs import START_MS, append, append_marker, open_log
from tests.support.material import PROBLEMS, dump

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.usefixtures("java_parts"), pytest.mark.records]

CONFIG = LogConfig(cleanup_policy=("compact",), delete_retention_ms=5000, index_interval_bytes=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cleaned log with tombstones, an aborted and a committed transaction, an
    idempotent producer and all codecs."""
    path = tmp_path_factory.mktemp("compacted") / "orders-0"
    log = open_log(path, CONFIG)
    for codec in range(5):
        append(log, [(b"key-%d" % (n % 10), b"codec %d record %d" % (codec, n)) for n in range(50)], codec=codec)
        append(log, [(b"only-%d-%d" % (codec, n), b"x" * 100) for n in range(5)], codec=codec)
    append(log, [(b"deleted", None), (b"live", b"1")])
    append(log, [(b"key-1", b"aborted")], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    append_marker(log, 5, commit=False)
    append(log, [(b"kept", b"committed")], producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
    append_marker(log, 6, commit=True)
    append(log, [(b"key-2", b"idempotent")], producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, [(b"key-2", b"last")])
    log.roll()
    append(log, [(b"active", b"1")])
    clean_now(LogCleaning(log, 0, measure(log, None, START_MS).upper_bound, CleanerSettings(), log.clock))
    log.close()
    return path


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_the_dump_tool_reads_cleaned_segments(folder: Path, version: str) -> None:
    files = ",".join(str(path) for path in sorted(folder.glob("*.log")))
    result = run_tool(version, "dump-log", "--files", files, "--deep-iteration", "--print-data-log")
    output = result.stdout
    # Compaction leaves gaps between offsets.
    problems = [problem for problem in PROBLEMS if problem in output + result.stderr]
    assert problems in ([], ["Non-consecutive offsets in"])
    assert "isvalid: false" not in output and "isvalid: true" in output
    offsets = [int(n) for n in re.findall(r"^\| offset: (\d+)", output, re.M)]
    assert offsets == sorted(set(offsets))
    assert output.count("only-") == 25 and "aborted" not in output
    assert "key: deleted" in output and f"deleteHorizonMs: OptionalLong[{START_MS + 5000}]" in output
    # Compaction removed the record of the idempotent producer's last batch but kept its sequence.
    assert re.search(r"count: 0 .*lastSequence: 0 producerId: 7", output)
    assert "endTxnMarker: ABORT" in output and "endTxnMarker: COMMIT" in output


@pytest.mark.parametrize("version", [LAST_WITH_ZOOKEEPER, NEWEST])
def test_the_indexes_of_cleaned_segments_pass_the_sanity_check_of_the_dump_tool(folder: Path, version: str) -> None:
    indexes = [folder / f"{0:020}.index", folder / f"{0:020}.timeindex"]
    output = dump(version, indexes, "--index-sanity-check")
    assert output.count("passed sanity check") == len(indexes)
    output = dump(version, indexes, "--verify-index-only")
    assert "Mismatches" not in output and "Found" not in output
    assert "producerId: 5" in dump(version, sorted(folder.glob("*.txnindex")))
