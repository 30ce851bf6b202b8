"""Idempotence: the producer's id and epoch, and the sequence numbers of each partition's batches. No I/O.

A broker takes a batch only when its first sequence follows the last it has of that producer and epoch in the partition;
it knows the last five batches again and answers a repeated one as the first time. So a batch, once it has a sequence,
is sent again under the same one; and where it cannot be known any more what the broker has, the producer goes on under
a higher epoch, from sequence 0 (for a transactional one that is up to the coordinator, after an abort).

Of a queue: `in_flight` are the batches that have a sequence and no outcome, in the order of their sequences, sent or
waiting to be sent again; `unresolved` says that one of them was given up without knowing whether the broker has it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kavka.client.producer._append import Batch, PartitionQueue
from kavka.common.errors import ErrorCode, KafkaError

MAX_EPOCH = 0x7FFF
SEQUENCES = 1 << 31


class Sequences:
    def __init__(self, transactional: bool) -> None:
        self.transactional = transactional
        self.producer_id = -1
        self.producer_epoch = -1
        self._bump: set[PartitionQueue] = set()
        self._unresolved: set[PartitionQueue] = set()

    @property
    def known(self) -> bool:
        return self.producer_id >= 0

    def set(self, producer_id: int, producer_epoch: int) -> None:
        """A new id, or a new epoch, from the broker. Partitions go over to it when nothing of theirs is in flight."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        queues, self._bump = self._bump, set()
        if self.transactional:
            # A batch in doubt was in the transaction that ended, and the broker fences its epoch from now on.
            queues |= {queue for queue in self._unresolved if not queue.in_flight}
        for queue in queues:
            self._restart(queue)

    def forget(self) -> None:
        self.producer_id = self.producer_epoch = -1

    # --- sending

    def may_send(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether the batch, the first that waits, may be sent now."""
        if not self.known:
            return False
        in_flight = queue.in_flight
        if batch.base_sequence >= 0:
            # One that is sent again waits for those before it: they may have to get new sequences.
            return not in_flight or in_flight[0] is batch
        if queue.unresolved:
            return False
        # A broker that does not know the producer takes any sequence for its first: only when it has answered once may
        # more than one batch be in flight. And none follows one that is sent again: should that be refused once more,
        # the ones after it could make the broker forget that it has had it.
        return not in_flight or (
            queue.last_acked_sequence >= 0 and in_flight[0].attempts <= 1 and not self._is_stale(queue)
        )

    def assign(self, queue: PartitionQueue, batch: Batch) -> None:
        """Give the batch its place, when it is sent for the first time."""
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
        """From sequence 0 under the id and epoch of now, those in flight included."""
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
        """Whether the batch is sent again after that answer; may decide on a new epoch first."""
        queue = batch.queue
        # The answer is about a sequence that the batch does not have any more: under the new one it was not tried yet.
        outdated = batch.signed != (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset == -1 or outdated:
                return True
            if queue.last_acked_offset < log_start_offset:
                # The records that the broker knew the producer by were deleted.
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
                # Or the batch before it failed, and will be sent again.
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
        """The batch is given up. `certain`: the broker does not have it, so the sequences after it would leave a
        gap."""
        queue = batch.queue
        self._remove(queue, batch)
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            self._restart(queue)
        elif certain:
            if not self.transactional:
                self._bump.add(queue)
            else:
                self._close_gap(queue, batch)

    def given_up(self, batch: Batch) -> None:
        """The batch ran out of time, after it was sent: the broker may have it or not."""
        queue = batch.queue
        self._remove(queue, batch)
        queue.unresolved = True
        self._unresolved.add(queue)

    def replace(self, batch: Batch, parts: Iterable[Batch]) -> None:
        """A batch was split; the parts share its sequences."""
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
        """Those after a failed one move up. Only where no request with the old sequences can succeed any more, which
        holds for a transaction, since its failure ends it."""
        queue.next_sequence = max(0, queue.next_sequence - batch.count)
        for later in queue.in_flight:
            if later.base_sequence > batch.base_sequence:
                later.base_sequence -= batch.count

    # --- new epochs

    def resolve(self) -> bool:
        """Look at partitions where a batch was given up, now that nothing of theirs is in flight. True if for a
        transactional producer it stays unknown what the broker has."""
        doubtful = False
        for queue in list(self._unresolved):
            if queue.in_flight:
                continue
            self._unresolved.discard(queue)
            queue.unresolved = False
            if queue.next_sequence == (queue.last_acked_sequence + 1) % SEQUENCES:
                continue
            if self.transactional:
                doubtful = True
            else:
                self._bump.add(queue)
        return doubtful

    def bump(self) -> bool:
        """Go on under a higher epoch where that was decided. True if the epochs are used up: a new id has to be had."""
        if not self._bump or self.transactional or not self.known:
            return False
        if self.producer_epoch >= MAX_EPOCH:
            self.forget()
            return True
        self.producer_epoch += 1
        queues, self._bump = self._bump, set()
        for queue in queues:
            self._restart(queue)
        return False
