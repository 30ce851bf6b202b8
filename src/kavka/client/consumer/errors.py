"""Consumer errors, in addition to the errors common to all clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kavka.client.errors import IllegalState, SerializationError, _Local
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition


class ConcurrentAccess(IllegalState):
    """Two threads use the consumer at the same time. Only `wakeup` may be called from another
    thread."""


class Wakeup(_Local):
    """Raised by the blocked call, or by the next call that blocks, after `wakeup` was called."""


class NoOffsetForPartition(_Local):
    """The group has no committed offset for these partitions, and auto.offset.reset is none."""

    CODE = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        names = ", ".join(sorted(map(str, self.partitions)))
        super().__init__(f"there is no committed offset, and auto.offset.reset is none: {names}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.partitions,)


class OffsetOutOfRange(_Local):
    """The position is not in the log, and auto.offset.reset is none. `offsets` maps each partition
    to its position."""

    CODE = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.offsets = dict(offsets)
        names = ", ".join(f"{tp} at {offset}" for tp, offset in sorted(self.offsets.items()))
        super().__init__(f"the position is out of range, and auto.offset.reset is none: {names}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.offsets,)


class LogTruncation(OffsetOutOfRange):
    """The log was truncated below the position, and auto.offset.reset is none. `diverging`
    maps each partition to the offset at which the log diverges from the records that were read, or
    to None if it is unknown."""

    def __init__(self, offsets: Mapping[TopicPartition, int], diverging: Mapping[TopicPartition, int | None]) -> None:
        super().__init__(offsets)
        self.diverging = dict(diverging)
        names = ", ".join(f"{tp} before {offset}" for tp, offset in sorted(self.offsets.items()))
        self.message = f"the log was truncated, and auto.offset.reset is none: {names}"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.offsets, self.diverging)


class CommitFailed(_Local):
    """The offsets were not committed: the consumer is not a member of the group, and its partitions
    may be assigned to other members. The usual cause is a time between two polls that exceeds
    max.poll.interval.ms."""

    CODE = ErrorCode.UNKNOWN_MEMBER_ID


class RebalanceInProgress(_Local):
    """The offsets were not committed because the group is rebalancing. Poll, then commit the
    partitions that are still assigned."""

    CODE = ErrorCode.REBALANCE_IN_PROGRESS


class UnreadableBatch(KafkaError):
    """A batch is invalid. The position is at `offset`: seek past the batch to continue.

    `next_offset` is the offset after the batch according to its header; None if the header is
    invalid."""

    def __init__(
        self, code: ErrorCode, reason: str, topic_partition: TopicPartition, offset: int, next_offset: int | None
    ) -> None:
        super().__init__(code, f"{topic_partition} at offset {offset}: {reason} (seek past the batch to continue)")
        self.reason = reason
        self.topic_partition = topic_partition
        self.offset = offset
        self.next_offset = next_offset

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.reason, self.topic_partition, self.offset, self.next_offset)


class RecordDeserializationError(SerializationError):
    """A key or a value cannot be deserialized. The position is at the record: seek past it to
    continue.

    `key` and `value` are the record's bytes and `headers` its headers; `origin` is "key" or
    "value"."""

    def __init__(
        self,
        message: str,
        topic_partition: TopicPartition,
        offset: int,
        origin: str,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> None:
        super().__init__(message)
        self.topic_partition = topic_partition
        self.offset = offset
        self.origin = origin
        self.key = key
        self.value = value
        self.headers = headers

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (
            self.message, self.topic_partition, self.offset, self.origin, self.key, self.value, self.headers,
        )  # fmt: skip
