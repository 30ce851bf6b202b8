"""Supervision of the brokers of one machine: start, restart with back-off, and stop in order.

`kavka server --shards` and `kavka cluster` start their processes with it. A supervisor that is
killed leaves no broker behind: the brokers stop when their standard input ends (`stops_with_parent`
in `daemon.py`).
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from types import FrameType

from kavka.cli.daemon import STOP_TIMEOUT_S, Daemon
from kavka.cli.options import UsageError
from kavka.cli.tool import ToolError

logger = logging.getLogger("kavka")

POLL_INTERVAL_S = 0.05
FIRST_DELAY_S = 1.0
MAX_DELAY_S = 60.0
STABLE_AFTER_S = 60.0
"""The delay before a restart doubles with each restart, and starts again after a process was ready
for this long."""


MAX_BROKERS = 256


def parse_count(option: str, text: str) -> int:
    """Return a number of brokers; `auto` means the cores that this process may use. Raises
    UsageError."""
    if text == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= MAX_BROKERS:
        raise UsageError(f"{option} {text}: it must be auto or a number from 1 to {MAX_BROKERS}")
    return int(text)


def broker_metrics(port: int, index: int) -> tuple[str, int]:
    """Return the address of the metrics of a broker of a unit whose endpoint has this port."""
    return "127.0.0.1", port + 1 + index


class State(Enum):
    STARTING = auto()
    READY = auto()
    WAITING = auto()
    """The process died and is started again after a delay."""
    STOPPED = auto()
    """The process ended with exit code 0, for example after SIGTERM. It is not started again."""


class Process:
    """A supervised process. `launch` starts it and may raise ToolError.

    | state    | event                         | next state |
    |----------|-------------------------------|------------|
    | STARTING | ready                         | READY      |
    | STARTING, READY | ended with exit code 0 | STOPPED    |
    | STARTING, READY | died                   | WAITING    |
    | WAITING  | the delay has passed          | STARTING   |
    """

    def __init__(self, name: str, launch: Callable[[], Daemon]) -> None:
        self.name = name
        self.state = State.STOPPED
        self.restarts = 0
        self.daemon: Daemon | None = None
        self._launch = launch
        self._delay_s = FIRST_DELAY_S
        self._since = 0.0
        """When the process became ready, or when it is to be started again."""

    @property
    def is_alive(self) -> bool:
        return self.daemon is not None and self.daemon.is_running

    def start(self) -> None:
        """Start the process. Raise ToolError if that is impossible."""
        self.daemon = self._launch()
        self.state = State.STARTING

    def step(self, now: float) -> None:
        """Do what is due: notice that the process is ready or has ended, or start it again."""
        if self.state is State.WAITING:
            if now >= self._since:
                self._restart(now)
            return
        if self.state is State.STOPPED:
            return
        assert self.daemon is not None
        code = self.daemon.exit_code
        if code == 0:
            self.state = State.STOPPED
            logger.info("%s (process %d) was stopped", self.name, self.daemon.pid)
        elif code is not None:
            if self.state is State.READY and now - self._since >= STABLE_AFTER_S:
                self._delay_s = FIRST_DELAY_S
            self._wait(now, self.daemon.exit_reason())
        elif self.state is State.STARTING and self.daemon.is_ready:
            self.state, self._since = State.READY, now
            logger.info("%s is ready as process %d, output in %s", self.name, self.daemon.pid, self.daemon.output)

    def _restart(self, now: float) -> None:
        self.restarts += 1
        try:
            self.start()
        except ToolError as error:
            self._wait(now, str(error))

    def _wait(self, now: float, reason: str) -> None:
        logger.error("%s died: %s; starting it again in %g s", self.name, reason, self._delay_s)
        self.state, self._since = State.WAITING, now + self._delay_s
        self._delay_s = min(2 * self._delay_s, MAX_DELAY_S)


class Supervisor:
    """The processes of a unit, in the order in which they stop from last to first."""

    def __init__(
        self,
        processes: Sequence[Process],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.processes = processes
        self._clock = clock
        self._sleep = sleep
        self._signals = 0

    # --- start

    def start(self) -> list[str]:
        """Start all processes in parallel, and wait until each is ready, has ended, or a signal
        arrives. Return the reasons of those that ended."""
        errors = []
        for process in self.processes:
            try:
                process.start()
            except ToolError as error:
                errors.append(f"{process.name}: {error}")
        while not self._signals and any(process.state is State.STARTING for process in self.processes):
            for process in self.processes:
                if process.state is State.STARTING and process.daemon is not None:
                    if process.daemon.exit_code is None:
                        process.step(self._clock())
                    else:
                        process.state = State.STOPPED
                        errors.append(f"{process.name}: {process.daemon.exit_reason()}")
            self._sleep(POLL_INTERVAL_S)
        return errors

    def detach(self) -> None:
        """Leave the processes running after the end of this process."""
        for process in self.processes:
            if process.daemon is not None:
                process.daemon.detach()

    # --- supervision

    def run(self, on_ready: Callable[[], None]) -> None:
        """Start all processes, call `on_ready`, and restart processes that die, until SIGTERM or
        SIGINT, or until all were stopped. Then stop all in order. Raise ToolError, with no process
        left, if a process does not start."""
        with self._handling_signals():
            try:
                errors = self.start()
                if errors:
                    raise ToolError("; ".join(errors))
                if not self._signals:
                    on_ready()
                self._watch()
            finally:
                self.stop()

    def _watch(self) -> None:
        while not self._signals and any(process.state is not State.STOPPED for process in self.processes):
            for process in self.processes:
                process.step(self._clock())
            self._sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        """Stop the processes one after another, so that each hands its leaderships over to those
        that still run. After a second signal, stop the others at the same time. Kill a process that
        takes too long."""
        for process in reversed(self.processes):
            if process.is_alive:
                logger.info("Stopping %s", process.name)
            self._stop(process)

    def _stop(self, process: Process) -> None:
        daemon, process.state = process.daemon, State.STOPPED
        if daemon is None or not daemon.is_running:
            return
        daemon.terminate()
        deadline = self._clock() + STOP_TIMEOUT_S
        signals = self._signals
        while daemon.is_running and self._clock() < deadline:
            if self._signals > max(1, signals):
                signals = self._signals
                for other in self.processes:
                    if other.daemon is not None and other.daemon.is_running:
                        other.daemon.terminate()
            self._sleep(POLL_INTERVAL_S)
        if daemon.is_running:
            logger.warning("%s has not stopped after %d s: killing it", process.name, STOP_TIMEOUT_S)
            daemon.kill()

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """Count SIGTERM and SIGINT instead of ending."""

        def count(_number: int, _frame: FrameType | None) -> None:
            self._signals += 1

        previous = {number: signal.signal(number, count) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
