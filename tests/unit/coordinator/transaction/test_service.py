"""The transaction coordinator with real logs: what is in which of them when, also when one cannot
be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.shard_host import HostState
from kavka.coordinator.transaction.markers import Marker
from kavka.coordinator.transaction.shard import Producer
from kavka.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponsePartition,
)
from kavka.protocol.primitives import ZERO_UUID
from kavka.storage.log_append import AppendOrigin
from tests.support.logs import build
from tests.unit.coordinator.transaction.node import ME, OFFSETS, STATE, Node

ID = "an-id"
A, B = TopicPartition("a", 0), TopicPartition("b", 3)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    for tp in (STATE, OFFSETS, A, B):
        node.lead(tp)
    return node


def init(node: Node) -> Producer:
    return node.run(node.transactions.init_producer(ID, 60_000))


def add(node: Node, producer: Producer, *partitions: TopicPartition, version: int = 0) -> Any:
    return node.run(node.transactions.add_partitions(ID, producer.producer_id, producer.epoch, partitions, version))


def end(node: Node, producer: Producer, commit: bool, version: int = 0) -> Any:
    return node.transactions.end(ID, producer.producer_id, producer.epoch, commit, version, lambda result: result)


def write(node: Node, producer: Producer, tp: TopicPartition, sequence: int = 0) -> int:
    """A record of the transaction, as its producer's request would append it."""
    partition = node.replicas.partitions[tp]
    log = node.log(tp)
    batch = build(
        [(None, b"x")],
        node.clock.now_ms(),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=True,
    )
    log.producer_states.admitted = producer.producer_id
    info = partition.stage(memoryview(batch), 1, None, AppendOrigin.CLIENT)
    partition.write_staged()
    partition.advance()
    return info.first_offset


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_decided_then_marked_then_complete_within_one_request(node: Node, commit: bool) -> None:
    producer = init(node)
    add(node, producer, A, B)
    for tp in (A, B):
        write(node, producer, tp)
        assert node.log(tp).last_stable_offset == 0
    future = end(node, producer, commit)
    node.loop.turn()
    assert future.result() == producer
    assert node.state(ID) == ("CompleteCommit" if commit else "CompleteAbort")
    for tp in (A, B):
        assert node.markers(tp) == [(producer.producer_id, 0, commit, 1)]
        assert node.log(tp).last_stable_offset == 2
        assert len(list(node.log(tp).aborted_transactions(0, 2))) == (0 if commit else 1)
    add(node, producer, A)
    assert node.state(ID) == "Ongoing", "the next one can begin at once"


def test_there_is_no_response_and_no_marker_before_the_decision_is_committed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.lead(STATE, flush_messages=1)
    node.lead(A)
    producer = init(node)
    add(node, producer, A)
    node.hold(STATE)
    future = end(node, producer, True)
    node.loop.turn()
    assert not future.done()
    assert node.markers(A) == []
    node.release(STATE)
    assert future.result() == producer
    assert node.markers(A) == [(producer.producer_id, 0, True, 1)]


