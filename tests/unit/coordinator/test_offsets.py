"""Commits, fetches, deletion and expiry of offsets, inside and outside of transactions."""

from __future__ import annotations

from uuid import UUID

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.offsets import OffsetStore
from kavka.coordinator.group.records import CommittedOffset, OffsetRecord
from kavka.coordinator.operations import Journal
from tests.unit.coordinator.harness import DELAY, GROUP, SESSION, Harness, subscription

RETENTION = 7 * 24 * 3_600_000
T0 = ("t", 0)


@pytest.fixture
def group() -> Harness:
    return Harness()


# ---- committing


def test_a_group_without_members_can_have_offsets(group: Harness) -> None:
    assert group.commit({T0: 5}) == {T0: ErrorCode.NONE}
    assert group.offset(*T0) == 5
    assert group.state == "Empty"
    assert group.group.is_simple


def test_the_last_commit_wins_even_if_its_offset_is_lower(group: Harness) -> None:
    group.commit({T0: 5})
    group.commit({T0: 3})
    assert group.offset(*T0) == 3
    group.restart()
    assert group.offset(*T0) == 3


def test_metadata_and_epoch_of_an_offset_are_stored(group: Harness) -> None:
    group.commit({T0: 5}, metadata="note", leader_epoch=7)
    group.restart()
    committed = group.shard.offsets.get(GROUP, *T0)
    assert committed is not None
    assert (committed.metadata, committed.leader_epoch) == ("note", 7)


def test_null_metadata_is_stored_as_empty_metadata(group: Harness) -> None:
    group.commit({T0: 5}, metadata=None)
    committed = group.shard.offsets.get(GROUP, *T0)
    assert committed is not None
    assert committed.metadata == ""


def test_a_member_commits_with_its_generation(group: Harness) -> None:
    (member,) = group.stable()
    assert group.commit({T0: 5}, member_id=member, generation=1) == {T0: ErrorCode.NONE}


def test_a_commit_of_an_unknown_member_or_another_generation_is_refused(group: Harness) -> None:
    (member,) = group.stable()
    assert group.commit({T0: 5}, member_id="unknown", generation=1) == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert group.commit({T0: 5}, member_id=member, generation=0) == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert group.commit({T0: 5}, member_id=member, generation=2) == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert group.commit({T0: 5}, member_id=member) == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert group.offset(*T0) is None


def test_only_members_may_commit_while_a_group_has_members(group: Harness) -> None:
    group.stable()
    assert group.commit({T0: 5}) == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert group.offset(*T0) is None


def test_a_commit_with_a_generation_to_a_missing_group_is_refused(group: Harness) -> None:
    assert group.commit({T0: 5}, member_id="m", generation=3, version=8) == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert group.commit({T0: 5}, member_id="m", generation=3, version=9) == {T0: ErrorCode.GROUP_ID_NOT_FOUND}
    assert group.shard.groups == {}


def test_a_commit_is_accepted_while_members_join_and_refused_between_join_and_sync(group: Harness) -> None:
    first, second = group.stable(2)
    pending_joins = [group.join(first)]
    assert group.commit({T0: 5}, member_id=second, generation=1) == {T0: ErrorCode.NONE}
    pending_joins.append(group.join(second))
    assert group.commit({T0: 6}, member_id=second, generation=2) == {T0: ErrorCode.REBALANCE_IN_PROGRESS}
    assert group.offset(*T0) == 5


def test_a_commit_extends_the_session(group: Harness) -> None:
    (member,) = group.stable()
    for offset in range(5):
        group.advance(SESSION - 1)
        assert group.commit({T0: offset}, member_id=member, generation=1) == {T0: ErrorCode.NONE}


def test_a_partition_with_too_long_metadata_is_refused() -> None:
    group = Harness(offset_metadata_max_bytes=10)
    assert group.commit({T0: 1}, metadata="x" * 11) == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert group.shard.groups == {}
    assert group.commit({T0: 1}, metadata="x" * 10) == {T0: ErrorCode.NONE}


def test_long_metadata_survives_a_restart(group: Harness) -> None:
    group.commit({T0: 1}, metadata="é" * 2000)
    group.restart()
    committed = group.shard.offsets.get(GROUP, *T0)
    assert committed is not None
    assert committed.metadata == "é" * 2000


# ---- topic ids


