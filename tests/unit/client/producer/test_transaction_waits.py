"""A `send` that is still blocked when its transaction ends adds no record to a later transaction.

Each test stops a `send` of the first transaction at a place where it may block, ends the
transaction, begins the next, and lets the `send` continue.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kavka.aio import Producer as AioProducer
from kavka.client.errors import IllegalState, KafkaTimeout, Purged
from kavka.client.producer import core as producer_core
from kavka.client.producer.producer import Producer
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.records.builder import BatchBuilder
from kavka.records.record import Record
from tests.unit.client.producer.fake_cluster import WAIT, Cluster, Gate


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(producer_core, "Cluster", lambda config, **options: cluster)
    return cluster


SETTINGS: dict[str, Any] = {
    "bootstrap_servers": "fake:9092",
    "transactional_id": "t",
    "linger_ms": 0,
    "max_block_ms": 60_000,
    "retry_backoff_ms": 1,
}


@contextmanager
def in_transaction(**settings: Any) -> Iterator[Producer]:
    with Producer(**(SETTINGS | settings)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        yield producer


class Call:
    """A call in a thread. `outcome` is its exception or its future's result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._work().get(WAIT)
        except Exception as error:
            self.outcome = error

    def join(self) -> Any:
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        return self.outcome


def next_transaction(producer: Producer, commit: bool) -> None:
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    producer.begin_transaction()


def check_next(producer: Producer, cluster: Cluster, outcome: Any) -> None:
    """Check that the late record has failed, and that the open transaction has only the new
    record."""
    assert isinstance(outcome, IllegalState), outcome
    assert "committed or aborted during the call" in str(outcome)
    producer.send("t", b"new").get(WAIT)
    producer.commit_transaction()
    assert b"late" not in cluster.committed + cluster.aborted
    assert cluster.committed[-1:] == [b"new"]
    assert not producer._core.accumulator.incomplete


both_ends = pytest.mark.parametrize("commit", [False, True], ids=["abort", "commit"])


class SlowUserCode:
    """A serializer, partitioner and interceptor that stops at a gate for the late record."""

    def __init__(self) -> None:
        self.gate = Gate()

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value == b"late":
            self.gate.pass_through()
        return value  # type: ignore[no-any-return]

    def partition(self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, metadata: Any) -> int:
        self.serialize(topic, value)
        return 0

    def on_send(self, record: Any) -> Any:
        self.serialize(record.topic, record.value)
        return record


@both_ends
@pytest.mark.parametrize("place", ["value_serializer", "partitioner_class", "interceptor_classes"])
def test_send_that_waits_for_user_code_adds_nothing_to_the_next_transaction(
    cluster: Cluster, place: str, commit: bool
) -> None:
    user_code = SlowUserCode()
    cluster.metadata_gate.opened.set()
    with in_transaction(**{place: [user_code] if place == "interceptor_classes" else user_code}) as producer:
        producer.send("t", b"old").get(WAIT)
        user_code.gate.shut = True
        late = Call(lambda: producer.send("t", b"late"))
        assert user_code.gate.reached.wait(WAIT)
        next_transaction(producer, commit)
        user_code.gate.opened.set()
        check_next(producer, cluster, late.join())


def a_batch() -> bytes:
    builder = BatchBuilder()
    builder.append(Record(timestamp=1, key=b"k" * 100, value=b"late"))
    return bytes(builder.build())


def send(producer: Producer, topic: str, as_batch: bool) -> Any:
    return producer.send_batch(topic, 0, a_batch()) if as_batch else producer.send(topic, b"late")


@both_ends
@pytest.mark.parametrize("as_batch", [False, True], ids=["record", "batch"])
def test_send_that_waits_for_metadata_adds_nothing_to_the_next_transaction(
    cluster: Cluster, as_batch: bool, commit: bool
) -> None:
    with in_transaction() as producer:
        producer.send("t", b"old").get(WAIT)
        late = Call(lambda: send(producer, "later", as_batch))
        assert cluster.metadata_gate.reached.wait(WAIT)
        next_transaction(producer, commit)
        cluster.metadata_gate.opened.set()
        check_next(producer, cluster, late.join())


