from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.controller.partition_states import PartitionState
from kavka.controller.topics import MorePartitions, NewTopic
from kavka.metadata import paths
from kavka.metadata.cluster import announce_log_dir_failure
from kavka.metadata.paths import PartitionStateNode, ReplicaAssignment, TopicNode
from kavka.metadata.store import SetData, StoreUnavailable
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kavka.protocol.messages.stop_replica import StopReplicaRequest
from kavka.protocol.messages.update_metadata import UpdateMetadataRequest
from tests.unit.controller.support import World, in_world

T0 = TopicPartition("t", 0)


async def create(world: World, name: str, partitions: int = 1, factor: int = 1, **more: Any) -> Any:
    outcome = (await world.topics.create_topics([NewTopic(name, partitions, factor, **more)], timeout_ms=5000))[0]
    assert outcome.error is None, outcome.error
    return outcome


async def state_node(world: World, tp: TopicPartition) -> PartitionStateNode:
    return PartitionStateNode.decode(tp, (await world.store.get(paths.partition_state(tp)))[0])


def test_the_first_broker_becomes_the_controller_and_each_restart_increments_the_epoch(tmp_path: Path) -> None:
    async def body(world: World) -> int:
        assert world.controller.is_active
        data, stat = await world.store.get("/controller")
        assert data is not None and data.startswith(b'{"version":2,"brokerid":0,')
        assert stat.ephemeral_owner == world.store.session_id
        assert (await world.store.get("/feature"))[0] == b'{"features":{},"version":2,"status":1}'
        assert world.broker.cache.controller_id == 0
        assert list(world.broker.cache.brokers) == [0]
        return paths.decode_epoch((await world.store.get("/controller_epoch"))[0])

    assert in_world(tmp_path, body) == 1
    assert in_world(tmp_path, body) == 2


