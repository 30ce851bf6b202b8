"""The settings of a flow from one cluster to another. Spark's processes receive them as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import NamedTuple

from kavka.pipeline.mirror.policy import (
    DEFAULT,
    FILTERS,
    DefaultReplicationPolicy,
    Filter,
    NameFilter,
    is_of_kafka,
    make,
)

TOPICS_EXCLUDE = (r".*[\-\.]internal", r".*\.replica", r"__.*")
GROUPS_EXCLUDE = (r"console-consumer-.*", r"connect-.*", r"__.*")
CONFIG_EXCLUDE = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
PROGRESS_PREFIX = "kavka-mirror-"


class OtherFlow(NamedTuple):
    """The topics that another flow mirrors."""

    source: str
    target: str
    topics: tuple[str, ...] = (".*",)
    topics_exclude: tuple[str, ...] = ()
    topic_filter_class: str = ""
    settings: Mapping[str, str] = {}

    def includes(self, topic: str) -> bool:
        patterns = NameFilter(self.topics, self.topics_exclude)
        return _filter("topic.filter.class", self.topic_filter_class, patterns, self.settings).allows(topic)


@dataclass(frozen=True)
class Flow:
    """A flow. `consumer`, `producer`, `source_admin` and `target_admin` are client settings. Times
    are in seconds. An interval of 0 or less means once, at the start."""

    source: str
    target: str
    consumer: Mapping[str, str] = field(repr=False)
    producer: Mapping[str, str] = field(repr=False)
    source_admin: Mapping[str, str] = field(repr=False)
    target_admin: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...] = (".*",)
    topics_exclude: tuple[str, ...] = TOPICS_EXCLUDE
    groups: tuple[str, ...] = (".*",)
    groups_exclude: tuple[str, ...] = GROUPS_EXCLUDE
    config_exclude: tuple[str, ...] = CONFIG_EXCLUDE
    policy_class: str = DEFAULT
    topic_filter_class: str = ""
    group_filter_class: str = ""
    config_filter_class: str = ""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The settings that policies and filters receive."""
    replication_factor: int | None = None
    """The replication factor of topics that the flow creates in the target. -1 is the target's
    default. None is two, or one if the target has one broker."""
    progress_group: str = ""
    """The group in the source to which the flow commits its offsets. A start without a Spark
    checkpoint continues at the committed offsets."""
    reset: str = "earliest"
    """The start of a partition without a committed offset. A partition that is created later is
    read from its beginning."""
    enabled: bool = True
    create_topics: bool = True
    sync_partitions: bool = True
    delete_topics: bool = False
    """Whether to delete a topic in the target after it was deleted in the source."""
    sync_configs: bool = True
    sync_acls: bool = True
    refresh_topics: float = 600.0
    sync_configs_interval: float = 600.0
    sync_acls_interval: float = 600.0
    emit_heartbeats: bool = True
    heartbeats_interval: float = 1.0
    replicate_heartbeats: bool = True
    emit_offset_syncs: bool = True
    offset_syncs_location: str = "source"
    emit_checkpoints: bool = True
    checkpoints_interval: float = 60.0
    sync_groups: bool = False
    sync_groups_interval: float = 60.0
    refresh_groups: float = 600.0
    internal_factors: Mapping[str, int] = field(default_factory=dict)
    """Replication factors of the topics `heartbeats`, `checkpoints` and `offset-syncs`."""
    exactly_once: bool = False
    state_dir: str = ""
    abort_on_failure: bool = True
    records_per_batch: int = 500_000
    sharing_group: str = ""
    """The group in the target whose members share the flows to the target. Empty: this process runs
    the flow alone."""
    session_timeout: float = 10.0
    heartbeat_interval: float = 1.0
    others: tuple[OtherFlow, ...] = ()
    """The other enabled flows. With unchanged names a flow does not mirror a topic that other flows
    mirror back."""

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def group(self) -> str:
        return self.progress_group or f"{PROGRESS_PREFIX}{self.name}"

    @cached_property
    def policy(self) -> DefaultReplicationPolicy:
        return make("replication.policy.class", self.policy_class, DefaultReplicationPolicy, self.settings)

    @cached_property
    def topic_filter(self) -> Filter:
        patterns = NameFilter(self.topics, self.topics_exclude)
        return _filter("topic.filter.class", self.topic_filter_class, patterns, self.settings)

    @cached_property
    def group_filter(self) -> Filter:
        patterns = NameFilter(self.groups, self.groups_exclude)
        return _filter("group.filter.class", self.group_filter_class, patterns, self.settings)

    @cached_property
    def config_filter(self) -> Filter:
        patterns = NameFilter((".*",), self.config_exclude)
        return _filter("config.property.filter.class", self.config_filter_class, patterns, self.settings)

    @property
    def offset_syncs_topic(self) -> str:
        """The name of the offset-syncs topic, which contains the name of the other cluster."""
        other = self.target if self.offset_syncs_location == "source" else self.source
        return self.policy.offset_syncs_topic(other)

    @property
    def offset_syncs_settings(self) -> Mapping[str, str]:
        return self.source_admin if self.offset_syncs_location == "source" else self.target_admin

    def remote_topic(self, topic: str) -> str:
        return self.policy.remote_topic(self.source, topic)

    def includes_group(self, group: str) -> bool:
        return not group.startswith(PROGRESS_PREFIX) and self.group_filter.allows(group)

    def includes_topic(self, topic: str) -> bool:
        is_included = self.topic_filter.allows(topic) or (
            self.replicate_heartbeats and self.policy.is_heartbeats(topic)
        )
        return is_included and not self.policy.is_internal(topic) and not self.policy.is_cycle(topic, self.target)

    def mirrors(self, topic: str) -> bool:
        return self.includes_topic(topic) and not self.is_returned(topic)

    def is_returned(self, topic: str) -> bool:
        """Whether other flows mirror the topic from the target back to the source under the same
        name. Always False for a policy that changes names."""
        if not self.policy.keeps_names or self.policy.is_heartbeats(topic):
            return False
        reached = {self.target}
        while True:
            added = {
                other.target
                for other in self.others
                if other.source in reached and other.target not in reached and other.includes(topic)
            }
            if not added:
                return self.source in reached
            reached |= added

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Flow:
        fields = json.loads(text)
        for name in ("topics", "topics_exclude", "groups", "groups_exclude", "config_exclude"):
            fields[name] = tuple(fields[name])
        fields["others"] = tuple(
            OtherFlow(source, target, tuple(topics), tuple(exclude), *custom)
            for source, target, topics, exclude, *custom in fields["others"]
        )
        return cls(**fields)


def _filter(option: str, name: str, patterns: Filter, settings: Mapping[str, str]) -> Filter:
    """Return the filter that a setting names. Kafka's default is `patterns`."""
    if not name or is_of_kafka(name, FILTERS[option]):
        return patterns
    return make(option, name, Filter, settings)