def test_an_offset_of_a_recreated_topic_is_not_returned_by_topic_id(group: Harness) -> None:
    old_id, new_id = UUID(int=1), UUID(int=2)
    group.shard.replay(OffsetRecord(GROUP, "t", 0, CommittedOffset(5, -1, "", 0, -1, old_id)))
    assert group.shard.fetch_offset(GROUP, "t", 0, False, new_id) is None
    for requested_id in (old_id, UUID(int=0)):
        committed = group.shard.fetch_offset(GROUP, "t", 0, False, requested_id)
        assert committed is not None
        assert committed.offset == 5


# ---- expiry


def expire(group: Harness) -> None:
    group.submit(group.shard.expire())


def test_offsets_of_a_group_without_members_expire_after_their_commit(group: Harness) -> None:
    group.commit({T0: 1})
    group.advance(RETENTION - 1)
    group.commit({("t", 1): 2})
    expire(group)
    assert group.offset(*T0) == 1
    group.advance(1)
    expire(group)
    assert group.offset(*T0) is None
    assert group.offset("t", 1) == 2
    group.restart()
    assert group.offset(*T0) is None


def test_offsets_of_a_group_with_members_do_not_expire(group: Harness) -> None:
    (member,) = group.stable()
    group.commit({T0: 1}, member_id=member, generation=1)
    for _ in range(3):
        # Advance only the clock: the timers would remove the member.
        group.clock.ms += RETENTION
        group.heartbeat(member, 1)
        expire(group)
    assert group.offset(*T0) == 1


def test_offsets_of_an_empty_group_expire_after_the_group_became_empty(group: Harness) -> None:
    (member,) = group.stable()
    group.commit({T0: 1}, member_id=member, generation=1)
    group.clock.ms += RETENTION
    group.leave((member, None))
    expire(group)
    assert group.offset(*T0) == 1
    group.advance(RETENTION - 1)
    group.restart()
    expire(group)
    assert group.offset(*T0) == 1
    group.advance(1)
    expire(group)
    assert group.offset(*T0) is None


def test_offsets_of_unsubscribed_topics_expire_after_their_commit(group: Harness) -> None:
    (member,) = group.stable(protocols=(("range", subscription("used")),))
    group.commit({("used", 0): 1, ("unused", 0): 2}, member_id=member, generation=1)
    group.clock.ms += RETENTION
    group.heartbeat(member, 1)
    expire(group)
    assert group.offset("used", 0) == 1
    assert group.offset("unused", 0) is None


def test_no_offset_expires_during_a_rebalance_or_with_unknown_subscriptions(group: Harness) -> None:
    first, _ = group.stable(2, protocols=(("range", b"?"),))
    group.commit({T0: 1}, member_id=first, generation=1)
    group.clock.ms += RETENTION
    expire(group)
    assert group.offset(*T0) == 1
    group.join(first)
    expire(group)
    assert group.offset(*T0) == 1


def test_a_commit_of_version_2_may_set_its_retention_time(group: Harness) -> None:
    group.commit({T0: 1}, version=2, retention_ms=1_000)
    group.restart()
    group.advance(999)
    expire(group)
    assert group.offset(*T0) == 1
    group.advance(1)
    expire(group)
    assert group.offset(*T0) is None


def test_a_commit_of_version_1_may_set_its_timestamp(group: Harness) -> None:
    group.commit({T0: 1}, version=1, timestamp=group.clock.now_ms() - RETENTION)
    expire(group)
    assert group.offset(*T0) is None


def test_an_empty_group_without_offsets_is_removed(group: Harness) -> None:
    (member,) = group.stable()
    group.leave((member, None))
    expire(group)
    assert group.shard.groups == {}
    group.restart()
    assert group.shard.groups == {}


def test_a_group_with_a_pending_member_id_is_not_removed(group: Harness) -> None:
    pending = group.join()
    expire(group)
    assert group.join(pending.response.member_id).is_pending


def test_offsets_remain_when_their_expiry_cannot_be_written(group: Harness) -> None:
    (member,) = group.stable()
    group.commit({T0: 1}, member_id=member, generation=1)
    group.leave((member, None))
    timestamp = group.group.state_timestamp
    group.advance(RETENTION)
    group.failure = ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaError):
        expire(group)
    assert group.offset(*T0) == 1
    assert (group.state, group.group.state_timestamp) == ("Empty", timestamp)
    group.failure = None
    assert group.join().code is ErrorCode.MEMBER_ID_REQUIRED


