"""Records and batches for the tests of this package."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from kavka.records.batch import rewrite_crc
from kavka.records.builder import BatchBuilder
from kavka.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from kavka.records.record import Record

GOLDEN = Path(__file__).parents[2] / "golden" / "records"
TIME = 1_700_000_000_000
APPEND_TIME = 1_800_000_000_000
NOW = TIME + 60_000

FORMATS = [
    (magic, codec) for magic in (0, 1, 2) for codec in (NONE, GZIP, SNAPPY, LZ4, ZSTD) if magic == 2 or codec != ZSTD
]
"""Every magic with each of its codecs."""


def golden_records(magic: int, count: int, base: int, repeat: int = 1) -> list[Record]:
    """The records that GoldenRecords.java writes."""
    return [
        Record(
            offset=base + i,
            timestamp=-1 if magic == 0 else TIME + (i * 37 % 11) * 1000,
            key=None if i % 3 == 0 else f"key-{i}".encode(),
            value=None if i % 5 == 4 else f"value-{i}/".encode() * ((i * 7 % 20 + 1) * repeat),
            headers=(("größe", str(i).encode()), ("nothing", None)) if magic == 2 and i % 4 == 1 else (),
        )
        for i in range(count)
    ]


def golden_batches(version: str) -> dict[str, bytes]:
    lines = (GOLDEN / f"java-{version}.txt").read_text().splitlines()
    return {name: bytes.fromhex(data) for name, data in (line.split("\t") for line in lines)}


def built(records: Sequence[Record], magic: int = 2, codec: int = NONE, **options: int | bool | None) -> bytearray:
    builder = BatchBuilder(magic, codec, **options)  # type: ignore[arg-type]
    for record in records:
        builder.append(record)
    return builder.build()


def simple(count: int, size: int = 20, *, key: bytes | None = b"k") -> list[Record]:
    return [Record(timestamp=TIME + i, key=key, value=bytes([97 + i % 26]) * size) for i in range(count)]


def patched(batch: bytes | bytearray, layout: str, position: int, value: int, *, fix_crc: bool = True) -> bytearray:
    """A copy of a magic 2 batch with one number changed, by default with a valid CRC."""
    copy = bytearray(batch)
    struct.pack_into(layout, copy, position, value)
    if fix_crc:
        rewrite_crc(copy)
    return copy


def with_body(body: bytes, count: int, codec: int = NONE) -> bytearray:
    """A magic 2 batch with a valid header and CRC around any body."""
    batch = bytearray(built(simple(1)))[:61] + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    rewrite_crc(batch)
    return batch


timestamps = st.integers(min_value=-1, max_value=1 << 62)
some_bytes = st.one_of(st.none(), st.binary(max_size=300))
headers = st.lists(st.tuples(st.text(max_size=20), st.one_of(st.none(), st.binary(max_size=20))), max_size=3).map(tuple)


def records_of(magic: int) -> st.SearchStrategy[list[Record]]:
    return st.lists(
        st.builds(
            Record,
            offset=st.just(-1),
            timestamp=timestamps if magic else st.just(-1),
            key=some_bytes,
            value=some_bytes,
            headers=headers if magic == 2 else st.just(()),
        ),
        min_size=1,
        max_size=12,
    )