def test_a_new_topic_gets_a_leader_and_the_nodes_that_kafka_writes(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        created = await create(world, "t", 2, configs={"retention.ms": "1000"})
        assert (created.partitions, created.replication_factor) == (2, 1)
        data, stat = await world.store.get("/brokers/topics/t")
        assert stat.version == 0
        assert TopicNode.decode("t", data) == TopicNode(
            created.topic_id, {0: ReplicaAssignment((0,)), 1: ReplicaAssignment((0,))}
        )
        assert (await world.store.get("/brokers/topics/t/partitions/1/state"))[0] == (
            b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'
        )
        assert (await world.store.get("/config/topics/t"))[0] == b'{"version":1,"config":{"retention.ms":"1000"}}'
        led = world.broker.leads[T0]
        assert (led.leader, led.leader_epoch, led.isr, led.partition_epoch, led.is_new) == (0, 0, [0], 0, True)
        assert world.broker.cache.topic_name(created.topic_id) == "t"

    in_world(tmp_path, body)


def test_a_restart_sends_all_partitions_at_once_and_changes_no_epoch(tmp_path: Path) -> None:
    """As in Kafka: a leader that is alive when the controller starts keeps leading in the same
    epoch."""

    async def create_topics(world: World) -> None:
        for name in ("a", "b", "c"):
            await create(world, name, 4)

    async def restart(world: World) -> None:
        orders = world.broker.requests_of_type(LeaderAndIsrRequest)
        assert len(orders) == 1
        assert sum(len(topic.partition_states) for topic in orders[0].topic_states) == 12
        assert not any(state.is_new for topic in orders[0].topic_states for state in topic.partition_states)
        updates = world.broker.requests_of_type(UpdateMetadataRequest)
        assert [sum(len(t.partition_states) for t in u.topic_states) for u in updates] == [12, 12]
        assert world.broker.leads[TopicPartition("b", 3)].leader_epoch == 0
        assert orders[0].controller_epoch == 2
        stat = await world.store.exists("/brokers/topics/b/partitions/3/state")
        assert stat is not None and stat.version == 0

    in_world(tmp_path, create_topics)
    in_world(tmp_path, restart)


def test_a_partition_left_without_state_or_leader_by_a_crash_is_brought_online(tmp_path: Path) -> None:
    async def crash(world: World) -> None:
        await create(world, "t", 2)
        await world.store.create("/brokers/topics/u", TopicNode(None, {0: ReplicaAssignment((0,))}).encode())
        await world.controller.stop()
        await world.store.set(paths.partition_state(T0), PartitionStateNode(-1, 3, (0,), 1).encode())
        await world.store.delete("/brokers/topics/t/partitions/1/state")

    async def recover(world: World) -> None:
        assert (await state_node(world, T0)) == PartitionStateNode(0, 4, (0,), 2)
        assert (await state_node(world, TopicPartition("t", 1))) == PartitionStateNode(0, 0, (0,), 2)
        assert set(world.broker.leads) >= {T0, TopicPartition("t", 1), TopicPartition("u", 0)}
        node = TopicNode.decode("u", (await world.store.get("/brokers/topics/u"))[0])
        assert node.topic_id is not None

    in_world(tmp_path, crash)
    in_world(tmp_path, recover)


def test_partitions_are_added(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        created = await create(world, "t", 1)
        outcome = (await world.topics.create_partitions([MorePartitions("t", 3)], timeout_ms=5000))[0]
        assert outcome.error is None
        assert sorted(world.broker.leads) == [T0, ("t", 1), ("t", 2)]
        assert sorted(world.broker.cache.topics["t"].partitions) == [0, 1, 2]
        node = TopicNode.decode("t", (await world.store.get("/brokers/topics/t"))[0])
        assert node.topic_id == created.topic_id and len(node.partitions) == 3

    in_world(tmp_path, body)


def test_a_deleted_topic_is_stopped_deleted_and_removed_from_the_tree(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await create(world, "t", 2, configs={"retention.ms": "5"})
        await create(world, "stays")
        world.broker.received.clear()
        outcome = (await world.topics.delete_topics(["t"], timeout_ms=5000))[0]
        assert outcome.error is None
        assert await world.store.children("/brokers/topics") == ["stays"]
        assert await world.store.children("/config/topics") == ["stays"]
        assert await world.store.children("/admin/delete_topics") == []
        assert sorted(world.broker.deleted) == [T0, ("t", 1)]
        assert list(world.broker.cache.topics) == ["stays"]
        assert list(world.controller.context.topics) == ["stays"]
        assert all(tp.topic == "stays" for tp in world.controller.context.partition_states)
        assert all(r.partition.topic == "stays" for r in world.controller.context.replica_states)
        # Clients are notified before the files are deleted, and replicas stop before they are
        # deleted.
        kinds = [type(request).__name__ for request in world.broker.received]
        assert kinds == ["UpdateMetadataRequest", "StopReplicaRequest", "StopReplicaRequest"]
        stops = world.broker.requests_of_type(StopReplicaRequest)
        flags = [[p.delete_partition for t in s.topic_states for p in t.partition_states] for s in stops]
        assert flags == [[False, False], [True, True]]
        recreated = await create(world, "t", 1)
        assert recreated.topic_id != outcome.topic_id

    in_world(tmp_path, body)


def test_a_restart_completes_a_deletion(tmp_path: Path) -> None:
    async def mark(world: World) -> None:
        await create(world, "t", 2)
        await world.controller.stop()
        await world.store.create(paths.delete_topic("t"))
        await world.store.create(paths.delete_topic("unknown"))

    async def finish(world: World) -> None:
        await world.controller.wait_until_idle()
        assert await world.store.children("/brokers/topics") == []
        assert await world.store.children("/admin/delete_topics") == []
        assert world.broker.cache.topics == {}
        assert sorted(world.broker.deleted) == [T0, ("t", 1)]

    in_world(tmp_path, mark)
    in_world(tmp_path, finish)


def test_topics_that_are_written_directly_to_the_tree_are_created(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.store.create("/brokers/topics/t", TopicNode(None, {0: ReplicaAssignment((0,))}).encode())
        await world.store.create("/brokers/topics/broken", b"junk")
        assert await world.controller.wait_until(lambda: "t" in world.broker.cache.topics, 5)
        assert (await create(world, "after")).error is None

    in_world(tmp_path, body)


def test_a_failed_disk_takes_only_its_own_partitions_offline(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await create(world, "t", 2)
        world.broker.failed_disk.add(T0)
        await announce_log_dir_failure(world.store, 0)
        assert await world.controller.wait_until(lambda: world.broker.cache.topics["t"].partitions[0].leader == -1, 5)
        await world.controller.wait_until_idle()
        assert await state_node(world, T0) == PartitionStateNode(-1, 1, (0,), 1)
        assert world.controller.context.state_of(T0) is PartitionState.OFFLINE
        other = world.broker.cache.topics["t"].partitions[1]
        assert (other.leader, other.leader_epoch) == (0, 0)
        assert world.broker.cache.topics["t"].partitions[0].offline_replicas == [0]
        assert await world.store.children("/log_dir_event_notification") == []

    in_world(tmp_path, body)


def test_a_topic_on_a_full_disk_comes_online_when_there_is_space(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("kavka.controller.brokers.DISK_BACKOFF", Backoff(50, 1_000, jitter=0))

    async def body(world: World) -> None:
        world.broker.failed_disk.add(T0)
        await world.topics.create_topics([NewTopic("t", 1, 1)], timeout_ms=5000)
        cache = world.broker.cache
        assert await world.controller.wait_until(lambda: cache.topics["t"].partitions[0].leader == -1, 5)
        assert T0 not in world.broker.leads
        await asyncio.sleep(0.1)
        assert cache.topics["t"].partitions[0].leader == -1
        world.broker.failed_disk.clear()
        assert await world.controller.wait_until(lambda: cache.topics["t"].partitions[0].leader == 0, 5)
        await world.controller.wait_until_idle()
        assert await state_node(world, T0) == PartitionStateNode(0, 2, (0,), 1)
        assert world.broker.leads[T0].leader == 0
        assert not world.controller.context.replicas_on_failed_disks

    in_world(tmp_path, body)


def test_a_replaced_controller_cannot_write(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await create(world, "t")
        await world.store.multi([SetData("/controller_epoch", b"9")])
        outcome = (await world.topics.create_topics([NewTopic("u", 1, 1)], timeout_ms=500))[0]
        assert outcome.error is not None and outcome.error.code is ErrorCode.NOT_CONTROLLER
        assert await world.store.exists("/brokers/topics/u") is None

    in_world(tmp_path, body)


def test_a_deleted_controller_node_starts_a_new_election(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await create(world, "t")
        await world.store.delete("/controller")
        await asyncio.sleep(0)
        await world.controller.wait_until_idle()
        assert world.controller.is_active and world.controller.context.epoch == 2
        assert await create(world, "u")

    in_world(tmp_path, body)


def test_a_topic_whose_state_could_not_be_written_comes_online_later(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("kavka.controller.controller.RETRY_AFTER_S", 0.05)

    async def body(world: World) -> None:
        real = world.store.multi
        full = True

        async def multi(ops: Any) -> Any:
            if full and any(op.path.endswith("/state") for op in ops):
                raise StoreUnavailable("/x", "disk full")
            return await real(ops)

        world.store.multi = multi  # type: ignore[method-assign]
        outcome = (await world.topics.create_topics([NewTopic("t", 1, 1)], timeout_ms=150))[0]
        assert outcome.error is not None and outcome.error.code is ErrorCode.REQUEST_TIMED_OUT
        full = False
        assert await world.controller.wait_until(lambda: "t" in world.broker.cache.topics, 5)

    in_world(tmp_path, body)


def test_partitions_of_a_dead_broker_get_new_leaders(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await create(world, "t", 6, 3)
        states = [await state_node(world, TopicPartition("t", p)) for p in range(6)]
        assert sorted(state.leader for state in states) == [0, 0, 1, 1, 2, 2]
        await world.store.delete("/brokers/ids/2")
        cache = world.broker.cache
        assert await world.controller.wait_until(
            lambda: all(p.leader in (0, 1) and 2 not in p.isr for p in cache.topics["t"].partitions.values()), 5
        )
        for p, previous in enumerate(states):
            state = await state_node(world, TopicPartition("t", p))
            assert state.leader_epoch > previous.leader_epoch
            assert world.brokers[state.leader].leads[TopicPartition("t", p)].leader == state.leader
        world.brokers[2].received.clear()
        await world.register(2)
        assert await world.controller.wait_until(lambda: 2 in cache.brokers, 5)
        await world.controller.wait_until_idle()
        await asyncio.sleep(0.05)
        order = world.brokers[2].requests_of_type(LeaderAndIsrRequest)[0]
        assert sum(len(t.partition_states) for t in order.topic_states) == 6
        assert set(world.brokers[2].cache.topics["t"].partitions) == set(range(6))

    in_world(tmp_path, body, brokers=(0, 1, 2))


def test_a_topic_with_a_replica_on_a_dead_broker_is_deleted_when_it_returns(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await create(world, "t", 1, 2)
        await world.store.delete("/brokers/ids/1")
        await world.controller.wait_until_idle()
        outcome = (await world.topics.delete_topics(["t"], timeout_ms=5000))[0]
        assert outcome.error is None
        assert "t" not in world.broker.cache.topics
        assert await world.store.children("/brokers/topics") == ["t"]
        recreation = (await world.topics.create_topics([NewTopic("t", 1, 1)], timeout_ms=100))[0]
        assert recreation.error is not None and recreation.error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        await world.register(1)
        assert await world.controller.wait_until(lambda: "t" not in world.controller.context.topics, 5)
        assert await world.store.children("/brokers/topics") == []
        assert world.brokers[1].deleted == [T0] and world.broker.deleted == [T0]

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_controller_with_a_thousand_partitions_starts_quickly(tmp_path: Path) -> None:
    async def create_topics(world: World) -> None:
        for i in range(10):
            await create(world, f"t{i}", 100)

    async def restart(world: World) -> float:
        start = time.process_time()
        await world.start()
        cpu_s = time.process_time() - start
        assert len(world.broker.leads) == 1000
        return cpu_s

    in_world(tmp_path, create_topics)
    assert in_world(tmp_path, restart, start=False) < 2.0
