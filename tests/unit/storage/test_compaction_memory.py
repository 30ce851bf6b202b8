"""Batches that unpack to much: the cleaner holds only a part of them in memory, and leaves what it would leave else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kavka.common.errors import KafkaError
from kavka.records.compression import compress, decompress
from kavka.records.varint import encode_varint
from kavka.storage import record_parts, unpacked
from kavka.storage.cleaner import CleanerSettings, LogCleaning, clean_now
from kavka.storage.cleaner_manager import measure
from kavka.storage.log_config import LogConfig
from kavka.storage.record_parts import LargeRecord, RecordSlice
from kavka.storage.record_parts import record_parts as parts_of
from kavka.storage.unpacked import Unpacked, pack
from tests.support.logs import START_MS, FakeClock, append, open_log, stored_batches, stored_records

CODECS = [0, 1, 2, 3, 4]
CONFIG = LogConfig(cleanup_policy=("compact",), file_delete_delay_ms=0, delete_retention_ms=1000, segment_bytes=1 << 22)


def set_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so small that ordinary batches are treated as huge ones."""
    monkeypatch.setattr(unpacked, "IN_MEMORY", 100)
    for module in (unpacked, record_parts):
        monkeypatch.setattr(module, "CHUNK", 64)
    monkeypatch.setattr(record_parts, "LARGE_RECORD", 90)
    monkeypatch.setattr(record_parts, "LARGE_KEY", 40)
    monkeypatch.setattr(record_parts, "MOST_ENTRIES", 3)


@pytest.fixture
def tiny(monkeypatch):
    set_tiny(monkeypatch)


# --- unpacking in pieces


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 100_000])
def test_pieces_are_what_is_unpacked_at_once_and_can_be_read_again(tmp_path, tiny, codec, size):
    data = random.Random(size).randbytes(size // 7) * 7
    with Unpacked(codec, compress(codec, data), str(tmp_path)) as body:
        assert b"".join(body.chunks()) == data
        assert b"".join(body.chunks()) == data
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("sizes", [[], [0], [1, 2, 3], [64, 64], [1000, 1, 5000]])
def test_pieces_are_packed_as_one(tiny, codec, sizes):
    draw = random.Random(1)
    pieces = [draw.randbytes(size) for size in sizes]
    assert decompress(codec, pack(codec, pieces)) == b"".join(pieces)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_is_packed_in_the_usual_way_is_the_same_as_at_once(codec):
    data = random.Random(1).randbytes(1000) * 5
    assert pack(codec, [data[:100], data[100:]]) == compress(codec, data)


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("cut", [10, -3])
def test_pieces_of_damaged_data_are_an_error_and_leave_no_file(tmp_path, tiny, codec, cut):
    packed = compress(codec, random.Random(1).randbytes(5000))
    with pytest.raises(KafkaError), Unpacked(codec, packed[:cut], str(tmp_path)) as body:
        list(body.chunks())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("codec", CODECS[1:])
def test_more_than_the_limit_is_an_error(tmp_path, monkeypatch, tiny, codec):
    monkeypatch.setattr(unpacked, "MAX_DECOMPRESSED", 10_000)
    packed = compress(codec, bytes(10_001))
    with pytest.raises(KafkaError, match="unpack to more"), Unpacked(codec, packed, str(tmp_path)) as body:
        list(body.chunks())


def test_a_full_disk_is_an_error_of_the_disk_not_of_the_batch(tmp_path, monkeypatch, tiny):
    real = unpacked.cramjam.File
    monkeypatch.setattr(unpacked.cramjam, "File", lambda path, **_: real("/dev/full", write=True))
    packed = compress(4, random.Random(1).randbytes(5000))
    with pytest.raises(OSError, match="No space"), Unpacked(4, packed, str(tmp_path)) as body:
        list(body.chunks())


# --- finding records in pieces


def body_of(*records: bytes) -> bytes:
    return b"".join(encode_varint(len(record)) + record for record in records)


def record(delta: int, key: bytes | None, value: bytes | None) -> bytes:
    def field(data: bytes | None) -> bytes:
        return encode_varint(-1) if data is None else encode_varint(len(data)) + data

    return b"\x00" + encode_varint(7) + encode_varint(delta) + field(key) + field(value) + encode_varint(0)


def seen(body: bytes, count: int, step: int) -> list[tuple[int, bytes | None, bool]]:
    found = []
    for part in parts_of(iter([body[n : n + step] for n in range(0, len(body), step)]), count):
        if isinstance(part, RecordSlice):
            found += [(entry.offset_delta, entry.key, entry.tombstone) for entry in part.entries]
        else:
            assert isinstance(part, LargeRecord)
            found.append((part.offset_delta, *part.examine()))
    return found


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 100_000])
def test_records_are_found_whatever_pieces_they_come_in(tiny, step):
    records = [(0, b"a", b"1"), (1, None, b"x" * 200), (2, b"k" * 30, None), (3, b"b", b"y" * 500), (4, b"c", None)]
    body = body_of(*(record(*each) for each in records))
    expected = [(delta, key, value is None) for delta, key, value in records]
    assert seen(body, 5, step) == expected


