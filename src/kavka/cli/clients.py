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
from kavka.cli.tool import INTERRUPTED_EXIT_CODE, note

TERMINATED_EXIT_CODE = 143
# Settings that the tools ignore: their clients send and receive bytes, which readers and formatters
# convert.
_CONVERTER_SETTINGS = ("key.serializer", "value.serializer", "key.deserializer", "value.deserializer")


class Client(Protocol):
    def metrics(self) -> dict[str, float]: ...


def property_option(name: str, help: str, *, deprecated: bool = False, several: bool = False) -> Option:
    return Option(name, help, "name=value", repeated=True, several=several, deprecated=deprecated)


def file_option(name: str, help: str, *, deprecated: bool = False) -> Option:
    return Option(name, help, "file", deprecated=deprecated, completes="file")


def parse_property_options(texts: Iterable[str]) -> dict[str, str]:
    """Parse texts such as `name=value`. As in Kafka's tools, a name alone has an empty value. Raise
    UsageError if a name is missing."""
    properties = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name:
            raise UsageError(f"Invalid command line properties: '{text}' has no name")
        properties[name] = value
    return properties


def client_settings(args: Arguments, files: Iterable[str], properties: Iterable[str]) -> dict[str, Any]:
    """Merge the files that the options in `files` name and the settings of the options in
    `properties`. Later values take precedence. Serializers and deserializers are removed."""
    settings: dict[str, Any] = {}
    for option in files:
        if option in args:
            settings |= read_properties(args[option])
    for option in properties:
        settings |= parse_property_options(args[option])
    return {name: value for name, value in settings.items() if name not in _CONVERTER_SETTINGS}


def log_only_errors() -> None:
    """Set up logging to standard error: only errors, and addresses of brokers that this machine
    cannot reach."""
    logging.basicConfig(level="ERROR", format="%(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("kavka.client.connections").setLevel("WARNING")


def warn_if_unreachable(client: Client, tool: str, servers: Any) -> None:
    """Warn the user if the client has no connection after WARNING_DELAY_S."""

    def check() -> None:
        if not client.metrics()["connection-creation-total"]:
            note(tool, f"no broker is reachable at {servers} yet")

    timer = threading.Timer(WARNING_DELAY_S, check)
    timer.daemon = True
    timer.start()


def reader_has_closed(descriptor: int) -> bool:
    """Return whether the reader of a pipe has closed it. Nothing is written to the pipe."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


class Termination(KeyboardInterrupt):
    """Raised on SIGTERM. The tool stops as on Ctrl-C, but with another exit code."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise Termination on SIGTERM inside the block, as Ctrl-C raises KeyboardInterrupt. Outside
    the main thread, change nothing."""

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        raise Termination

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handler = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def exit_code(error: KeyboardInterrupt) -> int:
    """Return the exit code of a tool that a signal has stopped."""
    return TERMINATED_EXIT_CODE if isinstance(error, Termination) else INTERRUPTED_EXIT_CODE
