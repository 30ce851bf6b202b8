"""The transaction coordinator with real logs: markers, restarts and failed writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.shard_host import HostState
from kavka.coordinator.transaction.markers import Marker
from kavka.coordinator.transaction.shard import ProducerIdAndEpoch
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


def init(node: Node) -> ProducerIdAndEpoch:
    return node.run(node.transactions.init_producer(ID, 60_000))


def add(node: Node, producer: ProducerIdAndEpoch, *partitions: TopicPartition, version: int = 0) -> Any:
    return node.run(node.transactions.add_partitions(ID, producer.producer_id, producer.epoch, partitions, version))


def end(node: Node, producer: ProducerIdAndEpoch, commit: bool, version: int = 0) -> Any:
    return node.transactions.end(ID, producer.producer_id, producer.epoch, commit, version, lambda result: result)


def write(node: Node, producer: ProducerIdAndEpoch, tp: TopicPartition, sequence: int = 0) -> int:
    """Append a record of the transaction like a Produce request. Return its offset."""
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
    log.producer_states.admitted_producer_id = producer.producer_id
    info = partition.stage(memoryview(batch), 1, None, AppendOrigin.CLIENT)
    partition.write_staged()
    partition.advance()
    return info.first_offset


@pytest.mark.parametrize("commit", [True, False])
def test_one_request_writes_the_decision_the_markers_and_the_completion(node: Node, commit: bool) -> None:
    producer = init(node)
    add(node, producer, A, B)
    for tp in (A, B):
        write(node, producer, tp)
        assert node.log(tp).last_stable_offset == 0
    future = end(node, producer, commit)
    node.loop.run_ready()
    assert future.result() == producer
    assert node.state(ID) == ("CompleteCommit" if commit else "CompleteAbort")
    for tp in (A, B):
        assert node.markers(tp) == [(producer.producer_id, 0, commit, 1)]
        assert node.log(tp).last_stable_offset == 2
        assert len(list(node.log(tp).aborted_transactions(0, 2))) == (0 if commit else 1)
    add(node, producer, A)
    assert node.state(ID) == "Ongoing", "the next transaction can start at once"


def test_the_response_and_the_markers_wait_until_the_decision_is_committed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.lead(STATE, flush_messages=1)
    node.lead(A)
    producer = init(node)
    add(node, producer, A)
    node.hold(STATE)
    future = end(node, producer, True)
    node.loop.run_ready()
    assert not future.done()
    assert node.markers(A) == []
    node.release(STATE)
    assert future.result() == producer
    assert node.markers(A) == [(producer.producer_id, 0, True, 1)]


def test_a_decision_that_is_committed_after_the_callers_timeout_takes_effect(tmp_path: Path) -> None:
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


def test_markers_wait_for_a_partition_without_a_leader(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    node.replicas.partitions[B].leader_id = -1
    node.publish_leader(B, -1)
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
    assert (len(node.markers(A)), len(node.markers(B))) == (1, 1), "each partition gets one marker"


def test_a_deleted_topic_does_not_delay_the_completion(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    node.delete(B)
    node.run(end(node, producer, True))
    assert node.state(ID) == "PrepareCommit", "a broker that has just started may not have all metadata"
    node.loop.advance(6000)
    assert node.state(ID) == "CompleteCommit"
    assert len(node.markers(A)) == 1
    add(node, producer, A, B)
    node.run(end(node, producer, True))
    assert node.state(ID) == "CompleteCommit", "now the metadata is complete"


def test_a_partition_without_metadata_is_not_treated_as_deleted(node: Node) -> None:
    producer = init(node)
    add(node, producer, A)
    write(node, producer, A)
    prepared = _prepare_without_markers(node, producer)
    node.restart()
    node.lead(STATE, epoch=2, is_published=False)
    node.loop.advance(3000)
    assert node.state(ID) == "PrepareCommit", "the broker has no metadata"
    node.lead(A, epoch=2)
    node.publish_leader(STATE, ME)
    node.loop.advance(1100)
    assert node.state(ID) == "CompleteCommit"
    assert node.markers(A) == [(producer.producer_id, prepared, True, 2)]


def _prepare_without_markers(node: Node, producer: ProducerIdAndEpoch) -> int:
    """Write a decision but no markers. Return the epoch of the producer."""
    node.transactions.markers.send = lambda *_: None  # type: ignore[method-assign, assignment]
    node.run(end(node, producer, True))
    assert node.state(ID) == "PrepareCommit"
    return producer.epoch


def test_a_restarted_coordinator_completes_decided_transactions(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    write(node, producer, A)
    _prepare_without_markers(node, producer)
    node.restart(A, B, STATE)
    node.loop.run_ready()
    assert node.state(ID) == "CompleteCommit"
    for tp in (A, B):
        assert node.markers(tp) == [(producer.producer_id, 0, True, 2)]
        assert node.log(tp).producer_states.first_unstable_offset is None


def test_markers_are_written_again_after_a_crash_before_the_completion(node: Node) -> None:
    """In transaction version 2 the second marker has the same epoch as the partition's producer
    state."""
    producer = init(node)
    add(node, producer, A, version=2)
    write(node, producer, A)
    node.transactions._complete = lambda *_: None  # type: ignore[method-assign, assignment]
    node.run(end(node, producer, True, 2))
    assert node.state(ID) == "PrepareCommit"
    node.restart(A, STATE)
    node.loop.run_ready()
    assert node.state(ID) == "CompleteCommit"
    marker = (producer.producer_id, 1, True)
    assert [marker[:3] for marker in node.markers(A)] == [marker, marker]
    assert node.log(A).last_stable_offset == node.log(A).end_offset


def test_open_transactions_survive_a_restart_and_are_aborted_after_their_timeout(node: Node) -> None:
    producer = init(node)
    add(node, producer, A)
    write(node, producer, A)
    node.restart(A, STATE)
    node.loop.run_ready()
    assert node.state(ID) == "Ongoing"
    node.loop.advance(59_000)
    assert node.state(ID) == "Ongoing"
    node.loop.advance(12_000)
    assert node.state(ID) == "CompleteAbort"
    assert node.markers(A) == [(producer.producer_id, 1, False, 2)]
    with pytest.raises(KafkaError) as raised:
        end(node, producer, True)
    assert raised.value.code is ErrorCode.PRODUCER_FENCED


def test_unused_transactional_ids_expire(node: Node) -> None:
    init(node)
    node.loop.advance(599_000)
    assert ID in node.transactions.host(ID).shard.transactions
    node.loop.advance(60_000)
    assert ID not in node.transactions.host(ID).shard.transactions
    node.restart(STATE)
    assert ID not in node.transactions.host(ID).shard.transactions


def test_a_failed_write_of_a_completion_is_retried(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_failed_write_of_a_decision_changes_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
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
    node.publish_leader(A, -1)
    node.run(end(node, producer, True))
    node.resign(STATE)
    node.lead(A, epoch=2)
    node.loop.advance(5000)
    assert node.markers(A) == []
    with pytest.raises(KafkaError) as raised:
        init(node)
    assert raised.value.code is ErrorCode.NOT_COORDINATOR


# ---- partitions on other brokers


def test_markers_for_other_brokers_are_sent_until_they_succeed(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    node.publish_leader(B, 7)
    node.run(end(node, producer, True))
    [(broker, marker, partitions, done)] = node.channel.sent
    assert (broker, marker, partitions) == (7, Marker(producer.producer_id, 0, True, 1, 0), [B])
    assert (len(node.markers(A)), node.state(ID)) == (1, "PrepareCommit")
    done({B: ErrorCode.NETWORK_EXCEPTION})
    node.publish_leader(B, 8)
    node.loop.advance(100)
    broker, _, partitions, done = node.channel.sent[-1]
    assert (broker, partitions) == (8, [B])
    done({B: ErrorCode.NONE})
    node.loop.run_ready()
    assert node.state(ID) == "CompleteCommit"


def test_a_fenced_coordinator_sends_no_more_markers(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    node.publish_leader(B, 7)
    node.run(end(node, producer, True))
    node.channel.sent[-1][3]({B: ErrorCode.TRANSACTION_COORDINATOR_FENCED})
    node.loop.advance(5000)
    assert len(node.channel.sent) == 1
    assert node.state(ID) == "PrepareCommit", "the newer coordinator completes the transaction"


def test_a_partition_with_a_later_epoch_needs_no_marker(node: Node) -> None:
    producer = init(node)
    add(node, producer, A, B)
    node.publish_leader(B, 7)
    node.run(end(node, producer, True))
    node.channel.sent[-1][3]({B: ErrorCode.INVALID_PRODUCER_EPOCH})
    node.loop.run_ready()
    assert node.state(ID) == "CompleteCommit"


# ---- offsets of groups


def commit_offset(node: Node, producer: ProducerIdAndEpoch, offset: int) -> ErrorCode:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    response = TxnOffsetCommitResponsePartition(partition_index=0)
    request = TxnOffsetCommitRequest(
        transactional_id=ID, group_id="g", producer_id=producer.producer_id, producer_epoch=producer.epoch
    )
    items = [("a", ZERO_UUID, partition, response)]
    node.run(node.groups.commit_in_transaction(request, items, response))
    return ErrorCode(response.error_code)


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_take_effect_when_the_transaction_is_committed(node: Node, commit: bool) -> None:
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


def test_committed_offsets_take_effect_when_their_group_coordinator_is_loaded(node: Node) -> None:
    producer = init(node)
    add(node, producer, OFFSETS)
    commit_offset(node, producer, 5)
    _prepare_without_markers(node, producer)
    node.restart()
    node.lead(STATE, epoch=2)
    node.publish_leader(OFFSETS, ME)
    node.loop.advance(100)
    assert node.state(ID) == "PrepareCommit"
    node.lead(OFFSETS, epoch=2)
    node.loop.advance(1100)
    assert node.state(ID) == "CompleteCommit"
    committed = node.groups.host("g").shard.offsets.get("g", "a", 0)
    assert committed is not None and committed.offset == 5


# ---- add_or_verify


def test_admit_adds_a_partition_at_once(node: Node) -> None:
    producer = init(node)
    add_or_verify = node.transactions.add_or_verify
    assert add_or_verify(ID, producer.producer_id, producer.epoch, [A], add=False) == {A}
    assert add_or_verify(ID, producer.producer_id, producer.epoch, [A], add=True) == frozenset()
    assert add_or_verify(ID, producer.producer_id, producer.epoch, [A, B], add=False) == {B}
    node.restart(STATE)
    assert node.state(ID) == "Ongoing", "the partition is in the log"


def test_admit_waits_until_the_added_partition_is_committed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.lead(STATE, flush_messages=1)
    producer = init(node)
    node.hold(STATE)
    response = node.transactions.add_or_verify(ID, producer.producer_id, producer.epoch, [A], add=True)
    repeated = node.transactions.add_or_verify(ID, producer.producer_id, producer.epoch, [A], add=True)
    verification = node.transactions.add_or_verify(ID, producer.producer_id, producer.epoch, [A], add=False)
    for outcome in (response, repeated, verification):
        assert not outcome.done()  # type: ignore[union-attr]
    node.release(STATE)
    for outcome in (response, repeated, verification):
        assert outcome.result() == frozenset()  # type: ignore[union-attr]


def test_a_fenced_producer_is_not_admitted(node: Node) -> None:
    fenced = init(node)
    init(node)
    for adds in (True, False):
        with pytest.raises(KafkaError) as raised:
            node.transactions.add_or_verify(ID, fenced.producer_id, fenced.epoch, [A], add=adds)
        assert raised.value.code is ErrorCode.PRODUCER_FENCED


def test_an_empty_id_is_refused(node: Node) -> None:
    calls = [
        lambda: node.run(node.transactions.init_producer("", 60_000)),
        lambda: node.transactions.add_partitions("", 1, 0, [A]),
        lambda: node.transactions.missing_partitions("", 1, 0, [A]),
        lambda: node.transactions.end("", 1, 0, True, 0, lambda result: result),
        lambda: node.transactions.describe(""),
    ]
    for call in calls:
        with pytest.raises(KafkaError) as raised:
            call()
        assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_listing_fails_while_a_shard_is_loading(node: Node) -> None:
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


def test_more_transactional_ids_expire_than_fit_into_a_batch(node: Node) -> None:
    names = [f"{number:02}{'x' * 30_000}" for number in range(40)]
    for name in names:
        node.run(node.transactions.init_producer(name, 60_000))
    assert len(node.transactions.host(ID).shard.transactions) == len(names)
    node.loop.advance(700_000)
    assert node.transactions.host(ID).shard.transactions == {}
