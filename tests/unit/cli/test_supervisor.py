from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest

from kavka.cli.options import UsageError
from kavka.cli.supervisor import MAX_DELAY_S, STABLE_AFTER_S, STOP_TIMEOUT_S, Process, State, Supervisor, parse_count
from kavka.cli.tool import ToolError


class FakeDaemon:
    """A process that ends when the test says so."""

    pid = 4711
    output = Path("server-0.out")

    def __init__(self, events: list[str], name: str, *, is_ready: bool = True, stops: bool = True) -> None:
        self.events, self.name = events, name
        self.is_ready = is_ready
        self.exit_code: int | None = None
        self._stops = stops

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    def exit_reason(self) -> str:
        return "kavka: the reason"

    def terminate(self) -> None:
        self.events.append(f"terminate {self.name}")
        if self._stops:
            self.exit_code = 0

    def kill(self) -> None:
        self.events.append(f"kill {self.name}")
        self.exit_code = -9


class Unit:
    """A supervisor of fake processes on a clock that `sleep` moves. `on_sleep` is called before
    each sleep."""

    def __init__(self, count: int, **options: bool) -> None:
        self.now = 0.0
        self.events: list[str] = []
        self.launched: list[FakeDaemon] = []
        self.launch_error: str | None = None
        self.on_sleep = lambda: None
        self._options = options
        self.processes = [Process(f"broker {index}", lambda index=index: self.launch(index)) for index in range(count)]
        self.supervisor = Supervisor(self.processes, clock=lambda: self.now, sleep=self.sleep)

    def launch(self, index: int) -> FakeDaemon:
        if self.launch_error is not None:
            raise ToolError(self.launch_error)
        self.events.append(f"launch {index}")
        daemon = FakeDaemon(self.events, str(index), **self._options)
        self.launched.append(daemon)
        return daemon

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()

    def step_until_restart(self) -> float:
        """Step the first process until it is started again. Return the delay."""
        start, count = self.now, len(self.launched)
        while len(self.launched) == count:
            assert self.now - start < 2 * MAX_DELAY_S
            self.processes[0].step(self.now)
            self.now += 0.5
        return self.now - start


def test_all_processes_start_and_stop_from_last_to_first() -> None:
    unit = Unit(3)
    assert unit.supervisor.start() == []
    assert [process.state for process in unit.processes] == [State.READY] * 3
    unit.supervisor.stop()
    assert unit.events == [f"launch {n}" for n in (0, 1, 2)] + [f"terminate {n}" for n in (2, 1, 0)]


def test_delay_before_a_restart_doubles_up_to_a_limit_and_is_reset_by_a_stable_process() -> None:
    unit = Unit(1)
    unit.supervisor.start()
    delays = []
    for _ in range(8):
        unit.launched[-1].exit_code = -9
        delays.append(unit.step_until_restart())
        unit.processes[0].step(unit.now)
        assert unit.processes[0].state is State.READY
    assert [round(delay) for delay in delays] == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60], abs=1)
    assert unit.processes[0].restarts == 8
    unit.now += STABLE_AFTER_S
    unit.launched[-1].exit_code = 1
    assert unit.step_until_restart() <= 2


def test_a_restart_that_fails_is_tried_again_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    unit = Unit(1)
    unit.supervisor.start()
    unit.launched[0].exit_code = 1
    unit.processes[0].step(0.0)
    assert "broker 0 died: kavka: the reason; starting it again in 1 s" in caplog.messages
    unit.launch_error = "no space left"
    unit.processes[0].step(1.0)
    assert "broker 0 died: no space left; starting it again in 2 s" in caplog.messages
    assert unit.processes[0].state is State.WAITING
    unit.launch_error = None
    unit.processes[0].step(3.0)
    assert unit.processes[0].state is State.STARTING


def test_a_process_that_was_stopped_is_not_started_again() -> None:
    unit = Unit(2)
    unit.supervisor.start()
    unit.launched[0].exit_code = 0
    unit.processes[0].step(0.0)
    unit.processes[0].step(1000.0)
    assert (unit.processes[0].state, len(unit.launched)) == (State.STOPPED, 2)


def test_unit_ends_when_all_processes_were_stopped() -> None:
    unit = Unit(2)
    ready = []

    def stop_all() -> None:
        if ready:
            for daemon in unit.launched:
                daemon.exit_code = 0

    unit.on_sleep = stop_all
    unit.supervisor.run(lambda: ready.append(True))
    assert unit.events == ["launch 0", "launch 1"]


def test_a_process_that_does_not_start_ends_the_unit_with_its_reason() -> None:
    unit = Unit(2, is_ready=False)

    def fail() -> None:
        unit.launched[0].is_ready = True
        unit.launched[1].exit_code = 1

    unit.on_sleep = fail
    ready = []
    with pytest.raises(ToolError, match=r"^broker 1: kavka: the reason$"):
        unit.supervisor.run(lambda: ready.append(True))
    assert not ready
    assert unit.events == ["launch 0", "launch 1", "terminate 0"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("is_ready", [True, False])
def test_signal_stops_the_unit_also_while_it_starts(number: signal.Signals, is_ready: bool) -> None:
    unit = Unit(2, is_ready=is_ready)
    unit.on_sleep = lambda: os.kill(os.getpid(), number)
    handler = signal.getsignal(number)
    unit.supervisor.run(lambda: None)
    assert signal.getsignal(number) is handler
    assert unit.events[-2:] == ["terminate 1", "terminate 0"]


def test_second_signal_stops_all_others_at_once_and_a_stubborn_process_is_killed() -> None:
    unit = Unit(2, stops=False)
    remaining = [signal.SIGINT, signal.SIGTERM]
    unit.on_sleep = lambda: remaining and os.kill(os.getpid(), remaining.pop())
    unit.supervisor.run(lambda: None)
    assert unit.events[2:5] == ["terminate 1", "terminate 0", "terminate 1"]
    assert [event for event in unit.events if event.startswith("kill")] == ["kill 1", "kill 0"]
    assert unit.now >= STOP_TIMEOUT_S


def test_number_of_brokers() -> None:
    assert parse_count("--shards", "3") == 3
    assert parse_count("--shards", "auto") == len(os.sched_getaffinity(0))
    for text in ("", "0", "-1", "257", "9" * 5000, "٣", "many"):
        with pytest.raises(UsageError, match="--shards"):
            parse_count("--shards", text)
