"""Fetching ahead: one request at a time to each broker, within the room there is, and what to do about errors."""

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
from tests.unit.client.consumer.fakes import FakeCluster, data


class Setup:
    def __init__(self, partitions: int = 1, version: int = 17, **settings: Any) -> None:
        config = consumer_config({"bootstrap.servers": "h:1", "retry.backoff.ms": 20, **settings}, {})
        self.cluster = FakeCluster(partitions, version)
        self.subscriptions = Subscriptions()
        self.told = 0
        self.problems: list[tuple[TP, KafkaError]] = []
        self.buffer = FetchBuffer(None, None, lambda: self.fetcher.kick())
        self.fetcher = Fetcher(
            config,
            self.cluster,  # type: ignore[arg-type]
            self.subscriptions,
            self.buffer,
            ConsumerMetrics(),
            self._on_data,
            lambda state, version, error: self.problems.append((state.tp, error)),
        )
        self.subscriptions.assign([TP("t", p) for p in range(partitions)])
        for state in self.states:
            state.seek(0)
        self.fetcher.start()

    def _on_data(self) -> None:
        self.told += 1

    @property
    def states(self) -> list[PartitionState]:
        return list(self.subscriptions.partitions.values())

    async def turn(self) -> None:
        self.fetcher.kick()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def take(self, limit: int = 1000) -> list[Any]:
        return [r.value for r in Records(*self.buffer.take(limit))]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_the_next_request_leaves_before_the_program_has_taken_anything() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        assert setup.cluster.asked() == {TP("t", 0): 0}
        await setup.turn()
        assert len(setup.cluster.waiting()) == 1
        setup.cluster.answer(data(0, 0, b"a", b"b"))
        assert setup.told == 1
        assert setup.cluster.asked() == {TP("t", 0): 2}
        assert setup.take() == [b"a", b"b"]
        assert (setup.states[0].high_watermark, setup.states[0].lag(False), setup.states[0].lag(True)) == (100, 98, 88)

    run(main)


def test_a_response_never_shares_memory_with_an_earlier_one() -> None:
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


def test_an_answer_without_records_is_followed_by_the_next_request() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.cluster.answer()
        request = setup.cluster.waiting()[0]
        assert (request.session_id, request.session_epoch, request.topics) == (3, 1, [])
        assert setup.told == 0

    run(main)


def test_a_full_partition_waits_for_room_and_is_fetched_when_there_is() -> None:
    async def main() -> None:
        setup = Setup(2, **{"max.partition.fetch.bytes": 50})
        await setup.turn()
        setup.cluster.answer(data(0, 0, b"x" * 200), data(1, 0))
        request = setup.cluster.waiting()[0]
        assert [f.partitions for f in request.forgotten_topics_data] == [[0]]
        assert setup.buffer.hungry
        assert setup.take() == [b"x" * 200]
        setup.cluster.answer(data(1, 0))
        await setup.turn()
        assert setup.cluster.asked() == {TP("t", 0): 1}

    run(main)


