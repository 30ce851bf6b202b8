"""The slow path of produce validation, for all batches that the fast path in `validate` does not
accept.

The checks are in Kafka's order, so that a batch with several errors has the same error code as in
Kafka: the request (one batch, magic, codec), the header of each batch (base offset, size, CRC), its
counts, sequence and control bit, then its records one by one. The result is always one magic 2
batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CREATE_TIME,
    HEADER_SIZE,
    I32,
    I64,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_POSITION,
    TIMESTAMP_TYPE_MASK,
    Batch,
    batches,
    parse_header,
    rewrite_crc,
)
from kavka.records.builder import BatchBuilder
from kavka.records.compression import NONE, ZSTD, DecompressedTooLarge, codec_name, compress
from kavka.records.limits import (
    MAX_UNPACKED_BYTES,
    SMALL_BATCH_BYTES,
    SMALL_UNPACKED_BYTES,
    check_count,
    unpacked_limit,
)
from kavka.records.reader import batch_body, batch_records, parse_body
from kavka.records.record import Record
from kavka.records.rules import InvalidRecordError, MustDecompressInWorker, ProduceRules, ValidatedBatch

_MAX_SHOWN_ERRORS = 3
# Validation stops after this many invalid records: a few examples suffice for the producer.
_MAX_REPORTED_ERRORS = 10


def normalise_small(
    buf: memoryview | bytearray, rules: ProduceRules, now_ms: int, api_version: int, from_client: bool
) -> ValidatedBatch:
    """Like `normalise_produce`, but raises MustDecompressInWorker if the validation may take more
    than a few milliseconds."""
    if len(buf) > SMALL_BATCH_BYTES:
        raise MustDecompressInWorker
    try:
        return normalise_produce(buf, rules, now_ms, api_version, from_client, SMALL_UNPACKED_BYTES)
    except DecompressedTooLarge:
        raise MustDecompressInWorker from None


def normalise_produce(
    buf: memoryview | bytearray,
    rules: ProduceRules,
    now_ms: int,
    api_version: int,
    from_client: bool,
    max_unpacked: int = MAX_UNPACKED_BYTES,
) -> ValidatedBatch:
    """Like `validate.validate_produce`, for any input. Raises MESSAGE_TOO_LARGE if the decompressed
    size of a batch exceeds `max_unpacked` or kavka.records.limits."""
    received_batches = _check_headers(buf, rules, api_version, from_client)
    if from_client and rules.timestamp_type == LOG_APPEND_TIME:
        for batch in received_batches:
            if batch.timestamp_type == LOG_APPEND_TIME:
                raise KafkaError(
                    ErrorCode.INVALID_TIMESTAMP, "a producer must not set the timestamp type to LogAppendTime"
                )
    if received_batches[0].magic == 2:
        return _normalise_batch(received_batches[0], rules, now_ms, from_client, max_unpacked)
    return _normalise_messages(received_batches, rules, now_ms, max_unpacked)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def _check_headers(
    buf: memoryview | bytearray, rules: ProduceRules, api_version: int, from_client: bool
) -> list[Batch]:
    """Check the headers and return the batches of the request: exactly one batch, or several
    uncompressed messages. An incomplete batch at the end is ignored, as in Kafka. Raises
    KafkaError."""
    received_batches = list(batches(buf))
    if not received_batches:
        raise _invalid("the records of a partition must contain a complete record batch")
    first = received_batches[0]
    if api_version >= 3:
        if first.magic != 2:
            raise _invalid(f"Produce v{api_version} accepts only record batches of magic 2, not {first.magic}")
        if len(received_batches) > 1:
            raise _invalid(f"Produce v{api_version} accepts one batch per partition, not {len(received_batches)}")
    for batch in received_batches:
        if batch.codec > ZSTD or (batch.codec == ZSTD and (api_version < 7 or batch.magic < 2)):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"Produce v{api_version} does not accept {codec_name(batch.codec)} with records of magic {batch.magic}",
            )
        if batch.magic == 2 and from_client and batch.base_offset != 0:
            raise _invalid(f"the base offset of a produced batch must be 0, not {batch.base_offset}")
        if batch.size > rules.max_message_bytes:
            raise too_large(batch.size, rules)
        batch.ensure_crc()
    if len(received_batches) > 1 and any(batch.magic == 2 or batch.codec for batch in received_batches):
        raise _invalid("a partition must not have other batches next to a compressed message or a batch of magic 2")
    return received_batches


def too_large(size: int, rules: ProduceRules) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a record batch of {size} bytes is larger than the topic's max.message.bytes of {rules.max_message_bytes}",
    )


def _normalise_batch(
    batch: Batch, rules: ProduceRules, now_ms: int, from_client: bool, max_unpacked: int
) -> ValidatedBatch:
    count = batch.count or 0
    if from_client:
        _check_counts(batch, count)
    codec = batch.codec
    target_codec = codec if rules.codec is None or (batch.is_control and codec == NONE) else rules.codec
    is_create_time = rules.timestamp_type == CREATE_TIME

    max_timestamp = batch.max_timestamp
    body: bytes | None = None
    if from_client and not batch.is_control:
        body = _open(batch, rules, max_unpacked)
        try:
            largest_timestamp = _check_records(
                parse_body(body, count, 0, batch.base_timestamp, _append_time(batch)),
                rules,
                now_ms,
                check_offsets=True,
                is_rebuilt=target_codec != codec,
            )
        except InvalidRecordError:
            raise
        except KafkaError as error:
            # Kafka treats a batch with a valid CRC and a wrong number of records as invalid, not as
            # corrupt.
            raise _invalid(error.message) if error.code is ErrorCode.CORRUPT_MESSAGE else error
        if is_create_time:
            max_timestamp = largest_timestamp
    elif target_codec != codec:
        body = _open(batch, rules, max_unpacked)

    buffer: memoryview | bytearray
    rewritten = True
    if target_codec != codec and body is not None:
        buffer = bytearray(batch.data[:HEADER_SIZE])
        buffer += compress(target_codec, body, rules.level)
        I32.pack_into(buffer, 8, len(buffer) - LOG_OVERHEAD)
        if len(buffer) > rules.max_message_bytes:
            raise too_large(len(buffer), rules)
    elif is_create_time and (max_timestamp != batch.max_timestamp or batch.timestamp_type == LOG_APPEND_TIME):
        buffer = bytearray(batch.data)
    else:
        buffer = batch.data
        rewritten = False
    if rewritten:
        attributes = (batch.attributes & ~CODEC_MASK) | target_codec
        if is_create_time:
            attributes &= ~TIMESTAMP_TYPE_MASK
            I64.pack_into(buffer, MAX_TIMESTAMP_POSITION, max_timestamp)
        buffer[ATTRIBUTES_POSITION + 1] = attributes & 0xFF
        rewrite_crc(buffer)
    return _validated(buffer, rules, now_ms, rewritten)


def _check_counts(batch: Batch, count: int) -> None:
    delta = batch.last_offset - batch.base_offset
    if count <= 0:
        raise _invalid(f"a batch has the invalid record count {count}")
    if count != delta + 1:
        raise _invalid(f"a batch has {count} records, but the last offset delta is {delta}")
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise _invalid(f"producer {batch.producer_id} sent the invalid sequence number {batch.base_sequence}")
    if batch.is_control:
        raise _invalid("clients may not write control records")


def _append_time(batch: Batch) -> int | None:
    return batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None


def _open(batch: Batch, rules: ProduceRules, max_unpacked: int) -> bytes:
    """Return the decompressed body of a batch. Raises MESSAGE_TOO_LARGE, and INVALID_RECORD for
    malformed data."""
    try:
        if batch.codec:
            check_count(batch.count or 0, batch.size)
        return batch_body(batch, min(max_unpacked, rules.max_decompressed, unpacked_limit(batch.size)))
    except KafkaError as error:
        raise _invalid(error.message) if error.code is ErrorCode.CORRUPT_MESSAGE else error


def _normalise_messages(messages: list[Batch], rules: ProduceRules, now_ms: int, max_unpacked: int) -> ValidatedBatch:
    """Convert messages of magic 0 or 1 to one magic 2 batch. The offsets of the messages are
    ignored, because the broker assigns new offsets."""
    source_codec = messages[0].codec
    max_unpacked = min(max_unpacked, rules.max_decompressed)
    builder = BatchBuilder(codec=source_codec if rules.codec is None else rules.codec, level=rules.level)

    def records() -> Iterator[Record]:
        for message in messages:
            for record in batch_records(message, max_decompressed=max_unpacked, limited=True):
                builder.append(record._replace(offset=-1))
                yield record

    _check_records(records(), rules, now_ms, check_offsets=False, is_rebuilt=True)
    buffer = builder.build()
    if len(buffer) > rules.max_message_bytes:
        raise too_large(len(buffer), rules)
    return _validated(buffer, rules, now_ms, rewritten=True)


def _check_records(
    records: Iterator[Record], rules: ProduceRules, now_ms: int, *, check_offsets: bool, is_rebuilt: bool
) -> int:
    """Check all records against the topic's rules and return their largest timestamp. Raises
    InvalidRecordError.

    Kafka cannot write a negative timestamp other than -1, so a rebuilt batch must not have such a
    timestamp. For such a batch Kafka returns UNKNOWN_SERVER_ERROR, and this broker returns
    INVALID_TIMESTAMP. If the batch is not rebuilt, both store the timestamp.
    """
    compacted = rules.compacted
    is_create_time = rules.timestamp_type == CREATE_TIME
    earliest = now_ms - rules.before_max_ms
    latest = now_ms + rules.after_max_ms
    largest_timestamp = -1
    errors: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    for index, (offset, timestamp, key, _, _) in enumerate(records):
        if timestamp > largest_timestamp:
            largest_timestamp = timestamp
        problem = None
        if check_offsets and offset != index:
            problem = f"the record has relative offset {offset} instead of {index}"
        elif compacted and key is None:
            problem = "a compacted topic accepts no record without a key"
        elif is_rebuilt and timestamp < -1:
            problem = f"timestamp {timestamp} is negative"
            code = ErrorCode.INVALID_TIMESTAMP
        elif is_create_time and timestamp != -1 and not earliest <= timestamp <= latest:
            problem = f"timestamp {timestamp} is not between {earliest} and {latest}"
            code = ErrorCode.INVALID_TIMESTAMP
        if problem is not None:
            errors.append((index, problem))
            if len(errors) == _MAX_REPORTED_ERRORS:
                break
    if errors:
        summary = "; ".join(f"record {index}: {problem}" for index, problem in errors[:_MAX_SHOWN_ERRORS])
        error_count = f"{len(errors)} or more" if len(errors) == _MAX_REPORTED_ERRORS else str(len(errors))
        raise InvalidRecordError(f"{error_count} records are invalid: {summary}", errors, code)
    return largest_timestamp


def _validated(buffer: memoryview | bytearray, rules: ProduceRules, now_ms: int, rewritten: bool) -> ValidatedBatch:
    header = parse_header(buffer)
    append_time = now_ms if rules.timestamp_type == LOG_APPEND_TIME else None
    return ValidatedBatch(
        buffer=buffer,
        size=len(buffer),
        count=header.count,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=header.max_timestamp if append_time is None else append_time,
        append_time=append_time,
        attributes=header.attributes,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        rewritten=rewritten,
    )
