"""The records of MirrorMaker's topics. tests/integration/test_mirror.py checks that Kafka's classes
read them."""

from __future__ import annotations

import pytest

from kavka.pipeline.mirror.records import (
    Checkpoint,
    Heartbeat,
    OffsetSync,
    RecordFormatError,
    read_run_header,
    run_header,
)


def test_the_bytes_equal_those_of_kafka() -> None:
    sync = OffsetSync("tö", 3, 17, 5)
    assert sync.key() == b"\x00\x03t\xc3\xb6\x00\x00\x00\x03"
    assert sync.value() == (17).to_bytes(8, "big") + (5).to_bytes(8, "big")
    checkpoint = Checkpoint("g", "A.t", 1, 8, 7, "m")
    assert checkpoint.key() == b"\x00\x01g\x00\x03A.t\x00\x00\x00\x01"
    assert checkpoint.value() == b"\x00\x00" + (8).to_bytes(8, "big") + (7).to_bytes(8, "big") + b"\x00\x01m"
    beat = Heartbeat("A", "B", 1234)
    assert beat.key() == b"\x00\x01A\x00\x01B"
    assert beat.value() == b"\x00\x00" + (1234).to_bytes(8, "big")


def test_the_bytes_equal_those_of_a_mirrormaker_run() -> None:
    """Keys and values of a run of MirrorMaker 4.3.0 with two clusters A and B."""
    samples = [
        (OffsetSync("t", 2, 99, 99), "00017400000002", "00000000000000630000000000000063"),
        (Checkpoint("g", "A.t", 0, 50, 1, "meta"), "0001670003412e7400000000",
         "00000000000000000032000000000000000100046d657461"),
        (Checkpoint("g", "A.u", 0, 20, 20), "0001670003412e7500000000", "0000000000000000001400000000000000140000"),
        (Heartbeat("A", "B", 1794772310724), "000141000142", "0000000001a1e0c41ac4"),
    ]  # fmt: skip
    for record, key, value in samples:
        assert (record.key().hex(), record.value().hex()) == (key, value)
        assert type(record).read(bytes.fromhex(key), bytes.fromhex(value)) == record


def test_records_round_trip() -> None:
    for record in (OffsetSync("t", 0, 1 << 40, 2), Checkpoint("g", "t", 9, 1, 2, ""), Heartbeat("A", "B", 5)):
        assert type(record).read(record.key(), record.value()) == record


@pytest.mark.parametrize("kind", [OffsetSync, Checkpoint, Heartbeat])
def test_invalid_bytes_are_rejected(kind: type) -> None:
    good = kind.read(*_sample(kind))  # type: ignore[attr-defined]
    key, value = good.key(), good.value()
    for invalid in (
        (b"", b""),
        (key[:-1], value),
        (key, value[:-1]),
        (b"\x7f\xff" + key[2:], value),
        (b"\xff" + key, value),
    ):
        with pytest.raises(RecordFormatError):
            kind.read(*invalid)  # type: ignore[attr-defined]


def _sample(kind: type) -> tuple[bytes, bytes]:
    record = {OffsetSync: OffsetSync("t", 0, 1, 2), Checkpoint: Checkpoint("g", "t", 0, 1, 2, "m")}.get(
        kind, Heartbeat("A", "B", 1)
    )
    return record.key(), record.value()  # type: ignore[attr-defined]


def test_a_sync_with_an_invalid_run_header_covers_only_its_record() -> None:
    assert read_run_header(run_header(41)) == 41
    assert [read_run_header(text) for text in (None, b"", b"123", (-5).to_bytes(8, "big", signed=True))] == [0, 0, 0, 0]
