"""Failed records whose outcome the program does not read are logged."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from kavka.client.errors import KafkaTimeout, Purged
from kavka.client.producer import failures
from kavka.client.producer.failures import FailureLog
from kavka.common.errors import KafkaError
from tests.support import forms
from tests.unit.client.producer.fake_broker import Bench
from tests.unit.client.producer.test_append import Setup, loaded


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == failures.__name__]


async def reject(bench: Bench, *values: bytes, **keywords: Any) -> list[Any]:
    futures = [bench.send(value, **keywords) for value in values]
    await bench.requests()
    bench.broker.respond("INVALID_RECORD")
    await bench.settle()
    return futures


def test_unreported_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with Bench(linger_ms=5) as bench:
            await reject(bench, b"a", b"b", b"c")
            gc.collect()
            bench.core.failures.report()
            assert len(lines(caplog)) == 1
            assert lines(caplog)[0].startswith("3 records of t-0 were not stored: ")
            assert "did not read their futures" in lines(caplog)[0]

    asyncio.run(work())


def test_sender_logs_unreported_failures_periodically(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with Bench() as bench:
            await reject(bench, b"a")
            async with asyncio.timeout(60):
                while not lines(caplog):
                    await asyncio.sleep(0.01)

    asyncio.run(work())


@pytest.mark.parametrize("access", ["callback", "get", "exception", "failed", "await", "errback"])
def test_reported_failure_is_not_logged(caplog: pytest.LogCaptureFixture, access: str) -> None:
    async def work() -> None:
        async with Bench() as bench:
            reported: list[Any] = []
            callback = reported.append if access == "callback" else None
            (future,) = await reject(bench, b"a", callback=callback and (lambda *args: callback(args)))
            if access == "errback":
                future.add_errback(reported.append)
            elif access == "failed":
                assert future.failed() and not future.succeeded()
            elif access == "exception":
                assert isinstance(future.exception(), KafkaError)
            elif access in ("get", "await"):
                with pytest.raises(KafkaError):
                    await future if access == "await" else future.get()
            assert bool(reported) == (access in ("callback", "errback"))
            del future
            gc.collect()
        assert lines(caplog) == []

    asyncio.run(work())


def test_records_of_one_batch_are_counted_separately(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with Bench(linger_ms=5) as bench:
            future = (await reject(bench, b"a", b"b", b"c"))[1]
            assert future.exception() is not None
            del future
            gc.collect()
        assert lines(caplog)[0].startswith("2 records of t-0")

    asyncio.run(work())


def test_record_that_was_in_no_batch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with Bench(max_request_size=1000) as bench:
            bench.send(b"x" * 2000)
            bench.send(b"x" * 2000, partition=0)
            bench.send(b"x" * 2000, callback=lambda *args: None)
        (line,) = lines(caplog)
        assert "records of t were not stored; 1 of 1 other partitions: " in line
        assert "max.request.size" in line

    asyncio.run(work())


def test_records_lost_by_close_are_logged_but_not_purged_or_transactional_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(act: str, **settings: Any) -> None:
        async with Bench(linger_ms=60_000, **settings) as bench:
            if settings:
                await bench.core.require_transactions().init(10)
                bench.core.require_transactions().begin()
            bench.cluster.publish(leader=-1)
            bench.send(b"a")
            if act == "purge":
                bench.core.purge()

    asyncio.run(work("purge"))
    asyncio.run(work("close", transactional_id="x"))
    assert lines(caplog) == []
    asyncio.run(work("close"))
    assert "1 records of t-0 were not stored: the producer was closed" in lines(caplog)[0]


def test_log_lines_are_limited_to_one_per_interval(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(failures, "monotonic", lambda: now)
    unreported: Any = failures.deque()
    log = FailureLog(unreported, transactional=False)
    error = KafkaTimeout("too late")
    for _ in range(50):
        unreported.append(("t", 1, error, 2))
        log.report()
        now += 0.1
    assert lines(caplog) == [
        "2 records of t-1 were not stored: too late "
        "(they had no callback, and the application did not read their futures)"
    ]
    unreported.append(("u", 3, error, 5))
    unreported.append(("u", 4, Purged("purged"), 5))
    now += failures.LOG_INTERVAL_S
    log.report()
    assert lines(caplog)[1].startswith("98 records of t-1 were not stored; 5 of 1 other partitions: too late")
    unreported.append(("t", 1, error, 1))
    log.report(final=True)
    assert len(lines(caplog)) == 3


@pytest.mark.parametrize("form", forms.FORMS)
def test_freed_batch_is_counted_in_both_forms(form: str) -> None:
    setup = Setup(loaded(form))
    futures = [setup.send(b"a") for _ in range(3)]
    batch = setup.queue.batches.pop()
    setup.queue.tail = None
    setup.accumulator.incomplete.clear()
    batch.error, batch.done = KafkaTimeout("too late"), True
    del batch
    assert futures.pop().failed()
    assert not setup.accumulator.unreported_failures
    futures.clear()
    assert [(topic, partition, count) for topic, partition, _, count in setup.accumulator.unreported_failures] == [
        ("t", 0, 2)
    ]
