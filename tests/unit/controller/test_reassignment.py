from __future__ import annotations

from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.controller.topics import MorePartitions
from kavka.metadata import paths
from kavka.metadata.paths import ReplicaAssignment
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tests.unit.controller.cluster import Cluster, in_cluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FOUR = (0, 1, 2, 3)


async def move(cluster: Cluster, tp: TopicPartition, target: Any, **other: Any) -> ErrorCode | None:
    error = (await cluster.controller.alter_reassignments({tp: target}, same_factor=False, **other))[tp]
    await cluster.wait_until_idle()
    return None if error is None else error.code


async def assignment(cluster: Cluster, tp: TopicPartition) -> ReplicaAssignment:
    return (await cluster.topic(tp.topic)).partitions[tp.partition]


def test_assignments_during_a_reassignment_are_kafkas() -> None:
    start = ReplicaAssignment((1, 2, 3))
    moving = start.moving_to((4, 2))
    assert moving == ReplicaAssignment((4, 2, 1, 3), (4,), (1, 3))
    assert (moving.origin, moving.target) == ((2, 1, 3), (4, 2))
    assert moving.moving_to((5, 6)) == ReplicaAssignment((5, 6, 2, 1, 3), (5, 6), (2, 1, 3))
    assert moving.moving_to(moving.origin) == ReplicaAssignment((2, 1, 3))
    assert start.moving_to((3, 2, 1)) == ReplicaAssignment((3, 2, 1))


def test_a_reassignment_completes_when_the_added_replicas_have_caught_up() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1], [1, 2]])
        assert await move(cluster, T0, [2, 3]) is None
        begun = ReplicaAssignment((2, 3, 0, 1), (2, 3), (0, 1))
        assert await assignment(cluster, T0) == begun
        assert await cluster.controller.list_reassignments(None) == {T0: begun}
        assert await cluster.controller.list_reassignments([T1]) == {}
        order = cluster.nodes[3].broker.requests_of_type(LeaderAndIsrRequest)[-1].topic_states[0].partition_states[0]
        assert order.is_new and order.adding_replicas == [2, 3] and order.leader == 0
        assert (await cluster.state(T0)).leader_epoch == 1
        assert (await cluster.set_isr(T0, [0, 1, 2])).error_code == 0
        await cluster.wait_until_idle()
        assert await assignment(cluster, T0) == begun
        assert (await cluster.set_isr(T0, [0, 1, 2, 3])).error_code == 0
        await cluster.wait_until_idle()
        assert await assignment(cluster, T0) == ReplicaAssignment((2, 3))
        state = await cluster.state(T0)
        assert state.leader == 2 and set(state.isr) == {2, 3}
        assert cluster.nodes[0].broker.deleted == [T0] and cluster.nodes[1].broker.deleted == [T0]
        for node in cluster.nodes.values():
            cached = node.broker.cache.topics["t"].partitions[0]
            assert (cached.leader, cached.replicas) == (2, [2, 3])
        assert await cluster.controller.list_reassignments(None) == {}
        assert not cluster.controller.context.reassigning

    in_cluster(body, FOUR)


def test_a_leader_that_is_a_target_replica_keeps_its_leadership() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1]])
        await move(cluster, T0, [3, 0])
        await cluster.catch_up()
        assert await assignment(cluster, T0) == ReplicaAssignment((3, 0))
        state = await cluster.state(T0)
        assert state.leader == 0 and set(state.isr) == {0, 3}

    in_cluster(body, FOUR)


def test_replicas_are_added_removed_and_reordered() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1]])
        for target in ([0, 1, 2], [2, 1], [1, 2], [3]):
            assert await move(cluster, T0, target) is None
            await cluster.catch_up()
            assert await assignment(cluster, T0) == ReplicaAssignment(tuple(target))
            assert set((await cluster.state(T0)).isr) == set(target)
        assert (await cluster.state(T0)).leader == 3

    in_cluster(body, FOUR)


def test_a_reassignment_is_cancelled() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1]])
        assert await move(cluster, T0, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        await move(cluster, T0, [2, 3])
        await cluster.set_isr(T0, [0, 1, 2])
        assert await move(cluster, T0, None) is None
        assert await assignment(cluster, T0) == ReplicaAssignment((0, 1))
        state = await cluster.state(T0)
        assert state.leader == 0 and set(state.isr) == {0, 1}
        assert cluster.nodes[2].broker.deleted == [T0] and cluster.nodes[3].broker.deleted == [T0]
        assert await cluster.controller.list_reassignments(None) == {}

    in_cluster(body, FOUR)


def test_a_reassignment_in_progress_can_be_redirected() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1]])
        await move(cluster, T0, [2, 1])
        assert await move(cluster, T0, [3, 1]) is None
        assert await assignment(cluster, T0) == ReplicaAssignment((3, 1, 0), (3,), (0,))
        assert cluster.nodes[2].broker.deleted == [T0]
        await cluster.catch_up()
        assert await assignment(cluster, T0) == ReplicaAssignment((3, 1))

    in_cluster(body, FOUR)


