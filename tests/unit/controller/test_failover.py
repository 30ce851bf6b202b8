from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.controller import events
from kavka.controller.topics import NewTopic
from kavka.metadata import paths
from kavka.metadata.paths import PartitionStateNode, ReplicaAssignment, TopicNode
from kavka.metadata.store import StoreUnavailable
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tests.unit.controller.cluster import Cluster, in_cluster

T0 = TopicPartition("t", 0)


def test_a_new_controller_elects_leaders_for_partitions_that_the_dead_broker_led() -> None:
    async def body(cluster: Cluster) -> None:
        first = cluster.controller_id
        assert first == 0
        await cluster.create("t", [[0, 1, 2], [1, 2, 0]])
        await cluster.nodes[0].kill()
        await cluster.until(lambda: cluster.controller_id in (1, 2))
        await cluster.wait_until_idle()
        assert await cluster.state(T0) == PartitionStateNode(1, 1, (1, 2), 2)
        assert await cluster.state(TopicPartition("t", 1)) == PartitionStateNode(1, 1, (1, 2), 2)
        assert all(node.controller.active_id == cluster.controller_id for node in cluster.nodes.values() if node.is_up)
        await cluster.nodes[0].start()
        await cluster.catch_up()
        assert set((await cluster.state(T0)).isr) == {0, 1, 2}
        assert cluster.nodes[0].controller.active_id == cluster.controller_id != 0

    in_cluster(body)


def test_a_quick_restart_loses_the_leaderships_of_the_broker() -> None:
    """The broker registers again between two reads, so the controller only sees a new epoch."""

    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 1]])
        node, old_epoch = cluster.nodes[1], cluster.nodes[1].epoch
        node.is_up = False
        node.store.renew()
        await node.register()
        assert node.epoch > old_epoch
        node.broker.received.clear()
        await cluster.wait_until_idle()
        assert await cluster.state(T0) == PartitionStateNode(2, 1, (2,), 1)
        assert await cluster.state(TopicPartition("t", 1)) == PartitionStateNode(2, 1, (2,), 1)
        orders = node.broker.requests_of_type(LeaderAndIsrRequest)
        assert orders and all(order.broker_epoch == node.epoch for order in orders)
        leaders = {s.partition_index: s.leader for t in orders[-1].topic_states for s in t.partition_states}
        assert leaders == {0: 2, 1: 2}

    in_cluster(body)


async def restart_unseen(cluster: Cluster, *broker_ids: int) -> None:
    """Brokers stop and return before the controller notices; then it dies, and another
    controller takes over."""
    cluster.nodes[0].store._watches.clear()
    for broker_id in broker_ids:
        await cluster.nodes[broker_id].lose_session()
    await cluster.nodes[0].kill()
    await cluster.until(lambda: cluster.controller_id in (1, 2))
    await cluster.wait_until_idle()


def test_a_leader_that_restarts_while_the_controller_changes_loses_its_leaderships() -> None:
    """The log may have lost its last records. Without a new leader epoch, followers would not
    detect the loss."""

    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 1], [1, 2]])
        await cluster.create("single", [[1]])
        shrunk_partition = TopicPartition("t", 2)
        await cluster.set_isr(shrunk_partition, [1])
        await restart_unseen(cluster, 1)
        assert await cluster.state(T0) == PartitionStateNode(2, 1, (2,), 2)
        assert await cluster.state(TopicPartition("t", 1)) == PartitionStateNode(2, 1, (2,), 2)
        assert await cluster.state(TopicPartition("single", 0)) == PartitionStateNode(1, 0, (1,), 1)
        assert await cluster.state(shrunk_partition) == PartitionStateNode(1, 1, (1,), 2), "only the epoch changes"
        await cluster.catch_up()
        assert set((await cluster.state(T0)).isr) == {1, 2}

    in_cluster(body)


def test_if_all_isr_members_have_restarted_the_live_members_stay_in_the_isr() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 0]])
        await restart_unseen(cluster, 1, 2)
        assert await cluster.state(T0) == PartitionStateNode(1, 1, (1, 2), 2)
        assert await cluster.state(TopicPartition("t", 1)) == PartitionStateNode(2, 1, (2,), 2)

    in_cluster(body)


def test_a_controller_that_restarts_loses_its_leaderships() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1, 2]])
        await cluster.nodes[0].lose_session()
        await cluster.until(lambda: cluster.controller_id is not None)
        await cluster.wait_until_idle()
        state = await cluster.state(T0)
        assert state.leader == 1 and state.leader_epoch > 0
        assert state.isr == (1, 2)

    in_cluster(body)


