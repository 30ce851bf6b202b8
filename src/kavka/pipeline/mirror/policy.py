"""Which topics and groups are mirrored, and what topics are called in the target: MirrorMaker's rules. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kavka.pipeline.spark.errors import OptionError

HEARTBEATS = "heartbeats"
CHECKPOINTS_SUFFIX = ".checkpoints.internal"
DEFAULT, IDENTITY = "DefaultReplicationPolicy", "IdentityReplicationPolicy"


class Policy:
    """The names of topics in the target. Default: `<source>.<topic>`; Identity: as in the source."""

    def __init__(self, kind: str = DEFAULT, separator: str = ".", internal_separator: bool = True) -> None:
        short = kind.rsplit(".", 1)[-1]
        if short not in (DEFAULT, IDENTITY):
            raise OptionError(f"replication.policy.class is {DEFAULT} or {IDENTITY}, not {kind}")
        if not separator:
            raise OptionError("replication.policy.separator is empty")
        self.kind = short
        self.separator = separator
        # Names of MirrorMaker's own topics have the separator too, unless the setting says otherwise.
        self._internal = separator if internal_separator else "."

    @property
    def keeps_names(self) -> bool:
        return self.kind == IDENTITY

    def remote_topic(self, source: str, topic: str) -> str:
        """What a topic of the cluster `source` is called in the target. Heartbeats always tell where they are from."""
        if self.keeps_names and not self.is_heartbeats(topic):
            return topic
        return f"{source}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """The cluster that a topic was mirrored from, as far as its name tells."""
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
        """Whether the topic has come from the target, over however many clusters."""
        left: str | None = topic
        while left is not None:
            source = self.topic_source(left)
            if source == target:
                return True
            left = self.upstream_topic(left)
        return False

    def is_internal(self, topic: str) -> bool:
        """Kafka's own and MirrorMaker's own, which no setting can have mirrored. (Before 4.0 those were all that end
        with `internal`; they are still left out unless `topics.exclude` says otherwise.)"""
        own = topic.startswith("mm2") and topic.endswith(f"{self._internal}internal")
        return own or topic.startswith(("__", ".")) or topic.endswith(self.checkpoints_topic(""))

    def offset_syncs_topic(self, other: str) -> str:
        return self._internal.join(("mm2-offset-syncs", other, "internal"))

    def checkpoints_topic(self, source: str) -> str:
        return self._internal.join((source, "checkpoints", "internal"))


class NameFilter:
    """Lists of regular expressions (Java's, as far as Python's are the same) that have to match the whole name."""

    def __init__(self, include: Iterable[str], exclude: Iterable[str] = ()) -> None:
        self._include = [_compiled(one) for one in include]
        self._exclude = [_compiled(one) for one in exclude]

    def allows(self, name: str) -> bool:
        return any(one.fullmatch(name) for one in self._include) and not any(
            one.fullmatch(name) for one in self._exclude
        )


def patterns(text: str) -> tuple[str, ...]:
    """`a, b.*` as a list."""
    return tuple(one.strip() for one in text.split(",") if one.strip())


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(f"'{text}' is not a regular expression: {error}") from None