def test_equal_large_keys_have_the_same_name_and_others_another(tiny):
    body = body_of(*(record(n, key * 100, b"v") for n, key in enumerate((b"a", b"b", b"a"))))
    (_, first, _), (_, second, _), (_, third, _) = seen(body, 3, 50)
    assert first == third != second


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize(
    ("body", "count"),
    [
        (body_of(record(0, b"k", b"v")), 2),
        (body_of(record(0, b"k", b"v"), record(1, b"k", b"v")), 1),
        (body_of(record(0, b"k", b"v"))[:-1], 1),
        (body_of(record(0, b"k", b"v" * 300))[:-1], 1),
        (body_of(record(0, b"k", b"v")) + b"\xff" * 300, 2),
        (encode_varint(20) + b"\x00" + b"\xff" * 300, 1),
        (encode_varint(20) + record(0, None, None)[:-3] + encode_varint(10**6) + b"x" * 300, 1),
        (encode_varint(200) + record(0, None, None)[:-3] + encode_varint(10**6) + b"x" * 300, 1),
        (encode_varint(-5) + b"x" * 300, 1),
        (b"\x00" * 300, 1),
        (b"", 1),
    ],
)
def test_records_that_do_not_fill_their_body_are_an_error(tiny, body, count, step):
    with pytest.raises(KafkaError):
        seen(body, count, step)


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
    found = stored_records(log)
    headers = [(b.base_offset, b.last_offset, b.count, b.base_timestamp, b.max_timestamp) for b in stored_batches(log)]
    log.abandon()
    assert not [name for name in os.listdir(folder / "orders-0") if name.endswith(".tmp")]
    return found, headers


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_cleaned_in_pieces_is_the_same_as_one_cleaned_at_once(tmp_path, monkeypatch, codec):
    at_once = cleaned(tmp_path / "once", codec)
    with monkeypatch.context() as patched:
        set_tiny(patched)
        in_pieces = cleaned(tmp_path / "pieces", codec)
    assert in_pieces == at_once
    assert len(at_once[0]) > 5


# --- memory

MEMORY_TEST = """
import resource, sys
from pathlib import Path
from kavka.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, rewrite_crc
from kavka.records.compression import ZSTD
from kavka.records.varint import encode_varint
from kavka.storage.cleaner import CleanerSettings, LogCleaning, clean_now
from kavka.storage.cleaner_manager import measure
from kavka.storage.log_config import LogConfig
from kavka.storage.unpacked import pack
from tests.support.logs import FakeClock, append, open_log, stored_batches

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def tiny_records():
    # A key of one byte, with a gap in the offsets so that one byte holds every delta.
    yield b"\\x10\\x00\\x00\\x00\\x02k\\x02v\\x00" * (count - 1)
    yield b"\\x10\\x00\\x00\\x02\\x02k\\x02v\\x00"

def large_record(key_size, value_size):
    zeros = bytes(1 << 20)
    def run(size):
        for _ in range(size >> 20):
            yield zeros
    length = 3 + len(encode_varint(key_size)) + key_size + len(encode_varint(value_size)) + value_size + 1
    yield encode_varint(length) + b"\\x00\\x00\\x00" + encode_varint(key_size)
    yield from run(key_size)
    yield encode_varint(value_size)
    yield from run(value_size)
    yield b"\\x00"
    yield b"\\x10\\x00\\x00\\x02\\x02k\\x02v\\x00" * 2

folder, kind = Path(sys.argv[1]), sys.argv[2]
count, body = {
    "records": (1_500_000, tiny_records),
    "value": (3, lambda: large_record(1 << 20, 240 << 20)),
    "key": (3, lambda: large_record(240 << 20, 1 << 20)),
}[kind]
records = pack(ZSTD, body())
batch = bytearray(HEADER.pack(0, HEADER_SIZE - LOG_OVERHEAD + len(records), 0, 2, 0, ZSTD, 1, 0, 0, -1, -1, -1, count))
batch += records
rewrite_crc(batch)
log = open_log(folder / "orders-0", LogConfig(cleanup_policy=("compact",)), FakeClock())
log.append_as_follower(batch)
append(log, [(b"k", b"w")])
log.set_high_watermark(log.end_offset)
log.roll()
append(log, [(b"x", b"y")])
before = peak()
upper = measure(log, None, log.clock.now_ms()).upper_bound
result = clean_now(LogCleaning(log, 0, upper, CleanerSettings(dedupe_buffer_size=1 << 20), log.clock))
print(len(batch), int(peak() - before), result.stats.records_read, [b.count for b in stored_batches(log)])
"""


@pytest.mark.parametrize("kind", ["records", "value", "key"])
def test_the_memory_of_a_cleaning_is_bounded_whatever_a_batch_unpacks_to(tmp_path, kind):
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_TEST, str(tmp_path), kind],
        env=environment, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    size, grown, read, *counts = done.stdout.replace("[", "").replace("]", "").replace(",", "").split()
    assert int(size) < 50_000
    assert int(grown) <= 200, f"a batch of {size} bytes took {grown} MB"
    assert int(read) == (1_500_001 if kind == "records" else 4)
    # The last record of key "k" is the one of the second batch.
    assert counts == (["1", "1"] if kind == "records" else ["1", "1", "1"])