def test_the_next_controller_completes_the_handling_of_a_restart() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]] * 300)
        old = cluster.nodes[0]
        writes = 0

        def die(ops: Any) -> None:
            nonlocal writes
            writes += 1
            if writes == 2:
                old.is_up = False
                old.store.expire()
                raise StoreUnavailable("/", "the session has expired")

        old.store._watches.clear()
        await cluster.nodes[1].lose_session()
        old.store.before_multi = die
        assert old.controller._term is not None
        old.controller._term.put(events.BrokerChange())
        await cluster.until(lambda: cluster.controller_id in (1, 2))
        await cluster.wait_until_idle()
        assert writes == 2
        states = [await cluster.state(TopicPartition("t", number)) for number in range(300)]
        assert {(state.leader, state.isr) for state in states} == {(2, (2,))}
        assert all(state.leader_epoch > 0 for state in states)
        await old.controller.stop()

    in_cluster(body)


def test_a_new_controller_keeps_leaders_that_did_not_restart() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 1]])
        await cluster.nodes[2].kill()
        await cluster.wait_until_idle()
        await cluster.nodes[2].start()
        await cluster.catch_up()
        previous = [await cluster.state(TopicPartition("t", number)) for number in (0, 1)]
        assert all(set(state.isr) == {1, 2} for state in previous)
        await restart_unseen(cluster)
        assert [await cluster.state(TopicPartition("t", number)) for number in (0, 1)] == previous

    in_cluster(body)


def test_a_controller_that_lost_its_session_resigns_and_takes_part_in_the_next_election() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1, 2]])
        old = cluster.nodes[0]
        old.store.renew()
        old.controller.on_session_lost()
        assert not old.controller.is_active
        with pytest.raises(KafkaError) as refused:
            await old.controller._call("x", lambda term: asyncio.sleep(0))
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        await old.register()
        await cluster.until(lambda: cluster.controller_id is not None)
        await cluster.wait_until_idle()
        data, _ = await cluster.store.get(paths.CONTROLLER_EPOCH)
        assert paths.decode_epoch(data) == 2
        await cluster.catch_up()
        assert set((await cluster.state(T0)).isr) == {0, 1, 2}

    in_cluster(body)


def test_operations_in_progress_when_the_session_is_lost_must_be_retried() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        old = cluster.nodes[0]

        def lose(ops: Any) -> None:
            old.store.before_multi = lambda ops: None
            old.is_up = False
            old.store.expire()
            old.controller.on_session_lost()
            raise StoreUnavailable("/", "the session has expired")

        old.store.before_multi = lose
        with pytest.raises(KafkaError) as refused:
            await old.controller.alter_partition(cluster.isr_request(T0, [1]), 3)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        await cluster.until(lambda: cluster.controller_id in (1, 2))
        new = cluster.nodes[cluster.controller_id or 1]

        def lose_again(ops: Any) -> None:
            new.store.before_multi = lambda ops: None
            new.controller.on_session_lost()
            raise StoreUnavailable("/", "the session has expired")

        new.store.before_multi = lose_again
        outcome = (await new.topics.create_topics([NewTopic("u", assignments={0: [1]})], timeout_ms=1000))[0]
        assert outcome.error is not None and outcome.error.code is ErrorCode.NOT_CONTROLLER
        await old.controller.stop()

    in_cluster(body)


def test_writes_of_a_replaced_controller_fail_and_it_resigns() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        old = cluster.nodes[0]
        request = cluster.isr_request(T0, [1])
        # Another broker is elected, but the watches of the old controller do not fire.
        old.store._watches.clear()
        await cluster.store.delete(paths.CONTROLLER)
        await cluster.until(lambda: any(cluster.nodes[b].controller.is_active for b in (1, 2)))
        assert old.controller.is_active
        with pytest.raises(KafkaError) as refused:
            await old.controller.alter_partition(request, 3)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        await cluster.until(lambda: cluster.controller_id in (1, 2))
        await cluster.until(lambda: old.controller.active_id == cluster.controller_id)
        assert not old.controller.is_active
        assert (await cluster.state(T0)).isr == (1, 2)

    in_cluster(body)


def test_an_operation_is_completed_after_a_store_failure(monkeypatch: Any) -> None:
    monkeypatch.setattr("kavka.controller.controller.RETRY_AFTER_S", 0.02)

    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2, 0], [1, 0, 2]])
        store = cluster.nodes[0].store
        failures = 3

        def fail(ops: Any) -> None:
            nonlocal failures
            if failures and any(op.path.endswith("/state") for op in ops):
                failures -= 1
                raise StoreUnavailable("/", "for a moment")

        store.before_multi = fail
        await cluster.nodes[1].kill()
        await cluster.until(lambda: failures == 0 and cluster.controller_id == 0)
        await cluster.wait_until_idle()
        assert (await cluster.state(T0)).leader == 2
        assert (await cluster.state(TopicPartition("t", 1))).leader == 0

    in_cluster(body)