# ---- deleting


def test_an_empty_group_is_deleted_with_its_offsets(group: Harness) -> None:
    (member,) = group.stable()
    group.commit({T0: 1}, member_id=member, generation=1)
    group.leave((member, None))
    group.submit(group.shard.delete_group(GROUP))
    assert group.shard.groups == {}
    group.restart()
    assert group.shard.groups == {}
    assert group.offset(*T0) is None


def test_a_group_with_members_cannot_be_deleted(group: Harness) -> None:
    group.stable()
    with pytest.raises(KafkaError) as error:
        group.shard.delete_group(GROUP)
    assert error.value.code is ErrorCode.NON_EMPTY_GROUP
    assert group.state == "Stable"


def test_a_missing_group_cannot_be_deleted(group: Harness) -> None:
    with pytest.raises(KafkaError) as error:
        group.shard.delete_group(GROUP)
    assert error.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_accepts_no_member_until_its_deletion_is_committed(group: Harness) -> None:
    group.commit({T0: 1})
    group.hold = True
    group.submit(group.shard.delete_group(GROUP))
    assert group.join().code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.commit({T0: 2}) == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    group.release()
    assert group.join().code is ErrorCode.MEMBER_ID_REQUIRED


def test_offsets_of_unsubscribed_topics_are_deleted(group: Harness) -> None:
    (member,) = group.stable(protocols=(("range", subscription("used")),))
    group.commit({("used", 0): 1, ("unused", 0): 2}, member_id=member, generation=1)
    tombstones, subscribed = group.shard.delete_offsets(GROUP, [("used", 0), ("unused", 0), ("unused", 1)])
    assert subscribed == {"used"}
    assert [(r.topic, r.partition, r.value) for r in tombstones] == [("unused", 0, None)]


def test_offsets_of_another_protocol_type_are_deleted_only_in_an_empty_group(group: Harness) -> None:
    pending = group.join_new(protocol_type="connect", protocols=(("default", b""),))
    group.advance(DELAY)
    member = pending.response.member_id
    with pytest.raises(KafkaError) as error:
        group.shard.delete_offsets(GROUP, [T0])
    assert error.value.code is ErrorCode.NON_EMPTY_GROUP
    group.leave((member, None))
    assert group.shard.delete_offsets(GROUP, [T0]) == ([], set())


def test_offsets_of_a_deleted_topic_are_deleted_in_all_groups(group: Harness) -> None:
    group.commit({("deleted", 0): 1, ("used", 0): 2})
    group.commit({("deleted", 3): 3}, group="another")
    group.submit(group.shard.delete_offsets_of_topics(frozenset({"deleted"})))
    group.restart()
    assert group.offset("deleted", 0) is None
    assert group.offset("deleted", 3, "another") is None
    assert group.offset("used", 0) == 2


# ---- listing


def test_groups_are_listed_by_state_and_type(group: Harness) -> None:
    group.stable()
    group.commit({T0: 1}, group="simple")
    listed = group.shard.list(frozenset(), frozenset())
    assert {(g.group_id, g.group_state, g.protocol_type, g.group_type) for g in listed} == {
        (GROUP, "Stable", "consumer", "classic"),
        ("simple", "Empty", "", "classic"),
    }
    assert [g.group_id for g in group.shard.list(frozenset({"stable"}), frozenset())] == [GROUP]
    assert group.shard.list(frozenset(), frozenset({"consumer"})) == []


def test_metadata_and_assignments_are_described_only_while_the_group_is_stable(group: Harness) -> None:
    first, _ = group.stable(2)
    group.join(first)
    described = group.shard.describe(GROUP)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [(m.member_metadata, m.member_assignment) for m in described.members] == [(b"", b"")] * 2


# ---- in transactions


def add_pending(group: Harness, offset: int, producer_id: int, partition: int = 0) -> None:
    group.shard.replay(OffsetRecord(GROUP, "t", partition, CommittedOffset(offset, -1, "", 0)), producer_id)


def test_a_transactional_commit_takes_effect_when_the_transaction_is_committed(group: Harness) -> None:
    add_pending(group, 5, 1)
    assert group.offset(*T0) is None
    group.shard.replay_end_of_transaction(1, True)
    assert group.offset(*T0) == 5


