"""Kavka reads batches of kafka-python and aiokafka, and vice versa."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import aiokafka.record.default_records as aiokafka_default
import aiokafka.record.legacy_records as aiokafka_legacy
import aiokafka.record.memory_records as aiokafka_memory
import kafka.record.default_records as kafka_default
import kafka.record.legacy_records as kafka_legacy
import kafka.record.memory_records as kafka_memory
import pytest

from kavka.records.compression import LZ4
from kavka.records.reader import read_records
from kavka.records.record import Record
from kavka.records.rules import ProduceRules
from kavka.records.validate import validate_produce
from tests.unit.records.support import FORMATS, NOW, built, golden_records

CLIENTS: dict[str, tuple[ModuleType, ModuleType, ModuleType]] = {
    "kafka-python": (kafka_legacy, kafka_default, kafka_memory),
    "aiokafka": (aiokafka_legacy, aiokafka_default, aiokafka_memory),
}
# Neither client supports lz4 with magic 0 (kafka-python needs xxhash). The golden files of Java
# cover this case.
CASES = [(client, magic, codec) for client in CLIENTS for magic, codec in FORMATS if (magic, codec) != (0, LZ4)]


def built_by_client(client: str, magic: int, codec: int, records: list[Record]) -> bytes:
    legacy, default, _ = CLIENTS[client]
    builder: Any
    if magic == 2:
        builder = default.DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    else:
        builder = legacy.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for i, record in enumerate(records):
        args = (i, record.timestamp if magic else None, record.key, record.value)
        assert builder.append(*args, list(record.headers)) if magic == 2 else builder.append(*args)
    return bytes(builder.build())


@pytest.mark.parametrize(("client", "magic", "codec"), CASES)
@pytest.mark.parametrize("repeat", [1, 60])
def test_batches_of_other_clients_are_read_and_accepted(client: str, magic: int, codec: int, repeat: int) -> None:
    records = golden_records(magic, 12, 0, repeat)
    data = built_by_client(client, magic, codec, records)
    assert list(read_records(data)) == records
    stored = validate_produce(bytearray(data), ProduceRules(), NOW, 9 if magic == 2 else magic)
    assert list(read_records(stored.buffer)) == records
    assert stored.rewritten == (magic < 2)


@pytest.mark.parametrize(("client", "magic", "codec"), CASES)
@pytest.mark.parametrize("repeat", [1, 60])
def test_other_clients_read_our_batches(client: str, magic: int, codec: int, repeat: int) -> None:
    records = golden_records(magic, 12, 1000, repeat)
    memory = CLIENTS[client][2].MemoryRecords(bytes(built(records, magic, codec, base_offset=1000)))
    decoded = []
    while memory.has_next():
        batch = memory.next_batch()
        assert batch.validate_crc()
        for record in batch:
            time = -1 if record.timestamp is None else record.timestamp
            decoded.append(Record(record.offset, time, record.key, record.value, tuple(record.headers or ())))
    assert decoded == records
