"""Producers without `close`: dropped, or open when the interpreter ends."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kavka.aio import Producer as AioProducer
from kavka.client.producer import core as producer_core
from kavka.client.producer.producer import Producer
from tests.unit.client.producer.fake_cluster import Cluster

ROOT = Path(__file__).resolve().parents[4]
WAIT = 60
SETTINGS: dict[str, Any] = {"bootstrap_servers": "fake:9092", "client_id": "dropped", "linger_ms": 200}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(producer_core, "Cluster", lambda config, **options: cluster)
    return cluster


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kavka-dropped"]


def test_dropped_producer_warns_sends_remaining_records_and_leaves_no_thread(cluster: Cluster) -> None:
    producer = Producer(**SETTINGS)
    future = producer.send("t", b"last")
    (thread,) = threads()
    with pytest.warns(ResourceWarning, match="unclosed Producer kavka-dropped"):
        del producer
        gc.collect()
    assert future.get(WAIT).offset == 0
    thread.join(WAIT)
    assert cluster.closed and not threads()


@pytest.mark.filterwarnings("error::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_dropped_producer_sends_remaining_records_when_warnings_are_errors(cluster: Cluster) -> None:
    producer = Producer(**SETTINGS)
    future = producer.send("t", b"last")
    (thread,) = threads()
    del producer
    gc.collect()
    thread.join(WAIT)
    assert future.get(WAIT).offset == 0
    assert cluster.closed and not threads()


def test_closed_producer_does_not_warn(cluster: Cluster, recwarn: pytest.WarningsRecorder) -> None:
    with Producer(**SETTINGS) as producer:
        producer.send("t", b"last")
    del producer
    gc.collect()
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]


def test_dropped_asyncio_producer_warns_and_sends_remaining_records(cluster: Cluster) -> None:
    async def work() -> None:
        producer = await AioProducer(**SETTINGS).start()
        future = await producer.send("t", b"last")
        with pytest.warns(ResourceWarning, match="unclosed Producer dropped"):
            del producer
            gc.collect()
        assert (await future).offset == 0
        while not cluster.closed:
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(work(), WAIT))


def test_asyncio_producer_with_a_closed_loop_logs_lost_records(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> AioProducer:
        producer = await AioProducer(**SETTINGS).start()
        await producer.send("t", b"last")
        return producer

    producer = asyncio.run(work())
    with pytest.warns(ResourceWarning, match="unclosed Producer"):
        del producer
        gc.collect()
    assert "1 records are lost" in caplog.text


SCRIPT = """
import atexit, logging, sys
from kavka.client import io_thread
from kavka.client.producer import core
from kavka.client.producer.producer import Producer
from tests.unit.client.producer.fake_cluster import Cluster

logging.basicConfig(stream=sys.stdout, format="%(message)s")
cluster = Cluster()
core.Cluster = lambda config, **options: cluster
io_thread.EXIT_TIMEOUT_S = {timeout}
atexit.register(print, "atexit of the program")
producer = Producer(bootstrap_servers="fake:9092", linger_ms=60_000, **{settings})
if {settings}:
    producer.init_transactions()
    producer.begin_transaction()
cluster.stalled = {stalled}
for i in range(3):
    producer.send("t", b"%d" % i)
# Runs after the clients are closed: exit handlers run in reverse order.
atexit.unregister(io_thread._close_at_exit)
atexit.register(lambda: print("stored", cluster.broker.logs[0].values, cluster.aborted, cluster.closed))
atexit.register(io_thread._close_at_exit)
"""


def run(warnings: str = "always", **values: Any) -> str:
    script = SCRIPT.format(**({"timeout": 30, "stalled": False, "settings": {}} | values))
    command = [sys.executable, "-W", f"{warnings}::ResourceWarning", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "still open at exit" in done.stderr
    return done.stdout


@pytest.mark.parametrize("warnings", ["always", "error"])
def test_open_producer_sends_remaining_records_at_exit(warnings: str) -> None:
    assert run(warnings).splitlines() == ["stored [b'0', b'1', b'2'] [] True", "atexit of the program"]


def test_transaction_of_an_open_producer_is_aborted_at_exit() -> None:
    lines = run(settings={"transactional_id": "t"}).splitlines()
    assert lines == ["stored [] [] True", "atexit of the program"]


def test_exit_waits_at_most_its_limit_and_logs_lost_records() -> None:
    started_at = time.monotonic()
    lines = run(timeout=2, stalled=True).splitlines()
    assert time.monotonic() - started_at < 60
    assert "The producer was closed before all records were sent: 3 records fail" in lines
    assert lines[-2:] == ["stored [] [] True", "atexit of the program"]
