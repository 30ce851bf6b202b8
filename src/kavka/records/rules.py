"""What a topic asks of the records written to it, and what becomes of a batch that meets it."""

from __future__ import annotations

from typing import NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import CREATE_TIME, LOG_APPEND_TIME
from kavka.records.limits import MAX_UNPACKED_BYTES

NO_BOUND = (1 << 63) - 1
"""Kafka's Long.MAX_VALUE: a timestamp bound that does not bind."""
LATEST_API_VERSION = 1 << 15


class TooLargeToOpenHere(Exception):
    """The batch has to be opened, and that may take longer than the event loop can wait: open it in a worker thread."""


class InvalidRecordError(KafkaError):
    """Records refused one by one: `record_errors` holds (index of the record in the request's batch, message)."""

    def __init__(
        self, message: str, record_errors: list[tuple[int, str]], code: ErrorCode = ErrorCode.INVALID_RECORD
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class ProduceRules:
    """A topic's configuration as validation needs it. Made once per change of configuration, not per request.

    codec: what batches are stored with, None for compression.type=producer (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd).
    level: compression level for rewriting, None for the codec's default.
    timestamp_type: CREATE_TIME (0) or LOG_APPEND_TIME (1).
    before_max_ms, after_max_ms: how far a CreateTime timestamp may lie before or after the broker's clock.
    max_decompressed: a limit below that of kavka.records.limits for what a batch unpacks to.
    """

    __slots__ = (
        "after_max_ms",
        "before_max_ms",
        "codec",
        "compacted",
        "header_suffices",
        "level",
        "max_decompressed",
        "max_message_bytes",
        "timestamp_type",
    )

    def __init__(
        self,
        *,
        codec: int | None = None,
        level: int | None = None,
        timestamp_type: int = CREATE_TIME,
        max_message_bytes: int = 1_048_588,
        compacted: bool = False,
        before_max_ms: int = NO_BOUND,
        after_max_ms: int = 3_600_000,
        max_decompressed: int = MAX_UNPACKED_BYTES,
    ) -> None:
        self.codec = codec
        self.level = level
        self.timestamp_type = timestamp_type
        self.max_message_bytes = max_message_bytes
        self.compacted = compacted
        self.before_max_ms = before_max_ms
        self.after_max_ms = after_max_ms
        self.max_decompressed = max_decompressed
        # The newest timestamp is in the header, the oldest one is not.
        self.header_suffices = not compacted and (before_max_ms == NO_BOUND or timestamp_type == LOG_APPEND_TIME)


class ValidatedBatch(NamedTuple):
    """One magic 2 batch that may enter the log, once `assign_offsets(buffer, base_offset, leader_epoch, append_time)`
    has given it its place.

    `buffer` is what the caller gave where that could stay (`rewritten` False), else a new bytearray. `append_time` is
    None under CreateTime; under LogAppendTime it is the time to assign, and `max_timestamp` is the same.
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
