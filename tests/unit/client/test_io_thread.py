"""The thread of a blocking client: calls while it stops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from kavka.client.errors import ClientClosed
from kavka.client.io_thread import IoThread

WAIT = 60


def test_calls_during_stop_complete_or_raise() -> None:
    def call(io: IoThread, errors: list[BaseException]) -> None:
        try:
            while True:
                io.run(asyncio.sleep(0))
        except BaseException as error:
            errors.append(error)

    for _ in range(100):
        io = IoThread("kavka-test")
        errors: list[BaseException] = []
        threads = [threading.Thread(target=call, args=(io, errors), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        io.stop()
        for thread in threads:
            thread.join(WAIT)
        assert [type(error) for error in errors] == [ClientClosed] * 3, errors


def test_running_call_fails_with_client_closed_on_stop() -> None:
    io = IoThread("kavka-test")
    started = threading.Event()
    cleaned_up = threading.Event()
    late_tasks: list[asyncio.Task[None]] = []

    async def clean_up() -> None:
        await asyncio.sleep(0.01)
        cleaned_up.set()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(WAIT)
        finally:
            # A task that starts during the cancellation is cancelled as well.
            late_tasks.append(asyncio.create_task(asyncio.sleep(WAIT)))
            await clean_up()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(io.run, work())
        assert started.wait(WAIT)
        io.stop()
        with pytest.raises(ClientClosed):
            call.result(WAIT)
    assert cleaned_up.is_set() and late_tasks[0].cancelled()
    assert not io.alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_with_a_failed_loop_accepts_no_calls() -> None:
    io = IoThread("kavka-test")

    def fail() -> None:
        raise SystemExit

    io.call_soon(fail)
    io._thread.join(WAIT)
    with pytest.raises(ClientClosed):
        io.run(asyncio.sleep(0))
    io.stop()
