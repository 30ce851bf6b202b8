"""The exceptions of Connect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Self

_TASK_OF_SPARK = re.compile(r"\bTask (\d+) in stage \d")


class ConnectError(Exception):
    """An error that fails a task. The task's status shows the message."""

    task: int | None = None
    """The number of the task that failed, if it is known."""

    def of_task(self, number: int | None) -> Self:
        self.task = number
        return self


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


def task_in(text: str) -> int | None:
    """Returns the number of the Spark task that an error message of Spark names."""
    match = _TASK_OF_SPARK.search(text)
    return None if match is None else int(match[1])
