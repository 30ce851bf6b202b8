"""Record batches of all formats and codecs, read by the broker, the consumer and the log reader."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kavka.client.consumer._decode import Columns, ConsumerRecord, Fetched
from kavka.common.errors import KafkaError
from kavka.records.batch import HEADER_SIZE, LOG_APPEND_TIME, Batch, batches, rewrite_crc
from kavka.records.compression import GZIP, LZ4, SNAPPY, ZSTD, compress, decompress
from kavka.records.control import end_marker, parse_end_marker
from kavka.records.convert import down_convert
from kavka.records.reader import read_records
from kavka.records.record import Record
from kavka.records.rules import ProduceRules
from kavka.records.validate import validate_produce
from tests.fuzz.engine import Target
from tests.unit.records.support import FORMATS, NOW, built, golden_batches, golden_records

MAX_DECOMPRESSED = 256 * 1024
CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
RULES = (
    ProduceRules(),
    ProduceRules(compacted=True, max_decompressed=MAX_DECOMPRESSED),
    ProduceRules(codec=ZSTD, timestamp_type=LOG_APPEND_TIME, max_decompressed=MAX_DECOMPRESSED),
    ProduceRules(codec=GZIP, before_max_ms=60_000, max_decompressed=MAX_DECOMPRESSED),
)


def _batch_seeds() -> Sequence[bytes]:
    seeds = [*golden_batches("3.9.1").values(), *golden_batches("4.3.0").values()]
    seeds += [bytes(built(golden_records(magic, 3, 0), magic, codec)) for magic, codec in FORMATS]
    seeds += [bytes(end_marker(commit, 7, 1, 0, NOW)) for commit in (True, False)]
    return [seed for seed in seeds if len(seed) <= 16_384]


def _repaired(data: bytes) -> bytearray:
    """Correct the size and the checksum of the first batch, so that the input reaches the later
    checks."""
    batch = bytearray(data)
    if len(batch) >= HEADER_SIZE and batch[16] == 2:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        rewrite_crc(batch)
    return batch


def _run_batches(data: bytes) -> None:
    """The log reader and the consumer return the same records, or both refuse the input."""
    for buffer in (bytearray(data), _repaired(data)):
        try:
            expected: list[Record] | None = list(read_records(buffer, True, MAX_DECOMPRESSED))
        except KafkaError:
            expected = None
        complete_batches = _complete_batches(buffer)
        for batch in complete_batches:
            try:
                parse_end_marker(batch)
            except KafkaError:
                break
        consumed = _consume(buffer)
        if expected and consumed is not None and _is_consistent(complete_batches, expected):
            assert [(record.offset, record.key, record.value) for record in expected] == consumed
        for magic in (0, 1):
            try:
                down_convert(buffer, magic, 0, MAX_DECOMPRESSED)
            except KafkaError:
                continue


def _is_consistent(complete_batches: Sequence[Batch], records: Sequence[Record]) -> bool:
    """Return whether headers and records agree on the offsets. The consumer drops records below its
    position, and reads the position after a batch from the header."""
    offsets = [record.offset for record in records]
    is_growing = all(low < high for low, high in zip([-1, *offsets], offsets, strict=False))
    return is_growing and len(complete_batches) == 1 and complete_batches[0].last_offset >= offsets[-1]


def _complete_batches(buffer: bytearray) -> Sequence[Batch]:
    try:
        return list(batches(buffer))
    except KafkaError:
        return []


def _consume(buffer: bytearray) -> list[tuple[int, bytes | None, bytes | None]] | None:
    """Read the input with all three interfaces of the consumer. Return the records, or None if the
    consumer refuses the input."""
    records: list[ConsumerRecord] = []
    view = memoryview(bytes(buffer))
    try:
        fetched = Fetched("orders", 0, view, 0)
        while not fetched.exhausted:
            if not fetched.take(records, 1000) and not fetched.exhausted:
                return None
    except KafkaError:
        return None
    finally:
        for aborted in (None, [(0, 7)]):
            _drain(Fetched("orders", 0, view, 0, aborted=aborted), Columns())
    return [(record.offset, record.key, record.value) for record in records]


def _drain(fetched: Fetched, columns: Columns) -> None:
    try:
        while not fetched.exhausted:
            if not fetched.take_columns(columns, 1000):
                break
        while fetched.take_batch() is not None:
            pass
    except KafkaError:
        return


def _run_produce(data: bytes) -> None:
    """Validate the input as records of a Produce request, with several topic settings."""
    for rules in RULES:
        for buffer in (bytearray(data), _repaired(data)):
            for api_version in (2, 11):
                try:
                    validated = validate_produce(memoryview(buffer), rules, NOW, api_version)
                except KafkaError:
                    continue
                assert validated.count > 0
                assert len(validated.buffer) == validated.size


def _compressed_seeds() -> Sequence[bytes]:
    bodies = (b"", b"x", b"value-" * 40, bytes(range(256)) * 16, bytes(100_000))
    seeds = [bytes((codec,)) + compress(codec, body) for codec in CODECS for body in bodies]
    empty_member = compress(GZIP, b"")
    seeds.append(bytes((GZIP,)) + empty_member * (16_384 // len(empty_member)))
    return seeds


def _run_decompress(data: bytes) -> None:
    """Decompress the input. Its first byte selects the codec."""
    if not data:
        return
    try:
        body = decompress(CODECS[data[0] % 4] if data[0] not in CODECS else data[0], data[1:], MAX_DECOMPRESSED)
    except KafkaError:
        return
    assert len(body) <= MAX_DECOMPRESSED


TARGETS = [
    # A consumer decompresses up to 256 MB of a batch.
    Target("batches", _run_batches, _batch_seeds, 8_000, cpu_seconds=3.0, memory_bytes=600 << 20),
    Target("produce", _run_produce, _batch_seeds, 5_000, cpu_seconds=0.5),
    Target("decompress", _run_decompress, _compressed_seeds, 15_000),
]
