"""The end of a `with` block reports errors."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from kavka import KafkaTimeout
from kavka.parallel import handling
from kavka.parallel.handling import Runner


class FakeRunner(Runner):
    """Runs one thread. The thread fails with `error`, or runs until `stop` is called. With
    `release`, only this event ends it."""

    def __init__(self, error: BaseException | None = None, release: threading.Event | None = None) -> None:
        self._stopping = threading.Event()
        self._end = release or self._stopping
        self._failure = error
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        self._error = self._failure
        if self._error is None:
            self._end.wait()

    def _all_threads(self) -> Iterable[threading.Thread]:
        return [self._thread]

    def join(self, timeout: float | None = None) -> bool:
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self._report()
        return True

    def stop(self, timeout: float | None = 30.0) -> bool:
        self._stopping.set()
        if self._started:
            self._thread.join(timeout)
        return not self._thread.is_alive()


def test_handler_that_does_not_return_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handling, "STOP_TIMEOUT_S", 0.05)
    release = threading.Event()
    runner = FakeRunner(release=release)
    with pytest.raises(KafkaTimeout, match="a handler is still running"), runner:
        runner.start()
    release.set()
    assert runner.join(60)


def test_error_of_a_thread_is_raised_at_the_end() -> None:
    with pytest.raises(ValueError, match="broken"), FakeRunner(ValueError("broken")) as runner:
        runner.start()


def test_reported_error_is_not_raised_again() -> None:
    with FakeRunner(ValueError("broken")) as runner, pytest.raises(ValueError, match="broken"):
        runner.run()


def test_error_of_the_block_takes_precedence_and_the_other_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyError), FakeRunner(ValueError("broken")) as runner:
        runner.start()
        raise KeyError
    assert "ValueError('broken')" in caplog.text
    monkeypatch.setattr(handling, "STOP_TIMEOUT_S", 0.05)
    release = threading.Event()
    with pytest.raises(KeyError), FakeRunner(release=release) as runner:
        runner.start()
        raise KeyError
    assert "still running" in caplog.text
    release.set()
    assert runner.join(60)


def test_runner_that_was_never_started_ends_without_an_error() -> None:
    with FakeRunner():
        pass
