"""The sender and its sequences, with an in-memory broker."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
from typing import Any

import pytest

from kavka.client.errors import ClientClosed, Disconnected, IllegalState, KafkaTimeout, Purged
from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import parse_header
from tests.unit.client.producer.fake_broker import Bench


def run(work: Any) -> Any:
    return asyncio.run(work)


def sequences(request: Any) -> list[tuple[int, int, int]]:
    """(epoch, first sequence, count) of the batches in a request."""
    result = []
    for topic in request[1].topic_data:
        for data in topic.partition_data:
            header = parse_header(data.records)
            result.append((header.producer_epoch, header.base_sequence, header.count))
    return result


def test_records_arrive_in_order_with_their_offsets() -> None:
    async def work() -> None:
        async with Bench() as bench:
            futures = [bench.send(b"%d" % i) for i in range(10)]
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"%d" % i for i in range(10)]
            assert [future.get(0).offset for future in futures] == list(range(10))

    run(work())


def test_at_most_five_requests_are_in_flight_with_consecutive_sequences() -> None:
    async def work() -> None:
        async with Bench(batch_size=100, batch_max_bytes=0) as bench:
            await bench.warm_up()
            for i in range(20):
                bench.send(b"%060d" % i)
            requests = await bench.requests(5)
            assert len(requests) == 5
            assert [sequences(r) for r in requests] == [[(0, i, 1)] for i in range(1, 6)]
            await bench.respond_all()
            assert len(bench.broker.logs[0].values) == 21

    run(work())


def test_one_batch_is_in_flight_until_the_first_acknowledgement() -> None:
    async def work() -> None:
        async with Bench(batch_size=100, batch_max_bytes=0) as bench:
            for i in range(5):
                bench.send(b"%060d" % i)
            await bench.requests(1)
            await asyncio.sleep(0.01)
            assert len(bench.broker.requests) == 1
            # A broker that rejected the first batch would accept the second batch as the first.
            await bench.respond("UNKNOWN_TOPIC_OR_PARTITION")
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"%060d" % i for i in range(5)]

    run(work())


def test_request_has_one_batch_of_each_partition() -> None:
    async def work() -> None:
        async with Bench(partitions=3, linger_ms=60_000) as bench:
            for i in range(6):
                bench.send(b"%d" % i, partition=i % 3)
            flushing = asyncio.create_task(bench.core.flush())
            requests = await bench.requests(1)
            assert sequences(requests[0]) == [(0, 0, 2)] * 3
            await bench.respond_all()
            await flushing

    run(work())


def test_batch_waits_for_linger_unless_full_or_flushed() -> None:
    async def work() -> None:
        async with Bench(linger_ms=10_000, batch_size=200) as bench:
            bench.send(b"a")
            await asyncio.sleep(0.02)
            assert not bench.broker.requests
            bench.send(b"x" * 110)
            await bench.requests(1)
            await bench.respond()
            await asyncio.sleep(0.02)
            assert not bench.broker.requests
            flushing = asyncio.create_task(bench.core.flush())
            await bench.respond_all()
            await flushing
            assert bench.broker.logs[0].values == [b"a", b"x" * 110]

    run(work())


@pytest.mark.parametrize("fate", ["lose", "store and lose"])
def test_lost_connection_neither_loses_nor_duplicates_records(fate: str) -> None:
    async def work() -> None:
        async with Bench(batch_size=100, batch_max_bytes=0) as bench:
            await bench.warm_up()
            for i in range(20):
                bench.send(b"%060d" % i)
            await bench.requests(5)
            await bench.respond()
            await bench.respond(fate)
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"warm", *(b"%060d" % i for i in range(20))]

    run(work())


def test_retries_are_sent_one_at_a_time() -> None:
    async def work() -> None:
        async with Bench(batch_size=100, batch_max_bytes=0) as bench:
            await bench.warm_up()
            for i in range(5):
                bench.send(b"%060d" % i)
            await bench.requests(5)
            bench.broker.respond("lose")
            requests = await bench.requests(1)
            bench.send(b"%060d" % 5)
            await asyncio.sleep(0.01)
            assert [sequences(r) for r in requests] == [[(0, 1, 1)]]
            await bench.respond_all()

    run(work())


FATES = [
    "store",
    "store",
    "store",
    "lose",
    "store and lose",
    "NOT_LEADER_OR_FOLLOWER",
    "REQUEST_TIMED_OUT",
    "NOT_ENOUGH_REPLICAS",
    "KAFKA_STORAGE_ERROR",
]


@pytest.mark.parametrize("seed", range(40))
def test_every_record_is_stored_once_and_in_order_despite_failures(seed: int) -> None:
    async def work() -> None:
        chance = random.Random(seed)
        async with Bench(partitions=2, batch_size=chance.choice([80, 300]), batch_max_bytes=0) as bench:
            sent: list[list[bytes]] = [[], []]
            for i in range(150):
                partition = chance.randrange(2)
                value = b"%d-%s" % (i, b"x" * chance.randrange(100))
                sent[partition].append(value)
                bench.send(value, partition=partition)
                while bench.broker.requests and chance.random() < 0.3:
                    bench.broker.respond(chance.choice(FATES))
                    await bench.settle(chance.randrange(4))
                await bench.settle(chance.randrange(3))
            await bench.respond_all()
            assert [log.values for log in bench.broker.logs] == sent

    run(work())


@pytest.mark.parametrize("seed", range(40))
def test_every_record_is_stored_once_although_the_broker_loses_producer_state(seed: int) -> None:
    async def work() -> None:
        chance = random.Random(seed)
        # Without "store and lose": a broker without producer state cannot detect a duplicate.
        fates = [fate for fate in FATES if fate != "store and lose"]
        async with Bench(partitions=2, batch_size=chance.choice([80, 300]), batch_max_bytes=0) as bench:
            for log in bench.broker.logs:
                log.strict = True
            sent: list[list[bytes]] = [[], []]
            for i in range(150):
                partition = chance.randrange(2)
                value = b"%d-%s" % (i, b"x" * chance.randrange(100))
                sent[partition].append(value)
                bench.send(value, partition=partition)
                while bench.broker.requests and chance.random() < 0.3:
                    bench.broker.respond(chance.choice(fates))
                    await bench.settle(chance.randrange(4))
                    if chance.random() < 0.1:
                        bench.broker.logs[partition].producers.clear()
                await bench.settle(chance.randrange(3))
            await bench.respond_all()
            assert [log.values for log in bench.broker.logs] == sent

    run(work())


def test_lost_producer_state_leads_to_a_new_epoch() -> None:
    async def work() -> None:
        async with Bench(batch_size=100, batch_max_bytes=0) as bench:
            for i in range(3):
                bench.send(b"%060d" % i)
            await bench.respond_all()
            # The broker lost the producer state, and accepts only sequence 0.
            bench.broker.logs[0].producers.clear()
            bench.broker.logs[0].strict = True
            futures = [bench.send(b"%060d" % i) for i in range(3, 9)]
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"%060d" % i for i in range(9)]
            assert bench.core.sequences is not None
            assert bench.core.sequences.producer_epoch >= 1
            assert [future.get(0).offset for future in futures] == list(range(3, 9))

    run(work())


def test_unknown_producer_id_leads_to_a_new_epoch() -> None:
    async def work() -> None:
        async with Bench() as bench:
            bench.send(b"a")
            await bench.respond_all()
            bench.send(b"b")
            await bench.requests(1)
            connection, request, call = bench.broker.requests.pop(0)
            connection.in_flight -= 1
            call.set_result(bench.broker.reject(request, ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=0))
            requests = await bench.requests(1)
            assert sequences(requests[0]) == [(1, 0, 1)]
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"a", b"b"]

    run(work())


def test_exhausted_epoch_leads_to_a_new_producer_id() -> None:
    async def work() -> None:
        async with Bench() as bench:
            bench.send(b"a")
            await bench.respond_all()
            state = bench.core.sequences
            assert state is not None
            previous_id = state.producer_id
            state.producer_epoch = bench.core.queues["t"].queues[0].producer_epoch = 0x7FFF
            bench.broker.logs[0].producers.clear()
            bench.broker.logs[0].strict = True
            bench.send(b"b")
            bench.send(b"c")
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"a", b"b", b"c"]
            assert (state.producer_id, state.producer_epoch) == (previous_id + 1, 0)

    run(work())


def test_too_large_batch_is_split_and_stored_in_order() -> None:
    async def work() -> None:
        async with Bench(batch_size=4000, linger_ms=5) as bench:
            bench.broker.logs[0].max_batch = 700
            called: list[int] = []
            futures = [
                bench.send(b"%0100d" % i, callback=lambda metadata, error: called.append(metadata.offset))
                for i in range(60)
            ]
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"%0100d" % i for i in range(60)]
            assert [future.get(0).offset for future in futures] == list(range(60))
            assert called == list(range(60))
            assert bench.core.metrics.batch_splits > 0
            assert bench.core.accumulator.used == 0

    run(work())


def test_single_record_that_is_too_large_fails() -> None:
    async def work() -> None:
        async with Bench() as bench:
            bench.broker.logs[0].max_batch = 700
            future = bench.send(b"x" * 1000)
            await bench.respond_all()
            with pytest.raises(KafkaError) as caught:
                future.get(0)
            assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
            bench.send(b"small")
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"small"]

    run(work())


def test_fatal_error_fails_the_batch_and_the_next_uses_a_new_epoch() -> None:
    async def work() -> None:
        async with Bench() as bench:
            first = bench.send(b"a")
            await bench.respond("INVALID_RECORD")
            assert first.exception(0).code == ErrorCode.INVALID_RECORD
            bench.send(b"b")
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"b"]

    run(work())


def test_delivery_timeout_fails_a_batch_and_later_ones_are_stored() -> None:
    async def work() -> None:
        settings = {"delivery_timeout_ms": 100, "request_timeout_ms": 50}
        async with Bench(**settings) as bench:
            expired = bench.send(b"late")
            await bench.requests(1)
            await asyncio.sleep(0.2)
            assert isinstance(expired.exception(0), KafkaTimeout)
            bench.send(b"next")
            await bench.settle()
            bench.broker.respond("lose")
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"next"]

    run(work())


def test_records_without_a_leader_fail_after_the_delivery_timeout() -> None:
    async def work() -> None:
        async with Bench(delivery_timeout_ms=100, request_timeout_ms=50) as bench:
            bench.cluster.publish(leader=-1)
            future = bench.send(b"a", partition=0)
            await bench.settle()
            assert bench.cluster.updates_requested > 0
            await asyncio.sleep(0.15)
            assert isinstance(future.exception(0), KafkaTimeout)

    run(work())


def test_new_leader_receives_pending_records() -> None:
    async def work() -> None:
        async with Bench() as bench:
            bench.cluster.publish(leader=-1)
            bench.send(b"a", partition=0)
            await asyncio.sleep(0.01)
            assert not bench.broker.requests
            bench.cluster.publish()
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"a"]

    run(work())


def test_first_error_fails_the_batch_without_retries() -> None:
    async def work() -> None:
        async with Bench(retries=0) as bench:
            assert bench.core.sequences is None
            future = bench.send(b"a")
            await bench.respond("lose")
            assert future.exception(0).code == ErrorCode.NETWORK_EXCEPTION

    run(work())


def test_one_request_in_flight_keeps_the_order_without_idempotence() -> None:
    async def work() -> None:
        settings: dict[str, Any] = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1}
        async with Bench(batch_size=100, batch_max_bytes=0, **settings) as bench:
            chance = random.Random(3)
            for i in range(40):
                bench.send(b"%060d" % i)
                await bench.settle(1)
                assert len(bench.broker.requests) <= 1
                if bench.broker.requests and chance.random() < 0.5:
                    bench.broker.respond(chance.choice(["store", "lose", "NOT_LEADER_OR_FOLLOWER"]))
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"%060d" % i for i in range(40)]

    run(work())


def test_acks_0_does_not_wait_for_a_response() -> None:
    async def work() -> None:
        async with Bench(acks="0") as bench:
            future = bench.send(b"a")
            await bench.settle()
            assert bench.broker.logs[0].values == [b"a"]
            assert future.get(0).offset == -1

    run(work())


def test_purge_drops_unsent_records_and_keeps_sent_ones() -> None:
    async def work() -> None:
        async with Bench(batch_size=100, batch_max_bytes=0) as bench:
            await bench.warm_up()
            futures = [bench.send(b"%060d" % i) for i in range(8)]
            await bench.requests(5)
            assert bench.core.purge() == 3
            assert [type(f.exception(0)) for f in futures[5:]] == [Purged] * 3
            await bench.respond_all()
            assert len(bench.broker.logs[0].values) == 6
            bench.send(b"after")
            await bench.respond_all()
            assert bench.broker.logs[0].values[-1] == b"after"

    run(work())


def test_purge_of_records_in_flight_leads_to_a_new_epoch() -> None:
    async def work() -> None:
        async with Bench() as bench:
            future = bench.send(b"stuck")
            await bench.requests(1)
            assert bench.core.purge(in_flight=True) == 1
            assert isinstance(future.exception(0), Purged)
            bench.send(b"after")
            await bench.settle()
            bench.broker.respond("lose")
            await bench.respond_all()
            assert bench.broker.logs[0].values == [b"after"]

    run(work())


def test_exception_of_a_callback_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with Bench() as bench:
            called: list[int] = []

            def bad(metadata: Any, error: Any) -> None:
                raise RuntimeError("a bad callback")

            bench.send(b"a", callback=bad)
            bench.send(b"b", callback=lambda metadata, error: called.append(metadata.offset))
            await bench.respond_all()
            assert called == [1]

    run(work())
    assert "a bad callback" in caplog.text


def test_errors_of_single_records_differ_from_those_of_the_batch() -> None:
    async def work() -> None:
        async with Bench(linger_ms=5) as bench:
            futures = [bench.send(b"%d" % i) for i in range(3)]
            await bench.requests(1)
            connection, request, call = bench.broker.requests.pop(0)
            connection.in_flight -= 1
            response = bench.broker.reject(request, ErrorCode.INVALID_RECORD, error_message="bad records")
            from kavka.protocol.messages.produce import BatchIndexAndErrorMessage

            response.responses[0].partition_responses[0].record_errors = [
                BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")
            ]
            call.set_result(response)
            assert futures[1].exception(0).message == "no key"
            assert "other records" in futures[0].exception(0).message

    run(work())


def test_fatal_error_of_init_producer_id_fails_all_records() -> None:
    async def work() -> None:
        async with Bench() as bench:
            bench.cluster.init_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            future = bench.send(b"a")
            await asyncio.sleep(0.01)
            assert future.exception(0).code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert "enable.idempotence" in str(future.exception(0))
            assert bench.send(b"b").exception(0).code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    run(work())


def test_close_with_zero_timeout_fails_the_remaining_records() -> None:
    async def work() -> None:
        async with Bench() as bench:
            future = bench.send(b"a")
            await bench.requests(1)
            await bench.core.close(0)
            assert future.exception(0) is not None
            assert not isinstance(future.exception(0), Disconnected)

    run(work())


def test_waiting_for_an_outcome_in_the_io_thread_is_an_error() -> None:
    async def work() -> None:
        async with Bench() as bench:
            future = bench.send(b"a")
            with pytest.raises(IllegalState):
                future.get(1)
            await bench.respond_all()
            assert future.get(0).offset == 0
            assert (await future).offset == 0

    run(work())


def test_memory_is_released_and_reused() -> None:
    async def work() -> None:
        async with Bench(batch_size=1024) as bench:
            for _ in range(20):
                bench.send(b"x" * 500)
                await bench.respond_all()
            accumulator = bench.core.accumulator
            assert (accumulator.used, accumulator.records, len(accumulator.incomplete)) == (0, 0, 0)
            assert 0 < accumulator.pool.cached <= 4 * 1024

    run(work())


def test_compressed_batches_reach_batch_size_after_compression() -> None:
    async def work() -> None:
        async with Bench(batch_size=1000, compression_type="gzip", linger_ms=1000) as bench:
            for i in range(2000):
                bench.send(b"the same words again and again %d" % (i % 3))
                if i % 50 == 0:
                    await bench.settle(1)
                    while bench.broker.requests:
                        await bench.respond()
            queue = bench.core.queues["t"].queues[0]
            assert queue.target > 4000
            flushing = asyncio.create_task(bench.core.flush())
            await bench.respond_all()
            await flushing
            assert len(bench.broker.logs[0].values) == 2000
            assert bench.core.metrics.snapshot()["compression-rate-avg"] < 0.5

    run(work())


def test_cancelled_close_still_closes_the_producer() -> None:
    async def work() -> None:
        async with Bench() as bench:
            future = bench.send(b"a")
            await bench.requests(1)
            closing = asyncio.create_task(bench.core.close(None))
            await bench.settle()
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert bench.cluster.closed
            assert future.done()
            assert isinstance(future.exception(), ClientClosed)

    asyncio.run(work())


def test_closed_loop_of_a_waiter_does_not_block_other_waiters() -> None:
    async def work() -> None:
        async with Bench(partitions=2) as bench:
            first = bench.send(b"a", partition=0)
            second = bench.send(b"b", partition=1)
            calls: list[Any] = []
            first.add_callback(lambda metadata: calls.append(metadata.offset))

            def wait_elsewhere() -> None:
                async def wait() -> None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.01):
                            await first

                asyncio.run(wait())

            await asyncio.to_thread(wait_elsewhere)
            await bench.respond_all()
            assert calls == [0]
            assert first.done()
            assert second.done()

    asyncio.run(work())


def test_system_exit_in_a_callback_does_not_end_the_io_thread() -> None:
    calls: list[Any] = []

    async def work() -> None:
        async with Bench() as bench:
            bench.send(b"a", callback=lambda metadata, error: sys.exit(1))
            future = bench.send(b"b", callback=lambda metadata, error: calls.append(metadata.offset))
            await bench.respond_all()
            calls.append(future.done())

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    thread.join(60)
    assert calls == [1, True]


def test_topic_of_pending_records_stays_in_the_metadata() -> None:
    async def work() -> None:
        async with Bench() as bench:
            topics: list[str] = []
            bench.cluster.add_topic = topics.append  # type: ignore[method-assign]
            bench.cluster.publish(leader=9)
            future = bench.send(b"a")
            await bench.settle()
            for _ in range(100):
                bench.core.sender.run()
                await asyncio.sleep(0.001)
            # The record may be pending for longer than metadata.max.idle.ms.
            assert "t" in topics
            bench.cluster.publish()
            await bench.respond_all()
            assert future.get(0).offset == 0

    asyncio.run(work())
