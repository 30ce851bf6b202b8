"""The windows of Kafka Streams. Times are in milliseconds; durations are milliseconds or a
timedelta. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from kavka.pipeline.streams.errors import TopologyException

Duration = int | timedelta


def millis(duration: Duration, name: str) -> int:
    number = duration // timedelta(milliseconds=1) if isinstance(duration, timedelta) else duration
    if isinstance(number, bool) or not isinstance(number, int):
        raise TopologyException(f"{name} must be milliseconds or a timedelta, not {duration!r}")
    return number


def _at_least(least: int, duration: Duration, name: str) -> int:
    number = millis(duration, name)
    if number < least:
        raise TopologyException(f"{name} must be at least {least} ms, not {number}")
    return number


def _grace(grace: Duration) -> int:
    return _at_least(0, grace, "a window's grace")


@dataclass(frozen=True, order=True)
class Window:
    """From `start` to `end`. A session includes its end."""

    start: int
    end: int

    @property
    def start_time(self) -> int:
        return self.start

    @property
    def end_time(self) -> int:
        return self.end


@dataclass(frozen=True, order=True)
class TimeWindow(Window):
    """From `start` to `end`, excluding `end`."""


@dataclass(frozen=True)
class Windowed:
    """A key in a window."""

    key: Any
    window: Window

    def __str__(self) -> str:
        return f"[{self.key}@{self.window.start}/{self.window.end}]"


@dataclass(frozen=True)
class TimeWindows:
    """Tumbling windows, or hopping windows with `advance_by`."""

    size: int
    grace: int
    advance: int

    @staticmethod
    def of_size_with_no_grace(size: Duration) -> TimeWindows:
        return TimeWindows.of_size_and_grace(size, 0)

    @staticmethod
    def of_size_and_grace(size: Duration, grace: Duration) -> TimeWindows:
        span = _at_least(1, size, "a window's size")
        return TimeWindows(span, _grace(grace), span)

    def advance_by(self, advance: Duration) -> TimeWindows:
        step = _at_least(1, advance, "a window's advance")
        if step > self.size:
            raise TopologyException(f"windows of {self.size} ms cannot advance by {step} ms: there would be gaps")
        return replace(self, advance=step)

    def windows_for(self, timestamp: int) -> Iterator[TimeWindow]:
        start = max(0, timestamp - self.size + self.advance) // self.advance * self.advance
        while start <= timestamp:
            yield TimeWindow(start, start + self.size)
            start += self.advance


@dataclass(frozen=True)
class UnlimitedWindows:
    """A window without an end."""

    start: int = 0
    grace: int = 0
    size: int = 2**63 - 1

    @staticmethod
    def of() -> UnlimitedWindows:
        return UnlimitedWindows()

    def start_on(self, start: int) -> UnlimitedWindows:
        return replace(self, start=_at_least(0, start, "the start of an unlimited window"))

    def windows_for(self, timestamp: int) -> Iterator[TimeWindow]:
        if timestamp >= self.start:
            yield TimeWindow(self.start, 2**63 - 1)


@dataclass(frozen=True)
class SlidingWindows:
    """Windows of records that are at most `time_difference` apart."""

    time_difference: int
    grace: int

    @property
    def size(self) -> int:
        return self.time_difference

    @staticmethod
    def of_time_difference_with_no_grace(difference: Duration) -> SlidingWindows:
        return SlidingWindows.of_time_difference_and_grace(difference, 0)

    @staticmethod
    def of_time_difference_and_grace(difference: Duration, grace: Duration) -> SlidingWindows:
        return SlidingWindows(_at_least(0, difference, "the time difference"), _grace(grace))


@dataclass(frozen=True)
class SessionWindows:
    """Windows that end when no record arrives for `inactivity_gap`."""

    inactivity_gap: int
    grace: int

    @staticmethod
    def of_inactivity_gap_with_no_grace(gap: Duration) -> SessionWindows:
        return SessionWindows.of_inactivity_gap_and_grace(gap, 0)

    @staticmethod
    def of_inactivity_gap_and_grace(gap: Duration, grace: Duration) -> SessionWindows:
        return SessionWindows(_at_least(1, gap, "the inactivity gap"), _grace(grace))


# The arguments of `windowed_by`.
Windows = TimeWindows | UnlimitedWindows | SlidingWindows | SessionWindows


@dataclass(frozen=True)
class JoinWindows:
    """Records are joined if the other record is up to `before` earlier or up to `after` later."""

    before_ms: int
    after_ms: int
    grace: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise TopologyException("Window interval (ie, beforeMs+afterMs) must not be negative.")

    @property
    def size(self) -> int:
        return self.before_ms + self.after_ms

    @staticmethod
    def of_time_difference_with_no_grace(difference: Duration) -> JoinWindows:
        return JoinWindows.of_time_difference_and_grace(difference, 0)

    @staticmethod
    def of_time_difference_and_grace(difference: Duration, grace: Duration) -> JoinWindows:
        span = _at_least(0, difference, "the time difference")
        return JoinWindows(span, span, _grace(grace))

    def before(self, difference: Duration) -> JoinWindows:
        return replace(self, before_ms=millis(difference, "the time difference"))

    def after(self, difference: Duration) -> JoinWindows:
        return replace(self, after_ms=millis(difference, "the time difference"))


@dataclass(frozen=True)
class EmitStrategy:
    """When a windowed aggregation forwards its results: with every update, or once, when the window
    closes."""

    final: bool

    @staticmethod
    def on_window_update() -> EmitStrategy:
        return EmitStrategy(False)

    @staticmethod
    def on_window_close() -> EmitStrategy:
        return EmitStrategy(True)


@dataclass(frozen=True)
class BufferConfig:
    """The limits of the buffer of `suppress`. A full buffer is forwarded early (`emit`), or ends
    the stream (`fail`)."""

    max_records_: int | None = None
    max_bytes_: int | None = None
    when_full: str = "fail"

    @staticmethod
    def unbounded() -> BufferConfig:
        return BufferConfig()

    @staticmethod
    def max_records(count: int) -> BufferConfig:
        return BufferConfig(max_records_=count, when_full="emit")

    @staticmethod
    def max_bytes(size: int) -> BufferConfig:
        return BufferConfig(max_bytes_=size, when_full="emit")

    def with_max_records(self, count: int) -> BufferConfig:
        return replace(self, max_records_=count)

    def with_max_bytes(self, size: int) -> BufferConfig:
        return replace(self, max_bytes_=size)

    def emit_early_when_full(self) -> BufferConfig:
        return replace(self, when_full="emit")

    def shut_down_when_full(self) -> BufferConfig:
        return replace(self, when_full="fail")


@dataclass(frozen=True)
class Suppressed:
    """When `suppress` forwards the changes of a table."""

    final: bool
    wait: int
    buffer: BufferConfig
    name: str | None = None

    @staticmethod
    def until_window_closes(buffer: BufferConfig) -> Suppressed:
        if buffer.when_full == "emit":
            raise TopologyException("until_window_closes cannot emit early: use shut_down_when_full")
        return Suppressed(True, 0, buffer)

    @staticmethod
    def until_time_limit(wait: Duration, buffer: BufferConfig) -> Suppressed:
        return Suppressed(False, _at_least(0, wait, "the time to wait"), buffer)

    def with_name(self, name: str) -> Suppressed:
        return replace(self, name=name)
