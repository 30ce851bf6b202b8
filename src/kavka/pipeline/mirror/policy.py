"""MirrorMaker's rules: which topics and groups are mirrored, and the names of topics in the target.
No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kavka.pipeline.spark.errors import OptionError

HEARTBEATS = "heartbeats"
DEFAULT, IDENTITY = "DefaultReplicationPolicy", "IdentityReplicationPolicy"


class Policy:
    """The names of topics in the target. Default: `<source>.<topic>`; Identity: the same name."""

    def __init__(self, kind: str = DEFAULT, separator: str = ".", internal_separator: bool = True) -> None:
        short = kind.rsplit(".", 1)[-1]
        if short not in (DEFAULT, IDENTITY):
            raise OptionError(f"replication.policy.class must be {DEFAULT} or {IDENTITY}, not {kind}")
        if not separator:
            raise OptionError("replication.policy.separator is empty")
        self.kind = short
        self.separator = separator
        # Names of MirrorMaker's internal topics use the separator as well, unless this is disabled.
        self._internal = separator if internal_separator else "."

    @property
    def keeps_names(self) -> bool:
        return self.kind == IDENTITY

    def remote_topic(self, source: str, topic: str) -> str:
        """The name in the target of a topic of the cluster `source`. Heartbeats always get the
        prefix."""
        if self.keeps_names and not self.is_heartbeats(topic):
            return topic
        return f"{source}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """The cluster that a topic was mirrored from, according to its name."""
        if self.keeps_names and not self.is_heartbeats(topic):
            return None
        source, separator, _ = topic.partition(self.separator)
        return source if separator else None

    def upstream_topic(self, topic: str) -> str | None:
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def is_heartbeats(self, topic: str) -> bool:
        """`heartbeats`, also of other clusters: `A.heartbeats`, `A.B.heartbeats`."""
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
        """Internal topics of Kafka and MirrorMaker, which no setting can include. (Before 4.0 all
        topics that end with `internal` were; they are still excluded by the default of
        `topics.exclude`.)"""
        own = topic.startswith("mm2") and topic.endswith(f"{self._internal}internal")
        return own or topic.startswith(("__", ".")) or topic.endswith(self.checkpoints_topic(""))

    def offset_syncs_topic(self, other: str) -> str:
        return self._internal.join(("mm2-offset-syncs", other, "internal"))

    def checkpoints_topic(self, source: str) -> str:
        return self._internal.join((source, "checkpoints", "internal"))


class NameFilter:
    """Lists of regular expressions (Java's, as far as Python's are the same) that match the whole
    name."""

    def __init__(self, include: Iterable[str], exclude: Iterable[str] = ()) -> None:
        self._include = [_compiled(pattern) for pattern in include]
        self._exclude = [_compiled(pattern) for pattern in exclude]

    def allows(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self._include) and not any(
            pattern.fullmatch(name) for pattern in self._exclude
        )


def patterns(text: str) -> tuple[str, ...]:
    """The items of `a, b.*`."""
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(f"'{text}' is not a regular expression: {error}") from None