def test_failed_wait_for_metadata_does_not_fail_the_next_transaction(cluster: Cluster) -> None:
    with in_transaction() as producer:
        late = Call(lambda: producer.send("later", b"late"))
        assert cluster.metadata_gate.reached.wait(WAIT)
        next_transaction(producer, commit=False)
        cluster.fail_metadata = True
        cluster.metadata_gate.opened.set()
        assert isinstance(late.join(), KafkaTimeout)
        producer.send("t", b"new").get(WAIT)
        producer.commit_transaction()
        assert cluster.committed == [b"new"]


@both_ends
@pytest.mark.parametrize("as_batch", [False, True], ids=["record", "batch"])
def test_send_that_waits_for_room_adds_nothing_to_the_next_transaction(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, as_batch: bool, commit: bool
) -> None:
    gate = Gate()
    gate.shut = True
    wait = Producer._wait

    def wait_and_stop(self: Producer, condition: Any) -> None:
        wait(self, condition)
        if threading.current_thread() is late._thread:
            gate.pass_through()

    with in_transaction(buffer_memory=4096, batch_size=1000) as producer:
        cluster.stalled = True
        old = fill(producer)
        monkeypatch.setattr(Producer, "_wait", wait_and_stop)
        late = Call(lambda: send(producer, "t", as_batch))
        wait_for_waiter(producer)
        # The broker responds only now: the earlier records belong to the transaction that ends.
        threading.Timer(0.05, cluster.resume).start()
        next_transaction(producer, commit)
        assert gate.reached.wait(WAIT)
        gate.opened.set()
        check_next(producer, cluster, late.join())
        assert all(future.done() for future in old)


def fill(producer: Producer) -> list[Any]:
    """Send until the buffer is full."""
    futures = [producer.send("t", b"old")]
    for value in (b"old" * 100, b""):
        while (future := producer.try_send("t", value, None, None, None, None, None)) is not None:
            futures.append(future)
    return futures


def wait_for_waiter(producer: Producer) -> None:
    done = threading.Event()
    for _ in range(WAIT * 200):
        if producer._core.accumulator.room_waiters:
            return
        done.wait(0.005)
    raise AssertionError("no send waits for room")


def test_send_that_waits_for_room_fails_when_its_transaction_ends(cluster: Cluster) -> None:
    with in_transaction(buffer_memory=4096, batch_size=1000) as producer:
        cluster.stalled = True
        fill(producer)
        late = Call(lambda: producer.send("t", b"late"))
        wait_for_waiter(producer)
        with pytest.raises(KafkaTimeout):
            producer.commit_transaction(timeout=0.05)
        assert isinstance(late.join(), IllegalState)
        cluster.resume()
        producer.commit_transaction()
        assert b"late" not in cluster.committed


