"""Parts shared by the tools that produce and consume: client settings from options, signals, and a
warning while no broker is reachable."""

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

from kavka.cli.connecting import WARNING_DELAY_S, read_properties
from kavka.cli.options import Arguments, Option, UsageError
from kavka.cli.tool import note

INTERRUPTED, TERMINATED = 130, 143


class Client(Protocol):
    def metrics(self) -> dict[str, float]: ...


def property_option(name: str, help: str, *, deprecated: bool = False, several: bool = False) -> Option:
    return Option(name, help, "name=value", repeated=True, several=several, deprecated=deprecated)


def file_option(name: str, help: str, *, deprecated: bool = False) -> Option:
    return Option(name, help, "file", deprecated=deprecated, completes="file")


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Parse `name=value` texts; a name alone has an empty value, as in Kafka's tools."""
    properties = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name:
            raise UsageError(f"Invalid command line properties: '{text}' has no name")
        properties[name] = value
    return properties


def client_settings(args: Arguments, files: Iterable[str], properties: Iterable[str]) -> dict[str, Any]:
    """Merge the properties files that `files` name with the `properties` options. Later values
    win."""
    settings: dict[str, Any] = {}
    for option in files:
        if option in args:
            settings |= read_properties(args[option])
    for option in properties:
        settings |= pairs(args[option])
    return settings


def quiet_logging() -> None:
    """Log only errors of the clients, to standard error."""
    logging.basicConfig(level="ERROR", format="%(levelname)s %(message)s", stream=sys.stderr)


def warn_if_unreachable(client: Client, tool: str, servers: Any) -> None:
    """Warn after WARNING_DELAY_S without a connection, so that the user knows the cause of the
    wait."""

    def check() -> None:
        if not client.metrics()["connection-creation-total"]:
            note(tool, f"no broker is reachable at {servers} yet")

    timer = threading.Timer(WARNING_DELAY_S, check)
    timer.daemon = True
    timer.start()


def reader_has_closed(descriptor: int) -> bool:
    """Whether the reading end of a pipe is closed, without writing to it."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM. The tool ends as on Ctrl-C, with another exit code."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise Terminated on SIGTERM inside the block, as Ctrl-C raises KeyboardInterrupt."""

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def exit_code(error: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
