"""Producer states: duplicates, the order of sequences, fencing, transactions, and snapshots."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.control import EndMarker
from kavka.storage.producer_snapshot import CorruptSnapshotError, SnapshotFiles, decode_snapshot, encode_snapshot
from kavka.storage.producer_state import NO_PRODUCER, BatchMeta, ProducerEntry, ProducerStates

MAX = 2**31 - 1


class Producers:
    """Records batches like a log, and assigns their offsets."""

    def __init__(self) -> None:
        self.states = ProducerStates(1000, SnapshotFiles("unused"))
        self.offset = 0

    def send(
        self, sequence: int, count: int = 1, *, pid: int = 1, epoch: int = 0, txn: bool = False
    ) -> BatchMeta | None:
        last = (sequence + count - 1) & MAX
        original = self.states.check_client_batch(pid, epoch, sequence, last, txn)
        if original is None:
            self.offset += count
            self.states.append_batch(pid, epoch, sequence, last, self.offset - 1, count - 1, 500, txn)
        return original

    def end(self, commit: bool, *, pid: int = 1, epoch: int = 0, coordinator: int = 0) -> object:
        marker = EndMarker(commit, coordinator)
        self.states.check_marker(pid, epoch, marker)
        self.offset += 1
        return self.states.append_marker(pid, epoch, marker, self.offset - 1, 500)

    def assert_rejected(self, code: ErrorCode, sequence: int, count: int = 1, **options: object) -> None:
        previous_entries = dict(self.states.entries)
        with pytest.raises(KafkaError) as raised:
            self.send(sequence, count, **options)  # type: ignore[arg-type]
        assert raised.value.code == code
        assert self.states.entries == previous_entries


@pytest.fixture
def producers() -> Producers:
    return Producers()


def test_duplicates_of_the_last_five_batches_are_detected(producers: Producers) -> None:
    for n in range(6):
        assert producers.send(n * 2, 2) is None
    for n in range(1, 6):
        original = producers.send(n * 2, 2)
        assert original is not None
        assert (original.first_offset, original.last_offset, original.timestamp) == (n * 2, n * 2 + 1, 500)
    producers.assert_rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 2)


def test_a_batch_that_overlaps_an_earlier_one_is_out_of_order(producers: Producers) -> None:
    producers.send(0, 4)
    producers.assert_rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 3)
    producers.assert_rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 2, 4)


def test_a_gap_in_the_sequence_is_rejected(producers: Producers) -> None:
    producers.send(0)
    producers.assert_rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 2)
    assert producers.send(1) is None


def test_an_unknown_producer_may_begin_with_any_sequence(producers: Producers) -> None:
    assert producers.send(17) is None
    assert producers.send(18) is None


def test_a_new_epoch_begins_with_sequence_zero(producers: Producers) -> None:
    producers.send(0)
    producers.assert_rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, epoch=1)
    assert producers.send(0, epoch=1) is None
    assert producers.send(1, epoch=1) is None


def test_an_older_epoch_is_fenced(producers: Producers) -> None:
    producers.send(0, epoch=3)
    producers.assert_rejected(ErrorCode.INVALID_PRODUCER_EPOCH, 1, epoch=2)


def test_batches_of_an_earlier_epoch_are_no_duplicates(producers: Producers) -> None:
    producers.send(0)
    assert producers.send(0, epoch=1) is None


def test_sequences_wrap_to_zero(producers: Producers) -> None:
    producers.send(MAX - 1, 2)
    assert producers.send(0) is None
    assert producers.states.entries[1].last_sequence == 0
    original = producers.send(0)
    assert original is not None and original.first_offset == 2


def test_sequences_may_wrap_within_a_batch(producers: Producers) -> None:
    producers.send(MAX, 3)
    assert producers.states.entries[1].last_sequence == 1
    original = producers.send(MAX, 3)
    assert original is not None and original.first_offset == 0
    assert producers.send(2) is None


def test_a_transaction_is_open_from_its_first_batch_to_its_marker(producers: Producers) -> None:
    producers.send(0)
    producers.send(1, 2, txn=True)
    producers.send(3, txn=True)
    states = producers.states
    assert states.first_unstable_offset == 1
    assert states.entries[1].txn_first_offset == 1
    assert producers.end(True) is None
    assert states.ongoing == {}
    assert states.first_unstable_offset == 1, "the marker can still be lost"
    states.on_high_watermark(4)
    assert states.first_unstable_offset == 1
    states.on_high_watermark(5)
    assert states.first_unstable_offset is None


def test_an_aborted_transaction_has_the_last_stable_offset_at_its_marker(producers: Producers) -> None:
    producers.send(0, 2, txn=True)
    producers.send(0, 3, pid=2, txn=True)
    assert producers.end(False) == (1, 0, 5, 2)
    assert producers.end(False, pid=2) == (2, 2, 6, 7)


def test_a_marker_without_a_transaction_aborts_nothing(producers: Producers) -> None:
    producers.send(0)
    assert producers.end(False) is None
    assert producers.states.first_unstable_offset is None


def test_a_marker_with_a_newer_epoch_fences_the_producer(producers: Producers) -> None:
    producers.send(0, txn=True)
    producers.end(False, epoch=1)
    producers.assert_rejected(ErrorCode.INVALID_PRODUCER_EPOCH, 1)
    producers.assert_rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, epoch=1)
    assert producers.send(0, epoch=1) is None


def test_a_marker_of_an_old_coordinator_is_fenced(producers: Producers) -> None:
    producers.send(0, txn=True)
    producers.end(True, coordinator=5)
    with pytest.raises(KafkaError) as raised:
        producers.end(True, coordinator=4)
    assert raised.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_batch_outside_of_the_open_transaction_is_rejected(producers: Producers) -> None:
    producers.send(0, txn=True)
    producers.assert_rejected(ErrorCode.INVALID_TXN_STATE, 1)


def test_only_the_admitted_producer_may_begin_a_transaction(producers: Producers) -> None:
    states = producers.states
    states.admitted_producer_id = NO_PRODUCER
    producers.assert_rejected(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 0, txn=True)
    states.admitted_producer_id = 2
    producers.assert_rejected(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 0, txn=True)
    states.admitted_producer_id = 1
    assert producers.send(0, txn=True) is None
    states.admitted_producer_id = NO_PRODUCER
    assert producers.send(1, txn=True) is None, "the transaction is already open"
    assert producers.send(0, pid=3) is None, "a batch outside of a transaction needs no admission"


def test_a_late_batch_of_a_completed_transaction_cannot_begin_another(producers: Producers) -> None:
    producers.send(0, txn=True)
    producers.end(True)
    producers.states.admitted_producer_id = NO_PRODUCER
    producers.assert_rejected(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 1, txn=True)
    original = producers.send(0, txn=True)
    assert original is not None, "a duplicate is still detected"


def test_a_transaction_of_an_older_epoch_does_not_admit_the_next_epoch(producers: Producers) -> None:
    producers.send(0, txn=True)
    producers.states.admitted_producer_id = NO_PRODUCER
    producers.assert_rejected(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 0, epoch=1, txn=True)
    assert not producers.states.has_open_transaction(1, 1)
    assert producers.states.has_open_transaction(1, 0)


def test_a_marker_that_bumps_the_epoch_must_exceed_that_of_the_open_transaction(producers: Producers) -> None:
    producers.send(0, epoch=4, txn=True)
    with pytest.raises(KafkaError) as raised:
        producers.states.check_bumped_epoch(1, 4)
    assert raised.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    producers.states.check_bumped_epoch(1, 5)
    producers.end(True, epoch=5)
    producers.states.check_bumped_epoch(1, 5)
    producers.end(True, epoch=5)
    assert producers.states.entries[1].txn_first_offset == -1, "a repeated marker leaves the transaction completed"
    producers.send(0, epoch=5, txn=True)
    with pytest.raises(KafkaError):
        producers.states.check_bumped_epoch(1, 5)


def test_a_batch_of_the_next_epoch_does_not_end_the_transaction_of_the_previous_one(producers: Producers) -> None:
    producers.send(0, txn=True)
    producers.send(0, epoch=1, txn=True)
    assert producers.states.entries[1].txn_first_offset == 0
    assert producers.end(False, epoch=1) == (1, 0, 2, 3)


def test_a_fenced_producer_cannot_repeat_a_batch(producers: Producers) -> None:
    producers.send(0)
    producers.send(0, epoch=1)
    producers.assert_rejected(ErrorCode.INVALID_PRODUCER_EPOCH, 0)


def test_a_marker_of_the_same_epoch_keeps_the_sequence(producers: Producers) -> None:
    producers.send(0, 3, txn=True)
    producers.end(True)
    producers.assert_rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 1, txn=True)
    assert producers.send(3, txn=True) is None


def test_a_coordinators_batches_are_fenced_by_epoch_and_have_no_sequence(producers: Producers) -> None:
    producers.send(0, epoch=2, txn=True)
    states = producers.states
    states.check_coordinator_batch(1, 2, True)
    with pytest.raises(KafkaError) as raised:
        states.check_coordinator_batch(1, 1, True)
    assert raised.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError) as raised:
        states.check_coordinator_batch(1, 2, False)
    assert raised.value.code == ErrorCode.INVALID_TXN_STATE


def test_the_first_unstable_offset_is_that_of_the_oldest_open_transaction(producers: Producers) -> None:
    producers.send(0, txn=True)
    producers.send(0, pid=2, txn=True)
    producers.end(True, pid=2)
    producers.end(True, pid=1)
    assert producers.states.first_unstable_offset == 0
    producers.states.on_high_watermark(3)
    assert producers.states.first_unstable_offset == 0
    producers.states.on_high_watermark(4)
    assert producers.states.first_unstable_offset is None


def test_inactive_producers_expire_unless_they_have_an_open_transaction(producers: Producers) -> None:
    producers.send(0)
    producers.send(0, pid=2, txn=True)
    assert producers.states.expire(1499) == 0
    assert producers.states.expire(1500) == 1
    assert list(producers.states.entries) == [2]


ENTRY = ProducerEntry(7, 3, (BatchMeta(8, 10, 1000, 2, 1234),), 1234, 5, 990)


def test_a_snapshot_has_kafkas_layout() -> None:
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 7, 3, 10, 1000, 2, 1234, 5, 990)
    assert encode_snapshot([ENTRY]) == struct.pack(">hI", 1, crc32c(body)) + body


def test_a_snapshot_restores_the_last_batch_of_each_producer() -> None:
    [entry] = decode_snapshot(encode_snapshot([ENTRY]))
    assert entry == ENTRY
    fresh = ProducerEntry(9, 0, (), 77, 1, -1)
    assert decode_snapshot(encode_snapshot([fresh])) == [fresh]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "version", "count"])
def test_a_malformed_snapshot_is_rejected(damage: str) -> None:
    data = bytearray(encode_snapshot([ENTRY]))
    if damage == "truncated":
        del data[-1]
    elif damage == "flipped":
        data[20] ^= 1
    elif damage == "version":
        data[1] = 2
    else:
        body = struct.pack(">i", 1000)
        data = bytearray(struct.pack(">hI", 1, crc32c(body)) + body)
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(bytes(data))


def test_the_last_valid_snapshot_is_used_and_later_ones_are_removed(tmp_path: Path) -> None:
    files = SnapshotFiles(str(tmp_path))
    files.write(10, [ENTRY])
    files.write(20, [])
    (tmp_path / "00000000000000000020.snapshot").write_bytes(b"torn")
    latest = files.read_latest()
    assert latest is not None
    assert latest == (10, [ENTRY])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000000000000000010.snapshot"]


def test_snapshots_of_segments_and_of_the_last_shutdown_are_retained(tmp_path: Path) -> None:
    files = SnapshotFiles(str(tmp_path))
    for offset in (10, 15, 20, 30, 40):
        files.write(offset, [])
    files.remove_strays([0, 10, 20])
    assert files.offsets == [10, 20, 40]
    files.remove_strays([0, 10, 20, 50])
    assert files.offsets == [10, 20]
