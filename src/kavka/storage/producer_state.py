"""What a log remembers of those who write to it: the last batches of every idempotent producer, and open
transactions.

It makes a retried batch a duplicate instead of a second copy, keeps a producer's batches in order, fences producers
of an older epoch, and says up to where transactions are decided (the last stable offset).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.control import EndMarker
from kavka.storage.transaction_index import AbortedTxn

BATCHES_KEPT = 5
"""How many batches a client may have in flight, and so how many of the last ones a retry can repeat."""
ANYONE = -2
NOBODY = -1
_WRAP = 0x7FFFFFFF


class BatchMeta(NamedTuple):
    """One of a producer's last batches, as its retry would look."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer's state. Never changed once it is in the table: a change is a new entry, undoing it puts the old
    one back."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "txn_first_offset")

    def __init__(
        self,
        producer_id: int,
        epoch: int,
        batches: tuple[BatchMeta, ...],
        last_timestamp: int,
        coordinator_epoch: int = -1,
        txn_first_offset: int = -1,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches = batches
        self.last_timestamp = last_timestamp
        self.coordinator_epoch = coordinator_epoch
        self.txn_first_offset = txn_first_offset

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProducerEntry):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"ProducerEntry({fields})"


class ProducerStates:
    """All producers of one log.

    `entries` is the table by producer id. `ongoing` maps the first offset of each open transaction to its producer,
    in the order of offsets. `unreplicated` maps the first offset of each finished one to the offset of its marker,
    until the high watermark has passed that: to a consumer it is undecided as long as the marker could still be lost.

    `admitted` is the producer that may begin a transaction here: a leader lets NOBODY do so but the one whose
    coordinator has just said that it knows of the transaction. Otherwise a late batch of a transaction that is over
    could begin one that nobody would ever end.
    """

    __slots__ = ("admitted", "entries", "expiration_ms", "first_unstable_offset", "ongoing", "unreplicated")

    def __init__(self, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms
        self.admitted = ANYONE
        self.entries: dict[int, ProducerEntry] = {}
        self.ongoing: dict[int, int] = {}
        self.unreplicated: dict[int, int] = {}
        self.first_unstable_offset: int | None = None

    # --- checks, before anything is changed

    def check_client_batch(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int, transactional: bool
    ) -> BatchMeta | None:
        """A producer's batch: its duplicate if it is one of the last five, None if it may be appended, else
        KafkaError."""
        entry = self.entries.get(producer_id)
        if entry is None:
            if epoch < 0:
                raise _fenced(producer_id, epoch, 0)
            if transactional and self.admitted not in (producer_id, ANYONE):
                raise _not_admitted(producer_id)
            return None
        if epoch == entry.epoch:
            batches = entry.batches
            last = batches[-1].last_sequence if batches else -1
            if first_sequence != last + 1:
                for batch in batches:
                    if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                        return batch
                if first_sequence or last != _WRAP:
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
        elif self.admitted != ANYONE and self.admitted != producer_id and not self.has_open(producer_id, epoch):
            raise _not_admitted(producer_id)
        return None

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction open here, in this very epoch."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == epoch

    def check_coordinator_batch(self, producer_id: int, epoch: int, transactional: bool) -> None:
        """A coordinator writes for a producer: fenced by epoch, no sequences."""
        entry = self.entries.get(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise _fenced(producer_id, epoch, entry.epoch)
            if entry.txn_first_offset >= 0 and not transactional:
                raise _not_transactional(producer_id)

    def check_marker(self, producer_id: int, epoch: int, marker: EndMarker) -> None:
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        if epoch < entry.epoch:
            raise _fenced(producer_id, epoch, entry.epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"A marker of coordinator epoch {marker.coordinator_epoch} came after {entry.coordinator_epoch}.",
            )

    def check_raised_epoch(self, producer_id: int, epoch: int) -> None:
        """A marker of the newer protocol, in which every end of a transaction raises the epoch: one that is not above
        the epoch of what is open here speaks of an earlier transaction. (One that was written before may come again.)
        """
        entry = self.entries.get(producer_id)
        if entry is not None and epoch == entry.epoch and entry.txn_first_offset >= 0:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"A marker of epoch {epoch} cannot end the transaction that producer {producer_id} began in it.",
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
    ) -> ProducerEntry | None:
        """Take a data batch into the table; returns the entry that was there."""
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
                kept = entry.batches
                batches = (*kept, meta) if len(kept) < BATCHES_KEPT else (*kept[1:], meta)
            else:
                batches = (meta,)
        if transactional and txn_first_offset < 0:
            txn_first_offset = last_offset - offset_delta
            self.ongoing[txn_first_offset] = producer_id
            self.update_first_unstable()
        self.entries[producer_id] = ProducerEntry(
            producer_id, epoch, batches, timestamp, coordinator_epoch, txn_first_offset
        )
        return entry

    def append_marker(
        self, producer_id: int, epoch: int, marker: EndMarker, offset: int, timestamp: int
    ) -> tuple[ProducerEntry | None, AbortedTxn | None]:
        """End the producer's transaction at the marker's `offset`.

        Returns the entry that was there and, for an aborted transaction that had records, what the transaction index
        is to be told.
        """
        entry = self.entries.get(producer_id)
        batches: tuple[BatchMeta, ...] = ()
        aborted = None
        if entry is not None:
            if entry.epoch == epoch:
                batches = entry.batches
            first = entry.txn_first_offset
            if first >= 0:
                self.ongoing.pop(first, None)
                self.unreplicated[first] = offset
                if not marker.commit:
                    stable = next((o for o, owner in self.ongoing.items() if owner != producer_id), offset + 1)
                    aborted = AbortedTxn(producer_id, first, offset, stable)
                self.update_first_unstable()
        self.entries[producer_id] = ProducerEntry(producer_id, epoch, batches, timestamp, marker.coordinator_epoch)
        return entry, aborted

    def on_high_watermark(self, high_watermark: int) -> bool:
        """Forget finished transactions whose marker is below it; True where there were such."""
        if not self.unreplicated:
            return False
        gone = [first for first, last in self.unreplicated.items() if last < high_watermark]
        for first in gone:
            del self.unreplicated[first]
        if gone:
            self.update_first_unstable()
        return bool(gone)

    def update_first_unstable(self) -> None:
        first = next(iter(self.ongoing), None)
        if self.unreplicated:
            oldest = min(self.unreplicated)
            if first is None or oldest < first:
                first = oldest
        self.first_unstable_offset = first

    def restore(self, producer_id: int, entry: ProducerEntry | None) -> None:
        """Undo one change of the table."""
        if entry is None:
            self.entries.pop(producer_id, None)
        else:
            self.entries[producer_id] = entry

    def restore_transactions(self, ongoing: dict[int, int], unreplicated: dict[int, int]) -> None:
        self.ongoing = ongoing
        self.unreplicated = unreplicated
        self.update_first_unstable()

    def clear(self) -> None:
        self.entries.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.first_unstable_offset = None

    def load(self, entries: Iterable[ProducerEntry], now_ms: int) -> None:
        """Take entries from a snapshot, those aside that are too old to matter."""
        for entry in entries:
            if not self.is_expired(entry, now_ms):
                self.entries[entry.producer_id] = entry
                if entry.txn_first_offset >= 0:
                    self.ongoing[entry.txn_first_offset] = entry.producer_id
        self.ongoing = dict(sorted(self.ongoing.items()))
        self.update_first_unstable()

    def is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return entry.txn_first_offset < 0 and now_ms - entry.last_timestamp >= self.expiration_ms

    def expire(self, now_ms: int) -> int:
        """Forget producers that wrote nothing for `producer.id.expiration.ms` and have no open transaction."""
        gone = [pid for pid, entry in self.entries.items() if self.is_expired(entry, now_ms)]
        for pid in gone:
            del self.entries[pid]
        return len(gone)


def _fenced(producer_id: int, epoch: int, current: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch {epoch} of producer {producer_id} is smaller than its last seen epoch {current}.",
    )


def _not_admitted(producer_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        f"Producer {producer_id} may not begin a transaction here: the batch came without its transactional id.",
    )


def _not_transactional(producer_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"Producer {producer_id} sent a batch outside of a transaction while it has one open.",
    )
