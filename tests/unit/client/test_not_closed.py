"""Consumers and admin clients that are dropped, or open when the interpreter exits."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

from kavka import Admin, Consumer, aio

UNREACHABLE = {"bootstrap.servers": "127.0.0.1:1"}
WAIT = 60

CLIENTS = [
    (lambda: Consumer(UNREACHABLE, client_id="dropped"), "kavka-dropped"),
    (lambda: Consumer(UNREACHABLE, client_id="dropped", group_id="g"), "kavka-dropped"),
    (lambda: Admin(UNREACHABLE), "kavka-admin"),
]


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.mark.parametrize(("make", "name"), CLIENTS)
def test_dropped_client_warns_and_stops_its_thread(make: Any, name: str) -> None:
    previous_threads = set(threads(name))
    client = make()
    (thread,) = set(threads(name)) - previous_threads
    with pytest.warns(ResourceWarning, match=f"unclosed {type(client).__name__} {name}"):
        del client
        gc.collect()
    thread.join(WAIT)
    assert not thread.is_alive()


@pytest.mark.parametrize(("make", "name"), CLIENTS)
def test_closed_client_does_not_warn(make: Any, name: str, recwarn: pytest.WarningsRecorder) -> None:
    with make() as client:
        pass
    del client
    gc.collect()
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]


def test_consumer_in_use_is_not_collected() -> None:
    consumer = Consumer(UNREACHABLE, client_id="used")
    consumer.assign([("t", 0)])
    gc.collect()
    assert not consumer.poll(0.05)
    consumer.close()


@pytest.mark.parametrize("make", [lambda: aio.Consumer(UNREACHABLE, group_id="g"), lambda: aio.Admin(UNREACHABLE)])
def test_dropped_asyncio_client_warns_and_closes_on_its_loop(make: Any) -> None:
    async def work() -> None:
        client = make()
        await client.start()
        cluster = client.cluster if isinstance(client, aio.Admin) else client._core.cluster
        with pytest.warns(ResourceWarning, match=f"unclosed {type(client).__name__}"):
            del client
            gc.collect()
        async with asyncio.timeout(WAIT):
            while not cluster.closed:
                await asyncio.sleep(0.01)

    asyncio.run(work())


def test_dropped_asyncio_client_only_warns_after_its_loop_closed() -> None:
    clients = []

    async def work() -> None:
        clients.append(await aio.Consumer(UNREACHABLE).start())

    asyncio.run(work())
    with pytest.warns(ResourceWarning, match="unclosed Consumer"):
        clients.clear()
        gc.collect()


def test_client_that_was_never_started_is_dropped_silently(recwarn: pytest.WarningsRecorder) -> None:
    aio.Consumer(UNREACHABLE)
    aio.Admin(UNREACHABLE)
    gc.collect()
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]


def test_open_clients_do_not_block_the_exit_of_the_interpreter() -> None:
    program = (
        "from kavka import Admin, Consumer\n"
        f"clients = [Admin({UNREACHABLE!r}), Consumer({UNREACHABLE!r}, client_id='left')]\n"
        "clients[1].assign([('t', 0)])\n"
        "print('end', flush=True)\n"
    )
    process = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", program], capture_output=True, text=True, timeout=WAIT
    )
    assert (process.returncode, process.stdout) == (0, "end\n")
    assert "client kavka-left is still open at exit" in process.stderr
    assert "Traceback" not in process.stderr
