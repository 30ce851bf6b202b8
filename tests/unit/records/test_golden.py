"""Reads and rebuilds the batches of the Java client in tests/golden/records/."""

from __future__ import annotations

import pytest

from kavka.records.batch import CREATE_TIME, LOG_APPEND_TIME, batches
from kavka.records.compression import CODEC_IDS
from kavka.records.control import EndMarker, end_marker, parse_end_marker
from kavka.records.convert import down_convert
from kavka.records.reader import read_records
from tests.unit.records.support import APPEND_TIME, TIME, built, golden_batches, golden_records

CASES = [(version, name) for version in ("3.9.1", "4.3.0") for name in golden_batches(version)]
BATCHES = [(version, name) for version, name in CASES if name.startswith("magic")]
DOWN_CONVERTED = [name for version, name in CASES if name.startswith("down")]


def parse_name(name: str) -> tuple[int, int, str, int, int]:
    """Return magic, codec, kind (create, append, large, transactional), record count and base
    offset."""
    magic, codec, kind, count, base = name.split("/")
    return int(magic[-1]), CODEC_IDS[codec], kind, int(count), int(base)


@pytest.mark.parametrize(("version", "name"), BATCHES)
def test_batches_written_by_java_are_read(version: str, name: str) -> None:
    magic, codec, kind, count, base = parse_name(name)
    data = golden_batches(version)[name]
    expected = golden_records(magic, count, base, 40 if kind == "large" else 1)
    if kind == "append":
        expected = [record._replace(timestamp=APPEND_TIME) for record in expected]

    stored = list(batches(data))
    assert {(batch.magic, batch.codec) for batch in stored} == {(magic, codec)}
    assert stored[-1].last_offset == base + count - 1
    assert stored[-1].end == len(data)
    assert list(read_records(data)) == expected


@pytest.mark.parametrize(("version", "name"), BATCHES)
def test_building_the_same_records_gives_the_bytes_of_java_up_to_compression(version: str, name: str) -> None:
    magic, codec, kind, count, base = parse_name(name)
    data = golden_batches(version)[name]
    built_data = built(
        golden_records(magic, count, base, 40 if kind == "large" else 1),
        magic,
        codec,
        base_offset=base,
        timestamp_type=LOG_APPEND_TIME if kind == "append" else CREATE_TIME,
        append_time=APPEND_TIME if kind == "append" else -1,
        leader_epoch=5,
        **(
            {"producer_id": 4711, "producer_epoch": 3, "base_sequence": 17, "transactional": True}
            if kind == "transactional"
            else {}
        ),
    )
    if codec == 0:
        assert bytes(built_data) == data
    else:
        # Compressors differ in their output, so lengths and checksums differ.
        assert list(read_records(built_data)) == list(read_records(data))
        if magic == 2:
            assert built_data[:8] + built_data[12:17] + built_data[21:61] == data[:8] + data[12:17] + data[21:61]
        else:
            assert built_data[:8] + built_data[16:18] == data[:8] + data[16:18]


@pytest.mark.parametrize("version", ["3.9.1", "4.3.0"])
@pytest.mark.parametrize("kind", ["abort", "commit"])
def test_end_markers_have_the_bytes_of_java(version: str, kind: str) -> None:
    data = golden_batches(version)[f"marker/{kind}"]
    (batch,) = batches(data)
    assert batch.is_control
    assert batch.is_transactional
    assert batch.producer_id == 4711
    assert parse_end_marker(batch) == EndMarker(kind == "commit", 9)
    assert bytes(end_marker(kind == "commit", 4711, 3, 9, TIME, base_offset=77, leader_epoch=5)) == data
    assert list(read_records(data)) == []
    assert len(list(read_records(data, include_control=True))) == 1


@pytest.mark.parametrize("name", DOWN_CONVERTED)
def test_down_conversion_gives_the_bytes_of_java(name: str) -> None:
    golden = golden_batches("3.9.1")
    kind, codec = name.split("/")
    converted = down_convert(golden[f"magic2/{codec}/transactional/12/50"], int(kind[-1]), 53)
    assert list(read_records(converted)) == list(read_records(golden[name]))
    assert [batch.last_offset for batch in batches(converted)] == [batch.last_offset for batch in batches(golden[name])]
    if codec == "none":
        assert converted == golden[name]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_lz4_frame_headers_match_java_with_the_broken_checksum_of_magic_0(magic: int) -> None:
    java_data = golden_batches("3.9.1")[f"magic{magic}/lz4/create/12/0"]
    built_data = built(golden_records(magic, 12, 0), magic, CODEC_IDS["lz4"])
    start = java_data.index(b"\x04\x22\x4d\x18")
    assert built_data[start : start + 7] == java_data[start : start + 7]
    assert (java_data[start + 6] == 0x82) == (magic > 0)
