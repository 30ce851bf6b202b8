"""The buffer of fetched data that polls have not returned yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kavka.client.consumer._decode import Columns, ConsumerRecord, Fetched
from kavka.client.consumer.errors import RecordDeserializationError
from kavka.client.consumer.subscription import PartitionState
from kavka.client.errors import SchemaRegistryError
from kavka.client.serializers import Convert
from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition

Taken = tuple[dict[TopicPartition, list[ConsumerRecord]], dict[TopicPartition, OffsetAndMetadata]]

# Columns are returned once their values reach this size. Larger columns exceed the caches of the
# CPU, which costs more than the fewer calls save.
MAX_COLUMNS_SIZE = 2 * 1024 * 1024
# Extra room in the columns for the last batch, which may exceed MAX_COLUMNS_SIZE.
BATCH_ROOM = 64 * 1024
# From this number of parked responses on, outdated responses are removed.
MIN_PARK_LIMIT = 16


class WholeBatch(NamedTuple):
    """An undecoded batch. Its offsets from `first` up to, but not including, `end` were
    requested."""

    first: int
    end: int
    data: memoryview


class FetchBuffer:
    """Owns fetched data in fetch order. The event loop appends and the polling thread takes from
    the front; a deque needs no lock for this.

    The fetcher sets `needs_room` when a full buffer prevents a fetch. The polling thread then
    calls `on_room` after it has taken data. Data of paused and held partitions is parked until
    `resume`.
    """

    def __init__(self, key: Convert | None, value: Convert | None, on_room: Callable[[], object]) -> None:
        self._key = key
        self._value = value
        self._on_room = on_room
        self._queue: deque[Fetched] = deque()
        self._parked: deque[Fetched] = deque()
        self._park_limit = MIN_PARK_LIMIT
        self._undeserialized: list[ConsumerRecord] = []
        """Decoded records of `_undeserialized_from`. The first record cannot be deserialized."""
        self._undeserialized_from: Fetched | None = None
        self.in_progress: dict[TopicPartition, int] = {}
        """The dict of `Unread`: the position of each partition before the records in progress."""
        self.needs_room = False
        self.records = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        """Whether the buffer may have data to take."""
        return bool(self._queue)

    def append(self, fetched: Fetched) -> None:
        self._queue.append(fetched)

    def resume(self) -> None:
        """Return parked data to the queue. Not called during a `take`."""
        parked = [f for f in self._parked if f.version == f.source.version]
        self._parked.clear()
        self._park_limit = MIN_PARK_LIMIT
        self._queue.extendleft(reversed(parked))

    def take(self, limit: int) -> Taken:
        """Take up to `limit` records. Returns the records and the next offsets by partition. Raises
        UnreadableBatch, RecordDeserializationError or SchemaRegistryError if no records precede
        the data that cannot be returned."""
        records: dict[TopicPartition, list[ConsumerRecord]] = {}
        next_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        queue = self._queue
        while limit > 0 and queue:
            fetched = queue[0]
            state = fetched.source
            if self._remove_unusable(fetched, state):
                continue
            out = records.get(state.tp)
            if out is None:
                out = []
            try:
                count = self._take(fetched, out, limit)
            except KafkaError:
                if records:
                    break
                raise
            if out:
                records[state.tp] = out
            state.epoch = fetched.epoch if fetched.epoch >= 0 else state.epoch
            self.in_progress.setdefault(state.tp, state.position)
            state.position = (
                fetched.next_offset if self._undeserialized_from is not fetched else self._undeserialized[0].offset
            )
            if count:
                next_offsets[state.tp] = OffsetAndMetadata(
                    state.position, "", state.epoch if state.epoch >= 0 else None
                )
                self.records += count
            limit -= count
            if self._undeserialized_from is fetched:
                break
            if fetched.exhausted:
                self._remove_first(fetched, state)
            elif limit > 0 and count:
                # The next batch is invalid: raise the error when no records precede it.
                break
        return records, next_offsets

    def take_columns(self, limit: int, has_views: bool = False) -> Columns | None:
        """Like `take`, but returns columns of serialized data, or None if there are no records."""
        out: Columns | None = None
        queue = self._queue
        while limit > 0 and queue:
            fetched = queue[0]
            state = fetched.source
            if self._remove_unusable(fetched, state):
                continue
            columns = (
                Columns(min(self._available_bytes(), MAX_COLUMNS_SIZE + BATCH_ROOM), MAX_COLUMNS_SIZE, has_views)
                if out is None
                else out
            )
            if self._undeserialized_from is fetched:
                self._rewind(fetched)
            rows = columns.rows
            try:
                count = fetched.take_columns(columns, limit)
            except KafkaError:
                if out is not None:
                    break
                raise
            if columns.rows > rows:
                out = columns
                self.records += count
            state.epoch = fetched.epoch if fetched.epoch >= 0 else state.epoch
            self.in_progress.setdefault(state.tp, state.position)
            state.position = fetched.next_offset
            limit -= count
            if not fetched.exhausted:
                break
            self._remove_first(fetched, state)
        return out

    def take_batches(self, end: int, max_bytes: int) -> list[WholeBatch] | None:
        """Take undecoded batches of one partition up to the offset `end`, about `max_bytes` in
        total. Returns None if there are no batches."""
        out: list[WholeBatch] = []
        queue = self._queue
        while max_bytes > 0 and queue:
            fetched = queue[0]
            state = fetched.source
            if self._remove_unusable(fetched, state):
                continue
            try:
                taken = fetched.take_batch()
            except KafkaError:
                if out:
                    break
                raise
            state.epoch = fetched.epoch if fetched.epoch >= 0 else state.epoch
            self.in_progress.setdefault(state.tp, state.position)
            state.position = fetched.next_offset
            if taken is None:
                self._remove_first(fetched, state)
            elif taken[0] < end:
                out.append(WholeBatch(taken[0], min(taken[1], end), taken[2]))
                max_bytes -= len(taken[2])
            if state.position >= end:
                break
        return out or None

    def _available_bytes(self) -> int:
        """Return the approximate size of the first two responses. Uses indexes, because the event
        loop may append to the deque, which would break an iteration."""
        queue = self._queue
        return sum(queue[index].end - queue[index].batch_end for index in range(min(2, len(queue))))

    def _remove_unusable(self, fetched: Fetched, state: PartitionState) -> bool:
        """Remove the first response if it is outdated, or park it if its partition is paused or
        held. Returns whether the response was removed."""
        if fetched.version != state.version:
            self._queue.popleft()
            return True
        if state.paused or state.held:
            self._park(self._queue.popleft())
            return True
        return False

    def _park(self, fetched: Fetched) -> None:
        """Keep a response until `resume`. Because `resume` may never be called, outdated responses,
        for example of revoked partitions, are dropped whenever the number of parked responses has
        doubled."""
        parked = self._parked
        parked.append(fetched)
        if len(parked) >= self._park_limit:
            self._parked = deque(f for f in parked if f.version == f.source.version)
            self._park_limit = max(MIN_PARK_LIMIT, 2 * len(self._parked))

    def _remove_first(self, fetched: Fetched, state: PartitionState) -> None:
        self._queue.popleft()
        self.bytes += fetched.size
        state.drained_bytes += fetched.size
        if self.needs_room:
            self.needs_room = False
            self._on_room()

    def _take(self, fetched: Fetched, out: list[ConsumerRecord], limit: int) -> int:
        if self._key is None and self._value is None:
            return fetched.take(out, limit)
        if self._undeserialized_from is fetched:
            raw = self._undeserialized
        else:
            raw = []
            fetched.take(raw, limit)
        self._undeserialized, self._undeserialized_from = [], None
        for index, record in enumerate(raw):
            try:
                self._deserialize(record)
            except (RecordDeserializationError, SchemaRegistryError):
                self._undeserialized, self._undeserialized_from = raw[index:], fetched
                if not index and not out:
                    raise
                out += raw[:index]
                return index
        out += raw
        return len(raw)

    def _rewind(self, fetched: Fetched) -> None:
        """Return to the first record that was not deserialized. Columns contain serialized data, so
        the record can be returned."""
        offset = self._undeserialized[0].offset
        self._undeserialized, self._undeserialized_from = [], None
        fetched.rewind(offset)

    def _deserialize(self, record: ConsumerRecord) -> None:
        key, value = record.key, record.value
        origin = "key"
        try:
            if self._key is not None:
                record.key = self._key(record.topic, key, record.headers)
            origin = "value"
            if self._value is not None:
                record.value = self._value(record.topic, value, record.headers)
        except SchemaRegistryError:
            # The record may be valid. The next poll deserializes it again.
            record.key, record.value = key, value
            raise
        except Exception as error:
            record.key, record.value = key, value
            raise RecordDeserializationError(
                f"the {origin} of {record.topic}-{record.partition} at offset {record.offset} cannot be deserialized: "
                f"{error} (seek past the record to continue)",
                TopicPartition(record.topic, record.partition),
                record.offset,
                origin,
                key,
                value,
                record.headers,
            ) from error
