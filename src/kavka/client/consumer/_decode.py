"""The hot path of the consumer: decodes fetched bytes to records or columns.

This file is plain Python. If a compiler is available at install time, Cython compiles it;
`_decode.pxd` has the C types and the inner loops in C. Without a compiler, the Python code under
`else` and in `plain_decode.py` replaces these loops.

A `Fetched` belongs to the polling thread once it is in the buffer.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from kavka.client.consumer.errors import UnreadableBatch
from kavka.client.consumer.plain_decode import take_plain
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, batch_at, corrupt
from kavka.records.compression import MAX_DECOMPRESSED, decompress
from kavka.records.reader import batch_records
from kavka.records.varint import decode_varint

if TYPE_CHECKING:
    from kavka.common import plain_cython as cython
else:
    try:
        import cython
    except ImportError:
        from kavka.common import plain_cython as cython

NO_TIMESTAMP_TYPE = -1
# From this size on, the GIL is released for a checksum. A thread that waits for the GIL needs some
# microseconds to wake up. After a shorter release, this thread has the GIL again, and both threads
# have lost the time of a wake-up.
MIN_UNLOCKED_SIZE = 128 * 1024
# The last batch may exceed this size by up to MAX_DECOMPRESSED; a column still stays below 2 GB.
MAX_COLUMN_SIZE = 1024 * 1024 * 1024


def is_compiled() -> bool:
    return bool(cython.compiled)


@cython.freelist(1024)
@cython.cclass
class ConsumerRecord:
    """A consumed record. `timestamp` is in milliseconds, -1 if there is none.

    `timestamp_type` is 0 if the producer set the timestamp, 1 if the broker set it, and -1 if there
    is none. Sizes are those of the serialized bytes, -1 for null. `leader_epoch` is -1 if the
    broker did not send it.
    """

    __slots__ = (
        "_headers", "key", "leader_epoch", "offset", "partition", "serialized_key_size",
        "serialized_value_size", "timestamp", "timestamp_type", "topic", "value",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: Any = None,
        value: Any = None,
        timestamp: int = -1,
        timestamp_type: int = NO_TIMESTAMP_TYPE,
        headers: Any = None,
        leader_epoch: int = -1,
        serialized_key_size: int = -1,
        serialized_value_size: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.value = value
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self._headers: Any = tuple(headers) if headers else None
        self.leader_epoch = leader_epoch
        self.serialized_key_size = serialized_key_size
        self.serialized_value_size = serialized_value_size

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The (key, value) pairs, in the order of the record. They are decoded on first access."""
        headers = self._headers
        if headers is None:
            return ()
        if type(headers) is bytes:
            headers = self._headers = parse_headers(headers)
        return headers  # type: ignore[no-any-return]

    @classmethod
    def __class_getitem__(cls, types: Any) -> GenericAlias:
        """`ConsumerRecord[K, V]`; see `records.py` for the types."""
        return GenericAlias(cls, types)

    def _fields(self) -> tuple[Any, ...]:
        return (
            self.topic,
            self.partition,
            self.offset,
            self.key,
            self.value,
            self.timestamp,
            self.timestamp_type,
            self.headers,
            self.leader_epoch,
            self.serialized_key_size,
            self.serialized_value_size,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return ConsumerRecord, self._fields()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConsumerRecord) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )


def new_buffer(size: int) -> bytearray:
    """Allocate a buffer for a response. The compiled form does not zero the memory."""
    if cython.compiled:
        return new_bytearray(size)  # type: ignore[name-defined,no-any-return]  # noqa: F821
    return bytearray(size)


def receive(fd: int, buffer: Any, start: int, end: int) -> int:
    """Receive the available bytes of a socket into `buffer` from `start` up to, but not including,
    `end`, and return their number. Does not wait for bytes and does not report errors: the event
    loop does both.

    The compiled form releases the GIL once for all bytes. The plain form receives nothing, because
    it would need the GIL for each piece, as the event loop does."""
    if cython.compiled:
        return receive_bytes(fd, buffer, start, end)  # type: ignore[name-defined,no-any-return]  # noqa: F821
    return 0


