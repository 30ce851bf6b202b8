"""Decodes the records of a batch in pure Python. The compiled form uses `take_records` in
`_decode.pxd` instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kavka.records.batch import corrupt
from kavka.records.varint import decode_varint

if TYPE_CHECKING:
    from kavka.client.consumer._decode import ConsumerRecord, Fetched


def take_plain(fetched: Fetched, record_class: type[ConsumerRecord], out: list[ConsumerRecord], limit: int) -> int:
    """Append up to `limit` records of the open batch to `out`; return their number.

    `record_class` is ConsumerRecord, which this module cannot import without a cycle. The common
    cases are inlined in one loop: this is the consumer's hot path if the Cython extension is not
    compiled. Raises CORRUPT_MESSAGE for an invalid batch."""
    create = record_class.__new__
    append = out.append
    body = fetched.body
    size = fetched.body_end
    pos = fetched.pos
    topic = fetched.topic
    partition = fetched.partition
    epoch = fetched.epoch
    timestamp_type = fetched.timestamp_type
    base_offset = fetched.base_offset
    base_timestamp = fetched.base_timestamp
    append_time = fetched.append_time
    first = fetched.next_offset
    remaining = fetched.remaining
    offset = first - 1
    count = 0
    try:
        while remaining and count < limit:
            # One-byte varints are decoded inline, and two-byte varints where they are common
            # (record length, offset delta, value length). decode_varint decodes the others.
            number = body[pos]
            if number < 128:
                pos += 1
                length = number >> 1 ^ -(number & 1)
            else:
                second = body[pos + 1]
                if second < 128:
                    pos += 2
                    number = number & 127 | second << 7
                    length = number >> 1 ^ -(number & 1)
                else:
                    length, pos = decode_varint(body, pos)
            end = pos + length
            if end > size or length < 0:
                raise corrupt(f"a record has a length of {length} bytes, but {size - pos} bytes remain in the batch")
            # Skip the unused attributes before the timestamp delta.
            pos += 1
            number = body[pos]
            if number < 128:
                pos += 1
                timestamp = base_timestamp + (number >> 1 ^ -(number & 1))
            else:
                delta, pos = decode_varint(body, pos, 10)
                timestamp = base_timestamp + delta
            number = body[pos]
            if number < 128:
                pos += 1
                offset = base_offset + (number >> 1 ^ -(number & 1))
            else:
                second = body[pos + 1]
                if second < 128:
                    pos += 2
                    number = number & 127 | second << 7
                    offset = base_offset + (number >> 1 ^ -(number & 1))
                else:
                    delta, pos = decode_varint(body, pos)
                    offset = base_offset + delta
            if offset < first:
                pos = end
                remaining -= 1
                continue
            number = body[pos]
            if number < 128:
                pos += 1
                length = number >> 1 ^ -(number & 1)
            else:
                length, pos = decode_varint(body, pos)
            record = create(record_class)
            record.serialized_key_size = length
            if length >= 0:
                stop = pos + length
                record.key = body[pos:stop]
                pos = stop
            elif length == -1:
                record.key = None
            else:
                raise corrupt(f"a record's key has the invalid length {length}")
            number = body[pos]
            if number < 128:
                pos += 1
                length = number >> 1 ^ -(number & 1)
            else:
                second = body[pos + 1]
                if second < 128:
                    pos += 2
                    number = number & 127 | second << 7
                    length = number >> 1 ^ -(number & 1)
                else:
                    length, pos = decode_varint(body, pos)
            record.serialized_value_size = length
            if length >= 0:
                stop = pos + length
                record.value = body[pos:stop]
                pos = stop
            elif length == -1:
                record.value = None
            else:
                raise corrupt(f"a record's value has the invalid length {length}")
            if pos + 1 == end and body[pos] == 0:
                record._headers = None
            elif pos < end:
                record._headers = body[pos:end]
            else:
                raise corrupt("a record's fields extend past its end")
            pos = end
            record.topic = topic
            record.partition = partition
            record.offset = offset
            record.timestamp = timestamp if append_time < 0 else append_time
            record.timestamp_type = timestamp_type
            record.leader_epoch = epoch
            append(record)
            remaining -= 1
            count += 1
    except IndexError:
        raise corrupt("a batch ends before its last record") from None
    fetched._advance(pos, remaining, offset, size)
    return count
