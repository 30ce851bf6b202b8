"""[pure] Idempotence: the producer's id and epoch, and the sequence numbers of its batches.

A broker accepts a batch only if its first sequence follows the last sequence of the producer id and
epoch in the partition. It stores the sequences of the last five batches, and acknowledges their
duplicates with the original offsets. A retry therefore keeps the sequence of its batch. If it is
unknown whether the broker has stored a batch, the producer continues with a higher epoch from
sequence 0. For a transactional producer, the coordinator bumps the epoch after an abort.

Fields of a queue: `in_flight` has the batches with a sequence and without an outcome, in the order
of their sequences, including batches that wait for a retry. `unresolved` is set after one of these
batches was abandoned although the broker may have stored it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kavka.client.producer._append import Batch, PartitionQueue
from kavka.common.errors import ErrorCode, KafkaError

MAX_EPOCH = 0x7FFF
SEQUENCE_COUNT = 1 << 31


class Sequences:
    """Assigns sequences and decides on retries and new epochs. Only the event loop may call it."""

    def __init__(self, transactional: bool) -> None:
        self.transactional = transactional
        self.producer_id = -1
        self.producer_epoch = -1
        self._to_bump: set[PartitionQueue] = set()
        self._unresolved: set[PartitionQueue] = set()

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    def set(self, producer_id: int, producer_epoch: int) -> None:
        """Set a new producer id and epoch from the coordinator. A partition switches to them when
        it has no batch in flight."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        queues, self._to_bump = self._to_bump, set()
        if self.transactional:
            # The transaction of the unresolved batch has ended, and the broker fences its epoch.
            queues |= {queue for queue in self._unresolved if not queue.in_flight}
        for queue in queues:
            self._restart(queue)

    def forget(self) -> None:
        self.producer_id = self.producer_epoch = -1

    # --- sending

    def may_send(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether the first batch of the queue may be sent now."""
        if not self.has_producer_id:
            return False
        in_flight = queue.in_flight
        if batch.base_sequence >= 0:
            # A retry waits for the batches before it, since their sequences may change.
            return not in_flight or in_flight[0] is batch
        if queue.unresolved:
            return False
        # A broker without state of the producer accepts any first sequence, so only one batch may
        # be in flight until the first acknowledgement. No batch is sent after a retry: if the retry
        # failed again, later batches could displace it from the five that the broker stores.
        return not in_flight or (
            queue.last_acked_sequence >= 0 and in_flight[0].attempts <= 1 and not self._is_stale(queue)
        )

    def assign(self, queue: PartitionQueue, batch: Batch) -> None:
        """Assign the sequence of a batch that is sent for the first time."""
        if batch.base_sequence >= 0:
            return
        if self._is_stale(queue) and not queue.in_flight:
            self._restart(queue)
        batch.producer_id, batch.producer_epoch = self.producer_id, self.producer_epoch
        batch.base_sequence = queue.next_sequence
        queue.next_sequence = (queue.next_sequence + batch.count) % SEQUENCE_COUNT
        queue.in_flight.append(batch)

    def _is_stale(self, queue: PartitionQueue) -> bool:
        return queue.producer_id != self.producer_id or queue.producer_epoch != self.producer_epoch

    def _restart(self, queue: PartitionQueue) -> None:
        """Restart at sequence 0 with the current id and epoch. Renumbers the batches in flight."""
        sequence = 0
        for batch in queue.in_flight:
            batch.producer_id, batch.producer_epoch = self.producer_id, self.producer_epoch
            batch.base_sequence = sequence
            sequence += batch.count
        queue.producer_id, queue.producer_epoch = self.producer_id, self.producer_epoch
        queue.next_sequence = sequence
        queue.last_acked_sequence = -1
        queue.unresolved = False
        self._unresolved.discard(queue)

    # --- outcomes

    def on_stored(self, batch: Batch, base_offset: int) -> None:
        """Handle the acknowledgement of a batch. `base_offset` is -1 if it is unknown."""
        queue = batch.queue
        self._remove(queue, batch)
        if (batch.producer_id, batch.producer_epoch) == (queue.producer_id, queue.producer_epoch):
            last = (batch.base_sequence + batch.count - 1) % SEQUENCE_COUNT
            if last > queue.last_acked_sequence or queue.last_acked_sequence - last > SEQUENCE_COUNT // 2:
                queue.last_acked_sequence = last
        if base_offset >= 0:
            queue.last_acked_offset = max(queue.last_acked_offset, base_offset + batch.count - 1)

    def should_retry(self, batch: Batch, code: ErrorCode, log_start_offset: int) -> bool:
        """Return whether to retry the batch after this error. May restart the sequences of the
        partition or schedule an epoch bump."""
        queue = batch.queue
        # Whether the response is for an earlier sequence of the batch, not for the current one.
        is_outdated = batch.encoded_identity != (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset == -1 or is_outdated:
                return True
            if queue.last_acked_offset < log_start_offset:
                # The broker deleted the records of this producer, and its state with them.
                if self.transactional:
                    self._restart(queue)
                else:
                    self._to_bump.add(queue)
                return True
            if not self.transactional:
                self._to_bump.add(queue)
                return True
            return False
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_next_sequence = batch.base_sequence == (queue.last_acked_sequence + 1) % SEQUENCE_COUNT
            if not queue.unresolved and (is_outdated or not is_next_sequence):
                # An earlier batch failed and will be retried.
                return True
            if not self.transactional:
                if not queue.unresolved or batch is queue.in_flight[0]:
                    self._to_bump.add(queue)
                return True
            return False
        if code == ErrorCode.INVALID_PRODUCER_EPOCH and not self.transactional:
            return bool(is_outdated)
        return KafkaError(code).retriable

    def on_failed(self, batch: Batch, code: ErrorCode) -> None:
        """Handle a batch that failed and that the broker has not stored. Later batches must not
        leave a gap in the sequences."""
        queue = batch.queue
        self._remove(queue, batch)
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            self._restart(queue)
        elif self.transactional:
            self._close_gap(queue, batch)
        else:
            self._to_bump.add(queue)

    def abandon(self, batch: Batch) -> None:
        """Give up a batch that was sent. The broker may or may not have stored it."""
        queue = batch.queue
        self._remove(queue, batch)
        queue.unresolved = True
        self._unresolved.add(queue)

    def replace(self, batch: Batch, parts: Iterable[Batch]) -> None:
        """Assign the sequences of a split batch to its parts."""
        queue = batch.queue
        index = queue.in_flight.index(batch) if batch in queue.in_flight else len(queue.in_flight)
        parts = list(parts)
        queue.in_flight[index : index + 1] = parts
        sequence = batch.base_sequence
        for part in parts:
            part.producer_id, part.producer_epoch = batch.producer_id, batch.producer_epoch
            part.base_sequence = sequence
            sequence = (sequence + part.count) % SEQUENCE_COUNT

    def _remove(self, queue: PartitionQueue, batch: Batch) -> None:
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)

    def _close_gap(self, queue: PartitionQueue, batch: Batch) -> None:
        """Lower the sequences of the batches after a failed batch. Allowed only in a transaction:
        the failure aborts the transaction, so requests with the previous sequences have no
        effect."""
        queue.next_sequence = max(0, queue.next_sequence - batch.count)
        for later in queue.in_flight:
            if later.base_sequence > batch.base_sequence:
                later.base_sequence -= batch.count

    # --- new epochs

    def resolve(self) -> bool:
        """Check the partitions with an abandoned batch that have no batch in flight. Returns True
        if a transactional producer cannot determine whether the broker has stored the batch."""
        in_doubt = False
        for queue in list(self._unresolved):
            if queue.in_flight:
                continue
            self._unresolved.discard(queue)
            queue.unresolved = False
            if queue.next_sequence == (queue.last_acked_sequence + 1) % SEQUENCE_COUNT:
                continue
            if self.transactional:
                in_doubt = True
            else:
                self._to_bump.add(queue)
        return in_doubt

    def bump_epoch(self) -> None:
        """Bump the epoch if a partition requires it. If the maximum epoch is reached, forget the
        producer id, so that the producer requests a new one."""
        if not self._to_bump or self.transactional or not self.has_producer_id:
            return
        if self.producer_epoch >= MAX_EPOCH:
            self.forget()
            return
        self.producer_epoch += 1
        queues, self._to_bump = self._to_bump, set()
        for queue in queues:
            self._restart(queue)
