"""[pure] Leader elections. Each function returns the next state of a partition, or None if there is
no eligible leader.

`replicas` are in the order of preference. An election increments the leader epoch. The partition
epoch is the version of the state node; it changes when the state is written.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from kavka.metadata.paths import RECOVERING, PartitionStateNode

NO_LEADER = -1
INITIAL_LEADER_EPOCH = 0


def initial(replicas: Sequence[int], live: Container[int], controller_epoch: int) -> PartitionStateNode | None:
    """Elect the first leader of a new partition. All live replicas are in sync, because the log is
    empty."""
    isr = tuple(r for r in replicas if r in live)
    if not isr:
        return None
    return PartitionStateNode(isr[0], INITIAL_LEADER_EPOCH, isr, controller_epoch)


def offline(
    state: PartitionStateNode, replicas: Sequence[int], live: Container[int], *, unclean: bool, controller_epoch: int
) -> PartitionStateNode | None:
    """Elect a leader after the leader has failed: a live member of the ISR or, if `unclean`, any
    live replica.

    An unclean leader is the only member of the ISR and is marked as recovering, because records may
    be lost.
    """
    leader = _first_eligible(replicas, live, state.isr)
    if leader is not None:
        return _led_by(state, leader, tuple(r for r in state.isr if r in live), controller_epoch)
    leader = next((r for r in replicas if r in live), None) if unclean else None
    if leader is None:
        return None
    return replace(_led_by(state, leader, (leader,), controller_epoch), leader_recovery_state=RECOVERING)


def restarted(
    state: PartitionStateNode,
    replicas: Sequence[int],
    live: Container[int],
    restarted_brokers: Container[int],
    *,
    controller_epoch: int,
) -> PartitionStateNode | None:
    """Elect a leader after the `restarted_brokers` may have lost the end of their logs.

    The live members that have not restarted are the new ISR. If all live members have restarted,
    they stay in the ISR, because it is unknown which member has the longest log.
    """
    live_isr = tuple(r for r in state.isr if r in live)
    isr = tuple(r for r in live_isr if r not in restarted_brokers) or live_isr
    leader = state.leader if state.leader in isr else _first_eligible(replicas, live, isr)
    return None if leader is None else _led_by(state, leader, isr, controller_epoch)


def preferred(
    state: PartitionStateNode, replicas: Sequence[int], live: Container[int], *, controller_epoch: int
) -> PartitionStateNode | None:
    """Elect the first replica, if it is live and in sync."""
    leader = _first_eligible(replicas[:1], live, state.isr)
    return None if leader is None else _led_by(state, leader, state.isr, controller_epoch)


def reassigned(
    state: PartitionStateNode, target: Sequence[int], live: Container[int], *, controller_epoch: int
) -> PartitionStateNode | None:
    """Elect one of the replicas in `target`, to which the partition is being reassigned."""
    leader = _first_eligible(target, live, state.isr)
    return None if leader is None else _led_by(state, leader, state.isr, controller_epoch)


def hand_over(
    state: PartitionStateNode,
    replicas: Sequence[int],
    live: Container[int],
    leaving: Container[int],
    *,
    controller_epoch: int,
) -> PartitionStateNode | None:
    """Elect another replica when the leader shuts down or has failed. Removes all `leaving` brokers
    from the ISR."""
    isr = tuple(r for r in state.isr if r not in leaving)
    leader = _first_eligible(replicas, live, isr)
    return None if leader is None else _led_by(state, leader, isr, controller_epoch)


def without_replica(state: PartitionStateNode, replica: int, controller_epoch: int) -> PartitionStateNode | None:
    """Remove `replica` from the ISR and from the leadership. Returns None if it is neither the
    leader nor in the ISR.

    The last member stays in the ISR, because no other replica is known to have all records.
    """
    if replica not in state.isr and replica != state.leader:
        return None
    isr = state.isr if state.isr == (replica,) else tuple(r for r in state.isr if r != replica)
    leader = NO_LEADER if replica == state.leader else state.leader
    return _led_by(state, leader, isr, controller_epoch)


def _first_eligible(replicas: Sequence[int], live: Container[int], isr: Container[int]) -> int | None:
    return next((r for r in replicas if r in live and r in isr), None)


def _led_by(state: PartitionStateNode, leader: int, isr: tuple[int, ...], controller_epoch: int) -> PartitionStateNode:
    return replace(
        state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr, controller_epoch=controller_epoch
    )
