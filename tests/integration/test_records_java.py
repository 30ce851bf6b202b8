"""The Java client reads the batches that Kavka builds, and verifies their CRCs."""

from __future__ import annotations

import pytest

from kavka.records.batch import LOG_APPEND_TIME, assign_offsets, batches
from kavka.records.builder import BatchBuilder
from kavka.records.compression import CODEC_NAMES
from kavka.records.control import end_marker
from kavka.records.convert import down_convert
from kavka.records.reader import batch_records
from kavka.records.record import Record
from kavka.records.rules import ProduceRules
from kavka.records.validate import validate_produce
from tests.golden.records.generate import run
from tests.support.jars import JavaMissing
from tests.unit.records.support import APPEND_TIME, FORMATS, NOW, TIME, built, golden_records

pytestmark = pytest.mark.java


def built_batches() -> dict[str, bytes]:
    batches: dict[str, bytes] = {}
    for magic, codec in FORMATS:
        name = f"{magic}/{CODEC_NAMES[codec]}"
        records = golden_records(magic, 12, 100)
        large = golden_records(magic, 40, 100, 60)
        batches[f"{name}/plain"] = bytes(built(records, magic, codec, base_offset=100))
        batches[f"{name}/large"] = bytes(built(large, magic, codec, base_offset=100))
        batches[f"{name}/one"] = bytes(built(records[:1], magic, codec, base_offset=100))
        if magic:
            options = {"timestamp_type": LOG_APPEND_TIME, "append_time": APPEND_TIME}
            batches[f"{name}/append"] = bytes(built(records, magic, codec, base_offset=100, **options))
        produced = bytearray(built(golden_records(magic, 12, 0), magic, codec))
        for target in range(5):
            rules = ProduceRules(codec=target, timestamp_type=target % 2)
            result = validate_produce(produced, rules, NOW, 9 if magic == 2 else 1)
            stored = bytearray(result.buffer)
            assign_offsets(stored, 5000, 3, result.append_time)
            batches[f"{name}/stored as {CODEC_NAMES[target]}"] = bytes(stored)
    for codec, level in ((1, 9), (3, 1), (3, 17), (4, -5), (4, 19)):
        batches[f"{CODEC_NAMES[codec]}/level {level}"] = bytes(
            built(golden_records(2, 40, 0, 60), codec=codec, level=level)
        )
    for codec in range(4):
        batch = built(golden_records(2, 12, 70), codec=codec, base_offset=70)
        for magic in (0, 1):
            batches[f"{CODEC_NAMES[codec]}/down to {magic}"] = down_convert(batch, magic, 73)
    batches["marker"] = bytes(end_marker(True, 4711, 2, 5, TIME, base_offset=9))
    compacted = BatchBuilder(base_offset=50, producer_id=3, producer_epoch=1, base_sequence=20, delete_horizon=TIME)
    compacted.append(Record(52, TIME, b"k", None))
    batches["compacted"] = bytes(compacted.build(last_offset=59))
    batches["emptied"] = bytes(BatchBuilder(base_offset=50).build(last_offset=59, max_timestamp=TIME))
    return batches


def text(field: bytes | None) -> str:
    return "null" if field is None else "x" + field.hex()


def expected_lines(name: str, data: bytes) -> list[str]:
    """The expected output of GoldenRecords.java for these bytes, from Kavka's reader."""
    lines = [f"name {name}"]
    for batch in batches(data):
        flags = f"{batch.is_transactional} {batch.is_control}".lower()
        producer = f"{batch.producer_id} {batch.producer_epoch} {batch.base_sequence}"
        lines.append(f"batch {batch.magic} {batch.last_offset} {batch.codec} {producer} {flags}")
        for record in batch_records(batch):
            headers = "".join(f" {text(key.encode())}={text(value)}" for key, value in record.headers)
            fields = f"{record.offset} {record.timestamp} {text(record.key)} {text(record.value)}"
            lines.append(f"record {fields}{headers}")
    return lines


@pytest.mark.parametrize("version", ["3.9.1", "4.3.0"])
def test_java_reads_every_batch_that_kavka_builds(version: str) -> None:
    batches = built_batches()
    try:
        output = run(version, "read", stdin="".join(f"{name}\t{data.hex()}\n" for name, data in batches.items()))
    except JavaMissing as missing:
        pytest.skip(str(missing))
    assert output.splitlines() == [line for name, data in batches.items() for line in expected_lines(name, data)]
    assert output.count("record ") > 1000
