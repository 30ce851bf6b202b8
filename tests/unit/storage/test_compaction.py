"""The records of a batch are parsed in slices. The results do not depend on the slices, and memory
is bounded."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, rewrite_crc
from kavka.records.compression import ZSTD, compress
from kavka.records.varint import encode_varint
from kavka.storage import compaction
from kavka.storage.cleaner import CleanerSettings, LogCleaning
from kavka.storage.cleaner_manager import measure
from kavka.storage.compaction import SLICE, entries
from kavka.storage.log_config import LogConfig
from tests.support.jobs import clean_now
from tests.support.logs import START_MS, FakeClock, append, open_log, stored_batches, stored_records

CODECS = [0, 1, 2, 3, 4]
CONFIG = LogConfig(cleanup_policy=("compact",), file_delete_delay_ms=0, delete_retention_ms=1000, segment_bytes=1 << 22)


def record(delta: int, key: bytes | None, value: bytes | None) -> bytes:
    def field(data: bytes | None) -> bytes:
        return encode_varint(-1) if data is None else encode_varint(len(data)) + data

    data = b"\x00" + encode_varint(7) + encode_varint(delta) + field(key) + field(value) + encode_varint(0)
    return encode_varint(len(data)) + data


# --- parsing records


@pytest.mark.parametrize("count", [1, SLICE - 1, SLICE, SLICE + 1, 3 * SLICE])
def test_records_are_parsed_in_slices(count):
    records = [(n, None if n % 5 == 0 else b"k" * (n % 200), None if n % 7 == 0 else b"v" * n) for n in range(count)]
    body = b"".join(record(*fields) for fields in records)
    slices = list(entries(body, count))
    assert [len(parsed) for parsed in slices[:-1]] == [SLICE] * (len(slices) - 1)
    assert 0 < len(slices[-1]) <= SLICE
    assert list(chain(*slices)) == [(delta, key, value is None) for delta, key, value in records]


RECORD = record(0, b"k", b"v")


@pytest.mark.parametrize("slices", [0, 1, 2])
@pytest.mark.parametrize(
    ("body", "count"),
    [
        (RECORD, 2),
        (RECORD + RECORD, 1),
        (RECORD[:-1], 1),
        (record(0, b"k", b"v" * 300)[:-1], 1),
        (RECORD + b"\xff" * 300, 2),
        (encode_varint(20) + b"\x00" + b"\xff" * 300, 1),
        (encode_varint(20) + RECORD[1:4] + encode_varint(10**6) + b"x" * 300, 1),
        (encode_varint(-5) + b"x" * 300, 1),
        (b"\x00" * 300, 1),
        (b"", 1),
    ],
)
def test_records_that_do_not_fill_their_body_are_corrupt(body, count, slices):
    valid_count = SLICE * slices
    with pytest.raises(KafkaError) as caught:
        list(entries(RECORD * valid_count + body, valid_count + count))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_bytes_after_a_negative_count_of_records_are_corrupt():
    with pytest.raises(KafkaError):
        list(entries(RECORD, -1))


# --- cleaning


def fill(log, codec: int) -> None:
    draw = random.Random(codec)
    for n in range(12):
        pairs = []
        for _ in range(draw.randrange(1, 30)):
            key = draw.choice([b"a", b"b", b"c%d" % n, b"long" * 20])
            value = draw.choice([None, b"", b"v%d" % n, draw.randbytes(draw.choice([10, 100, 3000]))])
            pairs.append((key, value))
        append(log, pairs, codec=codec, timestamp=START_MS + n)
    log.roll()
    append(log, [(b"end", b"x")])


def cleaned(folder: Path, codec: int) -> tuple[list[object], list[tuple[int, ...]]]:
    clock = FakeClock()
    log = open_log(folder / "orders-0", CONFIG, clock)
    fill(log, codec)
    for _ in range(3):
        upper = measure(log, None, clock.now_ms()).upper_bound
        clean_now(LogCleaning(log, log.start_offset, upper, CleanerSettings(dedupe_buffer_size=1 << 20), clock))
        clock.advance(2000)
    records = stored_records(log)
    headers = [(b.base_offset, b.last_offset, b.count, b.base_timestamp, b.max_timestamp) for b in stored_batches(log)]
    log.abandon()
    return records, headers


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_many_slices_is_cleaned_like_one_of_a_single_slice(tmp_path, monkeypatch, codec):
    single = cleaned(tmp_path / "single", codec)
    monkeypatch.setattr(compaction, "SLICE", 3)
    assert cleaned(tmp_path / "many", codec) == single
    assert len(single[0]) > 5


# --- memory

MEMORY_TEST = """
import re, sys
from pathlib import Path
from kavka.common.errors import KafkaError
from kavka.storage.cleaner import CleanerSettings, LogCleaning
from kavka.storage.cleaner_manager import measure
from kavka.storage.log_config import LogConfig
from kavka.storage.pace import Pace
from tests.support.jobs import clean_now
from tests.support.logs import FakeClock, append, open_log, stored_batches