def parse_headers(data: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """Decode the headers of a record: their count, then keys and values up to the end of `data`."""
    end = len(data)
    try:
        count, pos = decode_varint(data, 0)
        if count < 0 or count * 2 > end - pos:
            raise corrupt(f"a record has the invalid number of headers {count}")
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            length, pos = decode_varint(data, pos)
            if length < 0 or length > end - pos:
                raise corrupt(f"a header key has a length of {length} bytes, but {end - pos} bytes remain")
            name = data[pos : pos + length].decode("utf-8", "surrogateescape")
            pos += length
            length, pos = decode_varint(data, pos)
            if length < -1 or length > end - pos:
                raise corrupt(f"a header value has a length of {length} bytes, but {end - pos} bytes remain")
            if length < 0:
                headers.append((name, None))
            else:
                headers.append((name, data[pos : pos + length]))
                pos += length
    except IndexError:
        raise corrupt("the headers of a record are truncated") from None
    if pos != end:
        raise corrupt(f"a record has {end - pos} bytes after its headers")
    return tuple(headers)


def end_of_batches(data: Any) -> tuple[int, int, int]:
    """Return the offset after the last complete batch, the leader epoch of that batch, and the
    position in `data` at which that batch ends. Returns (-1, -1, 0) if there is no complete batch.

    Reads only batch headers. Stops at an invalid length; the decoder reports it later."""
    if cython.compiled:
        return find_end(data)  # type: ignore[name-defined,no-any-return]  # noqa: F821
    pos = 0
    end = len(data)
    offset = epoch = -1
    while end - pos >= 17:
        size = LOG_OVERHEAD + int.from_bytes(data[pos + 8 : pos + 12], "big", signed=True)
        if size < 26 or size > end - pos:
            break
        offset = int.from_bytes(data[pos : pos + 8], "big")
        if data[pos + 16] == 2:
            if size < HEADER_SIZE:
                break
            epoch = int.from_bytes(data[pos + 12 : pos + 16], "big", signed=True)
            offset += int.from_bytes(data[pos + 23 : pos + 27], "big", signed=True)
        else:
            epoch = -1
        pos += size
    return offset + 1 if pos else -1, epoch, pos


class Columns:
    """Records of several batches as columns. In the plain form, columns are lists. In the compiled
    form they are bytearrays in Arrow's layout: fixed-size items, or for keys and values the
    concatenated bytes, the 4-byte end of each item, and a byte that is 1 for non-null items.

    `runs` has (topic, partition, rows) and `types` has (timestamp type, rows) for consecutive rows
    with equal values, because these values change rarely. `headers` has (row, bytes for
    `parse_headers`) for the rows with headers. `key_used` and `value_used` are the total sizes of
    keys and values.

    With `has_views`, the compiled form does not copy keys and values. Instead of bytes and ends,
    `key_views` and `value_views` have the items of Arrow's binary_view layout, which refer to the
    received data in `buffers`."""

    __slots__ = (
        "buffers", "has_views", "headers", "key_data", "key_ends", "key_flags", "key_used",
        "key_views", "keys", "max_size", "offsets", "room", "rows", "runs", "timestamps", "types",
        "value_data", "value_ends", "value_flags", "value_used", "value_views", "values",
    )  # fmt: skip

    def __init__(self, size: int = 0, max_size: int = MAX_COLUMN_SIZE, has_views: bool = False) -> None:
        """`size` is the expected size of all values. The columns are full when the keys or the
        values have `max_size` bytes; the last batch may exceed it."""
        self.max_size = max_size
        self.has_views = has_views
        self.buffers: list[Any] = []
        self.key_views = bytearray()
        self.value_views = bytearray()
        self.rows = 0
        self.room = 0
        self.offsets: Any = bytearray() if cython.compiled else []
        self.timestamps: Any = bytearray() if cython.compiled else []
        self.keys: Any = None if cython.compiled else []
        self.values: Any = None if cython.compiled else []
        self.key_used = 0
        self.value_used = 0
        self.key_data = bytearray()
        if cython.compiled and not has_views:
            self.value_data = new_bytearray(size)  # type: ignore[name-defined,has-type]  # noqa: F821
        else:
            self.value_data = bytearray()
        self.key_ends = bytearray(4)
        self.value_ends = bytearray(4)
        self.key_flags = bytearray()
        self.value_flags = bytearray()
        self.headers: list[tuple[int, bytes]] = []
        self.runs: list[list[Any]] = []
        self.types: list[list[int]] = []

    def add_run(self, topic: str, partition: int, timestamp_type: int, rows: int) -> None:
        """Set the partition and the timestamp type of the last `rows` rows."""
        last_run = self.runs[len(self.runs) - 1] if self.runs else None
        if last_run is not None and last_run[0] == topic and last_run[1] == partition:
            last_run[2] += rows
        else:
            self.runs.append([topic, partition, rows])
        last_type = self.types[len(self.types) - 1] if self.types else None
        if last_type is not None and last_type[0] == timestamp_type:
            last_type[1] += rows
        else:
            self.types.append([timestamp_type, rows])

    def add(self, offset: int, timestamp: int, key: Any, value: Any, headers: Any) -> None:
        """Add a record of an old message format."""
        if headers:
            self.headers.append((self.rows, headers))
        if cython.compiled:
            data = (key or b"") + (value or b"")
            if self.has_views:
                self.buffers.append(data)
            add_row(self, offset, timestamp, key, value, data)  # type: ignore[name-defined]  # noqa: F821
        else:
            self.offsets.append(offset)
            self.timestamps.append(timestamp)
            self.keys.append(key)
            self.values.append(value)
            self.key_used += 0 if key is None else len(key)
            self.value_used += 0 if value is None else len(value)
            self.rows += 1


class Fetched:
    """The fetched bytes of one partition. Batches are validated and opened one at a time.

    `next_offset` is the offset after the records that were taken. Records below the fetch offset,
    control records and, with `read_committed`, records of aborted transactions are skipped.
    `aborted` is a list of (first offset, producer id) in the order of offsets, or None for
    read_uncommitted.

    A call raises UnreadableBatch for an invalid batch only if no records precede the batch.
    `next_offset` then stays at the invalid batch, and the next call raises the error again.
    """

    __slots__ = (
        "aborted", "aborting", "append_time", "base_offset", "base_timestamp", "batch_end", "body",
        "body_end", "check_crcs", "crc", "data", "end", "epoch", "exhausted", "last_offset",
        "next_aborted", "next_offset", "old_records", "partition", "pos", "remaining", "size",
        "source", "timestamp_type", "topic", "version",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        data: Any,
        offset: int,
        check_crcs: bool = True,
        aborted: list[tuple[int, int]] | None = None,
        source: Any = None,
        version: int = 0,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.data = data
        self.end = self.size = len(data)
        self.next_offset = offset
        self.check_crcs = check_crcs
        self.aborted = aborted
        self.next_aborted = 0
        self.aborting: set[int] = set()
        self.source = source
        self.version = version
        self.exhausted = False
        # The open batch: its end in `data`, and the number of its records that were not taken.
        self.batch_end = 0
        self.remaining = 0
        self.crc = 0
        self.body: Any = None
        self.body_end = 0
        self.old_records: Any = None
        self.pos = 0
        self.base_offset = 0
        self.last_offset = 0
        self.base_timestamp = 0
        self.append_time = -1
        self.timestamp_type = 0
        self.epoch = -1

    def take(self, out: list[ConsumerRecord], limit: int) -> int:
        """Append up to `limit` records to `out`; return their number. The number is below `limit`
        if no record remains (`exhausted`) or if the next batch is invalid."""
        count = 0
        initial_length = len(out)
        while count < limit:
            try:
                if self.remaining == 0 and not self._open():
                    break
                if self.old_records is not None:
                    count += self._take_old(out, limit - count)
                else:
                    count += self._take(out, limit - count)
            except KafkaError as error:
                # Remove the records of the invalid batch that were decoded before the error.
                del out[initial_length + count :]
                if count:
                    break
                raise self._unreadable(error) from None
        return count

    def take_columns(self, out: Columns, limit: int) -> int:
        """Like `take`, but append to columns. Also stops when they are full."""
        count = 0
        while count < limit and out.value_used < out.max_size and out.key_used < out.max_size:
            try:
                if self.remaining == 0 and not self._open():
                    break
                if self.old_records is not None:
                    rows = self._take_old_columns(out, limit - count)
                else:
                    rows = self._take_columns(out, limit - count)
            except KafkaError as error:
                if count:
                    break
                raise self._unreadable(error) from None
            if rows:
                out.add_run(self.topic, self.partition, self.timestamp_type, rows)
            count += rows
        return count

    def take_batch(self) -> Any:
        """Return the next batch that has records, undecoded: (first offset, offset after the last
        record, view of the batch). Returns None if no batch remains (`exhausted`). Do not call it
        after `take` or `take_columns`."""
        data = self.data
        while True:
            start = self.batch_end
            first = self.next_offset
            try:
                end, magic = self._next(start)
                if end < 0:
                    self.exhausted = True
                    return None
                skip = self._read_header(start, end, magic)
            except KafkaError as error:
                raise self._unreadable(error) from None
            self.batch_end = end
            if self.last_offset < first:
                continue
            self.next_offset = self.last_offset + 1
            if not skip:
                return max(first, self.base_offset), self.next_offset, data[start:end]

    def _read_header(self, start: int, end: int, magic: int) -> bool:
        """Read the header of a batch: set its offsets, and validate its checksum unless all its
        records precede `next_offset`. Returns whether the batch has no records to return."""
        data = self.data
        if magic < 2:
            batch = batch_at(data, start, end)
            if batch is None:
                raise corrupt("a message of magic 0 or 1 is incomplete")
            # An old compressed message has only its last offset.
            self.base_offset = 0 if batch.codec else batch.base_offset
            self.last_offset = batch.last_offset
            self.epoch = -1
            if self.check_crcs and self.last_offset >= self.next_offset:
                batch.ensure_crc()
            return False
        (base_offset, _, epoch, _, crc, attributes, delta, _, _, producer_id, _, _, count) = HEADER.unpack_from(
            data, start
        )
        self.base_offset = base_offset
        self.last_offset = base_offset + delta
        self.epoch = epoch
        skip = attributes & 0x20 != 0 or count == 0
        if self.aborted is not None and producer_id >= 0:
            skip = self._check_aborted(producer_id, attributes, start + HEADER_SIZE, end) or skip
        if self.check_crcs and self.last_offset >= self.next_offset and _checksum(data[start + 21 : end]) != crc:
            raise corrupt(f"the checksum of the batch at offset {base_offset} does not match its bytes")
        return bool(skip)

    def rewind(self, offset: int) -> None:
        """Continue with the records at `offset`, which precedes `next_offset`."""
        self.batch_end = 0
        self.remaining = 0
        self.body = self.old_records = None
        self.body_end = 0
        self.next_offset = offset
        self.next_aborted = 0
        self.aborting = set()
        self.exhausted = False

    # --- batches

    def _open(self) -> bool:
        """Open the next batch that has records to return. Returns False if there is none."""
        data = self.data
        while True:
            start = self.batch_end
            if cython.compiled and open_plain(self):  # type: ignore[name-defined]  # noqa: F821
                if self.check_crcs and _checksum(data[start + 21 : self.batch_end]) != self.crc:
                    self.batch_end = start
                    self.remaining = 0
                    raise corrupt(f"the checksum of the batch at offset {self.base_offset} does not match its bytes")
                return True
            batch_end, magic = self._next(start)
            if batch_end < 0:
                self.exhausted = True
                return False
            if magic < 2:
                if self._open_old(start, batch_end):
                    return True
                continue
            (base_offset, _, epoch, _, crc, attributes, delta, first_time, max_time, producer_id, _, _, count) = (
                HEADER.unpack_from(data, start)
            )
            self.last_offset = base_offset + delta
            skip = attributes & 0x20 != 0
            if self.aborted is not None and producer_id >= 0:
                skip = self._check_aborted(producer_id, attributes, start + HEADER_SIZE, batch_end) or skip
            if self.last_offset < self.next_offset:
                self.batch_end = batch_end
                continue
            if self.check_crcs and _checksum(data[start + 21 : batch_end]) != crc:
                raise corrupt(f"the checksum of the batch at offset {base_offset} does not match its bytes")
            if skip or count == 0:
                self.epoch = epoch
                self.batch_end = batch_end
                self.next_offset = self.last_offset + 1
                continue
            body = data[start + HEADER_SIZE : batch_end]
            codec = attributes & 7
            if codec:
                body = decompress(codec, body, MAX_DECOMPRESSED)
            elif not cython.compiled:
                body = bytes(body)
            if count < 0 or count * 7 > len(body):
                raise corrupt(f"a batch has {len(body)} bytes, but its header has a count of {count} records")
            self.epoch = epoch
            self.batch_end = batch_end
            self.old_records = None
            self.body = body
            self.pos = 0
            self.body_end = len(body)
            self.remaining = count
            self.base_offset = base_offset
            self.base_timestamp = first_time
            self.timestamp_type = (attributes & 8) >> 3
            self.append_time = max_time if self.timestamp_type else -1
            return True

    def _next(self, start: int) -> tuple[int, int]:
        """Return (end, magic) of the batch at `start`. The end is -1 if the batch is incomplete."""
        remaining = self.end - start
        if remaining < 17:
            return -1, 0
        data = self.data
        size = LOG_OVERHEAD + int.from_bytes(data[start + 8 : start + 12], "big", signed=True)
        magic = data[start + 16]
        if magic > 2:
            raise corrupt(f"unknown magic {magic}")
        if size < (HEADER_SIZE if magic == 2 else 26):
            raise corrupt(f"a batch has the invalid size {size}")
        return (-1, 0) if size > remaining else (start + size, magic)

    def _check_aborted(self, producer_id: int, attributes: int, body: int, end: int) -> bool:
        """Return whether the batch belongs to an aborted transaction. Must be called for every
        batch in order, because `aborting` tracks the producers with an open aborted transaction."""
        aborted = self.aborted or ()
        while self.next_aborted < len(aborted) and aborted[self.next_aborted][0] <= self.last_offset:
            self.aborting.add(aborted[self.next_aborted][1])
            self.next_aborted += 1
        if producer_id not in self.aborting or not attributes & 0x10:
            return False
        if attributes & 0x20 and _control_type(bytes(self.data[body:end])) == 0:
            self.aborting.discard(producer_id)
        return True

    def _open_old(self, start: int, end: int) -> bool:
        batch = batch_at(self.data, start, end)
        if batch is None:
            raise corrupt("a message of magic 0 or 1 is incomplete")
        self.last_offset = batch.last_offset
        if batch.last_offset < self.next_offset:
            self.batch_end = end
            return False
        records = [r for r in batch_records(batch, self.check_crcs) if r.offset >= self.next_offset]
        self.batch_end = end
        self.epoch = -1
        if not records:
            self.next_offset = batch.last_offset + 1
            return False
        self.timestamp_type = batch.timestamp_type if batch.magic else NO_TIMESTAMP_TYPE
        self.old_records = records
        self.pos = 0
        self.remaining = len(records)
        return True

    def _unreadable(self, error: KafkaError) -> KafkaError:
        code = error.code if error.code != ErrorCode.NONE else ErrorCode.CORRUPT_MESSAGE
        return UnreadableBatch(
            code,
            error.message,
            TopicPartition(self.topic, self.partition),
            self.next_offset,
            self.last_offset + 1 if self.last_offset >= self.next_offset else None,
        )

    # --- records of the open batch

    def _take(self, out: list[ConsumerRecord], limit: int) -> int:
        if cython.compiled:
            try:
                return take_records(self, out, limit)  # type: ignore[name-defined,no-any-return]  # noqa: F821
            except ValueError as error:
                raise corrupt(str(error)) from None
        else:
            return take_plain(self, ConsumerRecord, out, limit)

    def _take_columns(self, out: Columns, limit: int) -> int:
        if cython.compiled:
            try:
                return take_columns(self, out, limit)  # type: ignore[name-defined,no-any-return]  # noqa: F821
            except ValueError as error:
                out.headers = [entry for entry in out.headers if entry[0] < out.rows]
                raise corrupt(str(error)) from None
        else:
            records: list[ConsumerRecord] = []
            count = take_plain(self, ConsumerRecord, records, limit)
            rows = out.rows
            out.offsets.extend([r.offset for r in records])
            out.timestamps.extend([r.timestamp for r in records])
            out.keys.extend([r.key for r in records])
            out.values.extend([r.value for r in records])
            out.headers.extend([(rows + i, r._headers) for i, r in enumerate(records) if r._headers is not None])
            out.key_used += sum([r.serialized_key_size for r in records if r.key is not None])
            out.value_used += sum([r.serialized_value_size for r in records if r.value is not None])
            out.rows = rows + count
            return count

    def _advance(self, pos: int, remaining: int, offset: int, size: int) -> None:
        """Move `next_offset` past the records that were taken. `offset` is the offset of the last
        of them, and `pos` is the position of the next record in `body`."""
        if remaining == 0:
            if pos != size:
                raise corrupt(f"a batch has {size - pos} bytes after its last record")
            self.body = None
            offset = self.last_offset
        self.pos = pos
        self.remaining = remaining
        if offset >= self.next_offset:
            self.next_offset = offset + 1

    # --- old message formats, decoded as a whole

    def _take_old(self, out: list[ConsumerRecord], limit: int) -> int:
        records = self.old_records[self.pos : self.pos + limit]
        for r in records:
            record = ConsumerRecord(self.topic, self.partition, r.offset, r.key, r.value, r.timestamp)
            record.timestamp_type = self.timestamp_type
            record.serialized_key_size = -1 if r.key is None else len(r.key)
            record.serialized_value_size = -1 if r.value is None else len(r.value)
            out.append(record)
        self._advance_old(len(records))
        return len(records)

    def _take_old_columns(self, out: Columns, limit: int) -> int:
        records = self.old_records[self.pos : self.pos + limit]
        for r in records:
            out.add(r.offset, r.timestamp, r.key, r.value, None)
        self._advance_old(len(records))
        return len(records)

    def _advance_old(self, count: int) -> None:
        self.pos += count
        self.remaining -= count
        if self.remaining == 0:
            self.old_records = None
            self.next_offset = self.last_offset + 1
        else:
            self.next_offset = self.old_records[self.pos - 1].offset + 1


def _checksum(data: Any) -> int:
    """Return the CRC-32C. For a large batch, the computation releases the GIL, so that the I/O
    thread can run."""
    return crc32c(data, 0, 1 if len(data) >= MIN_UNLOCKED_SIZE else 0)


def _control_type(body: bytes) -> int:
    """Return the type of a control record (0 abort, 1 commit), or -1 if the record is invalid."""
    try:
        _, pos = decode_varint(body, 0)
        _, pos = decode_varint(body, pos + 1, 10)
        _, pos = decode_varint(body, pos)
        length, pos = decode_varint(body, pos)
        key = body[pos : pos + length]
    except IndexError:
        return -1
    return int.from_bytes(key[2:4], "big") if len(key) >= 4 else -1
