"""A scenario with all operations is repeated. Each time the controller fails at another write.

The controller dies before or after the write, or its store fails before or after the write. The
next controller must complete the operation: the final state of the znode tree and of the brokers is
the same as without a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.controller.elections import PREFERRED
from kavka.controller.topics import MorePartitions, NewTopic
from kavka.metadata import paths
from kavka.metadata.paths import PartitionStateNode, ReplicaAssignment
from kavka.metadata.store import NodeExists, NoNode, Op, StoreUnavailable
from tests.unit.controller.cluster import Cluster, Node, in_cluster

FIVE = (0, 1, 2, 3, 4)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SHORT_MS = 100


class Saboteur:
    """Fails the `at`-th write of an active controller, in one of four modes."""

    def __init__(self, cluster: Cluster, mode: str, at: int) -> None:
        self.cluster = cluster
        self.mode = mode
        self.at = at
        self.writes = 0
        self.struck = False
        self.repairs: list[asyncio.Task[None]] = []
        for node in cluster.nodes.values():
            self.arm(node)

    def arm(self, node: Node) -> None:
        node.store.before_multi = lambda ops: self._before(node, ops)
        node.store.after_multi = lambda ops: self._after(node, ops)

    def _before(self, node: Node, ops: Sequence[Op]) -> None:
        if ops[0].path == paths.CONTROLLER_EPOCH:  # the fence of a controller's write
            self.writes += 1
            if self.writes == self.at and "before" in self.mode:
                self._strike(node)

    def _after(self, node: Node, ops: Sequence[Op]) -> None:
        if ops[0].path == paths.CONTROLLER_EPOCH and self.writes == self.at and "after" in self.mode:
            self._strike(node)

    def _strike(self, node: Node) -> None:
        if self.struck:
            return
        self.struck = True
        if "dies" in self.mode:
            node.is_up = False
            node.store.expire()
            self.repairs.append(asyncio.ensure_future(self._restart(node)))
        raise StoreUnavailable("/", self.mode)

    async def _restart(self, node: Node) -> None:
        await node.controller.stop()
        await self.cluster.until(lambda: self.cluster.controller_id is not None, "another controller")
        await node.start()

    async def done(self) -> None:
        await asyncio.gather(*self.repairs)


async def insist(cluster: Cluster, act: Callable[[], Awaitable[Any]], done: Callable[[], Awaitable[bool]]) -> None:
    """Retry until the operation succeeds, as a client does."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 20
    while not await done():
        assert loop.time() < end, "timed out"
        with suppress(KafkaError, StoreUnavailable, AssertionError, KeyError, NoNode):
            await act()
        await asyncio.sleep(0.005)


async def scenario(cluster: Cluster) -> None:
    """All operations of a controller. They are in one function, because they share topics."""

    async def partitions(name: str) -> dict[int, ReplicaAssignment]:
        try:
            return dict((await cluster.topic(name)).partitions)
        except NoNode:
            return {}

    async def create(name: str, layout: dict[int, list[int]]) -> None:
        async def act() -> None:
            await cluster.topics.create_topics([NewTopic(name, assignments=layout)], timeout_ms=SHORT_MS)

        async def done() -> bool:
            return len(await partitions(name)) == len(layout)

        await insist(cluster, act, done)

    await create("t", {0: [1, 2], 1: [2, 3], 2: [3, 4]})
    await create("u", {0: [4, 3], 1: [0, 1]})
    await cluster.catch_up()
    # A broker dies and comes back.
    if cluster.nodes[3].is_up and cluster.controller_id != 3:
        await cluster.nodes[3].kill()
        await cluster.wait_until_idle()
        await cluster.nodes[3].start()

    async def grow() -> None:
        await cluster.topics.create_partitions([MorePartitions("t", 4, [[4, 1]])], timeout_ms=SHORT_MS)

    async def grown() -> bool:
        return len(await partitions("t")) == 4

    await insist(cluster, grow, grown)
    await cluster.catch_up()

    async def move() -> None:
        await cluster.controller.alter_reassignments({T0: [3, 4], T1: [2, 4]}, same_factor=False)

    async def moved() -> bool:
        now = await partitions("t")
        return now[0].target == (3, 4) and now[1].target == (2, 4)

    await insist(cluster, move, moved)

    async def mark() -> None:
        with suppress(NodeExists):
            await cluster.store.create(paths.delete_topic("u"))

    async def is_deleted() -> bool:
        return await cluster.store.exists(paths.topic("u")) is None

    await cluster.catch_up()
    await insist(cluster, mark, is_deleted)

    async def elect() -> None:
        await cluster.controller.elect_leaders(PREFERRED, None)

    async def elected() -> bool:
        await cluster.catch_up()
        for p, assignment in (await partitions("t")).items():
            if (await cluster.state(TopicPartition("t", p))).leader != assignment.replicas[0]:
                return False
        return True

    await insist(cluster, elect, elected)


