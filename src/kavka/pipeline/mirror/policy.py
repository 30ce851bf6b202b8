"""The replication policies and filters of MirrorMaker, and the base classes of custom ones. No I/O.

A custom class is a subclass. It needs a constructor without arguments. `configure` receives the
settings of the flow: those without a prefix, and over them those of the pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from kavka.client import classes
from kavka.common.config import ConfigError
from kavka.pipeline.spark.errors import OptionError

HEARTBEATS = "heartbeats"
DEFAULT, IDENTITY = "DefaultReplicationPolicy", "IdentityReplicationPolicy"
SEPARATOR = "replication.policy.separator"
INTERNAL_SEPARATOR = "replication.policy.internal.topic.separator.enabled"

T = TypeVar("T")


class DefaultReplicationPolicy:
    """The names of topics in the target: `<source>.<topic>`. A subclass that changes names
    overrides `remote_topic`, `topic_source` and `upstream_topic` together: they prevent cycles."""

    keeps_names = False
    """Whether `remote_topic` returns the same name. Then the names do not show cycles, and a flow
    does not mirror a topic that the other flows of the file carry back."""

    def __init__(self) -> None:
        self.separator = self._internal_separator = "."

    def configure(self, settings: Mapping[str, str]) -> None:
        self.separator = settings.get(SEPARATOR, ".").strip()
        if not self.separator:
            raise OptionError(f"{SEPARATOR} is empty")
        has_own_separator = settings.get(INTERNAL_SEPARATOR, "true").strip().lower() == "true"
        self._internal_separator = self.separator if has_own_separator else "."

    def remote_topic(self, source: str, topic: str) -> str:
        """Return the name in the target of a topic of the cluster `source`."""
        return f"{source}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """Return the cluster that a topic was mirrored from, according to its name. None if the
        topic was not mirrored."""
        source, separator, _ = topic.partition(self.separator)
        return source if separator else None

    def upstream_topic(self, topic: str) -> str | None:
        """Return the name in the cluster that the topic was mirrored from."""
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
            upstream = self.upstream_topic(name)
            name = upstream if upstream != name else None
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


class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Keeps the names of topics. The name of a heartbeats topic always has the prefix."""

    keeps_names = True

    def remote_topic(self, source: str, topic: str) -> str:
        return super().remote_topic(source, topic) if self.is_heartbeats(topic) else topic

    def topic_source(self, topic: str) -> str | None:
        return super().topic_source(topic) if self.is_heartbeats(topic) else None


class Filter:
    """Selects topics, groups, or settings of topics by their names."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """Receive the settings of the flow. Raises OptionError if they are invalid."""

    def allows(self, name: str) -> bool:
        raise NotImplementedError


class NameFilter(Filter):
    """Regular expressions in Python's syntax, which must match the whole name. MirrorMaker uses
    Java's syntax, which is mostly the same."""

    def __init__(self, include: Iterable[str], exclude: Iterable[str] = ()) -> None:
        self._include = [_compile(pattern) for pattern in include]
        self._exclude = [_compile(pattern) for pattern in exclude]

    def allows(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self._include) and not any(
            pattern.fullmatch(name) for pattern in self._exclude
        )


# Kafka's names of the classes that are part of the mirror, by setting. The flow creates the default
# filters from its patterns.
POLICIES = {name: f"{__name__}:{name}" for name in (DEFAULT, IDENTITY)}
FILTERS = {
    "topic.filter.class": "DefaultTopicFilter",
    "group.filter.class": "DefaultGroupFilter",
    "config.property.filter.class": "DefaultConfigPropertyFilter",
}
_JAVA = "org.apache.kafka.connect.mirror."


def is_of_kafka(name: str, *short_names: str) -> bool:
    """Whether a class name is one of Kafka's, with or without its package."""
    return name.removeprefix(_JAVA) in short_names


def make(option: str, name: str, base: type[T], settings: Mapping[str, Any]) -> T:
    """Create the object of a policy or filter class. Raises OptionError if it cannot be created."""
    try:
        made = classes.make(option, name, POLICIES if base is DefaultReplicationPolicy else {}, "a class", settings)
    except ConfigError as error:
        raise OptionError(str(error)) from None
    if not isinstance(made, base):
        raise OptionError(f"{option} = {name}: the class must be a subclass of {base.__module__}.{base.__name__}")
    return made


def patterns(text: str) -> tuple[str, ...]:
    """Return the items of a list such as `a, b.*`."""
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(f"'{text}' is not a regular expression: {error}") from None
