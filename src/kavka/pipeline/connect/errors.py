"""The exceptions of Connect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ConnectError(Exception):
    """An error that fails a task. The task's status shows the message."""


class RetriableError(ConnectError):
    """A transient error: the other system is unavailable. The operation is retried for
    `errors.retry.timeout`."""


class ConfigErrors(ConnectError):
    """An invalid configuration. `errors` maps option names to error messages."""

    def __init__(self, errors: Mapping[str, Sequence[str]]) -> None:
        self.errors = {name: list(messages) for name, messages in errors.items() if messages}
        count = sum(map(len, self.errors.values()))
        lines = "\n".join(message for messages in self.errors.values() for message in messages)
        super().__init__(f"Connector configuration is invalid and contains the following {count} error(s):\n{lines}")
