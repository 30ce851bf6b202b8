"""What the consumer raises, beside the errors of all clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kavka.client.errors import IllegalState, SerializationError, _Local
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition


class ConcurrentAccess(IllegalState):
    """A second thread uses the consumer while a first one does. Only `wakeup` may be called from another thread."""


class Wakeup(_Local):
    """`wakeup` was called: the call that was waiting, or would have waited next, ends with this."""


class NoOffsetForPartition(_Local):
    """There is no committed offset, and auto.offset.reset is none."""

    CODE = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        names = ", ".join(sorted(map(str, self.partitions)))
        super().__init__(f"there is no offset to begin with, and auto.offset.reset is none: {names}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.partitions,)


class OffsetOutOfRange(_Local):
    """The position is not in the partition (any more), and auto.offset.reset is none. `offsets` are the positions."""

    CODE = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.offsets = dict(offsets)
        names = ", ".join(f"{tp} at {offset}" for tp, offset in sorted(self.offsets.items()))
        super().__init__(f"out of range, and auto.offset.reset is none: {names}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.offsets,)


class LogTruncation(OffsetOutOfRange):
    """Records that were read are not in the partition any more, and auto.offset.reset is none. `diverging` are the
    offsets up to which it is still the same, where the broker knows."""

    def __init__(self, offsets: Mapping[TopicPartition, int], diverging: Mapping[TopicPartition, int | None]) -> None:
        super().__init__(offsets)
        self.diverging = dict(diverging)
        names = ", ".join(f"{tp} before {offset}" for tp, offset in sorted(self.offsets.items()))
        self.message = f"the log was truncated, and auto.offset.reset is none: {names}"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.offsets, self.diverging)


class CommitFailed(_Local):
    """The offsets were not committed, as the consumer is no member of the group any more: its partitions went to
    others.

    Usually it took longer than max.poll.interval.ms between two polls."""

    CODE = ErrorCode.UNKNOWN_MEMBER_ID


class RebalanceInProgress(_Local):
    """The offsets were not committed, as the group rebalances: poll first, then commit what is still assigned."""

    CODE = ErrorCode.REBALANCE_IN_PROGRESS


class UnreadableBatch(KafkaError):
    """A batch whose bytes cannot be read. The position is at `offset`: seek past it to go on.

    `next_offset` is the offset after the batch by its header; None where the header itself cannot be read."""

    def __init__(
        self, code: ErrorCode, reason: str, topic_partition: TopicPartition, offset: int, next_offset: int | None
    ) -> None:
        super().__init__(
            code, f"{topic_partition} at offset {offset}: {reason} (seek past it to go on without these records)"
        )
        self.reason = reason
        self.topic_partition = topic_partition
        self.offset = offset
        self.next_offset = next_offset

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.reason, self.topic_partition, self.offset, self.next_offset)


class RecordDeserializationError(SerializationError):
    """A key or a value could not be made from its bytes. The position is at this record: seek past it to go on.

    `key` and `value` are the record's bytes, `headers` its headers, `origin` says which of them it was."""

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
