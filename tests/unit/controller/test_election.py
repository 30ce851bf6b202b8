from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kavka.controller import election
from kavka.metadata.paths import RECOVERED, RECOVERING, PartitionStateNode

STATE = PartitionStateNode(1, 4, (1, 2), 7)


def test_the_first_live_replica_leads_a_new_partition_and_all_live_replicas_are_in_sync() -> None:
    assert election.initial([3, 1, 2], {1, 2}, 5) == PartitionStateNode(1, 0, (1, 2), 5)
    assert election.initial([3], {1, 2}, 5) is None


def test_the_next_leader_is_the_first_live_in_sync_replica() -> None:
    state = election.offline(STATE, [3, 1, 2], {2, 3}, unclean=False, controller_epoch=8)
    assert state == PartitionStateNode(2, 5, (2,), 8, RECOVERED)


def test_without_an_in_sync_replica_there_is_no_leader_unless_unclean_election_is_enabled() -> None:
    assert election.offline(STATE, [3, 1, 2], {3}, unclean=False, controller_epoch=8) is None
    assert election.offline(STATE, [3, 1, 2], {3}, unclean=True, controller_epoch=8) == (
        PartitionStateNode(3, 5, (3,), 8, RECOVERING)
    )
    assert election.offline(STATE, [3, 1, 2], set(), unclean=True, controller_epoch=8) is None


def test_an_in_sync_leader_is_elected_even_if_unclean_election_is_enabled() -> None:
    state = election.offline(STATE, [3, 1, 2], {2, 3}, unclean=True, controller_epoch=8)
    assert state is not None and (state.leader, state.leader_recovery_state) == (2, RECOVERED)


def test_the_preferred_leader_is_elected_only_if_it_is_live_and_in_sync() -> None:
    preferred = election.preferred(STATE, [2, 1], {1, 2}, controller_epoch=8)
    assert preferred == PartitionStateNode(2, 5, (1, 2), 8)
    assert election.preferred(STATE, [2, 1], {1}, controller_epoch=8) is None
    assert election.preferred(STATE, [3, 1], {1, 3}, controller_epoch=8) is None


def test_a_reassigned_partition_is_led_by_a_target_replica() -> None:
    assert election.reassigned(STATE, [3, 2], {1, 2, 3}, controller_epoch=8) == PartitionStateNode(2, 5, (1, 2), 8)
    assert election.reassigned(STATE, [3], {1, 2, 3}, controller_epoch=8) is None


def test_a_stopping_broker_loses_its_leadership_and_leaves_the_isr() -> None:
    state = election.hand_over(STATE, [1, 2], {1, 2}, {1}, controller_epoch=8)
    assert state == PartitionStateNode(2, 5, (2,), 8)
    assert election.hand_over(STATE, [1, 2], {1, 2}, {1, 2}, controller_epoch=8) is None


def test_the_last_in_sync_replica_stays_in_the_isr_without_leading() -> None:
    assert election.without_replica(STATE, 2, 8) == PartitionStateNode(1, 5, (1,), 8)
    assert election.without_replica(STATE, 1, 8) == PartitionStateNode(-1, 5, (2,), 8)
    assert election.without_replica(PartitionStateNode(0, 0, (0,), 1), 0, 1) == PartitionStateNode(-1, 1, (0,), 1)
    assert election.without_replica(STATE, 3, 8) is None


_ids = st.integers(0, 5)


@given(st.lists(_ids, unique=True, min_size=1), st.sets(_ids), st.data(), st.booleans())
def test_a_clean_election_elects_an_isr_member_and_increments_the_epoch(
    replicas: list[int], live: set[int], data: st.DataObject, unclean: bool
) -> None:
    isr = tuple(data.draw(st.lists(st.sampled_from(replicas), unique=True, min_size=1)))
    state = PartitionStateNode(isr[0], 3, isr, 1)
    chosen = election.offline(state, replicas, live, unclean=unclean, controller_epoch=2)
    if chosen is None:
        assert not (set(isr) & live) and not (unclean and set(replicas) & live)
        return
    assert chosen.leader in live and chosen.leader in chosen.isr and chosen.leader_epoch == 4
    if chosen.leader_recovery_state == RECOVERED:
        assert set(chosen.isr) == set(isr) & live
    else:
        assert unclean and not set(isr) & live
