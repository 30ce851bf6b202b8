"""Consumers and admin clients that nobody closes: dropped, or left open when the interpreter ends."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

from kavka import Admin, Consumer, aio

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
WAIT = 60

CLIENTS = [
    (lambda: Consumer(NOWHERE, client_id="dropped"), "kavka-dropped"),
    (lambda: Consumer(NOWHERE, client_id="dropped", group_id="g"), "kavka-dropped"),
    (lambda: Admin(NOWHERE), "kavka-admin"),
]


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.mark.parametrize(("make", "name"), CLIENTS)
def test_a_dropped_client_warns_and_leaves_no_thread(make: Any, name: str) -> None:
    before = set(threads(name))
    client = make()
    (thread,) = set(threads(name)) - before
    with pytest.warns(ResourceWarning, match=f"unclosed {type(client).__name__} {name}"):
        del client
        gc.collect()
    thread.join(WAIT)
    assert not thread.is_alive()


@pytest.mark.parametrize(("make", "name"), CLIENTS)
def test_a_closed_client_warns_of_nothing(make: Any, name: str, recwarn: pytest.WarningsRecorder) -> None:
    with make() as client:
        pass
    del client
    gc.collect()
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]


def test_a_consumer_that_polls_is_not_dropped() -> None:
    consumer = Consumer(NOWHERE, client_id="used")
    consumer.assign([("t", 0)])
    gc.collect()
    assert not consumer.poll(0.05)
    consumer.close()


@pytest.mark.parametrize("make", [lambda: aio.Consumer(NOWHERE, group_id="g"), lambda: aio.Admin(NOWHERE)])
def test_a_dropped_asyncio_client_warns_and_is_closed_on_its_loop(make: Any) -> None:
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


def test_an_asyncio_client_whose_loop_has_ended_only_warns() -> None:
    clients = []

    async def work() -> None:
        clients.append(await aio.Consumer(NOWHERE).start())

    asyncio.run(work())
    with pytest.warns(ResourceWarning, match="unclosed Consumer"):
        clients.clear()
        gc.collect()


def test_a_client_that_was_never_started_is_dropped_silently(recwarn: pytest.WarningsRecorder) -> None:
    aio.Consumer(NOWHERE)
    aio.Admin(NOWHERE)
    gc.collect()
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]


def test_clients_that_are_open_when_the_interpreter_ends_do_not_hold_it_up() -> None:
    program = (
        "from kavka import Admin, Consumer\n"
        f"clients = [Admin({NOWHERE!r}), Consumer({NOWHERE!r}, client_id='left')]\n"
        "clients[1].assign([('t', 0)])\n"
        "print('end', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", program], capture_output=True, text=True, timeout=WAIT
    )
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert "client kavka-left is still open at exit" in done.stderr
    assert "Traceback" not in done.stderr
