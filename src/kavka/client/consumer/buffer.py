"""What was fetched and not taken yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kavka.client.consumer._decode import Columns, ConsumerRecord, Fetched
from kavka.client.consumer.errors import RecordDeserializationError
from kavka.client.consumer.subscription import PartitionState
from kavka.client.serializers import Convert
from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition

Taken = tuple[dict[TopicPartition, list[ConsumerRecord]], dict[TopicPartition, OffsetAndMetadata]]

# Columns are handed out when they have so many bytes of values: more than this falls out of the processor's caches on
# the way, which costs more than the fewer calls save.
COLUMNS_SIZE = 2 * 1024 * 1024
BATCH_SIZE = 64 * 1024
# So many answers of paused partitions may wait before it is looked whether any of them is of no use any more.
PARKED_AT_LEAST = 16


class WholeBatch(NamedTuple):
    """A batch as it was fetched. Of its records those from `first` up to, not including, `end` are wanted."""

    first: int
    end: int
    data: memoryview


class FetchBuffer:
    """The loop appends at the end, who polls takes from the front: with a deque, neither needs a lock.

    `hungry` is set by the loop where it would fetch if there were room; `on_room` is called then, by who polls.
    """

    def __init__(self, key: Convert | None, value: Convert | None, on_room: Callable[[], object]) -> None:
        self._key = key
        self._value = value
        self._on_room = on_room
        self._queue: deque[Fetched] = deque()
        self._parked: deque[Fetched] = deque()
        self._park_limit = PARKED_AT_LEAST
        # Records that were made, but not all deserialised, since one of them cannot be.
        self._rest: list[ConsumerRecord] = []
        self._rest_of: Fetched | None = None
        self.under_way: dict[TopicPartition, int] = {}
        """By partition the position before what was taken since somebody cleared it; see `Unread`."""
        self.hungry = False
        self.records = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        """Whether there may be something to take."""
        return bool(self._queue)

    def append(self, fetched: Fetched) -> None:
        self._queue.append(fetched)

    def resume(self) -> None:
        """Partitions are not paused any more; called while nobody takes."""
        parked = [f for f in self._parked if f.version == f.source.version]
        self._parked.clear()
        self._park_limit = PARKED_AT_LEAST
        self._queue.extendleft(reversed(parked))

    def take(self, limit: int) -> Taken:
        """Up to `limit` records. What cannot be read is raised when nothing before it could be."""
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        after: dict[TopicPartition, OffsetAndMetadata] = {}
        queue = self._queue
        while limit > 0 and queue:
            fetched = queue[0]
            state = fetched.source
            if not self._usable(fetched, state):
                continue
            out = found.get(state.tp)
            if out is None:
                out = []
            try:
                done = self._take(fetched, out, limit)
            except KafkaError:
                if found:
                    break
                raise
            if out:
                found[state.tp] = out
            state.epoch = fetched.epoch if fetched.epoch >= 0 else state.epoch
            self.under_way.setdefault(state.tp, state.position)
            state.position = fetched.next_offset if self._rest_of is not fetched else self._rest[0].offset
            if done:
                after[state.tp] = OffsetAndMetadata(state.position, "", state.epoch if state.epoch >= 0 else None)
                self.records += done
            limit -= done
            if self._rest_of is fetched:
                break
            if fetched.exhausted:
                self._emptied(fetched, state)
            elif limit > 0 and done:
                # What comes next cannot be read: that is told when there is nothing else to return.
                break
        return found, after

    def take_columns(self, limit: int) -> Columns | None:
        """As `take`, into columns; None where there is nothing. Keys and values are as they are in the batches."""
        out: Columns | None = None
        queue = self._queue
        while limit > 0 and queue:
            fetched = queue[0]
            state = fetched.source
            if not self._usable(fetched, state):
                continue
            columns = Columns(min(self._waiting(), COLUMNS_SIZE + BATCH_SIZE), COLUMNS_SIZE) if out is None else out
            if self._rest_of is fetched:
                self._give_back(fetched)
            rows = columns.rows
            try:
                done = fetched.take_columns(columns, limit)
            except KafkaError:
                if out is not None:
                    break
                raise
            if columns.rows > rows:
                out = columns
                self.records += done
            state.epoch = fetched.epoch if fetched.epoch >= 0 else state.epoch
            self.under_way.setdefault(state.tp, state.position)
            state.position = fetched.next_offset
            limit -= done
            if not fetched.exhausted:
                break
            self._emptied(fetched, state)
        return out

    def take_batches(self, end: int, most: int) -> list[WholeBatch] | None:
        """Batches unopened, of one partition, until one begins at `end` or later, or there are `most` bytes; None where
        there is nothing."""
        out: list[WholeBatch] = []
        queue = self._queue
        while most > 0 and queue:
            fetched = queue[0]
            state = fetched.source
            if not self._usable(fetched, state):
                continue
            try:
                taken = fetched.take_batch()
            except KafkaError:
                if out:
                    break
                raise
            state.epoch = fetched.epoch if fetched.epoch >= 0 else state.epoch
            self.under_way.setdefault(state.tp, state.position)
            state.position = fetched.next_offset
            if taken is None:
                self._emptied(fetched, state)
            elif taken[0] < end:
                out.append(WholeBatch(taken[0], min(taken[1], end), taken[2]))
                most -= len(taken[2])
            if state.position >= end:
                break
        return out or None

    def _waiting(self) -> int:
        """About how many bytes there are, of the first two answers. By their places: the loop may append meanwhile,
        which ends an iteration with an error."""
        queue = self._queue
        return sum(queue[at].end - queue[at].batch_end for at in range(min(2, len(queue))))

    def _usable(self, fetched: Fetched, state: PartitionState) -> bool:
        if fetched.version != state.version:
            self._queue.popleft()
            return False
        if state.paused or state.held:
            self._park(self._queue.popleft())
            return False
        return True

    def _park(self, fetched: Fetched) -> None:
        """Until `resume`. What is held is given up, and perhaps nobody ever resumes: its memory must not stay here."""
        parked = self._parked
        parked.append(fetched)
        if len(parked) >= self._park_limit:
            self._parked = deque(f for f in parked if f.version == f.source.version)
            self._park_limit = max(PARKED_AT_LEAST, 2 * len(self._parked))

    def _emptied(self, fetched: Fetched, state: PartitionState) -> None:
        self._queue.popleft()
        self.bytes += fetched.size
        state.drained_bytes += fetched.size
        if self.hungry:
            self.hungry = False
            self._on_room()

    def _take(self, fetched: Fetched, out: list[ConsumerRecord], limit: int) -> int:
        if self._key is None and self._value is None:
            return fetched.take(out, limit)
        if self._rest_of is fetched:
            raw = self._rest
        else:
            raw = []
            fetched.take(raw, limit)
        self._rest, self._rest_of = [], None
        for index, record in enumerate(raw):
            try:
                self._deserialise(record)
            except RecordDeserializationError:
                self._rest, self._rest_of = raw[index:], fetched
                if not index and not out:
                    raise
                out += raw[:index]
                return index
        out += raw
        return len(raw)

    def _give_back(self, fetched: Fetched) -> None:
        """Columns do not deserialise: go back to the first record that could not be."""
        offset = self._rest[0].offset
        self._rest, self._rest_of = [], None
        fetched.rewind(offset)

    def _deserialise(self, record: ConsumerRecord) -> None:
        key, value = record.key, record.value
        origin = "key"
        try:
            if self._key is not None:
                record.key = self._key(record.topic, key, record.headers)
            origin = "value"
            if self._value is not None:
                record.value = self._value(record.topic, value, record.headers)
        except Exception as error:
            record.key, record.value = key, value
            raise RecordDeserializationError(
                f"the {origin} of {record.topic}-{record.partition} at offset {record.offset} cannot be deserialised: "
                f"{error} (seek past it to go on)",
                TopicPartition(record.topic, record.partition),
                record.offset,
                origin,
                key,
                value,
                record.headers,
            ) from error