def test_more_is_asked_for_at_a_time_where_the_program_waits_for_it_and_no_limit_is_set() -> None:
    async def sizes(setup: Setup) -> list[int]:
        found = []
        await setup.turn()
        for offset in range(5):
            request = setup.cluster.waiting()[0]
            asked = request.topics[0].partitions[0].partition_max_bytes
            found.append(asked)
            setup.cluster.answer(data(0, offset, b"x" * (asked * 3 // 4)))
            setup.take()
            await setup.turn()
        return found

    async def main() -> None:
        mb = 1024 * 1024
        assert await sizes(Setup()) == [mb, 2 * mb, 2 * mb, 2 * mb, 2 * mb]
        set_by_the_user = {"max.partition.fetch.bytes": 1000}
        assert await sizes(Setup(**set_by_the_user)) == [1000] * 5
        assert await sizes(Setup(**{"fetch.max.bytes": mb})) == [mb] * 5

    run(main)


def test_nothing_is_fetched_while_fetch_max_bytes_wait() -> None:
    async def main() -> None:
        setup = Setup(2, **{"fetch.max.bytes": 100})
        await setup.turn()
        setup.cluster.answer(data(0, 0, b"x" * 200))
        assert setup.cluster.waiting() == []
        setup.take()
        await setup.turn()
        assert len(setup.cluster.waiting()) == 1

    run(main)


@pytest.mark.parametrize("what", ["paused", "held", "validating"])
def test_partitions_that_must_wait_are_not_fetched(what: str) -> None:
    async def main() -> None:
        setup = Setup(2)
        setattr(setup.states[1], what, True)
        await setup.turn()
        assert setup.cluster.asked() == {TP("t", 0): 0}

    run(main)


def test_an_answer_for_a_position_that_was_left_is_not_used() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.states[0].seek(50)
        setup.cluster.answer(data(0, 0, b"old"))
        assert setup.take() == []
        assert setup.cluster.asked() == {TP("t", 0): 50}

    run(main)


def test_a_new_leader_that_an_answer_names_is_asked_at_once() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        refused = data(
            0,
            0,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=6),
        )
        setup.cluster.answer(refused, node_endpoints=[NodeEndpoint(node_id=2, host="host", port=9002)])
        assert setup.cluster.waiting(1) == []
        assert setup.cluster.asked(2) == {TP("t", 0): 0}
        assert setup.cluster.waiting(2)[0].topics[0].partitions[0].current_leader_epoch == 6

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
def test_other_errors_are_tried_again_after_a_while(code: ErrorCode) -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.cluster.answer(data(0, 0, error_code=code))
        assert setup.cluster.waiting() == []
        assert (setup.cluster.updates_wanted > 0) == (code != ErrorCode.UNKNOWN_SERVER_ERROR)
        await asyncio.sleep(0.1)
        assert setup.cluster.asked() == {TP("t", 0): 0} or setup.cluster.waiting()[0].topics == []
        assert setup.problems == []

    run(main)


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_what_somebody_has_to_decide_is_told(code: ErrorCode) -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.cluster.answer(data(0, 0, error_code=code))
        assert [(tp, error.code) for tp, error in setup.problems] == [(TP("t", 0), code)]
        assert setup.cluster.waiting() == []

    run(main)


def test_the_nearest_replica_is_read_when_the_leader_says_so_and_the_leader_when_that_fails() -> None:
    async def main() -> None:
        setup = Setup(**{"client.rack": "here"})
        await setup.turn()
        assert setup.cluster.waiting()[0].rack_id == "here"
        setup.cluster.answer(data(0, 0, preferred_read_replica=2))
        assert setup.cluster.asked(2) == {TP("t", 0): 0}
        setup.cluster.answer(data(0, 0, b"near"), node=2)
        assert setup.cluster.asked(2) == {TP("t", 0): 1}
        setup.cluster.answer(data(0, 1, error_code=ErrorCode.OFFSET_OUT_OF_RANGE), node=2)
        assert setup.problems == []
        assert setup.cluster.asked(1) == {TP("t", 0): 1}

    run(main)


def test_a_connection_that_breaks_is_tried_again_with_a_new_session() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.cluster.answer(data(0, 0, b"a"))
        setup.cluster.fail(Disconnected("gone"))
        assert setup.cluster.waiting() == [] and setup.cluster.updates_wanted
        await asyncio.sleep(0.1)
        request = setup.cluster.waiting()[0]
        assert (request.session_epoch, setup.cluster.asked()) == (0, {TP("t", 0): 1})

    run(main)


def test_a_connection_that_is_broken_when_it_is_used_is_tried_again() -> None:
    async def main() -> None:
        setup = Setup()
        setup.cluster.connections[1].broken = Disconnected("gone")
        await setup.turn()
        setup.cluster.connections[1].broken = None
        await asyncio.sleep(0.1)
        assert setup.cluster.asked() == {TP("t", 0): 0}

    run(main)


def test_a_session_that_was_forgotten_begins_anew_at_once() -> None:
    async def main() -> None:
        setup = Setup()
        await setup.turn()
        setup.cluster.answer(data(0, 0, b"a"))
        setup.cluster.answer(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
        await setup.turn()
        request = setup.cluster.waiting()[0]
        assert (request.session_id, request.session_epoch, setup.cluster.asked()) == (0, 0, {TP("t", 0): 1})

    run(main)


def test_a_broker_that_asks_for_a_pause_gets_one() -> None:
    async def main() -> None:
        setup = Setup()
        loop = asyncio.get_running_loop()
        setup.cluster.connections[1].throttled_until = loop.time() + 0.1
        await setup.turn()
        assert setup.cluster.waiting() == []
        await asyncio.sleep(0.2)
        assert len(setup.cluster.waiting()) == 1

    run(main)


def test_old_brokers_are_asked_by_name() -> None:
    async def main() -> None:
        setup = Setup(version=4)
        await setup.turn()
        setup.cluster.answer(data(0, 0, b"a"), session_id=0)
        assert setup.take() == [b"a"]

    run(main)


def test_aborted_transactions_come_with_the_records() -> None:
    async def main() -> None:
        setup = Setup(**{"isolation.level": "read_committed"})
        await setup.turn()
        assert setup.cluster.waiting()[0].isolation_level == 1
        aborted = [AbortedTransaction(producer_id=9, first_offset=7), AbortedTransaction(producer_id=8, first_offset=1)]
        setup.cluster.answer(data(0, 0, b"a", aborted_transactions=aborted))
        assert setup.buffer._queue[0].aborted == [(1, 8), (7, 9)]

    run(main)


def test_a_batch_that_does_not_fit_is_told() -> None:
    async def main() -> None:
        setup = Setup(version=2)
        await setup.turn()
        cut = data(0, 0, b"x" * 100)
        cut.records = cut.records[:50]
        setup.cluster.answer(cut, session_id=0)
        assert [error.code for _, error in setup.problems] == [ErrorCode.RECORD_LIST_TOO_LARGE]

    run(main)


def test_partitions_of_several_leaders_are_fetched_at_the_same_time() -> None:
    async def main() -> None:
        setup = Setup(2)
        setup.cluster.move(1, 2, 6)
        await setup.turn()
        assert setup.cluster.asked(1) == {TP("t", 0): 0}
        assert setup.cluster.asked(2) == {TP("t", 1): 0}

    run(main)


def test_a_partition_without_a_leader_makes_metadata_be_asked_for() -> None:
    async def main() -> None:
        setup = Setup(2)
        setup.cluster.move(1, -1, 6)
        setup.cluster.updates_wanted = 0
        await setup.turn()
        assert setup.cluster.asked() == {TP("t", 0): 0}
        assert setup.cluster.updates_wanted

    run(main)


def test_a_broker_without_a_version_of_fetch_is_an_error_for_the_next_poll_and_no_other_broker_waits() -> None:
    async def main() -> None:
        setup = Setup(3)
        cluster = setup.cluster
        topic = cluster.topics["t"]
        # The first two partitions are led by broker 1, the last by broker 2.
        cluster.topics = {"t": with_leader(topic, 2, 2, 6)}
        error = UnsupportedVersion("broker 1 does not support FETCH")
        cluster.connections[1].unsupported = error
        await setup.turn()
        assert setup.problems == [(TP("t", 0), error)]
        assert len(cluster.connections[2].sent) == 1
        assert not cluster.connections[1].sent
        # It is not tried again at once, but later, without anybody asking.
        await setup.turn()
        assert len(setup.problems) == 1
        async with asyncio.timeout(60):
            while len(setup.problems) < 2:
                await asyncio.sleep(0.01)
        cluster.connections[1].unsupported = None
        async with asyncio.timeout(60):
            while not cluster.connections[1].sent:
                await asyncio.sleep(0.01)
        request, _ = cluster.connections[1].sent[0]
        assert [p.partition for t in request.topics for p in t.partitions] == [0, 1]

    run(main)
