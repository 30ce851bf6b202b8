"""[pure] Idempotence: the producer's id and epoch, and the sequence numbers of its batches.

A broker accepts a batch only if its first sequence follows the last one of that producer id and
epoch in the partition. It remembers the last five batches, and acknowledges a duplicate of them
with the original offset. So a retry keeps the batch's sequence. When the producer cannot know
whether the broker has a batch, it continues with a higher epoch from sequence 0. For a
transactional producer the coordinator raises the epoch, after an abort.

Fields of a queue: `in_flight` has the batches with a sequence and without an outcome, in the order
of their sequences, whether sent or waiting for a retry. `unresolved` is set after one of them was
abandoned, and the broker may or may not have it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kavka.client.producer._append import Batch, PartitionQueue
from kavka.common.errors import ErrorCode, KafkaError

MAX_EPOCH = 0x7FFF
SEQUENCES = 1 << 31


class Sequences:
    """Assigns sequences and decides on retries and new epochs. Only the loop may call it."""

    def __init__(self, transactional: bool) -> None:
        self.transactional = transactional
        self.producer_id = -1
        self.producer_epoch = -1
        self._bump: set[PartitionQueue] = set()
        self._unresolved: set[PartitionQueue] = set()

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    def set(self, producer_id: int, producer_epoch: int) -> None:
        """Use a new id or epoch from the broker. A partition switches to it when it has nothing in
        flight."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        queues, self._bump = self._bump, set()
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
            # A retry waits for the batches before it, which may have to get new sequences.
            return not in_flight or in_flight[0] is batch
        if queue.unresolved:
            return False
        # A broker that does not know the producer accepts any first sequence, so only one batch may
        # be in flight until the first acknowledgement. No batch follows a retry: if the retry fails
        # again, later batches could push it out of the five that the broker remembers.
        return not in_flight or (
            queue.last_acked_sequence >= 0 and in_flight[0].attempts <= 1 and not self._is_stale(queue)
        )

    def assign(self, queue: PartitionQueue, batch: Batch) -> None:
        """Give the batch its sequence, when it is sent for the first time."""
        if batch.base_sequence >= 0:
            return
        if self._is_stale(queue) and not queue.in_flight:
            self._restart(queue)
        batch.producer_id, batch.producer_epoch = self.producer_id, self.producer_epoch
        batch.base_sequence = queue.next_sequence
        queue.next_sequence = (queue.next_sequence + batch.count) % SEQUENCES
        queue.in_flight.append(batch)

    def _is_stale(self, queue: PartitionQueue) -> bool:
        return queue.producer_id != self.producer_id or queue.producer_epoch != self.producer_epoch

    def _restart(self, queue: PartitionQueue) -> None:
        """Start again at sequence 0 with the current id and epoch, including batches in flight."""
        sequence = 0
        for batch in queue.in_flight:
            batch.producer_id, batch.producer_epoch, batch.base_sequence = (
                self.producer_id,
                self.producer_epoch,
                sequence,
            )
            sequence += batch.count
        queue.producer_id, queue.producer_epoch = self.producer_id, self.producer_epoch
        queue.next_sequence = sequence
        queue.last_acked_sequence = -1
        queue.unresolved = False
        self._unresolved.discard(queue)

    # --- outcomes

    def stored(self, batch: Batch, base_offset: int) -> None:
        queue = batch.queue
        self._remove(queue, batch)
        if (batch.producer_id, batch.producer_epoch) == (queue.producer_id, queue.producer_epoch):
            last = (batch.base_sequence + batch.count - 1) % SEQUENCES
            if last > queue.last_acked_sequence or queue.last_acked_sequence - last > SEQUENCES // 2:
                queue.last_acked_sequence = last
        if base_offset >= 0:
            queue.last_acked_offset = max(queue.last_acked_offset, base_offset + batch.count - 1)

    def retriable(self, batch: Batch, code: ErrorCode, log_start_offset: int) -> bool:
        """Whether to retry the batch after this error. May request a new epoch first."""
        queue = batch.queue
        # The response is for an older sequence of the batch; the current one has not been tried.
        outdated = batch.signed != (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset == -1 or outdated:
                return True
            if queue.last_acked_offset < log_start_offset:
                # The broker deleted the records of this producer, and its state with them.
                if self.transactional:
                    self._restart(queue)
                else:
                    self._bump.add(queue)
                return True
            if not self.transactional:
                self._bump.add(queue)
                return True
            return False
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_next = batch.base_sequence == (queue.last_acked_sequence + 1) % SEQUENCES
            if not queue.unresolved and (outdated or not is_next):
                # An earlier batch failed and will be retried.
                return True
            if not self.transactional:
                if not queue.unresolved or batch is queue.in_flight[0]:
                    self._bump.add(queue)
                return True
            return False
        if code == ErrorCode.INVALID_PRODUCER_EPOCH and not self.transactional:
            return bool(outdated)
        return KafkaError(code).retriable

    def failed(self, batch: Batch, code: ErrorCode, certain: bool) -> None:
        """The batch failed for good. `certain`: the broker does not have it, so that the sequences
        after it would leave a gap."""
        queue = batch.queue
        self._remove(queue, batch)
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            self._restart(queue)
        elif certain:
            if not self.transactional:
                self._bump.add(queue)
            else:
                self._close_gap(queue, batch)

    def abandon(self, batch: Batch) -> None:
        """The batch timed out after it was sent: the broker may or may not have it."""
        queue = batch.queue
        self._remove(queue, batch)
        queue.unresolved = True
        self._unresolved.add(queue)

    def replace(self, batch: Batch, parts: Iterable[Batch]) -> None:
        """Give the sequences of a split batch to its parts."""
        queue = batch.queue
        index = queue.in_flight.index(batch) if batch in queue.in_flight else len(queue.in_flight)
        parts = list(parts)
        queue.in_flight[index : index + 1] = parts
        sequence = batch.base_sequence
        for part in parts:
            part.producer_id, part.producer_epoch, part.base_sequence = (
                batch.producer_id,
                batch.producer_epoch,
                sequence,
            )
            sequence = (sequence + part.count) % SEQUENCES

    def _remove(self, queue: PartitionQueue, batch: Batch) -> None:
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)

    def _close_gap(self, queue: PartitionQueue, batch: Batch) -> None:
        """Lower the sequences of the batches after a failed one. Only if no request with the old
        sequences can succeed: in a transaction, which the failure aborts."""
        queue.next_sequence = max(0, queue.next_sequence - batch.count)
        for later in queue.in_flight:
            if later.base_sequence > batch.base_sequence:
                later.base_sequence -= batch.count

    # --- new epochs

    def resolve(self) -> bool:
        """Check partitions with an abandoned batch once they have nothing in flight. True if a
        transactional producer cannot know whether the broker has the batch."""
        in_doubt = False
        for queue in list(self._unresolved):
            if queue.in_flight:
                continue
            self._unresolved.discard(queue)
            queue.unresolved = False
            if queue.next_sequence == (queue.last_acked_sequence + 1) % SEQUENCES:
                continue
            if self.transactional:
                in_doubt = True
            else:
                self._bump.add(queue)
        return in_doubt

    def bump(self) -> bool:
        """Raise the epoch if a partition needs it. True if the epochs are exhausted and the
        producer needs a new id."""
        if not self._bump or self.transactional or not self.has_producer_id:
            return False
        if self.producer_epoch >= MAX_EPOCH:
            self.forget()
            return True
        self.producer_epoch += 1
        queues, self._bump = self._bump, set()
        for queue in queues:
            self._restart(queue)
        return False
