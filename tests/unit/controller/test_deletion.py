from __future__ import annotations

from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.controller.topics import NewTopic
from kavka.metadata import paths
from kavka.protocol.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from tests.unit.controller.cluster import Cluster, in_cluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def mark(cluster: Cluster, name: str) -> None:
    await cluster.store.create(paths.delete_topic(name))
    await cluster.wait_until_idle()


async def topic_exists(cluster: Cluster, name: str) -> bool:
    return await cluster.store.exists(paths.topic(name)) is not None


async def check_deleted(cluster: Cluster, name: str) -> None:
    assert not await topic_exists(cluster, name)
    assert name not in await cluster.store.children(f"{paths.CONFIG}/topics")
    assert name not in await cluster.store.children(paths.DELETE_TOPICS)
    context = cluster.controller.context
    assert name not in context.topics | dict.fromkeys(context.topics_to_delete)
    assert not [tp for tp in context.leaderships if tp.topic == name]
    assert not [r for r in context.replica_states if r.partition.topic == name]
    assert not any(name in node.broker.cache.topics for node in cluster.nodes.values() if node.is_up)


def test_a_topic_is_deleted_on_all_brokers() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1], [1, 2]])
        await mark(cluster, "t")
        await check_deleted(cluster, "t")
        assert {b: n.broker.deleted for b, n in cluster.nodes.items()} == {0: [T0], 1: [T0, T1], 2: [T1]}

    in_cluster(body)


def test_topics_of_a_stopped_broker_are_hidden_from_clients_and_deleted_when_it_returns() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1], [1, 2]])
        await cluster.create("other", [[0, 2]])
        await cluster.nodes[1].kill()
        await cluster.wait_until_idle()
        await mark(cluster, "t")
        await mark(cluster, "other")
        await check_deleted(cluster, "other")
        assert await topic_exists(cluster, "t")
        assert cluster.nodes[0].broker.deleted.count(T0) == 1 and cluster.nodes[2].broker.deleted.count(T1) == 1
        assert all("t" not in cluster.nodes[b].broker.cache.topics for b in (0, 2))
        refused = (await cluster.topics.create_topics([NewTopic("t", assignments={0: [0]})], timeout_ms=100))[0].error
        assert refused is not None and refused.code is ErrorCode.TOPIC_ALREADY_EXISTS
        await cluster.nodes[1].start()
        await cluster.wait_until_idle()
        await check_deleted(cluster, "t")
        assert set(cluster.nodes[1].broker.deleted) == {T0, T1}
        await cluster.create("t", [[1, 0]])
        assert cluster.nodes[1].broker.leads[T0].leader == 1

    in_cluster(body)


def test_a_broker_that_dies_or_restarts_during_a_deletion_gets_the_request_again() -> None:
    async def body(cluster: Cluster) -> None:
        for failure in ("dies", "restarts"):
            await cluster.create("t", [[0, 1]])
            node = cluster.nodes[1]
            node.is_up = False  # registered, but unreachable
            await cluster.store.create(paths.delete_topic("t"))
            await cluster.until(lambda: T0 in cluster.nodes[0].broker.deleted, "the deletion on broker 0")
            cluster.nodes[0].broker.deleted.clear()
            assert await topic_exists(cluster, "t")
            if failure == "dies":
                await node.kill()
                await cluster.wait_until_idle()
                assert await topic_exists(cluster, "t")
                await node.start()
            else:
                node.store.renew()
                await node.register()
                node.controller.on_session_lost()
            await cluster.wait_until_idle()
            await check_deleted(cluster, "t")
            assert T0 in node.broker.deleted

    in_cluster(body)


def test_a_failed_deletion_is_retried_when_the_broker_restarts() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1]])
        broker = cluster.nodes[1].broker
        real = broker.stop_replica

        def fail(request: StopReplicaRequest) -> StopReplicaResponse:
            errors = [
                StopReplicaPartitionError(
                    topic_name=topic.topic_name,
                    partition_index=p.partition_index,
                    error_code=int(ErrorCode.KAFKA_STORAGE_ERROR) if p.delete_partition else 0,
                )
                for topic in request.topic_states
                for p in topic.partition_states
            ]
            return StopReplicaResponse(partition_errors=errors)

        broker.stop_replica = fail  # type: ignore[method-assign]
        await mark(cluster, "t")
        assert await topic_exists(cluster, "t")
        broker.stop_replica = real  # type: ignore[method-assign]
        await cluster.nodes[1].kill()
        await cluster.nodes[1].start()
        await cluster.wait_until_idle()
        await check_deleted(cluster, "t")

    in_cluster(body)


def test_a_new_controller_completes_a_deletion_that_waits_for_a_dead_broker() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        await cluster.nodes[2].kill()
        await cluster.wait_until_idle()
        await mark(cluster, "t")
        await cluster.nodes[0].kill()
        await cluster.until(lambda: cluster.controller_id == 1)
        await cluster.wait_until_idle()
        assert await topic_exists(cluster, "t")
        assert "t" not in cluster.nodes[1].broker.cache.topics
        await cluster.nodes[2].start()
        await cluster.wait_until_idle()
        await check_deleted(cluster, "t")
        assert T0 in cluster.nodes[2].broker.deleted

    in_cluster(body)


def test_a_partition_without_a_leader_is_deleted() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        await cluster.set_isr(T0, [1])
        await cluster.nodes[1].kill()
        await cluster.wait_until_idle()
        assert (await cluster.state(T0)).leader == -1
        await mark(cluster, "t")
        await cluster.nodes[1].start()
        await cluster.wait_until_idle()
        await check_deleted(cluster, "t")

    in_cluster(body)


def test_marks_are_removed_if_deletion_is_disabled_or_the_topic_does_not_exist() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        await mark(cluster, "t")
        await mark(cluster, "unknown")
        assert await cluster.store.children(paths.DELETE_TOPICS) == []
        assert await topic_exists(cluster, "t")

    in_cluster(body, deletion_enabled=lambda: False)


def test_partitions_that_are_added_while_a_broker_is_down_come_online_when_it_returns() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        node = await cluster.topic("t")
        await cluster.nodes[1].kill()
        await cluster.wait_until_idle()
        data, stat = await cluster.store.get(paths.topic("t"))
        assert data is not None
        # As an old tool does: write the tree directly, with replicas on the dead broker.
        grown = data.replace(b'{"0":[1,2]}', b'{"0":[1,2],"1":[1],"2":[2,1]}')
        await cluster.store.set(paths.topic("t"), grown, stat.version)
        await cluster.wait_until_idle()
        assert (await cluster.state(TopicPartition("t", 2))).isr == (2,)
        assert await cluster.store.exists(paths.partition_state(T1)) is None
        await cluster.nodes[1].start()
        await cluster.catch_up()
        assert (await cluster.state(T1)).leader == 1
        assert set((await cluster.state(TopicPartition("t", 2))).isr) == {1, 2}
        assert (await cluster.topic("t")).topic_id == node.topic_id

    in_cluster(body)
