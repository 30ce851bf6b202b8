"""Prefetching: one request in flight per broker, limits of the buffer, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kavka.client.consumer.buffer import FetchBuffer
from kavka.client.consumer.fetcher import Fetcher
from kavka.client.consumer.metrics import ConsumerMetrics
from kavka.client.consumer.records import Records
from kavka.client.consumer.subscription import PartitionState, Subscriptions
from kavka.client.consumer_config import consumer_config
from kavka.client.errors import Disconnected, UnsupportedVersion
from kavka.client.metadata import with_leader
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition as TP
from kavka.protocol.messages.fetch import AbortedTransaction, LeaderIdAndEpoch, NodeEndpoint
from tests.unit.client.consumer.fakes import FakeCluster, partition_data


class Setup:
    def __init__(self, partitions: int = 1, version: int = 17, **settings: Any) -> None:
        config = consumer_config({"bootstrap.servers": "h:1", "retry.backoff.ms": 20, **settings}, {})
        self.cluster = FakeCluster(partitions, version)
        self.subscriptions = Subscriptions()
        self.data_events = 0
        self.errors: list[tuple[TP, KafkaError]] = []
        self.buffer = FetchBuffer(None, None, lambda: self.fetcher.wake())
        self.fetcher = Fetcher(
            config,
            self.cluster,  # type: ignore[arg-type]
            self.subscriptions,
            self.buffer,
            ConsumerMetrics(),
            self._on_data,
            lambda state, version, error: self.errors.append((state.tp, error)),
        )
        self.subscriptions.assign([TP("t", p) for p in range(partitions)])
        for state in self.states:
            state.seek(0)
        self.fetcher.start()

    def _on_data(self) -> None:
        self.data_events += 1

    @property
    def states(self) -> list[PartitionState]:
        return list(self.subscriptions.partitions.values())

    async def turn(self) -> None:
        self.fetcher.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def take(self, limit: int = 1000) -> list[Any]:
        return [r.value for r in Records(*self.buffer.take(limit))]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_next_fetch_is_sent_before_the_application_takes_records() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        assert setup.cluster.requested_offsets() == {TP("t", 0): 0}
        await setup.turn()
        assert len(setup.cluster.pending()) == 1
        setup.cluster.respond(partition_data(0, 0, b"a", b"b"))
        assert setup.data_events == 1
        assert setup.cluster.requested_offsets() == {TP("t", 0): 2}
        assert setup.take() == [b"a", b"b"]
        assert (setup.states[0].high_watermark, setup.states[0].lag(False), setup.states[0].lag(True)) == (100, 98, 88)

    run(main)


def test_responses_do_not_share_memory() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        new_buffer = setup.cluster.connections[1].new_buffer
        first = memoryview(new_buffer(1000))
        first[500:503] = b"abc"
        value = first[100:900][400:403]
        del first
        second = memoryview(new_buffer(1000))
        second[:] = bytes(1000)
        assert bytes(value) == b"abc"

    run(main)


def test_empty_response_is_followed_by_the_next_fetch() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.cluster.respond()
        request = setup.cluster.pending()[0]
        assert (request.session_id, request.session_epoch, request.topics) == (3, 1, [])
        assert setup.data_events == 0

    run(main)


def test_full_partition_is_fetched_when_there_is_room() -> None:
    async def main() -> None:
        setup = Setup(2, **{"max.partition.fetch.bytes": 50})
        await setup.turn()
        setup.cluster.respond(partition_data(0, 0, b"x" * 200), partition_data(1, 0))
        request = setup.cluster.pending()[0]
        assert [f.partitions for f in request.forgotten_topics_data] == [[0]]
        assert setup.buffer.needs_room
        assert setup.take() == [b"x" * 200]
        setup.cluster.respond(partition_data(1, 0))
        await setup.turn()
        assert setup.cluster.requested_offsets() == {TP("t", 0): 1}

    run(main)


def test_fetch_size_grows_while_the_application_waits_unless_configured() -> None:
    async def sizes(setup: Setup) -> list[int]:
        requested = []
        await setup.turn()
        for offset in range(5):
            request = setup.cluster.pending()[0]
            limit = request.topics[0].partitions[0].partition_max_bytes
            requested.append(limit)
            setup.cluster.respond(partition_data(0, offset, b"x" * (limit * 3 // 4)))
            setup.take()
            await setup.turn()
        return requested

    async def main() -> None:
        mb = 1024 * 1024
        assert await sizes(Setup()) == [mb, 2 * mb, 2 * mb, 2 * mb, 2 * mb]
        explicit = {"max.partition.fetch.bytes": 1000}
        assert await sizes(Setup(**explicit)) == [1000] * 5
        assert await sizes(Setup(**{"fetch.max.bytes": mb})) == [mb] * 5

    run(main)


def test_no_fetch_is_sent_while_the_buffer_contains_fetch_max_bytes() -> None:
    async def main() -> None:
        setup = Setup(2, **{"fetch.max.bytes": 100})
        await setup.turn()
        setup.cluster.respond(partition_data(0, 0, b"x" * 200))
        assert setup.cluster.pending() == []
        setup.take()
        await setup.turn()
        assert len(setup.cluster.pending()) == 1

    run(main)


@pytest.mark.parametrize("flag", ["paused", "held", "validating"])
def test_partition_with_a_flag_is_not_fetched(flag: str) -> None:
    async def main() -> None:
        setup = Setup(2)
        setattr(setup.states[1], flag, True)
        await setup.turn()
        assert setup.cluster.requested_offsets() == {TP("t", 0): 0}

    run(main)


def test_response_for_an_old_position_is_discarded() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.states[0].seek(50)
        setup.cluster.respond(partition_data(0, 0, b"old"))
        assert setup.take() == []
        assert setup.cluster.requested_offsets() == {TP("t", 0): 50}

    run(main)


def test_new_leader_in_a_response_is_used_at_once() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        refused = partition_data(
            0,
            0,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=6),
        )
        setup.cluster.respond(refused, node_endpoints=[NodeEndpoint(node_id=2, host="host", port=9002)])
        assert setup.cluster.pending(1) == []
        assert setup.cluster.requested_offsets(2) == {TP("t", 0): 0}
        assert setup.cluster.pending(2)[0].topics[0].partitions[0].current_leader_epoch == 6

    run(main)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_retriable_errors_are_retried_after_a_backoff(code: ErrorCode) -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.cluster.respond(partition_data(0, 0, error_code=code))
        assert setup.cluster.pending() == []
        assert (setup.cluster.updates_requested > 0) == (code != ErrorCode.UNKNOWN_SERVER_ERROR)
        await asyncio.sleep(0.1)
        assert setup.cluster.requested_offsets() == {TP("t", 0): 0} or setup.cluster.pending()[0].topics == []
        assert setup.errors == []

    run(main)


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_errors_for_a_poll_are_reported(code: ErrorCode) -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.cluster.respond(partition_data(0, 0, error_code=code))
        assert [(tp, error.code) for tp, error in setup.errors] == [(TP("t", 0), code)]
        assert setup.cluster.pending() == []

    run(main)


def test_preferred_replica_is_used_until_it_fails() -> None:
    async def main() -> None:
        setup = Setup(**{"client.rack": "here"})
        await setup.turn()
        assert setup.cluster.pending()[0].rack_id == "here"
        setup.cluster.respond(partition_data(0, 0, preferred_read_replica=2))
        assert setup.cluster.requested_offsets(2) == {TP("t", 0): 0}
        setup.cluster.respond(partition_data(0, 0, b"near"), node=2)
        assert setup.cluster.requested_offsets(2) == {TP("t", 0): 1}
        setup.cluster.respond(partition_data(0, 1, error_code=ErrorCode.OFFSET_OUT_OF_RANGE), node=2)
        assert setup.errors == []
        assert setup.cluster.requested_offsets(1) == {TP("t", 0): 1}

    run(main)


def test_lost_connection_is_retried_with_a_new_session() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.cluster.respond(partition_data(0, 0, b"a"))
        setup.cluster.fail(Disconnected("connection lost"))
        assert setup.cluster.pending() == [] and setup.cluster.updates_requested
        await asyncio.sleep(0.1)
        request = setup.cluster.pending()[0]
        assert (request.session_epoch, setup.cluster.requested_offsets()) == (0, {TP("t", 0): 1})

    run(main)


def test_failed_send_is_retried() -> None:
    async def main() -> None:
        setup = Setup()
        setup.cluster.connections[1].send_error = Disconnected("connection lost")
        await setup.turn()
        setup.cluster.connections[1].send_error = None
        await asyncio.sleep(0.1)
        assert setup.cluster.requested_offsets() == {TP("t", 0): 0}

    run(main)


def test_session_restarts_at_once_after_session_id_not_found() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.cluster.respond(partition_data(0, 0, b"a"))
        setup.cluster.respond(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
        await setup.turn()
        request = setup.cluster.pending()[0]
        assert (request.session_id, request.session_epoch, setup.cluster.requested_offsets()) == (0, 0, {TP("t", 0): 1})

    run(main)


def test_throttled_broker_is_not_fetched_from() -> None:
    async def main() -> None:
        setup = Setup()
        loop = asyncio.get_running_loop()
        setup.cluster.connections[1].throttled_until = loop.time() + 0.1
        await setup.turn()
        assert setup.cluster.pending() == []
        await asyncio.sleep(0.2)
        assert len(setup.cluster.pending()) == 1

    run(main)


def test_requests_to_old_brokers_carry_topic_names() -> None:
    async def main() -> None:
        setup = Setup(version=4)
        await setup.turn()
        setup.cluster.respond(partition_data(0, 0, b"a"), session_id=0)
        assert setup.take() == [b"a"]

    run(main)


def test_aborted_transactions_are_sorted_by_offset() -> None:
    async def main() -> None:
        setup = Setup(**{"isolation.level": "read_committed"})
        await setup.turn()
        assert setup.cluster.pending()[0].isolation_level == 1
        aborted = [AbortedTransaction(producer_id=9, first_offset=7), AbortedTransaction(producer_id=8, first_offset=1)]
        setup.cluster.respond(partition_data(0, 0, b"a", aborted_transactions=aborted))
        assert setup.buffer._queue[0].aborted == [(1, 8), (7, 9)]

    run(main)


def test_batch_larger_than_the_limit_is_an_error() -> None:
    async def main() -> None:
        setup = Setup(version=2)
        await setup.turn()
        truncated = partition_data(0, 0, b"x" * 100)
        truncated.records = truncated.records[:50]
        setup.cluster.respond(truncated, session_id=0)
        assert [error.code for _, error in setup.errors] == [ErrorCode.RECORD_LIST_TOO_LARGE]

    run(main)


def test_partitions_of_several_leaders_are_fetched_at_the_same_time() -> None:
    async def main() -> None:
        setup = Setup(2)
        setup.cluster.move(1, 2, 6)
        await setup.turn()
        assert setup.cluster.requested_offsets(1) == {TP("t", 0): 0}
        assert setup.cluster.requested_offsets(2) == {TP("t", 1): 0}

    run(main)


def test_partition_without_a_leader_requests_metadata() -> None:
    async def main() -> None:
        setup = Setup(2)
        setup.cluster.move(1, -1, 6)
        setup.cluster.updates_requested = 0
        await setup.turn()
        assert setup.cluster.requested_offsets() == {TP("t", 0): 0}
        assert setup.cluster.updates_requested

    run(main)


def test_unsupported_fetch_is_reported_without_blocking_other_brokers() -> None:
    async def main() -> None:
        setup = Setup(3)
        cluster = setup.cluster
        topic = cluster.topics["t"]
        # Broker 1 leads the first two partitions, broker 2 the last.
        cluster.topics = {"t": with_leader(topic, 2, 2, 6)}
        error = UnsupportedVersion("broker 1 does not support FETCH")
        cluster.connections[1].version_error = error
        await setup.turn()
        assert setup.errors == [(TP("t", 0), error)]
        assert len(cluster.connections[2].sent) == 1
        assert not cluster.connections[1].sent
        # The fetch is retried after a backoff.
        await setup.turn()
        assert len(setup.errors) == 1
        async with asyncio.timeout(60):
            while len(setup.errors) < 2:
                await asyncio.sleep(0.01)
        cluster.connections[1].version_error = None
        async with asyncio.timeout(60):
            while not cluster.connections[1].sent:
                await asyncio.sleep(0.01)
        request, _ = cluster.connections[1].sent[0]
        assert [p.partition for t in request.topics for p in t.partitions] == [0, 1]

    run(main)
