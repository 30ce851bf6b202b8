from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kavka.broker.failure_detection import ControllerFailures
from kavka.client.errors import ConnectionRefused, Disconnected
from kavka.controller.connection_watch import ConnectionWatch, FlapBackoff
from kavka.controller.remote_channel import RemoteChannel
from tests.support import virtual_time

OPEN, REFUSED, RESET, SILENT = "open", "refused", "reset", "silent"


class FakePeers:
    """Connections to brokers in the states above. A connection is its broker's id."""

    def __init__(self, states: dict[int, str]) -> None:
        self.states = states
        self.attempts = 0
        self._closed = {broker_id: asyncio.Event() for broker_id in states}

    def set(self, broker_id: int, state: str) -> None:
        self.states[broker_id] = state
        if state != OPEN:
            self._closed[broker_id].set()
            self._closed[broker_id] = asyncio.Event()

    def open_connection(self, broker_id: int, channel: str) -> int | None:
        return broker_id if self.states[broker_id] == OPEN else None

    async def wait_until_closed(self, connection: int) -> None:
        # Virtual time needs a timer while all tasks wait.
        closed = self._closed[connection]
        while not closed.is_set():
            await asyncio.sleep(0.01)

    async def connection(self, broker_id: int, channel: str) -> int:
        self.attempts += 1
        match self.states[broker_id]:
            case "refused":
                raise ConnectionRefused("refused")
            case "reset":
                raise Disconnected("reset")
            case "silent":
                await asyncio.sleep(3600)
        return broker_id

    def close_channel(self, broker_id: int, channel: str) -> None:
        pass


def now() -> float:
    return asyncio.get_running_loop().time()


async def seconds(wait: Coroutine[Any, Any, None]) -> float:
    start = now()
    await asyncio.wait_for(wait, 1000)
    return now() - start


def watch_of(peers: FakePeers, broker_id: int = 1) -> ConnectionWatch:
    return ConnectionWatch(peers, broker_id, "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "state, refused_s, timeout_s, expected",
    [(REFUSED, 0.0, 9.0, 0.0), (REFUSED, 1.0, 9.0, 1.0), (RESET, 0.0, 9.0, 9.0), (SILENT, 0.0, 9.0, 9.0)],
)
def test_time_until_a_broken_connection_counts_as_a_failure(
    state: str, refused_s: float, timeout_s: float, expected: float
) -> None:
    async def body() -> None:
        peers = FakePeers({1: OPEN})
        asyncio.get_running_loop().call_later(5, peers.set, 1, state)
        waited = await seconds(watch_of(peers).wait_until_failed(refused_s=refused_s, timeout_s=timeout_s))
        assert waited == pytest.approx(5 + expected, abs=0.2)

    virtual_time.run(body())


def test_a_connection_that_can_be_opened_again_is_no_failure() -> None:
    async def body() -> None:
        peers = FakePeers({1: OPEN})
        loop = asyncio.get_running_loop()
        for second in range(0, 40, 10):
            loop.call_later(second, peers.set, 1, RESET)
            loop.call_later(second + 8, peers.set, 1, OPEN)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch_of(peers).wait_until_failed(refused_s=0.0, timeout_s=9.0), 100)

    virtual_time.run(body())


def test_without_a_timeout_only_refused_connections_are_failures() -> None:
    async def body() -> None:
        peers = FakePeers({1: RESET})
        asyncio.get_running_loop().call_later(100, peers.set, 1, REFUSED)
        assert await seconds(watch_of(peers).wait_until_failed(refused_s=0.0, timeout_s=None)) == pytest.approx(
            100, abs=0.2
        )

    virtual_time.run(body())


def test_a_flapping_connection_is_reported_less_and_less_often() -> None:
    async def body() -> None:
        peers = FakePeers({1: OPEN})
        reports: list[tuple[float, bool]] = []
        channel = RemoteChannel(1, peers, 30.0, 9.0)  # type: ignore[arg-type]
        start = now()
        task = asyncio.ensure_future(
            channel.watch(lambda is_reachable: reports.append((now() - start, is_reachable)), is_starting=False)
        )
        for _ in range(40):
            await asyncio.sleep(0.5)
            peers.set(1, REFUSED)
            await asyncio.sleep(0.5)
            peers.set(1, OPEN)
        failures = [at for at, is_reachable in reports if not is_reachable]
        # Two at once, one after 0.25 s; the next needs a failure of 0.5 s, and the later ones more.
        assert 3 <= len(failures) <= 4
        assert [is_reachable for _, is_reachable in reports] == [False, True] * len(failures)
        task.cancel()

    virtual_time.run(body())


def test_flaps_expire_after_a_minute() -> None:
    async def body() -> None:
        flaps = FlapBackoff()
        delays = []
        for _ in range(5):
            delays.append(flaps.delay())
            flaps.record()
        assert delays == [0.0, 0.0, 0.25, 0.5, 1.0]
        await asyncio.sleep(61)
        assert flaps.delay() == 0.0

    virtual_time.run(body())


@pytest.mark.parametrize("opens_after, expected", [(5.0, []), (None, [9.0])])
def test_a_starting_broker_may_refuse_connections_until_the_timeout(
    opens_after: float | None, expected: list[float]
) -> None:
    """Apache's broker registers before it listens."""

    async def body() -> None:
        peers = FakePeers({1: REFUSED})
        reports: list[float] = []
        channel = RemoteChannel(1, peers, 30.0, 9.0)  # type: ignore[arg-type]
        start = now()
        task = asyncio.ensure_future(channel.watch(lambda _: reports.append(now() - start), is_starting=True))
        if opens_after is not None:
            asyncio.get_running_loop().call_later(opens_after, peers.set, 1, OPEN)
        await asyncio.sleep(30)
        assert reports == pytest.approx(expected, abs=0.2)
        task.cancel()

    virtual_time.run(body())


def test_a_channel_without_failure_detection_opens_no_connection() -> None:
    async def body() -> None:
        peers = FakePeers({1: REFUSED})
        channel = RemoteChannel(1, peers, 30.0)  # type: ignore[arg-type]
        await channel.watch(lambda _: pytest.fail("reported"), is_starting=False)
        assert peers.attempts == 0

    virtual_time.run(body())


@pytest.mark.parametrize(
    "others, is_failure",
    [({}, True), ({3: OPEN}, True), ({3: REFUSED}, False), ({3: SILENT}, False), ({3: REFUSED, 4: OPEN}, True)],
)
def test_only_a_broker_that_reaches_half_of_the_brokers_replaces_the_controller(
    others: dict[int, str], is_failure: bool
) -> None:
    async def body() -> None:
        peers = FakePeers({1: REFUSED, **others})
        failures = ControllerFailures(2, peers, lambda: {1, 2, *others})  # type: ignore[arg-type]
        wait = asyncio.wait_for(failures.wait_until_failed(1, 0.0), 60)
        if is_failure:
            await wait
        else:
            with pytest.raises(TimeoutError):
                await wait

    virtual_time.run(body())
