"""Control records: the end markers of transactions in a partition.

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
    """The end marker of a transaction. `commit` is False for an abort."""

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
    """Return the control batch that commits or aborts the transaction of `producer_id` in a
    partition."""
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
    """Return the type in the key of a control record: ABORT, COMMIT, or a type that this broker
    ignores. Raises CORRUPT_MESSAGE for a malformed key."""
    if key is None or len(key) < _KEY.size:
        raise corrupt("a control record's key is too short")
    version, record_type = _KEY.unpack_from(key)
    if version < 0:
        raise corrupt(f"a control record's key has the invalid version {version}")
    return int(record_type)


def parse_end_marker(batch: Batch, verify_crc: bool = True) -> EndMarker | None:
    """Return the end marker in a control batch, or None if its record has another type or
    compaction has removed the record. Raises CORRUPT_MESSAGE if the batch is not a control batch or
    is malformed."""
    if not batch.is_control:
        raise corrupt("the batch is not a control batch")
    record = next(batch_records(batch, verify_crc), None)
    if record is None:
        return None
    record_type = control_type(record.key)
    if record_type not in (ABORT, COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise corrupt("the value of an end marker is too short")
    version, epoch = _VALUE.unpack_from(record.value)
    if version < 0:
        raise corrupt(f"the end marker of a transaction has the invalid version {version}")
    return EndMarker(record_type == COMMIT, epoch)
