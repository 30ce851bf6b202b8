"""What the tools that produce and consume share: settings from their options, and a word when no broker answers."""

from __future__ import annotations

import logging
import select
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from kavka.cli.connecting import PATIENCE_S, read_properties
from kavka.cli.options import Arguments, Option, UsageError
from kavka.cli.tool import note

INTERRUPTED, TERMINATED = 130, 143


class Client(Protocol):
    def metrics(self) -> dict[str, float]: ...


def property_option(name: str, help: str, *, older: bool = False, several: bool = False) -> Option:
    return Option(name, help, "name=value", repeated=True, several=several, older=older)


def file_option(name: str, help: str, *, older: bool = False) -> Option:
    return Option(name, help, "file", older=older, completes="file")


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """`name=value` each; a name alone has an empty value, as for Kafka's tools."""
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name:
            raise UsageError(f"Invalid command line properties: '{text}' has no name")
        found[name] = value
    return found


def client_settings(args: Arguments, files: Iterable[str], properties: Iterable[str]) -> dict[str, Any]:
    """Those of the files that these options name, then those given one by one; what comes later counts."""
    settings: dict[str, Any] = {}
    for option in files:
        if option in args:
            settings |= read_properties(args[option])
    for option in properties:
        settings |= pairs(args[option])
    return settings


def quiet_logging() -> None:
    """The clients' own log: only what is wrong, to standard error."""
    logging.basicConfig(level="ERROR", format="%(levelname)s %(message)s", stream=sys.stderr)


def say_when_nobody_answers(client: Client, tool: str, servers: Any) -> None:
    """After a few seconds without a connection: a person should know why nothing happens."""

    def look() -> None:
        if not client.metrics()["connection-creation-total"]:
            note(tool, f"no broker answers at {servers} yet")

    timer = threading.Timer(PATIENCE_S, look)
    timer.daemon = True
    timer.start()


def reader_is_gone(descriptor: int) -> bool:
    """Whether nobody can read any more what would be written there: a pipe tells it before the next write."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


class Terminated(KeyboardInterrupt):
    """SIGTERM: the tool ends as with Ctrl-C, with another exit code."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, SIGTERM raises Terminated as Ctrl-C raises KeyboardInterrupt."""

    def terminated(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(error: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