def test_a_commit_in_an_aborted_transaction_is_discarded(group: Harness) -> None:
    group.commit({T0: 3})
    add_pending(group, 5, 1)
    group.shard.replay_end_of_transaction(1, False)
    assert group.offset(*T0) == 3


def test_a_fetch_of_stable_offsets_fails_while_the_transaction_is_open(group: Harness) -> None:
    group.commit({T0: 3})
    add_pending(group, 5, 1)
    committed = group.shard.fetch_offset(GROUP, "t", 0, False)
    assert committed is not None
    assert committed.offset == 3
    with pytest.raises(KafkaError) as error:
        group.shard.fetch_offset(GROUP, "t", 0, True)
    assert error.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert group.shard.fetch_offset(GROUP, "t", 1, True) is None


def test_a_later_commit_outside_the_transaction_supersedes_the_pending_commit(group: Harness) -> None:
    add_pending(group, 5, 1)
    group.commit({T0: 9})
    group.shard.replay_end_of_transaction(1, True)
    assert group.offset(*T0) == 9


def test_of_two_transactions_the_later_commit_wins_in_any_order_of_ends(group: Harness) -> None:
    add_pending(group, 5, 1)
    add_pending(group, 7, 2)
    group.shard.replay_end_of_transaction(2, True)
    assert group.shard.offsets.is_unstable(GROUP, *T0)
    group.shard.replay_end_of_transaction(1, True)
    assert group.offset(*T0) == 7
    assert not group.shard.offsets.is_unstable(GROUP, *T0)


def test_an_offset_with_a_pending_commit_does_not_expire(group: Harness) -> None:
    group.commit({T0: 3})
    add_pending(group, 5, 1)
    group.advance(RETENTION)
    expire(group)
    assert group.offset(*T0) == 3
    group.shard.replay_end_of_transaction(1, False)
    expire(group)
    assert group.shard.groups == {}


def test_the_partitions_of_a_group_include_those_with_only_pending_commits(group: Harness) -> None:
    group.commit({T0: 3})
    add_pending(group, 5, 1, partition=1)
    assert group.shard.partitions_with_offsets(GROUP) == [("t", 0), ("t", 1)]


def test_a_transaction_that_ends_later_does_not_restore_a_deleted_group(group: Harness) -> None:
    add_pending(group, 5, 1)
    group.submit(group.shard.delete_group(GROUP))
    group.shard.replay_end_of_transaction(1, True)
    assert group.offset(*T0) is None
    assert group.shard.groups == {}


def test_a_transaction_that_ends_later_does_not_restore_a_deleted_offset(group: Harness) -> None:
    add_pending(group, 5, 1)
    deleted, _ = group.shard.delete_offsets(GROUP, [T0])
    for record in deleted:
        group.shard.replay(record)
    group.shard.replay_end_of_transaction(1, True)
    assert group.offset(*T0) is None


def test_a_transaction_that_ends_later_does_not_restore_offsets_of_a_deleted_topic(group: Harness) -> None:
    group.commit({("used", 0): 2})
    add_pending(group, 5, 1)
    group.submit(group.shard.delete_offsets_of_topics(frozenset({"t"})))
    group.shard.replay_end_of_transaction(1, True)
    assert group.offset(*T0) is None


# ---- undo


def test_every_change_can_be_undone() -> None:
    journal = Journal()
    store = OffsetStore(journal)
    previous = CommittedOffset(1, -1, "", 0)
    store.replay(OffsetRecord("g", "t", 0, previous))
    store.replay(OffsetRecord("g", "t", 5, previous), 7)
    journal.clear()
    store.replay(OffsetRecord("g", "t", 0, CommittedOffset(2, -1, "", 0)))
    store.replay(OffsetRecord("g", "t", 0, None))
    store.replay(OffsetRecord("new", "t", 0, previous))
    store.replay(OffsetRecord("g", "t", 5, CommittedOffset(3, -1, "", 0)))
    store.replay(OffsetRecord("g", "t", 6, previous), 8)
    store.replay_end_of_transaction(7, True)
    journal.undo()
    assert store.of_group("g") == {("t", 0): previous}
    assert store.of_group("new") == {}
    assert list(store.pending_of("g")) == [("t", 5)]
    store.replay_end_of_transaction(7, True)
    assert store.get("g", "t", 5) == previous
