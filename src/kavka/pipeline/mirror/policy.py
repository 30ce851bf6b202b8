"""MirrorMaker's rules for the names of mirrored topics, and the filters for topics and groups. No
I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kavka.pipeline.spark.errors import OptionError

HEARTBEATS = "heartbeats"
DEFAULT, IDENTITY = "DefaultReplicationPolicy", "IdentityReplicationPolicy"


class Policy:
    """The names of topics in the target. DefaultReplicationPolicy uses `<source>.<topic>`,
    IdentityReplicationPolicy the same name."""

    def __init__(self, kind: str = DEFAULT, separator: str = ".", internal_separator: bool = True) -> None:
        short = kind.rsplit(".", 1)[-1]
        if short not in (DEFAULT, IDENTITY):
            raise OptionError(f"replication.policy.class must be {DEFAULT} or {IDENTITY}, not {kind}")
        if not separator:
            raise OptionError("replication.policy.separator is empty")
        self.kind = short
        self.separator = separator
        self._internal_separator = separator if internal_separator else "."

    @property
    def keeps_names(self) -> bool:
        return self.kind == IDENTITY

    def remote_topic(self, source: str, topic: str) -> str:
        """Return the name in the target of a topic of the cluster `source`. The name of a
        heartbeats topic always has the prefix."""
        if self.keeps_names and not self.is_heartbeats(topic):
            return topic
        return f"{source}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """Return the cluster that a topic was mirrored from, according to its name. None if the
        topic was not mirrored."""
        if self.keeps_names and not self.is_heartbeats(topic):
            return None
        source, separator, _ = topic.partition(self.separator)
        return source if separator else None

    def upstream_topic(self, topic: str) -> str | None:
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def is_heartbeats(self, topic: str) -> bool:
        """Whether the topic is `heartbeats`, or a mirrored one: `A.heartbeats`,
        `A.B.heartbeats`."""
        return topic == HEARTBEATS or topic.endswith(f"{self.separator}{HEARTBEATS}")

    def is_cycle(self, topic: str, target: str) -> bool:
        """Whether the topic originates from the target, over any number of clusters."""
        name: str | None = topic
        while name is not None:
            source = self.topic_source(name)
            if source == target:
                return True
            name = self.upstream_topic(name)
        return False

    def is_internal(self, topic: str) -> bool:
        """Whether the topic is an internal topic of Kafka or MirrorMaker, which no setting can
        include. The default of `topics.exclude` excludes further topics that end with
        `internal`."""
        is_of_mirrormaker = topic.startswith("mm2") and topic.endswith(f"{self._internal_separator}internal")
        return is_of_mirrormaker or topic.startswith(("__", ".")) or topic.endswith(self.checkpoints_topic(""))

    def offset_syncs_topic(self, other: str) -> str:
        return self._internal_separator.join(("mm2-offset-syncs", other, "internal"))

    def checkpoints_topic(self, source: str) -> str:
        return self._internal_separator.join((source, "checkpoints", "internal"))


class NameFilter:
    """Regular expressions in Python's syntax, which must match the whole name. MirrorMaker uses
    Java's syntax, which is mostly the same."""

    def __init__(self, include: Iterable[str], exclude: Iterable[str] = ()) -> None:
        self._include = [_compile(pattern) for pattern in include]
        self._exclude = [_compile(pattern) for pattern in exclude]

    def allows(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self._include) and not any(
            pattern.fullmatch(name) for pattern in self._exclude
        )


def patterns(text: str) -> tuple[str, ...]:
    """Return the items of a list such as `a, b.*`."""
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(f"'{text}' is not a regular expression: {error}") from None