class Unpaced(Pace):
    def pause_if_due(self):
        pass

def peak():
    # ru_maxrss would start with the value of the parent process.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024

folder = Path(sys.argv[1])
log = open_log(folder / "orders-0", LogConfig(cleanup_policy=("compact",)), FakeClock())
log.append_as_follower(bytearray((folder / "batch").read_bytes()))
append(log, [(b"z", b"w")])
log.set_high_watermark(log.end_offset)
log.roll()
append(log, [(b"x", b"y")])
before = peak()
upper = measure(log, None, log.clock.now_ms()).upper_bound
try:
    clean_now(LogCleaning(log, 0, upper, CleanerSettings(dedupe_buffer_size=1 << 20), log.clock, Unpaced()))
except KafkaError as error:
    print(error.code.name, error)
else:
    print("cleaned")
print(peak() - before)
print([batch.count for batch in stored_batches(log)])
"""


def clean_in_process(folder: Path, count: int, records: bytes) -> tuple[str, int, str]:
    """Clean a log that begins with a batch of `records`. Return the outcome, the growth of memory
    in MB, and the number of records in each batch afterwards. The growth is measured in a process
    that has decompressed no batch before."""
    size = HEADER_SIZE - LOG_OVERHEAD + len(records)
    batch = bytearray(HEADER.pack(0, size, 0, 2, 0, ZSTD, 1, START_MS, START_MS, -1, -1, -1, count)) + records
    rewrite_crc(batch)
    assert len(batch) < 100_000
    (folder / "batch").write_bytes(batch)
    root = Path(__file__).parents[3]
    completed = subprocess.run(
        [sys.executable, "-c", MEMORY_TEST, str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])},
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    outcome, growth, counts = completed.stdout.splitlines()
    return outcome, int(growth), counts


def test_the_records_of_a_batch_are_never_all_in_memory(tmp_path):
    # All offset deltas but the last are 0, so that every record counts as the last of its key. The
    # tombstone gives the batch a delete horizon, so that all records are written with other
    # timestamps. The record of "z" is removed.
    repeated = record(0, b"k", b"v" * 50)
    count = 60 * 1024 * 1024 // len(repeated)
    body = repeated * (count - 2) + record(0, b"t", None) + record(1, b"z", b"")
    outcome, growth, counts = clean_in_process(tmp_path, count, compress(ZSTD, body))
    assert (outcome, counts) == ("cleaned", f"[{count - 1}, 1, 1]")
    assert count > 1_000_000
    assert growth <= 200


def test_a_batch_above_the_decompression_limit_is_not_decompressed(tmp_path):
    # Concatenated zstd frames of 1 GiB.
    outcome, growth, counts = clean_in_process(tmp_path, 2, compress(ZSTD, bytes(1 << 20)) * 1024)
    assert outcome.startswith("MESSAGE_TOO_LARGE cannot clean the batch at offset 0: ")
    assert counts == "[2, 1, 1]"
    assert growth <= 100
