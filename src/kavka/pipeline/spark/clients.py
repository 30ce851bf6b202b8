"""Clients that the tasks of a process share."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar


class _Client(Protocol):
    def close(self, timeout: float) -> None: ...


C = TypeVar("C", bound=_Client)


class SharedClient(Generic[C]):
    """Owns at most one client of this process. Spark's Python workers run one task after the other,
    so the next task reuses the connections. A task with other settings replaces the client. A
    forked process creates its own client and does not close its parent's client."""

    def __init__(self, create: Callable[[dict[str, str]], C], close_timeout: float) -> None:
        self._create = create
        self._close_timeout = close_timeout
        self._client: C | None = None
        self._settings: Mapping[str, str] = {}
        self._process = 0
        atexit.register(self.discard)

    def get(self, settings: Mapping[str, str]) -> C:
        """Return the client with these settings."""
        if self._client is None or self._process != os.getpid() or self._settings != settings:
            self.discard()
            self._client = self._create(dict(settings))
            self._settings, self._process = dict(settings), os.getpid()
        return self._client

    def discard(self) -> None:
        """Close the client. The next call of `get` creates a new one."""
        client, self._client = self._client, None
        if client is not None and self._process == os.getpid():
            client.close(self._close_timeout)
