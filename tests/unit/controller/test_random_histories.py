"""Clusters with random events. No write of a partition state may lose records, and the cluster
recovers in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.controller.elections import PREFERRED
from kavka.metadata import paths
from kavka.metadata.paths import PartitionStateNode
from kavka.metadata.store import NoNode, Op, OpResult, StoreUnavailable
from tests.support.memory_tree import MemoryTree
from tests.unit.controller.cluster import Cluster, Node, in_cluster

BROKERS = (0, 1, 2, 3)
PARTITIONS = [TopicPartition("t", p) for p in range(4)]
STEPS = 25


class WatchedTree(MemoryTree):
    """Checks every write of a partition state."""

    def __init__(self) -> None:
        super().__init__()
        self.violations: list[str] = []

    def commit(self, ops: Sequence[Op], owner: int) -> list[OpResult]:
        watched = {paths.partition_state(tp): tp for tp in PARTITIONS}
        before = {path: self.nodes[path].data for path in watched if path in self.nodes}
        results = super().commit(ops, owner)
        for path, data in before.items():
            if path in self.nodes and self.nodes[path].data != data:
                tp = watched[path]
                now = self.nodes[path].data
                self._check(PartitionStateNode.decode(tp, data), PartitionStateNode.decode(tp, now))
        return results

    def _check(self, before: PartitionStateNode, now: PartitionStateNode) -> None:
        is_valid = bool(now.isr) and len(set(now.isr)) == len(now.isr)
        is_valid &= now.controller_epoch >= before.controller_epoch
        if now.leader_epoch == before.leader_epoch:
            # A leader changed its ISR.
            is_valid &= now.leader == before.leader and now.leader in now.isr
        else:
            # An election, or the loss of a replica: the leader has all records, and every ISR
            # member is verified.
            is_valid &= now.leader_epoch == before.leader_epoch + 1
            is_valid &= set(now.isr) <= set(before.isr)
            is_valid &= now.leader == -1 or now.leader in before.isr
        if not is_valid:
            self.violations.append(f"{before} became {now}")


async def step(cluster: Cluster, chance: random.Random) -> None:
    up = [node for node in cluster.nodes.values() if node.is_up]
    down = [node for node in cluster.nodes.values() if not node.is_up]
    tp = chance.choice(PARTITIONS)
    match chance.randrange(11):
        case 0 if len(up) > 1:
            await chance.choice(up).kill()
        case 1 | 2 if down:
            await chance.choice(down).start()
        case 3:
            await chance.choice(up).lose_session()
        case 4:
            with suppress(NoNode):
                await cluster.store.delete(paths.CONTROLLER)
        case 5:
            target = chance.sample(BROKERS, chance.randint(1, 3))
            await cluster.controller.alter_reassignments({tp: target}, same_factor=False)
        case 6:
            await cluster.controller.alter_reassignments({tp: None}, same_factor=False)
        case 7:
            await cluster.controller.elect_leaders(PREFERRED, None)
        case 8 if len(up) > 1:
            stopping = chance.choice(up)
            await cluster.controller.controlled_shutdown(stopping.id, stopping.epoch)
            await stopping.kill()
        case 9:
            fail_once(chance.choice(up), after=chance.random() < 0.5)
        case _:
            await change_isr(cluster, tp, chance)


def fail_once(node: Node, *, after: bool) -> None:
    """Fail the next write of the node, before or after it is executed."""
    store = node.store

    def fail(ops: Sequence[Op]) -> None:
        store.before_multi = store.after_multi = lambda ops: None
        raise StoreUnavailable("/", "for a moment")

    if after:
        store.after_multi = fail
    else:
        store.before_multi = fail


async def change_isr(cluster: Cluster, tp: TopicPartition, chance: random.Random) -> None:
    """Change the ISR to the leader and a random set of followers."""
    context = cluster.controller.context
    leader = context.leaderships[tp].state.leader
    others = [b for b in context.replicas_of(tp) if b != leader]
    await cluster.set_isr(tp, [leader, *chance.sample(others, chance.randint(0, len(others)))])


async def settle(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.store.before_multi = node.store.after_multi = lambda ops: None
        if not node.is_up:
            await node.start()
    await cluster.until(lambda: cluster.controller_id is not None, "a controller")
    # A broker that completed controlled shutdown and was not killed must restart to be elected
    # again.
    for broker_id in sorted(cluster.controller.context.shutting_down):
        await cluster.nodes[broker_id].lose_session()
    await cluster.catch_up()
    await cluster.until(lambda: not cluster.controller.context.reassigning, "the reassignments")
    await cluster.catch_up()


async def check_end(cluster: Cluster) -> None:
    assignments = (await cluster.topic("t")).partitions
    for tp in PARTITIONS:
        state = await cluster.state(tp)
        replicas = assignments[tp.partition].replicas
        assert not assignments[tp.partition].is_being_reassigned
        assert set(state.isr) == set(replicas) and state.leader in replicas, (tp, state, replicas)
        for node in cluster.nodes.values():
            cached = node.broker.cache.topics["t"].partitions[tp.partition]
            assert (cached.leader, cached.leader_epoch, sorted(cached.isr)) == (
                state.leader,
                state.leader_epoch,
                sorted(state.isr),
            )
            if node.id in replicas:
                order = node.broker.leads[tp]
                assert (order.leader, order.leader_epoch) == (state.leader, state.leader_epoch), (node.id, tp)
            else:
                assert tp not in node.broker.leads, (node.id, tp)


@pytest.mark.parametrize("seed", range(24))
def test_no_state_loses_records_and_the_cluster_recovers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kavka.controller.controller.RETRY_AFTER_S", 0.01)

    async def body(cluster: Cluster) -> None:
        chance = random.Random(seed)
        await cluster.create("t", [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]])
        for _ in range(STEPS):
            with suppress(KafkaError, StoreUnavailable, AssertionError, KeyError, TimeoutError):
                await asyncio.wait_for(step(cluster, chance), 2)
            await asyncio.sleep(chance.choice((0, 0, 0.001, 0.005, 0.02)))
        await settle(cluster)
        await check_end(cluster)

    tree = WatchedTree()
    in_cluster(body, BROKERS, tree=tree)
    assert not tree.violations
