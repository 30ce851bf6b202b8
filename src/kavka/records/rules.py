"""The rules of a topic for produced records, and the result of their validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import CREATE_TIME, LOG_APPEND_TIME
from kavka.records.limits import MAX_UNPACKED_BYTES

# Long.MAX_VALUE, Kafka's default: timestamps have no bound.
NO_BOUND = (1 << 63) - 1
LATEST_API_VERSION = 1 << 15


class MustDecompressInWorker(Exception):
    """The batch must be decompressed, which may block the event loop for too long. The caller must
    validate it in a worker thread."""


class InvalidRecordError(KafkaError):
    """Some records of a batch are invalid. `record_errors` has the index in the batch and a message
    for each of them."""

    def __init__(
        self, message: str, record_errors: list[tuple[int, str]], code: ErrorCode = ErrorCode.INVALID_RECORD
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class ProduceRules:
    """The configuration of a topic that validation needs. The rules are created when the
    configuration changes, not for every request.

    - `codec`: the stored codec (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd), or None for
      compression.type=producer;
    - `level`: the compression level, or None for the default of the codec;
    - `timestamp_type`: CREATE_TIME (0) or LOG_APPEND_TIME (1);
    - `before_max_ms`, `after_max_ms`: the maximum time by which a CreateTime timestamp may be
      before or after the broker's clock;
    - `max_decompressed`: a limit for the decompressed size, in addition to kavka.records.limits.
    """

    codec: int | None = None
    level: int | None = None
    timestamp_type: int = CREATE_TIME
    max_message_bytes: int = 1_048_588
    compacted: bool = False
    before_max_ms: int = NO_BOUND
    after_max_ms: int = 3_600_000
    max_decompressed: int = MAX_UNPACKED_BYTES
    # Whether the records need not be read. A bound on old timestamps needs them: the header has the
    # largest timestamp, but not the smallest.
    header_suffices: bool = field(init=False)

    def __post_init__(self) -> None:
        self.header_suffices = not self.compacted and (
            self.before_max_ms == NO_BOUND or self.timestamp_type == LOG_APPEND_TIME
        )


class ValidatedBatch(NamedTuple):
    """A valid magic 2 batch. Before an append, the caller must call
    `assign_offsets(buffer, base_offset, leader_epoch, append_time)`.

    `buffer` is the buffer of the caller, or a new bytearray if `rewritten`. `append_time` is None
    under CreateTime. Under LogAppendTime it is the timestamp to assign, and equals `max_timestamp`.
    """

    buffer: memoryview | bytearray
    size: int
    count: int  # type: ignore[assignment]
    last_offset_delta: int
    max_timestamp: int
    append_time: int | None
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool
    rewritten: bool
