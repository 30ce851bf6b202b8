"""Commits, fetches and expiry of offsets in consumer groups."""

from __future__ import annotations

from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.group import OffsetCommit
from kavka.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitResponsePartition
from tests.unit.coordinator.consumer.harness import SESSION, ConsumerHarness, topic_id
from tests.unit.coordinator.harness import GROUP


def commit(
    harness: ConsumerHarness,
    member_id: str,
    epoch: int,
    *partitions: tuple[str, int],
    version: int = 9,
    is_transactional: bool = False,
) -> ErrorCode:
    items: list[Any] = [
        (
            name,
            topic_id(name),
            OffsetCommitRequestPartition(partition_index=index, committed_offset=5),
            OffsetCommitResponsePartition(partition_index=index),
        )
        for name, index in partitions or (("t", 0),)
    ]
    try:
        harness.shard.commit_offsets(
            OffsetCommit(GROUP, member_id, None, epoch, version, items, is_transactional=is_transactional)
        )
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_a_member_commits_with_its_epoch() -> None:
    harness = ConsumerHarness({"t": 1})
    member = harness.member("t")
    assert commit(harness, member.name, member.epoch) is ErrorCode.NONE
    assert commit(harness, member.name, member.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(harness, "other", member.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(harness, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_with_an_older_epoch_is_accepted_for_partitions_owned_since_that_epoch() -> None:
    harness = ConsumerHarness({"t": 2, "u": 1})
    member = harness.member("t")
    old_epoch = member.epoch
    harness.topics.set("t", 4)
    harness.heartbeat_until_stable(member)
    assert member.epoch == old_epoch + 1
    assert commit(harness, member.name, old_epoch, ("t", 0), ("t", 1)) is ErrorCode.NONE
    assert commit(harness, member.name, old_epoch, ("t", 0), ("t", 3)) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(harness, member.name, old_epoch, ("u", 0)) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(harness, member.name, old_epoch - 1, ("t", 0)) is ErrorCode.STALE_MEMBER_EPOCH


def test_a_member_may_commit_partitions_that_it_is_revoking() -> None:
    harness = ConsumerHarness({"t": 2})
    first = harness.member("t")
    harness.member("t")
    harness.beat(first.name, first.epoch, owned=sorted(first.owned))
    assert first.current.revoking
    assert commit(harness, first.name, first.epoch, ("t", 0), ("t", 1)) is ErrorCode.NONE


@pytest.mark.parametrize("version", [5, 8])
def test_members_need_a_request_version_with_epochs(version: int) -> None:
    harness = ConsumerHarness({"t": 1})
    member = harness.member("t")
    assert commit(harness, member.name, member.epoch, version=version) is ErrorCode.UNSUPPORTED_VERSION


def test_any_client_may_commit_to_a_group_without_members() -> None:
    harness = ConsumerHarness({"t": 1})
    member = harness.member("t")
    member.leave()
    assert commit(harness, "", -1) is ErrorCode.NONE
    assert commit(harness, member.name, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_transactional_commit_needs_no_member_id() -> None:
    harness = ConsumerHarness({"t": 1})
    member = harness.member("t")
    assert commit(harness, "", -1, is_transactional=True) is ErrorCode.NONE
    assert commit(harness, member.name, member.epoch, is_transactional=True, version=3) is ErrorCode.NONE
    assert commit(harness, member.name, 99, is_transactional=True) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(harness, "other", 1, is_transactional=True) is ErrorCode.UNKNOWN_MEMBER_ID


def fetch(harness: ConsumerHarness, member_id: str | None, epoch: int) -> ErrorCode:
    try:
        harness.shard.check_fetch(GROUP, member_id, epoch)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_a_fetch_with_a_member_id_needs_the_members_epoch() -> None:
    harness = ConsumerHarness({"t": 1})
    member = harness.member("t")
    assert fetch(harness, None, -1) is ErrorCode.NONE
    assert fetch(harness, member.name, member.epoch) is ErrorCode.NONE
    assert fetch(harness, member.name, member.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(harness, "other", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_topics_in_use_are_not_deleted() -> None:
    harness = ConsumerHarness({"t": 1, "u": 1})
    member = harness.member("t")
    harness.commit({("t", 0): 1, ("u", 0): 2}, member_id=member.name, generation=member.epoch)
    deleted, in_use = harness.shard.delete_offsets(GROUP, [("t", 0), ("u", 0)])
    assert [(record.topic, record.value) for record in deleted] == [("u", None)]
    assert in_use == {"t"}


def test_offsets_of_unsubscribed_topics_expire() -> None:
    harness = ConsumerHarness({"t": 1, "u": 1})
    member = harness.member("t")
    harness.commit({("t", 0): 1, ("u", 0): 2}, member_id=member.name, generation=member.epoch)
    harness.clock.ms += harness.config.offsets_retention_ms
    member.beat()
    harness.submit(harness.shard.expire())
    assert (harness.offset("t", 0), harness.offset("u", 0)) == (1, None)
    harness.advance(SESSION)
    harness.clock.ms += harness.config.offsets_retention_ms
    harness.submit(harness.shard.expire())
    assert (harness.offset("t", 0), harness.shard.groups) == (None, {})
    harness.restart()
    assert harness.shard.groups == {}
