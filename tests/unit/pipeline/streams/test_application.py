"""The states of an application, with Spark's query replaced."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.pipeline.spark.fencing import Claim, Fenced, check
from kavka.pipeline.streams import application
from kavka.pipeline.streams.application_states import ACTIVE, ENDED, TRANSITIONS, State
from kavka.streams import KafkaStreams, StreamsBuilder, StreamsException, StreamThreadExceptionResponse
from tests.support.processes import wait_until


class LaterClaim:
    """A coordinator that knows a later claim."""

    def describe_transactions(self, names: list[str], timeout: float) -> dict[str, Any]:
        return {name: SimpleNamespace(producer_id=1, producer_epoch=1) for name in names}


class Query:
    """A query that runs until it is stopped or fails."""

    status = {"isTriggerActive": False}
    recentProgress: list[Any] = []

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: Exception | None = None

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    def awaitTermination(self, timeout: float | None = None) -> bool:
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        self._ended.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._ended.set()


class Application:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        builder = StreamsBuilder()
        builder.stream("in").to("out")
        config = {"application.id": "app", "bootstrap.servers": "localhost:9", "state.dir": str(folder)}
        self.streams = KafkaStreams(builder.build(), config)
        self.queries: list[Query] = []
        self.compiling, self.may_compile = threading.Event(), threading.Event()
        self.may_compile.set()
        monkeypatch.setattr(application, "_RESTART_DELAY_S", 0.01)
        monkeypatch.setattr(self.streams, "_start_query", self._start_query)
        monkeypatch.setattr(self.streams._totals, "has_begin", lambda: True)
        monkeypatch.setattr(self.streams._totals, "begin", lambda: None)
        self.states: list[str] = []
        self.streams.set_state_listener(lambda new, old: self.states.append(new))

    def _start_query(self) -> Query:
        self.compiling.set()
        assert self.may_compile.wait(10)
        self.queries.append(Query())
        return self.queries[-1]

    def wait_for(self, state: State) -> None:
        wait_until(lambda: self.streams.state() == state, timeout=10, what=state)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Application:
    return Application(tmp_path, monkeypatch)


def test_every_state_leads_to_an_end() -> None:
    assert set(TRANSITIONS) == set(State)
    for state in State:
        reachable = {state}
        while more := {after for before in reachable for after in TRANSITIONS[before]} - reachable:
            reachable |= more
        assert reachable & ENDED
    assert not any(TRANSITIONS[state] for state in ENDED)
    assert all(TRANSITIONS[state] >= {State.PENDING_SHUTDOWN, State.PENDING_ERROR} for state in ACTIVE)


def test_an_application_starts_and_closes(app: Application) -> None:
    app.streams.start()
    assert app.streams.state() == "RUNNING"
    assert app.streams.close(10)
    assert app.states == ["REBALANCING", "RUNNING", "PENDING_SHUTDOWN", "NOT_RUNNING"]
    assert not app.queries[0].isActive
    with pytest.raises(StreamsException, match="it can be started once"):
        app.streams.start()


def test_an_application_that_was_not_started_closes(app: Application) -> None:
    assert app.streams.close(10)
    assert app.states == ["PENDING_SHUTDOWN", "NOT_RUNNING"]


def test_close_during_start_stops_the_query(app: Application) -> None:
    app.may_compile.clear()
    starter = threading.Thread(target=app.streams.start)
    starter.start()
    assert app.compiling.wait(10)
    closer = threading.Thread(target=app.streams.close)
    closer.start()
    app.wait_for(State.PENDING_SHUTDOWN)
    app.may_compile.set()
    starter.join(10)
    closer.join(10)
    assert app.streams.state() == "NOT_RUNNING"
    assert [query.isActive for query in app.queries] == [False]
    assert "RUNNING" not in app.states


def test_a_query_that_is_to_be_retried_starts_again_without_the_handler(app: Application) -> None:
    handled: list[BaseException] = []
    app.streams.set_uncaught_exception_handler(handled.append)
    app.streams.start()
    app.queries[0].fail(RuntimeError("in Spark\nkavka.RetryProductionException: a record was not written: timed out"))
    wait_until(lambda: len(app.queries) == 2, timeout=10, what="the next query")
    app.wait_for(State.RUNNING)
    assert handled == []
    assert app.streams.close(10)


def test_a_failed_query_ends_the_application(app: Application) -> None:
    app.streams.start()
    app.queries[0].fail(ValueError("broken"))
    assert app.streams.wait(10)
    assert app.states[-2:] == ["PENDING_ERROR", "ERROR"]
    assert "broken" in str(app.streams.exception())
    assert app.streams.close(10)


def test_a_handler_can_replace_the_query(app: Application) -> None:
    app.streams.set_uncaught_exception_handler(lambda error: StreamThreadExceptionResponse.REPLACE_THREAD)
    app.streams.start()
    app.queries[0].fail(ValueError("broken"))
    wait_until(lambda: len(app.queries) == 2, timeout=10, what="the second query")
    app.wait_for(State.RUNNING)
    assert app.streams.close(10)


def test_a_driver_that_was_replaced_ends_whatever_the_handler_says(app: Application) -> None:
    with pytest.raises(Fenced) as raised:
        check(LaterClaim(), Claim("app-driver", 1, 0))  # type: ignore[arg-type]
    app.streams.set_uncaught_exception_handler(lambda error: StreamThreadExceptionResponse.REPLACE_THREAD)
    app.streams.start()
    app.queries[0].fail(ValueError(f"[PYTHON_DATA_SOURCE_ERROR]\nkavka.pipeline.spark.fencing.Fenced: {raised.value}"))
    assert app.streams.wait(10)
    assert str(app.streams.exception()) == "another driver of the application app was started, so this one ends"
    assert len(app.queries) == 1


def test_a_handler_that_raises_ends_the_application_with_its_error(app: Application) -> None:
    calls: list[BaseException] = []

    def handler(error: BaseException) -> str:
        calls.append(error)
        raise KeyError("oops")

    app.streams.set_uncaught_exception_handler(handler)
    app.streams.start()
    app.queries[0].fail(ValueError("broken"))
    assert app.streams.wait(10)
    assert app.streams.state() == "ERROR"
    assert "KeyError: 'oops'" in str(app.streams.exception()) and "broken" in str(app.streams.exception())
    assert len(calls) == 1


@pytest.mark.parametrize("failing", ["REBALANCING", "RUNNING"])
def test_a_listener_that_raises_ends_the_application_with_its_error(app: Application, failing: str) -> None:
    def listener(new: str, old: str) -> None:
        if new == failing:
            raise KeyError("oops")

    app.streams.set_state_listener(listener)
    with pytest.raises(StreamsException, match="the state listener failed: KeyError: 'oops'"):
        app.streams.start()
    assert app.streams.state() == "ERROR"
    wait_until(lambda: not any(query.isActive for query in app.queries), timeout=10, what="the end of the query")


@pytest.mark.parametrize("closing", ["REBALANCING", "RUNNING"])
def test_a_listener_may_close_the_application(app: Application, closing: str) -> None:
    app.streams.set_state_listener(lambda new, old: app.streams.close() if new == closing else None)
    app.streams.start()
    assert app.streams.wait(10)
    assert app.streams.state() == "NOT_RUNNING"
    assert not any(query.isActive for query in app.queries)


def test_a_paused_application_closes(app: Application) -> None:
    app.streams.start()
    app.streams.pause()
    assert app.streams.state() == "RUNNING" and app.streams.is_paused()
    assert app.streams.close(10)
