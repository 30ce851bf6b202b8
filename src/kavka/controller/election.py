"""[pure] Who leads. Each rule takes what is known of a partition and gives its next leader and ISR, or None.

`replicas` are in the order of preference. An election raises the leader epoch by one; it never changes the partition's
epoch, which is the version of the node and changes by being written.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from kavka.metadata.paths import RECOVERING, PartitionStateNode

NO_LEADER = -1
INITIAL_LEADER_EPOCH = 0


def initial(replicas: Sequence[int], live: Container[int], controller_epoch: int) -> PartitionStateNode | None:
    """The first leader of a new partition: all replicas that live are in sync, having nothing."""
    isr = tuple(r for r in replicas if r in live)
    if not isr:
        return None
    return PartitionStateNode(isr[0], INITIAL_LEADER_EPOCH, isr, controller_epoch)


def offline(
    state: PartitionStateNode, replicas: Sequence[int], live: Container[int], *, unclean: bool, controller_epoch: int
) -> PartitionStateNode | None:
    """The leader is gone. The next is a live member of the ISR; failing that, and only if `unclean`, any live replica.

    An unclean leader is alone in the ISR, and marked as recovering: records may have been lost.
    """
    leader = _first(replicas, live, state.isr)
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
    renewed: Container[int],
    *,
    controller_epoch: int,
) -> PartitionStateNode | None:
    """Members of the ISR have restarted since it was written (`renewed`), and may have lost the end of their logs.

    Those that have not restarted are the ISR, and lead. If all have, nobody knows who has most: the ISR stays.
    """
    isr = tuple(r for r in state.isr if r in live and r not in renewed) or tuple(r for r in state.isr if r in live)
    leader = state.leader if state.leader in isr else _first(replicas, live, isr)
    return None if leader is None else _led_by(state, leader, isr, controller_epoch)


def preferred(
    state: PartitionStateNode, replicas: Sequence[int], live: Container[int], *, controller_epoch: int
) -> PartitionStateNode | None:
    """The first of the replicas, if it lives and is in sync."""
    leader = _first(replicas[:1], live, state.isr)
    return None if leader is None else _led_by(state, leader, state.isr, controller_epoch)


def reassigned(
    state: PartitionStateNode, target: Sequence[int], live: Container[int], *, controller_epoch: int
) -> PartitionStateNode | None:
    """The partition is moving to the replicas in `target`: one of these."""
    leader = _first(target, live, state.isr)
    return None if leader is None else _led_by(state, leader, state.isr, controller_epoch)


def controlled_shutdown(
    state: PartitionStateNode,
    replicas: Sequence[int],
    live: Container[int],
    shutting_down: Container[int],
    *,
    controller_epoch: int,
) -> PartitionStateNode | None:
    """The leader is about to stop: one that stays, and the ISR without those that go."""
    isr = tuple(r for r in state.isr if r not in shutting_down)
    leader = _first(replicas, live, isr)
    return None if leader is None else _led_by(state, leader, isr, controller_epoch)


def without_replica(state: PartitionStateNode, replica: int, controller_epoch: int) -> PartitionStateNode | None:
    """The ISR after `replica` is gone; None if it was neither in it nor leading.

    The last member stays in the ISR, because only it is known to have every record.
    """
    if replica not in state.isr and replica != state.leader:
        return None
    isr = state.isr if state.isr == (replica,) else tuple(r for r in state.isr if r != replica)
    leader = NO_LEADER if replica == state.leader else state.leader
    return _led_by(state, leader, isr, controller_epoch)


def _first(replicas: Sequence[int], live: Container[int], isr: Container[int]) -> int | None:
    return next((r for r in replicas if r in live and r in isr), None)


def _led_by(state: PartitionStateNode, leader: int, isr: tuple[int, ...], controller_epoch: int) -> PartitionStateNode:
    return replace(
        state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr, controller_epoch=controller_epoch
    )
