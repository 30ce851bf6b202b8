"""The producer under faults: killed brokers, broken connections, timeouts, a full buffer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kavka import Producer
from kavka.client.errors import BufferExhausted, KafkaTimeout, Purged
from tests.support import targets
from tests.support.kavka_process import KavkaProcess
from tests.support.proxy import Proxy
from tests.support.reading import read_values
from tests.support.targets import Target

pytestmark = [pytest.mark.slow, pytest.mark.records]


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Runs the work in a thread. The main thread must start the brokers: they end with the thread
    that started them."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@pytest.fixture
def own_broker(target_name: str, tmp_path: Path) -> Iterator[Target]:
    """A broker that only this test uses and may kill."""
    broker = targets.start_target(target_name, tmp_path / "broker", {"auto.create.topics.enable": "true"})
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def behind_proxy(target_name: str, tmp_path: Path) -> Iterator[tuple[Proxy, Target]]:
    """A broker that advertises the address of a proxy, so that clients reach it through the
    proxy."""
    with Proxy(("127.0.0.1", 0)) as proxy:
        overrides = {"advertised.listeners": f"PLAINTEXT://{proxy.address}"}
        broker = targets.start_target(target_name, tmp_path / "broker", overrides)
        proxy.target = broker.address
        try:
            yield proxy, broker
        finally:
            broker.close()


def test_no_record_is_lost_or_duplicated_when_the_broker_is_killed_under_load(own_broker: Target, topic: str) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []
    settings = {"delivery_timeout_ms": 120_000, "batch_size": 2000, "batch_max_bytes": 0, "linger_ms": 0}
    with Producer(bootstrap_servers=own_broker.bootstrap_servers, **settings) as producer:
        producer.send(topic, b"0").get(30)

        def work() -> int:
            count = 1
            while not stop.is_set():
                for _ in range(100):
                    producer.send(
                        topic, b"%d" % count, callback=lambda metadata, error: errors.append(error) if error else None
                    )
                    count += 1
                time.sleep(0.002)
            return count

        sending = in_thread(work)
        kills = 0
        while kills < 3 or (kills < 20 and not producer.metrics()["record-retry-total"]):
            time.sleep(0.2)
            own_broker.kill()
            own_broker.start()
            kills += 1
        stop.set()
        count = sending.result(120)
        producer.flush(120)
        assert errors == []
        assert producer.metrics()["record-retry-total"] > 0
    assert read_values(own_broker.bootstrap_servers, topic) == [b"%d" % i for i in range(count)]


def test_transactions_survive_kills_of_the_broker(own_broker: Target, topic: str) -> None:
    settings = {"bootstrap_servers": own_broker.bootstrap_servers, "transactional_id": "tx"}
    committed: list[bytes] = []
    stop = threading.Event()

    def work() -> None:
        with Producer(**settings) as producer:
            producer.init_transactions(60)
            number = 0
            while not stop.is_set() or number < 30:
                values = [b"%d-%d" % (number, i) for i in range(5)]
                producer.begin_transaction()
                for value in values:
                    producer.send(topic, value)
                if number % 4 == 3:
                    producer.abort_transaction(60)
                else:
                    producer.commit_transaction(60)
                    committed.extend(values)
                number += 1

    sending = in_thread(work)
    for _ in range(2):
        time.sleep(0.5)
        own_broker.kill()
        own_broker.start()
    stop.set()
    sending.result(120)
    assert read_values(own_broker.bootstrap_servers, topic, read_committed=True) == committed


@pytest.mark.parametrize("seed", [1, 2])
def test_no_record_is_lost_or_repeated_when_connections_break_within_responses(
    behind_proxy: tuple[Proxy, Target], topic: str, seed: int
) -> None:
    proxy, broker = behind_proxy
    rng = random.Random(seed)
    count = 20_000
    with Producer(bootstrap_servers=proxy.address, batch_size=2000, batch_max_bytes=0, retry_backoff_ms=10) as producer:
        producer.send(topic, b"warm").get(30)
        for i in range(count):
            producer.send(topic, b"%d" % i)
            if i % 1000 == 0:
                # A Produce response has about 60 bytes, the handshake of a connection about 700.
                proxy.cut_after(rng.randrange(700, 3000))
                time.sleep(0.02)
            if i % 5000 == 4999:
                proxy.drop_all()
        proxy.cut_after(None)
        proxy.drop_all()
        producer.flush(60)
        assert proxy.cuts > 0
        assert producer.metrics()["record-error-total"] == 0
    assert read_values(broker.bootstrap_servers, topic) == [b"warm", *(b"%d" % i for i in range(count))]


def test_records_fail_while_the_broker_stalls_and_later_records_are_delivered(
    behind_proxy: tuple[Proxy, Target], topic: str
) -> None:
    proxy, broker = behind_proxy
    settings = {"request_timeout_ms": 300, "delivery_timeout_ms": 1000, "linger_ms": 0}
    with Producer(bootstrap_servers=proxy.address, **settings) as producer:
        producer.send(topic, b"before").get(30)
        proxy.stall()
        start_time = time.monotonic()
        with pytest.raises(KafkaTimeout, match=r"delivery\.timeout\.ms"):
            producer.send(topic, b"stalled").get(30)
        assert 0.8 < time.monotonic() - start_time < 20
        proxy.resume()
        producer.send(topic, b"after", headers=[("h", b"")]).get(30)
    values = read_values(broker.bootstrap_servers, topic)
    assert values[0] == b"before"
    assert values[-1] == b"after"
    # The record timed out in the producer, but may have been delivered once.
    assert values.count(b"stalled") <= 1


def fill(producer: Producer, topic: str) -> list:  # type: ignore[type-arg]
    """Sends more than fits into the buffer, while no response arrives."""
    return [producer.send(topic, b"x" * 1000) for _ in range(40)]


SMALL_BUFFER = {
    "buffer_memory": 20_000,
    "batch_size": 2000,
    "batch_max_bytes": 0,
    "max_in_flight_requests_per_connection": 1,
}


def test_send_waits_for_a_full_buffer_and_then_fails(behind_proxy: tuple[Proxy, Target], topic: str) -> None:
    proxy, _broker = behind_proxy
    with Producer(bootstrap_servers=proxy.address, max_block_ms=400, **SMALL_BUFFER) as producer:
        producer.send(topic, b"warm").get(30)
        proxy.stall()
        while not (future := producer.send(topic, b"x" * 1000)).done():
            pass
        with pytest.raises(BufferExhausted, match=r"buffer\.memory"):
            future.get(0)
        start_time = time.monotonic()
        assert isinstance(producer.send(topic, b"x" * 1000).exception(0), BufferExhausted)
        assert 0.3 < time.monotonic() - start_time < 20
        timer = threading.Timer(0.1, proxy.resume)
        timer.start()
        assert producer.send(topic, b"fits again").get(30).offset > 0
        timer.join()


def test_send_fails_immediately_for_a_full_buffer_if_configured(behind_proxy: tuple[Proxy, Target], topic: str) -> None:
    proxy, _broker = behind_proxy
    with Producer(bootstrap_servers=proxy.address, buffer_full_policy="fail", **SMALL_BUFFER) as producer:
        producer.send(topic, b"warm").get(30)
        proxy.stall()
        start_time = time.monotonic()
        futures = fill(producer, topic)
        assert time.monotonic() - start_time < 20
        assert isinstance(futures[-1].exception(0), BufferExhausted)
        proxy.resume()


def test_a_full_buffer_is_cleared_for_newer_records_if_configured(
    behind_proxy: tuple[Proxy, Target], topic: str
) -> None:
    proxy, broker = behind_proxy
    with Producer(bootstrap_servers=proxy.address, buffer_full_policy="clear", **SMALL_BUFFER) as producer:
        producer.send(topic, b"warm").get(30)
        proxy.stall()
        futures = fill(producer, topic)
        newest = producer.send(topic, b"newest")
        assert not newest.done()
        assert any(isinstance(future.exception(0), Purged) for future in futures if future.done())
        proxy.resume()
        producer.flush(30)
        assert newest.succeeded()
    assert read_values(broker.bootstrap_servers, topic)[-1] == b"newest"


def test_purge_drops_buffered_and_in_flight_records(behind_proxy: tuple[Proxy, Target], topic: str) -> None:
    proxy, broker = behind_proxy
    with Producer(bootstrap_servers=proxy.address, **(SMALL_BUFFER | {"buffer_memory": 1 << 20})) as producer:
        producer.send(topic, b"warm").get(30)
        proxy.stall()
        futures = fill(producer, topic)
        time.sleep(0.1)
        purged = producer.purge()
        assert 30 <= purged < 40
        assert isinstance(futures[-1].exception(0), Purged)
        assert producer.purge(in_flight=True) == 40 - purged
        proxy.resume()
        assert producer.send(topic, b"after").get(30).offset > 0
    assert read_values(broker.bootstrap_servers, topic)[-1] == b"after"


def test_close_with_a_timeout_returns_although_the_broker_stalls(
    behind_proxy: tuple[Proxy, Target], topic: str
) -> None:
    proxy, _broker = behind_proxy
    producer = Producer(bootstrap_servers=proxy.address)
    producer.send(topic, b"warm").get(30)
    proxy.stall()
    future = producer.send(topic, b"x")
    start_time = time.monotonic()
    producer.close(0.5)
    assert time.monotonic() - start_time < 20
    assert future.failed()


def test_records_are_sent_to_a_broker_that_starts_later(tmp_path: Path, topic: str) -> None:
    broker = KavkaProcess(tmp_path / "later", start=False)
    try:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            sending = in_thread(lambda: producer.send(topic, b"x").get(30))
            time.sleep(0.5)
            broker.start()
            assert sending.result(60).offset == 0
    finally:
        broker.close()
