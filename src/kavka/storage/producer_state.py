"""The producer states of a log: the last batches of every idempotent producer, and open
transactions.

The states detect duplicates of retried batches, keep the batches of a producer in order, fence
producers with an older epoch, and determine the last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.control import EndMarker
from kavka.storage.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from kavka.storage.producer_snapshot import SnapshotFiles

# An idempotent producer has at most this many batches in flight, so a retry can only repeat one of
# them.
MAX_BATCHES = 5
ANY_PRODUCER = -2
NO_PRODUCER = -1
MAX_SEQUENCE = 0x7FFFFFFF


class BatchMeta(NamedTuple):
    """The sequence numbers and offsets of one of the last batches of a producer."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerEntry:
    """The state of one producer. Immutable: a change replaces the entry. The dataclass is not
    frozen, because a frozen dataclass is slower to create."""

    producer_id: int
    epoch: int
    batches: tuple[BatchMeta, ...]
    last_timestamp: int
    coordinator_epoch: int = -1
    txn_first_offset: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0


class ProducerStates:
    """All producers of one log, and the snapshot files of their states.

    `entries` maps producer ids to states. `ongoing` maps the first offset of each open transaction
    to its producer, in the order of offsets. `unreplicated` maps the first offset of each completed
    transaction to the offset of its marker, until the high watermark has passed the marker. Until
    then the marker can be lost, so consumers treat the transaction as open.

    `admitted_producer_id` is the producer that may begin a transaction. On a leader it is
    NO_PRODUCER, except right after the transaction coordinator has verified a transaction.
    Otherwise a late batch of a completed transaction could begin a transaction that never ends.

    `roll_back` reverts the changes since the last `commit`. After a crash the states are rebuilt
    from the last valid snapshot and the batches after it (producer_replay.py). Only the thread that
    owns the log may call the methods.
    """

    def __init__(self, expiration_ms: int, snapshots: SnapshotFiles) -> None:
        self.expiration_ms = expiration_ms
        self.snapshots = snapshots
        self.admitted_producer_id = ANY_PRODUCER
        self.entries: dict[int, ProducerEntry] = {}
        self.ongoing: dict[int, int] = {}
        self.unreplicated: dict[int, int] = {}
        self.first_unstable_offset: int | None = None
        # For `roll_back`: replaced entries, and the first offsets of transactions that have begun,
        # or have ended, with the producer.
        self._replaced: list[tuple[int, ProducerEntry | None]] = []
        self._changed_transactions: list[tuple[int, int | None]] = []

    # --- checks, which change nothing

    def check_client_batch(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int, transactional: bool
    ) -> BatchMeta | None:
        """Check a batch of a producer. Returns the original if the batch is a duplicate of one of
        the last five batches, and None if the batch may be appended. Raises KafkaError if the epoch
        is fenced, the sequence is out of order, or the producer may not begin a transaction."""
        entry = self.entries.get(producer_id)
        if entry is None:
            if epoch < 0:
                raise _fenced(producer_id, epoch, 0)
            if transactional and self.admitted_producer_id not in (producer_id, ANY_PRODUCER):
                raise _not_admitted(producer_id)
            return None
        if epoch == entry.epoch:
            batches = entry.batches
            last = batches[-1].last_sequence if batches else -1
            if first_sequence != last + 1:
                for batch in batches:
                    if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                        return batch
                if first_sequence or last != MAX_SEQUENCE:
                    raise KafkaError(
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        f"Producer {producer_id} (epoch {epoch}) sent sequence {first_sequence} after {last}.",
                    )
        elif epoch < entry.epoch:
            raise _fenced(producer_id, epoch, entry.epoch)
        elif first_sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {producer_id} began epoch {epoch} with sequence {first_sequence} instead of 0.",
            )
        if not transactional:
            if entry.txn_first_offset >= 0:
                raise _not_transactional(producer_id)
        elif (
            self.admitted_producer_id != ANY_PRODUCER
            and self.admitted_producer_id != producer_id
            and not self.has_open_transaction(producer_id, epoch)
        ):
            raise _not_admitted(producer_id)
        return None

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction in this epoch."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == epoch

    def check_coordinator_batch(self, producer_id: int, epoch: int, transactional: bool) -> None:
        """Check a batch that a coordinator writes for a producer. The batch has no sequence number,
        so only its epoch and the open transaction are checked. Raises KafkaError."""
        entry = self.entries.get(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise _fenced(producer_id, epoch, entry.epoch)
            if entry.txn_first_offset >= 0 and not transactional:
                raise _not_transactional(producer_id)

    def check_marker(self, producer_id: int, epoch: int, marker: EndMarker) -> None:
        """Check an end marker. Raises KafkaError if the epoch of the producer or of the coordinator
        is older than the last one."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        if epoch < entry.epoch:
            raise _fenced(producer_id, epoch, entry.epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"The coordinator epoch {marker.coordinator_epoch} of a marker is smaller than the last seen "
                f"coordinator epoch {entry.coordinator_epoch}.",
            )

    def check_bumped_epoch(self, producer_id: int, epoch: int) -> None:
        """Check a marker of transaction version 2, in which the end of every transaction bumps the
        epoch. So a marker with the epoch of the open transaction belongs to an earlier transaction.
        Raises INVALID_PRODUCER_EPOCH for such a marker. A repeated marker is accepted."""
        entry = self.entries.get(producer_id)
        if entry is not None and epoch == entry.epoch and entry.txn_first_offset >= 0:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"A marker of epoch {epoch} cannot end the transaction of producer {producer_id} in the same epoch.",
            )

    # --- changes

    def append_batch(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        transactional: bool,
    ) -> None:
        """Update the producer's state for a data batch."""
        entry = self.entries.get(producer_id)
        fields = (first_sequence, last_sequence, last_offset, offset_delta, timestamp)
        meta: BatchMeta = tuple.__new__(BatchMeta, fields)
        coordinator_epoch = txn_first_offset = -1
        if entry is None:
            batches: tuple[BatchMeta, ...] = (meta,)
        else:
            coordinator_epoch = entry.coordinator_epoch
            txn_first_offset = entry.txn_first_offset
            if entry.epoch == epoch:
                last = entry.batches
                batches = (*last, meta) if len(last) < MAX_BATCHES else (*last[1:], meta)
            else:
                batches = (meta,)
        if transactional and txn_first_offset < 0:
            txn_first_offset = last_offset - offset_delta
            self._changed_transactions.append((txn_first_offset, None))
            self.ongoing[txn_first_offset] = producer_id
            if self.first_unstable_offset is None:
                self.first_unstable_offset = txn_first_offset
        self._replaced.append((producer_id, entry))
        self.entries[producer_id] = ProducerEntry(
            producer_id, epoch, batches, timestamp, coordinator_epoch, txn_first_offset
        )

    def append_marker(
        self, producer_id: int, epoch: int, marker: EndMarker, offset: int, timestamp: int
    ) -> AbortedTxn | None:
        """End the producer's transaction at the marker's `offset`. Returns the entry for the
        transaction index if a transaction with records was aborted."""
        entry = self.entries.get(producer_id)
        batches: tuple[BatchMeta, ...] = ()
        aborted = None
        if entry is not None:
            if entry.epoch == epoch:
                batches = entry.batches
            first = entry.txn_first_offset
            if first >= 0:
                # The first unstable offset stays the same until the marker is replicated.
                self._changed_transactions.append((first, producer_id))
                self.ongoing.pop(first, None)
                self.unreplicated[first] = offset
                if not marker.commit:
                    stable = next((o for o, owner in self.ongoing.items() if owner != producer_id), offset + 1)
                    aborted = AbortedTxn(producer_id, first, offset, stable)
        self._replaced.append((producer_id, entry))
        self.entries[producer_id] = ProducerEntry(producer_id, epoch, batches, timestamp, marker.coordinator_epoch)
        return aborted

    def commit(self) -> None:
        """Make the changes so far permanent: their batches are in the file."""
        self._replaced.clear()
        self._changed_transactions.clear()

    def roll_back(self) -> None:
        """Revert the changes of `append_batch` and `append_marker` since the last `commit`."""
        for producer_id, entry in reversed(self._replaced):
            if entry is None:
                self.entries.pop(producer_id, None)
            else:
                self.entries[producer_id] = entry
        if self._changed_transactions:
            for first, ended_producer_id in reversed(self._changed_transactions):
                if ended_producer_id is None:
                    self.ongoing.pop(first, None)
                else:
                    self.unreplicated.pop(first, None)
                    self.ongoing[first] = ended_producer_id
            self.ongoing = dict(sorted(self.ongoing.items()))
            self.update_first_unstable()
        self.commit()

    def on_high_watermark(self, high_watermark: int) -> bool:
        """Remove the completed transactions whose marker is below the high watermark. Returns
        whether there were any."""
        replicated = [first for first, last in self.unreplicated.items() if last < high_watermark]
        for first in replicated:
            del self.unreplicated[first]
        if replicated:
            self.update_first_unstable()
        return bool(replicated)

    def update_first_unstable(self) -> None:
        first = next(iter(self.ongoing), None)
        if self.unreplicated:
            oldest = min(self.unreplicated)
            if first is None or oldest < first:
                first = oldest
        self.first_unstable_offset = first

    def take_snapshot(self, offset: int, *, sync: bool = False) -> None:
        """Write `<offset>.snapshot`, unless a snapshot exists at this or a later offset. Raises
        OSError."""
        self.snapshots.write(offset, self.entries.values(), sync=sync)

    def clear(self) -> None:
        self.commit()
        self.entries.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.first_unstable_offset = None

    def load(self, entries: Iterable[ProducerEntry], now_ms: int) -> None:
        """Add the entries of a snapshot, except expired entries."""
        for entry in entries:
            if not self.is_expired(entry, now_ms):
                self.entries[entry.producer_id] = entry
                if entry.txn_first_offset >= 0:
                    self.ongoing[entry.txn_first_offset] = entry.producer_id
        self.ongoing = dict(sorted(self.ongoing.items()))
        self.update_first_unstable()

    def replace_with(self, other: ProducerStates) -> None:
        """Take over the producers and transactions of `other`, which is not used any more."""
        self.commit()
        self.entries, self.ongoing, self.unreplicated = other.entries, other.ongoing, other.unreplicated
        self.update_first_unstable()

    def is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return entry.txn_first_offset < 0 and now_ms - entry.last_timestamp >= self.expiration_ms

    def expire(self, now_ms: int) -> int:
        """Remove the producers that have written no record for `producer.id.expiration.ms` and have
        no open transaction. Returns the number of removed producers."""
        expired = [pid for pid, entry in self.entries.items() if self.is_expired(entry, now_ms)]
        for pid in expired:
            del self.entries[pid]
        return len(expired)


def _fenced(producer_id: int, epoch: int, current: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch {epoch} of producer {producer_id} is smaller than its last seen epoch {current}.",
    )


def _not_admitted(producer_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        f"Producer {producer_id} may not begin a transaction: the batch has no verified transactional id.",
    )


def _not_transactional(producer_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"Producer {producer_id} sent a non-transactional batch while its transaction is open.",
    )