def test_room_that_was_freed_before_the_waiter_registered_is_used(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Producer._wait

    def wait_when_all_is_done(self: Producer, condition: Any) -> None:
        cluster.resume()
        for future in futures:
            future.get(WAIT)
        wait(self, condition)

    settings = SETTINGS | {"transactional_id": None, "buffer_memory": 4096, "batch_size": 1000}
    with Producer(**settings) as producer:
        cluster.stalled = True
        futures = fill(producer)
        monkeypatch.setattr(Producer, "_wait", wait_when_all_is_done)
        started_at = time.monotonic()
        producer.send("t", b"next").get(WAIT)
        # No other record would wake the waiter, so it would wait for max.block.ms.
        assert time.monotonic() - started_at < SETTINGS["max_block_ms"] / 1000


class StoppingLock:
    """The accumulator's lock. One thread stops before it acquires the lock."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.gate = Gate()
        self.stopped: int | None = None

    def acquire(self) -> None:
        if threading.get_ident() == self.stopped:
            self.gate.pass_through()
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *args: object) -> None:
        self.release()


@both_ends
def test_send_that_waits_for_the_lock_adds_nothing_to_the_next_transaction(cluster: Cluster, commit: bool) -> None:
    with in_transaction() as producer:
        producer.send("t", b"old").get(WAIT)
        lock = StoppingLock(producer._core.accumulator.lock)
        producer._core.accumulator.lock = lock  # type: ignore[assignment]

        def work() -> Any:
            lock.stopped = threading.get_ident()
            lock.gate.shut = True
            return producer.send("t", b"late")

        late = Call(work)
        assert lock.gate.reached.wait(WAIT)
        lock.gate.shut = False
        next_transaction(producer, commit)
        # The partition is already in the next transaction: only the lock separates `send` from the
        # batch.
        producer.send("t", b"other").get(WAIT)
        lock.gate.opened.set()
        check_next(producer, cluster, late.join())


@both_ends
@pytest.mark.parametrize("place", ["metadata", "room"])
def test_blocked_asyncio_send_adds_nothing_to_the_next_transaction(cluster: Cluster, place: str, commit: bool) -> None:
    async def work() -> None:
        async with AioProducer(**(SETTINGS | {"buffer_memory": 4096, "batch_size": 1000})) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            opened = asyncio.Event()
            if place == "room":
                cluster.stalled = True
                first = await producer.send("t", b"old")
                while producer._try_send("t", b"", None, None, None, None, None) is not None:
                    pass
                wait = producer._wait

                async def wait_and_stop(condition: Any) -> None:
                    await wait(condition)
                    await opened.wait()

                producer._wait = wait_and_stop  # type: ignore[method-assign]
                late = asyncio.create_task(producer.send("t", b"late"))
                await asyncio.sleep(0.01)
                cluster.resume()
                await first
            else:
                late = asyncio.create_task(producer.send("later", b"late"))
                await asyncio.to_thread(cluster.metadata_gate.reached.wait, WAIT)
            await (producer.commit_transaction() if commit else producer.abort_transaction())
            await producer.begin_transaction()
            cluster.metadata_gate.opened.set()
            opened.set()
            with pytest.raises(IllegalState, match="committed or aborted during the call"):
                await (await late)
            await producer.send_and_wait("t", b"new")
            await producer.commit_transaction()
            assert b"late" not in cluster.committed + cluster.aborted
            assert cluster.committed[-1] == b"new"

    asyncio.run(asyncio.wait_for(work(), WAIT))


def test_offsets_in_flight_during_an_abort_are_in_no_later_transaction(cluster: Cluster) -> None:
    with in_transaction() as producer:
        producer.send("t", b"old").get(WAIT)
        cluster.offsets_gate.shut = True
        offsets = {TopicPartition("t", 0): 5}
        late = threading.Thread(target=lambda: producer.send_offsets_to_transaction(offsets, "g"))
        late.start()
        assert cluster.offsets_gate.reached.wait(WAIT)
        abort = threading.Thread(target=producer.abort_transaction)
        abort.start()
        abort.join(0.1)
        assert abort.is_alive(), "the abort does not wait for the offsets"
        cluster.offsets_gate.shut = False
        late.join(WAIT)
        abort.join(WAIT)
        assert cluster.offsets == [5] and cluster.aborted == [b"old"]
        producer.begin_transaction()
        producer.commit_transaction()
        assert cluster.committed == []


@pytest.mark.parametrize("in_flight", [False, True])
def test_purged_records_fail_their_transaction_and_not_the_next_one(cluster: Cluster, in_flight: bool) -> None:
    with in_transaction(linger_ms=60_000) as producer:
        producer.send("t", b"stored")
        producer.flush()
        cluster.stalled = in_flight
        lost = producer.send("t", b"lost")
        if in_flight:
            producer._core._wake()
            with pytest.raises(KafkaTimeout):
                producer.flush(0.05)
        assert producer.purge(in_flight=in_flight) == 1
        assert isinstance(lost.exception(WAIT), Purged)
        cluster.resume()
        with pytest.raises(KafkaError, match="must be aborted"):
            producer.commit_transaction()
        producer.abort_transaction()
        assert cluster.committed == []
        for value in (b"a", b"b"):
            producer.begin_transaction()
            producer.send("t", value)
            producer.commit_transaction()
        assert cluster.committed == [b"a", b"b"]
