"""Consumers and group operations of the newest Java client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.java_client import JavaClient

PROBE = Path(__file__).parent / "java" / "GroupProbe.java"
VERSION = "4.3.0"


class JavaGroups(JavaClient):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(VERSION, bootstrap, PROBE)

    def consumer(self, name: str, group: str, *topics: str, pattern: str | None = None, **config: Any) -> JavaMember:
        """Open a consumer. The names in `config` have underscores instead of dots."""
        settings = {"group.id": group} | {key.replace("_", "."): str(value) for key, value in config.items()}
        self.call("open", name=name, topics=list(topics), pattern=pattern, config=settings)
        return JavaMember(self, name)

    def describe(self, group: str) -> dict[str, Any]:
        description: dict[str, Any] = self.call("describe", group=group)
        return description

    def groups(self) -> dict[str, dict[str, str]]:
        groups: dict[str, dict[str, str]] = self.call("list")
        return groups

    def delete(self, group: str) -> None:
        self.call("delete", group=group)


class JavaMember:
    """A consumer in the probe. Call `poll` regularly, so that it stays in the group."""

    def __init__(self, client: JavaGroups, name: str) -> None:
        self._client = client
        self.name = name
        self.values: list[str] = []
        self.assigned: set[str] = set()

    def poll(self, ms: int = 200) -> JavaMember:
        polled = self._client.call("poll", name=self.name, ms=ms)
        self.values += polled["values"]
        self.assigned = set(polled["assigned"])
        return self

    def close(self) -> None:
        self._client.call("close", name=self.name)