async def check_end(cluster: Cluster) -> None:
    await cluster.catch_up()
    node = await cluster.topic("t")
    assert node.partitions == {
        0: ReplicaAssignment((3, 4)),
        1: ReplicaAssignment((2, 4)),
        2: ReplicaAssignment((3, 4)),
        3: ReplicaAssignment((4, 1)),
    }
    for p, assignment in node.partitions.items():
        tp = TopicPartition("t", p)
        state = await cluster.state(tp)
        assert state.leader == assignment.replicas[0] and set(state.isr) == set(assignment.replicas)
        for broker_id in assignment.replicas:
            order = cluster.nodes[broker_id].broker.leads[tp]
            assert (order.leader, order.leader_epoch, set(order.replicas)) == (
                state.leader,
                state.leader_epoch,
                set(assignment.replicas),
            )
        for broker in (n.broker for n in cluster.nodes.values()):
            cached = broker.cache.topics["t"].partitions[p]
            assert (cached.leader, cached.leader_epoch, set(cached.isr)) == (
                state.leader,
                state.leader_epoch,
                set(state.isr),
            )
            assert cached.offline_replicas == []
    for broker_id, n in cluster.nodes.items():
        assert "u" not in n.broker.cache.topics
        replicas = {tp for tp in n.broker.leads if n.broker.leads[tp] is not None}
        expected = {TopicPartition("t", p) for p, a in node.partitions.items() if broker_id in a.replicas}
        assert replicas == expected, broker_id
    for path, names in (
        (paths.TOPICS, ["t"]),
        (f"{paths.CONFIG}/topics", ["t"]),
        (paths.DELETE_TOPICS, []),
        (paths.ISR_CHANGES, []),
        (paths.LOG_DIR_EVENTS, []),
    ):
        assert await cluster.store.children(path) == names, path
    context = cluster.controller.context
    assert not context.reassigning and not context.topics_to_delete and not context.topics_not_deletable_now
    for tp, leadership in context.leaderships.items():
        data, stat = await cluster.store.get(paths.partition_state(tp))
        assert (leadership.state, leadership.partition_epoch) == (PartitionStateNode.decode(tp, data), stat.version)
    assert node.topic_id == context.topics["t"].topic_id


def run(mode: str, at: int) -> int:
    """Run the scenario with one failure. Returns the number of writes if `at` is 0, else the number
    of failures."""

    async def body(cluster: Cluster) -> int:
        saboteur = Saboteur(cluster, mode, at)
        await scenario(cluster)
        await saboteur.done()
        await check_end(cluster)
        return saboteur.writes if at == 0 else int(saboteur.struck)

    count = in_cluster(body, FIVE)
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("mode", ["dies before", "dies after", "fails before", "fails after"])
def test_a_failure_at_any_write_does_not_change_the_final_state(mode: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("kavka.controller.controller.RETRY_AFTER_S", 0.01)
    writes = run("", 0)
    assert writes > 25
    struck = 0
    for at in range(1, writes + 1):
        try:
            struck += run(mode, at)
        except BaseException as error:
            raise AssertionError(f"{mode} write {at} of {writes}") from error
    assert struck >= writes - 3