def test_a_cancellation_that_would_remove_all_in_sync_replicas_is_refused() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1]])
        await move(cluster, T0, [2, 3])
        await cluster.set_isr(T0, [1, 2])
        await cluster.nodes[1].kill()
        await cluster.wait_until_idle()
        assert (await cluster.state(T0)).leader == 2
        assert await move(cluster, T0, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        await cluster.catch_up()
        assert await assignment(cluster, T0) == ReplicaAssignment((2, 3))

    in_cluster(body, FOUR)


def test_impossible_reassignments_are_refused() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1]])
        await cluster.nodes[3].kill()
        await cluster.wait_until_idle()
        invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        for target in ([], [1, 1], [1, -1], [1, 3], [1, 17]):
            assert await move(cluster, T0, target) is invalid, target
        assert await move(cluster, TopicPartition("t", 5), [1]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await move(cluster, TopicPartition("u", 0), None) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        results = await cluster.controller.alter_reassignments({T0: [2]}, same_factor=True)
        error = results[T0]
        assert isinstance(error, KafkaError) and error.code is ErrorCode.INVALID_REPLICATION_FACTOR
        assert await assignment(cluster, T0) == ReplicaAssignment((0, 1))

    in_cluster(body, FOUR)


def test_a_reassignment_continues_after_failures_of_the_controller_and_of_a_target_broker() -> None:
    async def body(cluster: Cluster) -> None:
        assert cluster.controller_id == 0
        await cluster.create("t", [[1, 2], [2, 1]])
        await move(cluster, T0, [3, 2])
        await cluster.nodes[3].kill()
        await cluster.wait_until_idle()
        await cluster.nodes[0].kill()
        await cluster.until(lambda: cluster.controller_id is not None)
        await cluster.wait_until_idle()
        assert await cluster.controller.list_reassignments(None) == {T0: ReplicaAssignment((3, 2, 1), (3,), (1,))}
        await cluster.nodes[3].start()
        await cluster.catch_up()
        assert await assignment(cluster, T0) == ReplicaAssignment((3, 2))
        assert T0 in cluster.nodes[1].broker.deleted

    in_cluster(body, FOUR)


def test_reassignments_in_the_node_of_old_tools_are_executed() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1], [1, 2]])
        await cluster.store.create(paths.REASSIGN_PARTITIONS, b"junk")
        await cluster.wait_until_idle()
        assert await cluster.store.exists(paths.REASSIGN_PARTITIONS) is None
        targets = {T0: [3, 1], T1: [3, 2], TopicPartition("none", 0): [1]}
        await cluster.store.create(paths.REASSIGN_PARTITIONS, paths.encode_reassignment(targets))
        await cluster.wait_until_idle()
        data, _ = await cluster.store.get(paths.REASSIGN_PARTITIONS)
        assert paths.decode_reassignment(data) == {T0: (3, 1), T1: (3, 2)}
        await cluster.set_isr(T1, [1, 2, 3])
        await cluster.wait_until_idle()
        data, _ = await cluster.store.get(paths.REASSIGN_PARTITIONS)
        assert paths.decode_reassignment(data) == {T0: (3, 1)}
        # A request replaces the reassignment in the node.
        assert await move(cluster, T0, None) is None
        assert await cluster.store.exists(paths.REASSIGN_PARTITIONS) is None
        # As in Kafka, the original order is lost: replicas that were also targets come first.
        assert await assignment(cluster, T0) == ReplicaAssignment((1, 0))
        await cluster.store.create(paths.REASSIGN_PARTITIONS, paths.encode_reassignment({T0: [2, 1]}))
        await cluster.catch_up()
        assert await assignment(cluster, T0) == ReplicaAssignment((2, 1))
        assert await cluster.store.exists(paths.REASSIGN_PARTITIONS) is None

    in_cluster(body, FOUR)


def test_a_topic_is_deleted_when_its_reassignment_completes() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1]])
        await move(cluster, T0, [2, 3])
        await cluster.store.create(paths.delete_topic("t"))
        await cluster.wait_until_idle()
        assert await cluster.store.exists(paths.topic("t")) is not None
        await cluster.set_isr(T0, [0, 1, 2, 3])
        await cluster.wait_until_idle()
        assert await cluster.store.exists(paths.topic("t")) is None
        assert all("t" not in node.broker.cache.topics for node in cluster.nodes.values())

    in_cluster(body, FOUR)


def test_partitions_cannot_be_added_during_a_reassignment() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1]])
        grown = await cluster.topics.create_partitions([MorePartitions("t", 2, [[2, 1]])], timeout_ms=5000)
        assert grown[0].error is None
        await move(cluster, T0, [3, 1])
        assert (await cluster.topic("t")).partitions[1] == ReplicaAssignment((2, 1))
        refused = (await cluster.topics.create_partitions([MorePartitions("t", 3)], timeout_ms=100))[0].error
        assert refused is not None and refused.code is ErrorCode.REASSIGNMENT_IN_PROGRESS

    in_cluster(body, FOUR)
