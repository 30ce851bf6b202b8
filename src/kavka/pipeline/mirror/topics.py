"""Topics of the target: made, grown and configured after those of the source."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import (
    ConfigEntry,
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
from kavka.pipeline.mirror.source import described

log = logging.getLogger(__name__)

_COMPACT = {"cleanup.policy": "compact"}
_DEFAULT_FACTOR, _INTERNAL_FACTOR = 2, 3


class TopicSync:
    """For one thread."""

    def __init__(self, flow: Flow, source: Admin, target: Admin) -> None:
        self._flow = flow
        self._source = source
        self._target = target
        self.refused: set[str] = set()
        """Topics that are left alone since they would go round in circles."""

    def own_topics(self) -> None:
        """MirrorMaker's own, which the flow writes to."""
        flow = self._flow
        if flow.enabled and flow.emit_offset_syncs:
            admin = self._source if flow.offset_syncs_location == "source" else self._target
            self._own(admin, flow.offset_syncs_topic, "offset-syncs")
        if flow.enabled and flow.emit_checkpoints:
            self._own(self._target, flow.policy.checkpoints_topic(flow.source), "checkpoints")
        if flow.emit_heartbeats:
            self._own(self._target, HEARTBEATS, "heartbeats")

    def _own(self, admin: Admin, name: str, which: str) -> None:
        if described(admin, [name]):
            return
        factor = self._flow.internal_factors.get(which) or min(_INTERNAL_FACTOR, _brokers(admin))
        _create(admin, NewTopic(name, 1, factor, configs=_COMPACT))

    def refresh(self) -> int:
        """Make topics that are missing, add partitions to those that have fewer. How many were changed."""
        flow = self._flow
        wanted = [name for name in self._source.list_topics() if flow.wants_topic(name)]
        refused = {name for name in wanted if flow.comes_back(name)}
        for name in sorted(refused - self.refused):
            log.error(
                "%s: %s is left alone: another flow carries it back, and names are kept, so that its records would go "
                "round in circles",
                flow.name,
                name,
            )
        self.refused = refused
        source = described(self._source, [name for name in wanted if name not in refused])
        target = described(self._target, [flow.remote_topic(name) for name in source])
        missing = [name for name in source if flow.remote_topic(name) not in target]
        changed = self._make(missing, source)
        if flow.sync_partitions:
            for name, topic in source.items():
                there = target.get(flow.remote_topic(name))
                if there is not None and len(there.partitions) < len(topic.partitions):
                    changed += self._grow(flow.remote_topic(name), len(topic.partitions))
        return changed

    def _make(self, names: list[str], source: Mapping[str, TopicDescription]) -> int:
        if not names:
            return 0
        flow = self._flow
        factor = flow.replication_factor
        if factor is None:
            factor = min(_DEFAULT_FACTOR, _brokers(self._target))
        configs = self._configs(names) if flow.sync_configs else {}
        made = 0
        for name in names:
            new = NewTopic(
                flow.remote_topic(name), len(source[name].partitions), factor, configs=dict(configs.get(name, {}))
            )
            try:
                made += _create(self._target, new)
            except KafkaError as error:
                log.error("%s: topic %s could not be made: %s", flow.name, new.name, error)
        return made

    def _grow(self, topic: str, partitions: int) -> int:
        try:
            self._target.create_partitions({topic: NewPartitions(partitions)})
        except KafkaError as error:
            log.error("%s: topic %s could not be given %d partitions: %s", self._flow.name, topic, partitions, error)
            return 0
        log.info("%s: topic %s has %d partitions now", self._flow.name, topic, partitions)
        return 1

    # --- settings

    def sync_configs(self) -> int:
        """Settings of topics as in the source: what was set there is set here, what was not is taken back."""
        flow = self._flow
        names = [name for name in self._source.list_topics() if flow.wants_topic(name) and not flow.comes_back(name)]
        there = described(self._target, [flow.remote_topic(name) for name in names])
        names = [name for name in names if flow.remote_topic(name) in there]
        if not names:
            return 0
        wanted = self._configs(names)
        now = self._own_settings(self._target, [flow.remote_topic(name) for name in names])
        changed = 0
        for name in names:
            remote = flow.remote_topic(name)
            changes: dict[str, str | None] = {
                setting: value for setting, value in wanted[name].items() if now[remote].get(setting) != value
            }
            # What only the target has, and the filter leaves to it, stays.
            gone = [s for s in now[remote] if s not in wanted[name] and flow.config_filter.allows(s)]
            changes |= dict.fromkeys(gone)
            if not changes:
                continue
            try:
                self._target.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, remote): changes})
                changed += 1
            except KafkaError as error:
                log.error("%s: the settings of %s could not be synced: %s", flow.name, remote, error)
        return changed

    def _configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        found = self._own_settings(self._source, names)
        allows = self._flow.config_filter.allows
        return {topic: {name: value for name, value in own.items() if allows(name)} for topic, own in found.items()}

    @staticmethod
    def _own_settings(admin: Admin, names: list[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        found = admin.describe_configs(resources)
        return {resource.name: dict(_own_of(entries)) for resource, entries in found.items()}


def _own_of(entries: Mapping[str, ConfigEntry]) -> Iterator[tuple[str, str]]:
    for name, entry in entries.items():
        if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG and entry.value is not None:
            yield name, entry.value


def _brokers(admin: Admin) -> int:
    return max(1, len(admin.describe_cluster().nodes))


def _create(admin: Admin, new: NewTopic) -> int:
    try:
        admin.create_topics([new])
    except AdminError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        return 0
    log.info("Topic %s is made", new.name)
    return 1