def test_a_decision_that_is_committed_too_late_for_its_caller_is_carried_out(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.lead(STATE, flush_messages=1)
    node.lead(A)
    producer = init(node)
    add(node, producer, A)
    node.hold(STATE)
    future = end(node, producer, True)
    node.loop.advance(6000)
    assert isinstance(future.exception(), KafkaError)
    assert node.markers(A) == []
    node.release(STATE)
    node.loop.advance(2000)
    assert node.markers(A) == [(producer.producer_id, 0, True, 1)]
    assert node.state(ID) == "CompleteCommit"


def test_markers_wait_for_a_partition_that_has_no_leader(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    node.replicas.partitions[B].leader_id = -1
    node.tell(B, -1)
    node.run(end(node, producer, True))
    assert (len(node.markers(A)), node.state(ID)) == (1, "PrepareCommit")
    with pytest.raises(KafkaError) as raised:
        add(node, producer, A)
    assert raised.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    node.loop.advance(5000)
    assert node.state(ID) == "PrepareCommit"
    node.lead(B, epoch=2)
    node.loop.advance(1100)
    assert node.state(ID) == "CompleteCommit"
    assert (len(node.markers(A)), len(node.markers(B))) == (1, 1), "those that were written are not written again"


def test_a_partition_whose_topic_was_deleted_holds_nothing_up(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    node.delete(B)
    node.run(end(node, producer, True))
    assert node.state(ID) == "PrepareCommit", "a broker that has just started may not have heard of it yet"
    node.loop.advance(6000)
    assert node.state(ID) == "CompleteCommit"
    assert len(node.markers(A)) == 1
    add(node, producer, A, B)
    node.run(end(node, producer, True))
    assert node.state(ID) == "CompleteCommit", "one that has been there for long knows"


def test_a_partition_without_metadata_is_not_treated_as_deleted(node: Node) -> None:
    producer = init(node)
    add(node, producer, A)
    write(node, producer, A)
    prepared = _prepare_without_markers(node, producer)
    node.restart()
    node.lead(STATE, epoch=2, is_published=False)
    node.loop.advance(3000)
    assert node.state(ID) == "PrepareCommit", "nothing is known of any topic"
    node.lead(A, epoch=2)
    node.tell(STATE, ME)
    node.loop.advance(1100)
    assert node.state(ID) == "CompleteCommit"
    assert node.markers(A) == [(producer.producer_id, prepared, True, 2)]


def _prepare_without_markers(node: Node, producer: Producer) -> int:
    """The decision is in the log, and then the broker is killed."""
    node.transactions.markers.send = lambda *_: None  # type: ignore[method-assign, assignment]
    node.run(end(node, producer, True))
    assert node.state(ID) == "PrepareCommit"
    return producer.epoch


def test_a_coordinator_that_starts_again_ends_what_was_decided(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    write(node, producer, A)
    _prepare_without_markers(node, producer)
    node.restart(A, B, STATE)
    node.loop.turn()
    assert node.state(ID) == "CompleteCommit"
    for tp in (A, B):
        assert node.markers(tp) == [(producer.producer_id, 0, True, 2)]
        assert node.log(tp).producer_states.first_unstable_offset is None


def test_markers_are_written_again_after_a_crash_before_the_completion_is_known(node: Node) -> None:
    """With the newer protocol the marker's epoch is already that of the partition: it is the same
    marker once more."""
    producer = init(node)
    add(node, producer, A, version=2)
    write(node, producer, A)
    node.transactions._complete = lambda *_: None  # type: ignore[method-assign, assignment]
    node.run(end(node, producer, True, 2))
    assert node.state(ID) == "PrepareCommit"
    node.restart(A, STATE)
    node.loop.turn()
    assert node.state(ID) == "CompleteCommit"
    marker = (producer.producer_id, 1, True)
    assert [marker[:3] for marker in node.markers(A)] == [marker, marker]
    assert node.log(A).last_stable_offset == node.log(A).end_offset


def test_open_transactions_are_known_after_a_restart_and_aborted_when_their_time_is_up(node: Node) -> None:
    producer = init(node)
    add(node, producer, A)
    write(node, producer, A)
    node.restart(A, STATE)
    node.loop.turn()
    assert node.state(ID) == "Ongoing"
    node.loop.advance(59_000)
    assert node.state(ID) == "Ongoing"
    node.loop.advance(12_000)
    assert node.state(ID) == "CompleteAbort"
    assert node.markers(A) == [(producer.producer_id, 1, False, 2)]
    with pytest.raises(KafkaError) as raised:
        end(node, producer, True)
    assert raised.value.code is ErrorCode.PRODUCER_FENCED


def test_ids_that_do_nothing_are_forgotten(node: Node) -> None:
    init(node)
    node.loop.advance(599_000)
    assert ID in node.transactions.host(ID).shard.transactions
    node.loop.advance(60_000)
    assert ID not in node.transactions.host(ID).shard.transactions
    node.restart(STATE)
    assert ID not in node.transactions.host(ID).shard.transactions


def test_a_completion_that_cannot_be_written_is_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = init(node)
    add(node, producer, A)
    log = node.log(STATE)
    append = type(log.active_segment.file).append
    writes = 0

    def fail_second(self: Any, *args: Any) -> None:
        nonlocal writes
        if self is log.active_segment.file:
            writes += 1
            if writes == 2:
                raise OSError(28, "No space left on device")
        append(self, *args)

    monkeypatch.setattr(type(log.active_segment.file), "append", fail_second)
    node.run(end(node, producer, True))
    assert node.state(ID) == "PrepareCommit"
    node.loop.advance(200)
    assert node.state(ID) == "CompleteCommit"
    assert len(node.markers(A)) == 1


def test_an_end_that_cannot_be_written_changes_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = init(node)
    add(node, producer, A)
    file = type(node.log(STATE).active_segment.file)
    append = file.append

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "append", fail)
    with pytest.raises(KafkaError):
        node.run(end(node, producer, True))
    assert node.state(ID) == "Ongoing"
    monkeypatch.setattr(file, "append", append)
    node.run(end(node, producer, False))
    assert node.markers(A) == [(producer.producer_id, 0, False, 1)]


def test_a_coordinator_that_resigns_stops_writing_markers(node: Node) -> None:
    producer = init(node)
    add(node, producer, A)
    node.replicas.partitions[A].leader_id = -1
    node.tell(A, -1)
    node.run(end(node, producer, True))
    node.resign(STATE)
    node.lead(A, epoch=2)
    node.loop.advance(5000)
    assert node.markers(A) == []
    with pytest.raises(KafkaError) as raised:
        init(node)
    assert raised.value.code is ErrorCode.NOT_COORDINATOR


# ---- partitions on other brokers


def test_markers_for_other_brokers_go_by_the_channel_until_they_have_them(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    node.tell(B, 7)
    node.run(end(node, producer, True))
    [(broker, marker, partitions, done)] = node.channel.sent
    assert (broker, marker, partitions) == (7, Marker(producer.producer_id, 0, True, 1, 0), [B])
    assert (len(node.markers(A)), node.state(ID)) == (1, "PrepareCommit")
    done({B: ErrorCode.NETWORK_EXCEPTION})
    node.tell(B, 8)
    node.loop.advance(100)
    broker, _, partitions, done = node.channel.sent[-1]
    assert (broker, partitions) == (8, [B])
    done({B: ErrorCode.NONE})
    node.loop.turn()
    assert node.state(ID) == "CompleteCommit"


def test_a_later_coordinator_ends_the_efforts_of_this_one(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    node.tell(B, 7)
    node.run(end(node, producer, True))
    node.channel.sent[-1][3]({B: ErrorCode.TRANSACTION_COORDINATOR_FENCED})
    node.loop.advance(5000)
    assert len(node.channel.sent) == 1
    assert node.state(ID) == "PrepareCommit", "it is for the other one to complete"


def test_a_partition_with_a_later_epoch_has_the_marker_already(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    node.tell(B, 7)
    node.run(end(node, producer, True))
    node.channel.sent[-1][3]({B: ErrorCode.INVALID_PRODUCER_EPOCH})
    node.loop.turn()
    assert node.state(ID) == "CompleteCommit"


# ---- offsets of groups


def commit_offset(node: Node, producer: Producer, offset: int) -> ErrorCode:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    answer = TxnOffsetCommitResponsePartition(partition_index=0)
    request = TxnOffsetCommitRequest(
        transactional_id=ID, group_id="g", producer_id=producer.producer_id, producer_epoch=producer.epoch
    )
    items = [("a", ZERO_UUID, partition, answer)]
    node.run(node.groups.commit_in_transaction(request, items, answer))
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_when_the_transaction_is_committed(node: Node, commit: bool) -> None:
    producer = init(node)
    add(node, producer, A, OFFSETS)
    assert commit_offset(node, producer, 5) is ErrorCode.NONE
    shard = node.groups.host("g").shard
    assert shard.offsets.get("g", "a", 0) is None
    node.run(end(node, producer, commit))
    committed = shard.offsets.get("g", "a", 0)
    assert (None if committed is None else committed.offset) == (5 if commit else None)
    assert node.state(ID).startswith("Complete")
    node.restart(A, OFFSETS, STATE)
    committed = node.groups.host("g").shard.offsets.get("g", "a", 0)
    assert (None if committed is None else committed.offset) == (5 if commit else None)


def test_offsets_that_are_decided_count_when_their_coordinator_has_loaded_them(node: Node) -> None:
    producer = init(node)
    add(node, producer, OFFSETS)
    commit_offset(node, producer, 5)
    _prepare_without_markers(node, producer)
    node.restart()
    node.lead(STATE, epoch=2)
    node.tell(OFFSETS, ME)
    node.loop.advance(100)
    assert node.state(ID) == "PrepareCommit"
    node.lead(OFFSETS, epoch=2)
    node.loop.advance(1100)
    assert node.state(ID) == "CompleteCommit"
    committed = node.groups.host("g").shard.offsets.get("g", "a", 0)
    assert committed is not None and committed.offset == 5


# ---- who may write


def test_a_partition_is_added_at_once_for_records_that_wait_for_it(node: Node) -> None:
    producer = init(node)
    admit = node.transactions.admit
    assert admit(ID, producer.producer_id, producer.epoch, [A], add=False) == {A}
    assert admit(ID, producer.producer_id, producer.epoch, [A], add=True) == frozenset()
    assert admit(ID, producer.producer_id, producer.epoch, [A, B], add=False) == {B}
    node.restart(STATE)
    assert node.state(ID) == "Ongoing", "it is in the log, not only in memory"


def test_records_wait_while_their_partition_is_added(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.lead(STATE, flush_messages=1)
    producer = init(node)
    node.hold(STATE)
    answer = node.transactions.admit(ID, producer.producer_id, producer.epoch, [A], add=True)
    again = node.transactions.admit(ID, producer.producer_id, producer.epoch, [A], add=True)
    admission = node.transactions.admit(ID, producer.producer_id, producer.epoch, [A], add=False)
    for outcome in (answer, again, admission):
        assert not outcome.done()  # type: ignore[union-attr]
    node.release(STATE)
    for outcome in (answer, again, admission):
        assert outcome.result() == frozenset()  # type: ignore[union-attr]


def test_a_fenced_producer_is_not_admitted(node: Node) -> None:
    old = init(node)
    init(node)
    for add_it in (True, False):
        with pytest.raises(KafkaError) as raised:
            node.transactions.admit(ID, old.producer_id, old.epoch, [A], add=add_it)
        assert raised.value.code is ErrorCode.PRODUCER_FENCED


def test_loading_shards_are_not_listed_as_missing(node: Node) -> None:
    init(node)
    assert [name for name, _ in node.transactions.list([], None)] == [ID]
    node.restart()
    partition = node.lead(STATE, epoch=2)
    host = node.transactions.runtime.host(0)
    host.state = HostState.LOADING
    with pytest.raises(KafkaError) as raised:
        node.transactions.list([], None)
    assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert partition.is_leader


def test_ids_are_forgotten_also_where_they_are_more_than_fit_into_a_batch(node: Node) -> None:
    names = [f"{number:02}{'x' * 30_000}" for number in range(40)]
    for name in names:
        node.run(node.transactions.init_producer(name, 60_000))
    assert len(node.transactions.host(ID).shard.transactions) == len(names)
    node.loop.advance(700_000)
    assert node.transactions.host(ID).shard.transactions == {}
