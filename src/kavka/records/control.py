"""Control records: the markers that end a transaction in a partition.

A control batch is a magic 2 batch with the control bit and one record. The key of the record has a
version (i16) and a type (i16: 0 abort, 1 commit). The value of an end marker has a version (i16)
and the epoch of the transaction coordinator (i32).
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from kavka.records.batch import Batch, corrupt
from kavka.records.builder import BatchBuilder
from kavka.records.reader import batch_records
from kavka.records.record import Record

ABORT: Final = 0
COMMIT: Final = 1

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0


class EndMarker(NamedTuple):
    commit: bool
    coordinator_epoch: int


def end_marker(
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The batch that commits or aborts the transaction of `producer_id` in a partition."""
    builder = BatchBuilder(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
    )
    key = _KEY.pack(_VERSION, COMMIT if commit else ABORT)
    builder.append(Record(timestamp=timestamp, key=key, value=_VALUE.pack(_VERSION, coordinator_epoch)))
    return builder.build()


def control_type(key: bytes | None) -> int:
    """The type in the key of a control record: ABORT, COMMIT, or a type that this broker
    ignores."""
    if key is None or len(key) < _KEY.size:
        raise corrupt("a control record's key is too short")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise corrupt(f"a control record's key has version {version}")
    return int(kind)


def parse_end_marker(batch: Batch, verify_crc: bool = True) -> EndMarker | None:
    """The end marker in a control batch, or None if its record has another type or compaction has
    removed the record."""
    if not batch.is_control:
        raise corrupt("not a control batch")
    record = next(batch_records(batch, verify_crc), None)
    if record is None:
        return None
    kind = control_type(record.key)
    if kind not in (ABORT, COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise corrupt("the value of a transaction's end marker is too short")
    version, epoch = _VALUE.unpack_from(record.value)
    if version < 0:
        raise corrupt(f"a transaction's end marker has version {version}")
    return EndMarker(kind == COMMIT, epoch)