def test_a_term_starts_again_after_a_store_failure(monkeypatch: Any) -> None:
    """No other broker can be elected, because the controller znode exists."""
    monkeypatch.setattr("kavka.controller.controller.RETRY_AFTER_S", 0.02)

    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1, 2]])
        failures = 0
        real = cluster.nodes[0].store.children

        async def fail(path: str, watch: Any = None) -> list[str]:
            nonlocal failures
            if path == paths.TOPICS and failures < 3:
                failures += 1
                raise StoreUnavailable(path, "for a moment")
            return await real(path, watch)

        cluster.nodes[0].store.children = fail  # type: ignore[method-assign]
        for other in (1, 2):
            cluster.nodes[other].store._watches.clear()
        await cluster.store.delete(paths.CONTROLLER)
        await cluster.until(lambda: failures == 3 and cluster.controller_id == 0)
        await cluster.create("u", [[1, 2]])

    in_cluster(body)


def test_malformed_topic_nodes_do_not_affect_other_topics() -> None:
    async def body(cluster: Cluster) -> None:
        malformed = (b"junk", b"[]", b'{"version":3,"partitions":[1]}', b'{"version":3,"partitions":{"0":["x"]}}',
                   b'{"version":3,"partitions":{"x":[1]}}', b'{"version":3,"partitions":{"0":7}}')  # fmt: skip
        for number, data in enumerate(malformed):
            await cluster.store.create(paths.topic(f"bad-{number}"), data)
        await cluster.create("good", [[1, 2]])
        state = paths.partition_state(TopicPartition("good", 0))
        await cluster.store.set(state, b'{"leader":1,"leader_epoch":0,"isr":["1"],"controller_epoch":1}')
        await cluster.nodes[0].kill()
        await cluster.until(lambda: cluster.controller_id is not None)
        await cluster.wait_until_idle()
        await cluster.create("after", [[1, 2]])
        good = b'{"version":2,"partitions":{"0":[2,1]},"adding_replicas":{},"removing_replicas":{}}'
        await cluster.store.set(paths.topic("bad-0"), good)
        await cluster.wait_until_idle()
        assert cluster.nodes[2].broker.cache.topics["bad-0"].partitions[0].leader == 2

    in_cluster(body)


def test_thousands_of_partitions_need_few_writes_and_few_requests() -> None:
    """Writes and requests are batched: their number does not grow with every partition."""
    count = 2000

    async def body(cluster: Cluster) -> None:
        layout = {p: ReplicaAssignment(tuple((p + k) % 3 for k in range(3))) for p in range(count)}
        await cluster.store.create(paths.topic("t"), TopicNode(paths.random_topic_id(), layout).encode())
        await cluster.wait_until_idle()
        assert cluster.controller_id == 0

        async def costs(change: Awaitable[None]) -> tuple[int, int]:
            for node in cluster.nodes.values():
                node.broker.received.clear()
            writes_before = cluster.tree.multis
            await change
            await cluster.until(lambda: cluster.controller_id is not None)
            await cluster.wait_until_idle()
            return cluster.tree.multis - writes_before, max(
                len(node.broker.received) for node in cluster.nodes.values()
            )

        # The controller dies with its broker: every partition gets a smaller ISR, and a new leader
        # if that broker led it. A write has 200 partitions.
        writes, requests = await costs(cluster.nodes[0].kill())
        assert writes <= 2 * count / 200 + 10 and requests <= 10
        context = cluster.controller.context
        assert all(leadership.state.leader in (1, 2) for leadership in context.leaderships.values())
        writes, requests = await costs(cluster.nodes[0].start())
        assert writes <= 5 and requests <= 10
        assert len(cluster.nodes[0].broker.leads) == count
        writes, requests = await costs(cluster.store.delete(paths.CONTROLLER))
        assert writes <= 5 and requests <= 10

    in_cluster(body)


def test_malformed_broker_nodes_are_ignored() -> None:
    async def body(cluster: Cluster) -> None:
        malformed = (
            ("junk", b"{}"),
            ("007", b"{}"),
            ("9", b"not json"),
            ("10", b'{"version":"x"}'),
            ("11", b'{"version":5,"endpoints":7}'),
            ("12", b'{"version":5,"endpoints":[3],"listener_security_protocol_map":[]}'),
            ("13", b'{"version":5,"endpoints":["A://h:1"],"listener_security_protocol_map":["A"]}'),
            ("14", b'{"version":5,"endpoints":[],"timestamp":[1]}'),
        )
        for name, data in malformed:
            await cluster.store.create(f"{paths.BROKER_IDS}/{name}", data)
        await cluster.wait_until_idle()
        assert sorted(cluster.controller.context.brokers) == [0, 1, 2]
        await cluster.store.delete(f"{paths.BROKER_IDS}/junk")
        await cluster.create("t", [[1, 2]])

    in_cluster(body)


def test_changed_listeners_are_sent_to_all() -> None:
    async def body(cluster: Cluster) -> None:
        path = paths.broker(2)
        data, _ = await cluster.store.get(path)
        assert data is not None
        await cluster.store.set(path, data.replace(b"9094", b"19094"))
        await cluster.wait_until_idle()
        for node in cluster.nodes.values():
            assert node.broker.cache.brokers[2].endpoints["PLAINTEXT"].port == 19094

    in_cluster(body)
