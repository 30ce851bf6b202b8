"""Creates and configures topics in the target like those in the source, and adds partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import (
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
)
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.policy import HEARTBEATS
from kavka.pipeline.mirror.source import describe_existing

logger = logging.getLogger(__name__)

_COMPACT = {"cleanup.policy": "compact"}
_DEFAULT_FACTOR, _INTERNAL_FACTOR = 2, 3


class TopicSync:
    """Syncs the topics of a flow. Only one thread may call it."""

    def __init__(
        self, flow: Flow, source: Admin, target: Admin, report: Callable[[str], object] = logger.error
    ) -> None:
        self._flow = flow
        self._source = source
        self._target = target
        self._report = report
        self._present: set[str] = set()
        """The mirrored topics that this object has seen in the source. Only these are deleted."""
        self._missing: set[str] = set()
        """The topics of `_present` that did not exist at the last refresh."""
        self.refused_topics: set[str] = set()
        """Topics that are not mirrored because their records would loop forever."""

    def create_internal_topics(self) -> None:
        """Create MirrorMaker's internal topics that the flow writes to."""
        flow = self._flow
        if flow.enabled and flow.emit_offset_syncs:
            admin = self._source if flow.offset_syncs_location == "source" else self._target
            self._create_internal(admin, flow.offset_syncs_topic, "offset-syncs")
        if flow.enabled and flow.emit_checkpoints:
            self._create_internal(self._target, flow.policy.checkpoints_topic(flow.source), "checkpoints")
        if flow.emit_heartbeats:
            self._create_internal(self._target, HEARTBEATS, "heartbeats")

    def _create_internal(self, admin: Admin, name: str, kind: str) -> None:
        if describe_existing(admin, [name]):
            return
        factor = self._flow.internal_factors.get(kind) or min(_INTERNAL_FACTOR, _brokers(admin))
        _create(admin, NewTopic(name, 1, factor, configs=_COMPACT))

    def refresh(self) -> int:
        """Create missing topics, add missing partitions, and delete topics that were deleted in the
        source. Returns the number of changed topics."""
        flow = self._flow
        mirrored = [name for name in self._source.list_topics() if flow.includes_topic(name)]
        refused = {name for name in mirrored if flow.is_returned(name)}
        for name in sorted(refused - self.refused_topics):
            logger.error(
                "%s: %s is not mirrored: another flow mirrors it back under the same name, so its records would loop "
                "forever",
                flow.name,
                name,
            )
        self.refused_topics = refused
        source = describe_existing(self._source, [name for name in mirrored if name not in refused])
        target = describe_existing(self._target, [flow.remote_topic(name) for name in source])
        missing = [name for name in source if flow.remote_topic(name) not in target]
        changed = self._create_missing(missing, source)
        if flow.sync_partitions:
            for name, topic in source.items():
                existing = target.get(flow.remote_topic(name))
                if existing is not None and len(existing.partitions) < len(topic.partitions):
                    changed += self._extend(flow.remote_topic(name), len(topic.partitions))
        if flow.delete_topics:
            self._delete_absent(source)
        return changed

    def _delete_absent(self, existing: Collection[str]) -> None:
        """Delete the topics in the target that were deleted in the source. A topic must be unknown
        in two refreshes: a broker that has just started may not know all topics. Another error, for
        example a missing right, is no proof that a topic does not exist."""
        self._present |= set(existing)
        absent = self._present - set(existing)
        unknown = {name for name in absent if _is_unknown(self._source, name)}
        for name in sorted(unknown & self._missing):
            remote = self._flow.remote_topic(name)
            try:
                self._target.delete_topics([remote])
            except AdminError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._report(f"cannot delete topic {remote}: {error}")
                    continue
            logger.warning("%s: deleted topic %s, because %s was deleted", self._flow.name, remote, name)
            self._present.discard(name)
        self._missing = unknown & self._present

    def _create_missing(self, names: list[str], source: Mapping[str, TopicDescription]) -> int:
        if not names:
            return 0
        flow = self._flow
        factor = flow.replication_factor
        if factor is None:
            factor = min(_DEFAULT_FACTOR, _brokers(self._target))
        configs = self._source_settings(names) if flow.sync_configs else {}
        created = 0
        for name in names:
            topic = NewTopic(
                flow.remote_topic(name), len(source[name].partitions), factor, configs=dict(configs.get(name, {}))
            )
            try:
                created += _create(self._target, topic)
            except KafkaError as error:
                self._report(f"cannot create topic {topic.name}: {error}")
        return created

    def _extend(self, topic: str, partitions: int) -> int:
        try:
            self._target.create_partitions({topic: NewPartitions(partitions)})
        except KafkaError as error:
            self._report(f"cannot extend topic {topic} to {partitions} partitions: {error}")
            return 0
        logger.info("%s: topic %s now has %d partitions", self._flow.name, topic, partitions)
        return 1

    # --- settings

    def sync_configs(self) -> int:
        """Set the settings of topics as in the source, and remove other settings. Returns the
        number of changed topics."""
        flow = self._flow
        names = [name for name in self._source.list_topics() if flow.mirrors(name)]
        existing = describe_existing(self._target, [flow.remote_topic(name) for name in names])
        names = [name for name in names if flow.remote_topic(name) in existing]
        if not names:
            return 0
        source_configs = self._source_settings(names)
        target_configs = _topic_settings(self._target, [flow.remote_topic(name) for name in names])
        changed = 0
        for name in names:
            remote = flow.remote_topic(name)
            changes: dict[str, str | None] = {
                setting: value
                for setting, value in source_configs[name].items()
                if target_configs[remote].get(setting) != value
            }
            # Excluded settings of the target are not removed.
            removed = [
                setting
                for setting in target_configs[remote]
                if setting not in source_configs[name] and flow.config_filter.allows(setting)
            ]
            changes |= dict.fromkeys(removed)
            if not changes:
                continue
            try:
                self._target.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, remote): changes})
                changed += 1
            except KafkaError as error:
                self._report(f"cannot sync the settings of {remote}: {error}")
        return changed

    def _source_settings(self, names: list[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics of the source, without excluded settings."""
        allows = self._flow.config_filter.allows
        return {
            topic: {name: value for name, value in settings.items() if allows(name)}
            for topic, settings in _topic_settings(self._source, names).items()
        }


def _topic_settings(admin: Admin, names: list[str]) -> dict[str, dict[str, str]]:
    """Return the settings that are set on the topics themselves, by topic."""
    described = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
    return {
        resource.name: {
            name: entry.value
            for name, entry in entries.items()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG and entry.value is not None
        }
        for resource, entries in described.items()
    }


def _is_unknown(admin: Admin, topic: str) -> bool:
    try:
        admin.describe_topics([topic])
    except AdminError as error:
        return error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return False


def _brokers(admin: Admin) -> int:
    return max(1, len(admin.describe_cluster().nodes))


def _create(admin: Admin, topic: NewTopic) -> int:
    """Create a topic. Returns 1, or 0 if it exists."""
    try:
        admin.create_topics([topic])
    except AdminError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        return 0
    logger.info("Created topic %s", topic.name)
    return 1
