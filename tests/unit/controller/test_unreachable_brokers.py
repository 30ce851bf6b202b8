"""Brokers whose connections failed while their sessions live on (docs/decisions/0016)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.controller import events
from kavka.metadata import paths
from kavka.metadata.paths import ControllerNode, PartitionStateNode
from kavka.metadata.store import Create, Delete, SetData, Stat, StoreUnavailable
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kavka.protocol.messages.stop_replica import StopReplicaRequest
from tests.unit.controller.cluster import Cluster, in_cluster

T0, T1, T2 = (TopicPartition("t", p) for p in range(3))


async def disconnect(cluster: Cluster, broker_id: int) -> None:
    cluster.nodes[broker_id].is_connected = False
    await cluster.until(lambda: broker_id in cluster.controller.context.unreachable, "the failure")
    await cluster.wait_until_idle()


async def reconnect(cluster: Cluster, broker_id: int) -> None:
    cluster.nodes[broker_id].is_connected = True
    await cluster.until(lambda: broker_id not in cluster.controller.context.unreachable, "the recovery")
    await cluster.wait_until_idle()


def test_an_unreachable_broker_loses_its_leaderships_while_its_session_lives_on() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2, 0], [2, 1, 0], [0, 2, 3]])
        await disconnect(cluster, 1)
        assert await cluster.state(T0) == PartitionStateNode(2, 1, (2, 0), 1)
        assert await cluster.state(T1) == PartitionStateNode(2, 1, (2, 0), 1)
        assert (await cluster.state(T2)).leader_epoch == 0
        assert await cluster.store.exists(paths.broker(1)) is not None
        for broker_id in (0, 2):
            assert cluster.nodes[broker_id].broker.leads[T0].leader == 2

        # It does not return to an ISR by the request of a leader, nor by its own.
        refused = await cluster.set_isr(T1, [2, 0, 1])
        assert refused.error_code == ErrorCode.INELIGIBLE_REPLICA
        fenced = await cluster.set_isr(T0, [1, 2], broker_id=1, leader_epoch=0, partition_epoch=0)
        assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH

        cluster.nodes[1].broker.received.clear()
        await reconnect(cluster, 1)
        assert cluster.nodes[1].broker.requests_of_type(StopReplicaRequest) == []
        requests = cluster.nodes[1].broker.requests_of_type(LeaderAndIsrRequest)
        assert requests
        assert {tp: state.leader_epoch for tp, state in cluster.nodes[1].broker.leads.items()} == {T0: 1, T1: 1}
        assert (await cluster.state(T0)).isr == (2, 0)
        await cluster.catch_up()
        assert set((await cluster.state(T0)).isr) == {0, 1, 2}
        assert (await cluster.state(T0)).leader == 2

    in_cluster(body, (0, 1, 2, 3))


@pytest.mark.parametrize("topic", ["t", "unclean"])
def test_a_partition_without_another_live_member_of_the_isr_keeps_its_leader_until_the_session_expires(
    topic: str,
) -> None:
    async def body(cluster: Cluster) -> None:
        tp, single = TopicPartition(topic, 0), TopicPartition("single", 0)
        await cluster.create(topic, [[1, 2, 3]])
        await cluster.create("single", [[1]])
        await cluster.set_isr(tp, [1])
        before = await cluster.state(tp)
        await disconnect(cluster, 1)
        assert await cluster.state(tp) == before
        # The loss of a follower does not start an unclean election either.
        await cluster.nodes[3].kill()
        await cluster.until(lambda: 3 not in cluster.controller.context.brokers)
        await cluster.wait_until_idle()
        assert await cluster.state(tp) == before
        assert (await cluster.state(single)).leader == 1

        await cluster.nodes[1].kill()
        await cluster.until(lambda: 1 not in cluster.controller.context.brokers)
        await cluster.wait_until_idle()
        assert (await cluster.state(tp)).leader == (2 if topic == "unclean" else -1)

    in_cluster(body, (0, 1, 2, 3))


def test_a_controller_that_reaches_less_than_half_of_the_brokers_waits_for_sessions() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2, 0], [2, 1, 0]])
        await disconnect(cluster, 1)
        cluster.nodes[2].is_connected = False
        await asyncio.sleep(0.05)
        await cluster.wait_until_idle()
        assert cluster.controller.context.unreachable == {1}
        assert (await cluster.state(T1)).leader == 2
        # The first broker returns: now the controller reaches two of three.
        await reconnect(cluster, 1)
        await cluster.until(lambda: cluster.controller.context.unreachable == {2})
        await cluster.wait_until_idle()
        assert (await cluster.state(T1)).leader == 0

    in_cluster(body)


def test_a_broker_that_shuts_down_and_becomes_unreachable_is_handed_over_once() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2, 0], [2, 1, 0]])
        assert await cluster.controller.controlled_shutdown(1, cluster.nodes[1].epoch) == []
        await cluster.wait_until_idle()
        states = [await cluster.state(tp) for tp in (T0, T1)]
        await disconnect(cluster, 1)
        assert [await cluster.state(tp) for tp in (T0, T1)] == states
        await cluster.nodes[1].kill()
        await cluster.until(lambda: 1 not in cluster.controller.context.brokers)
        await cluster.nodes[1].start()
        await cluster.catch_up()
        assert set((await cluster.state(T0)).isr) == {0, 1, 2}

    in_cluster(body)


def test_a_restart_ends_the_failure_of_the_earlier_registration() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2, 0]])
        await disconnect(cluster, 1)
        node, old_epoch = cluster.nodes[1], cluster.nodes[1].epoch
        await node.kill()
        await node.start()
        await cluster.until(lambda: 1 in cluster.controller.context.brokers and node.epoch > old_epoch)
        await cluster.catch_up()
        # A late report about the earlier registration, or of an ended term, has no effect.
        term = cluster.controller._term
        assert term is not None
        term.put(events.ReachabilityChange(term, 1, old_epoch, False))
        term.put(events.ReachabilityChange(None, 1, node.epoch, False))  # type: ignore[arg-type]
        await cluster.wait_until_idle()
        assert cluster.controller.context.unreachable == set()
        assert set((await cluster.state(T0)).isr) == {0, 1, 2}

    in_cluster(body)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_controller_that_dies_while_it_hands_over_is_continued_by_the_next(when: str) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2, 3], [2, 1, 3], [3, 1, 2]])
        first = cluster.nodes[0]
        writes = 0

        def fail(ops: object) -> None:
            nonlocal writes
            writes += 1
            if writes == 1:
                first.is_up = first.is_connected = False
                first.store.expire()
                raise StoreUnavailable("/", "the controller died")

        setattr(first.store, f"{when}_multi", fail)
        cluster.nodes[1].is_connected = False
        await cluster.until(lambda: writes > 0)
        await first.controller.stop()
        await cluster.until(lambda: cluster.controller_id is not None and cluster.controller_id != 0)
        new_controller = cluster.controller_id
        if new_controller == 1:
            # The unreachable broker itself won the election, and it reaches the others.
            return
        await cluster.until(lambda: 1 in cluster.controller.context.unreachable)
        await cluster.wait_until_idle()
        states = [await cluster.state(tp) for tp in (T0, T1, T2)]
        assert [state.leader for state in states] == [2, 2, 3]
        assert all(1 not in state.isr for state in states)
        assert all(state.leader_epoch >= 1 for state in states)

    in_cluster(body, (0, 1, 2, 3))


def test_a_topic_that_is_being_deleted_waits_for_the_unreachable_broker() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 0]])
        cluster.nodes[1].is_up = False  # it responds to no StopReplica
        await cluster.topics.delete_topics(["t"], timeout_ms=50)
        await disconnect(cluster, 1)
        assert await cluster.store.exists(paths.topic("t")) is not None
        cluster.nodes[1].is_up = True
        await reconnect(cluster, 1)
        await cluster.until(lambda: "t" not in cluster.controller.context.topics, "the deletion")
        assert set(cluster.nodes[1].broker.deleted) == {T0}

    in_cluster(body)


# ---- the controller


def test_a_crashed_controller_is_replaced_before_its_session_expires() -> None:
    async def body(cluster: Cluster) -> None:
        assert cluster.controller_id == 0
        await cluster.create("t", [[0, 1, 2], [1, 0, 2]])
        await cluster.nodes[0].crash()
        await cluster.until(lambda: cluster.controller_id in (1, 2), "another controller")
        await cluster.until(lambda: 0 in cluster.controller.context.unreachable)
        await cluster.wait_until_idle()
        assert await cluster.state(T0) == PartitionStateNode(1, 1, (1, 2), 2)
        assert await cluster.state(T1) == PartitionStateNode(1, 1, (1, 2), 2)
        stat = await cluster.store.exists(paths.CONTROLLER)
        assert stat is not None
        # The end of the earlier session changes nothing for the new controller.
        new_controller = cluster.controller_id
        cluster.nodes[0].store.expire()
        await cluster.until(lambda: 0 not in cluster.controller.context.brokers)
        assert cluster.controller_id == new_controller
        after = await cluster.store.exists(paths.CONTROLLER)
        assert after is not None and after.czxid == stat.czxid
        assert cluster.controller.context.epoch == 2

    in_cluster(body)


def test_a_controller_that_is_alive_ends_its_term_when_it_is_replaced() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1, 2]])
        old = cluster.nodes[0]
        # It learns of nothing: other brokers cannot reach it, and its watches do not fire.
        term = old.controller._term
        old.store._watches.clear()
        old.is_connected = False
        await cluster.until(lambda: any(cluster.nodes[b].controller.is_active for b in (1, 2)))
        old.is_connected = True
        await asyncio.sleep(0.02)
        before = await cluster.state(T0)
        assert term is not None and old.controller._term is term
        with pytest.raises(KafkaError) as refused:
            await old.controller.controlled_shutdown(0, old.epoch)
        assert refused.value.code == ErrorCode.NOT_CONTROLLER
        assert await cluster.state(T0) == before
        assert not old.controller.is_active and term.has_ended

    in_cluster(body)


def test_one_broker_wins_if_several_replace_the_controller() -> None:
    async def body(cluster: Cluster) -> None:
        epochs_before = cluster.controller.context.epoch
        await cluster.nodes[0].crash()
        await cluster.until(lambda: cluster.controller_id is not None)
        await cluster.wait_until_idle()
        active = [node.id for node in cluster.nodes.values() if node.is_up and node.controller.is_active]
        assert len(active) == 1
        assert cluster.controller.context.epoch == epochs_before + 1
        assert {node.controller.active_id for node in cluster.nodes.values() if node.is_up} == set(active)

    in_cluster(body, (0, 1, 2, 3, 4))


def test_a_report_about_an_earlier_controller_replaces_no_controller() -> None:
    async def body(cluster: Cluster) -> None:
        stat = await cluster.store.exists(paths.CONTROLLER)
        assert stat is not None
        cluster.nodes[1].controller._queue.put(events.ControllerFailed(stat.czxid - 1))
        await cluster.wait_until_idle()
        after = await cluster.store.exists(paths.CONTROLLER)
        assert after is not None and after.czxid == stat.czxid
        assert cluster.controller_id == 0

    in_cluster(body)


def test_a_controller_that_is_replaced_before_it_has_read_its_epoch_writes_nothing() -> None:
    async def body(cluster: Cluster) -> None:
        node, other = cluster.nodes[0], cluster.tree.session()
        get, reads = node.store.get, 0

        async def replaced_at_second_read(path: str, watch: Any = None) -> tuple[bytes | None, Stat]:
            nonlocal reads
            if path == paths.CONTROLLER_EPOCH:
                reads += 1
                if reads == 2:  # the first read is for the election
                    epoch, stat = await other.get(path)
                    await other.multi(
                        [
                            Delete(paths.CONTROLLER, 0),
                            Create(paths.CONTROLLER, ControllerNode(1, 0).encode(), ephemeral=True),
                            SetData(path, paths.encode_epoch(paths.decode_epoch(epoch) + 1), stat.version),
                        ]
                    )
            return await get(path, watch)

        cluster.nodes[0].store.get = replaced_at_second_read  # type: ignore[method-assign]
        await other.multi([Delete(paths.CONTROLLER, 0)])
        await cluster.until(lambda: reads >= 2)
        await cluster.wait_until_idle()
        assert not node.controller.is_active
        assert node.controller.active_id == 1
        assert node.broker.received == [] or all(request.controller_epoch == 1 for request in node.broker.received)

    in_cluster(body, (0,))
