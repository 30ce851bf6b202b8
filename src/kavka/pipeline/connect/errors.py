"""What goes wrong in Connect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ConnectError(Exception):
    """Something that fails a task; the message is what its status shows."""


class RetriableError(ConnectError):
    """May pass by itself: the other system is away. What raised it is tried again for `errors.retry.timeout`."""


class ConfigErrors(ConnectError):
    """A configuration that cannot be: messages by the name of the option."""

    def __init__(self, errors: Mapping[str, Sequence[str]]) -> None:
        self.errors = {name: list(messages) for name, messages in errors.items() if messages}
        count = sum(map(len, self.errors.values()))
        lines = "\n".join(message for messages in self.errors.values() for message in messages)
        super().__init__(f"Connector configuration is invalid and contains the following {count} error(s):\n{lines}")
