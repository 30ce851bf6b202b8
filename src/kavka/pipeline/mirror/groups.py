"""Consumer groups: translates the positions of the source's groups to the target, writes them as
checkpoints and commits them there.

As in MirrorMaker 2 a checkpoint is written when it has changed. Offsets are committed in the target
only for groups without members there, and never moved back before the committed offset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import partial

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import OffsetSpec
from kavka.client.consumer.consumer import Consumer
from kavka.client.errors import KafkaTimeout
from kavka.client.producer.producer import Producer
from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.records import (
    RUN_HEADER,
    Checkpoint,
    OffsetSync,
    RecordFormatError,
    read_run_header,
)
from kavka.pipeline.mirror.runs import Run, Translation
from kavka.pipeline.spark.cluster import consumer_settings

logger = logging.getLogger(__name__)

_READ_TIMEOUT = 60.0
# The states of a group that accepts offsets; some brokers report a missing group as "Dead".
_IDLE = frozenset({"Empty", "Dead"})
_NO_GROUP = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class OffsetSyncs:
    """The content of the offset-syncs topic. Each `read` continues at the end of the last one. For
    one thread."""

    def __init__(self, flow: Flow, admin: Admin) -> None:
        self._tp = TopicPartition(flow.offset_syncs_topic, 0)
        self._admin = admin
        settings = consumer_settings(flow.offset_syncs_settings)
        self._consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": "false"})
        self._consumer.assign([self._tp])
        self._consumer.seek_to_beginning([self._tp])
        self._translations: dict[TopicPartition, Translation] = {}

    def close(self) -> None:
        self._consumer.close(1.0)

    def read(self) -> None:
        """Read up to the current end of the topic."""
        end = self._admin.list_offsets({self._tp: OffsetSpec.latest()})[self._tp].offset
        deadline = time.monotonic() + _READ_TIMEOUT
        while self._consumer.position(self._tp) < end:
            for record in self._consumer.poll(0.2):
                self.add(record.key, record.value, record.headers)
            if time.monotonic() > deadline:
                raise KafkaTimeout(f"could not read {self._tp} up to offset {end} within {_READ_TIMEOUT:g} s")

    def add(self, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> None:
        if key is None or value is None:
            return
        try:
            sync = OffsetSync.read(key, value)
        except RecordFormatError as error:
            logger.warning("%s: %s", self._tp, error)
            return
        before = next((read_run_header(text) for name, text in headers if name == RUN_HEADER), 0)
        before = min(before, sync.upstream, sync.downstream)
        run = Run(sync.upstream - before, sync.downstream - before, before + 1)
        self._translations.setdefault(TopicPartition(sync.topic, sync.partition), Translation()).add(run)

    def translate(self, tp: TopicPartition, upstream: int) -> int | None:
        translation = self._translations.get(tp)
        return None if translation is None else translation.downstream(upstream)


class GroupSync:
    """Owns the last checkpoints of the groups. For one thread."""

    def __init__(self, flow: Flow, source: Admin, target: Admin) -> None:
        self._flow = flow
        self._source = source
        self._target = target
        self._syncs = OffsetSyncs(flow, source if flow.offset_syncs_location == "source" else target)
        self._producer = Producer({**flow.target_admin, "max.block.ms": "10000"})
        self._groups: list[str] = []
        self._written: dict[tuple[str, TopicPartition], Checkpoint] = {}
        self._current: dict[str, dict[TopicPartition, Checkpoint]] = {}

    def close(self) -> None:
        self._syncs.close()
        self._producer.close(1.0)

    def refresh_groups(self) -> None:
        allows = self._flow.group_filter.allows
        listings = self._source.list_consumer_groups()
        self._groups = sorted(group.group_id for group in listings if allows(group.group_id))

    def emit_checkpoints(self) -> int:
        """Translate the committed offsets of groups, and write the changed checkpoints. Returns
        their number."""
        # Read commits before the syncs: the syncs then cover everything that was mirrored by then.
        committed = {group: self._committed(group) for group in self._groups}
        self._syncs.read()
        self._current = {}
        written = 0
        for group, offsets in committed.items():
            checkpoints = self._current[group] = dict(self._checkpoints(group, offsets))
            for tp, checkpoint in checkpoints.items():
                last = self._written.get((group, tp))
                if last is not None and not (
                    checkpoint.downstream > last.downstream or checkpoint.upstream < last.upstream
                ):
                    continue
                topic = self._flow.policy.checkpoints_topic(self._flow.source)
                self._written[group, tp] = checkpoint
                sent = self._producer.send(topic, checkpoint.value(), checkpoint.key(), 0)
                sent.add_errback(partial(self._on_write_error, (group, tp), checkpoint))
                written += 1
        self._producer.flush(_READ_TIMEOUT)
        return written

    def _on_write_error(self, where: tuple[str, TopicPartition], checkpoint: Checkpoint, error: BaseException) -> None:
        """The checkpoint is written with the next ones, even if it is unchanged then. Called by the
        producer's thread."""
        logger.warning("%s: a checkpoint of group %s was not written: %s", self._flow.name, where[0], error)
        if self._written.get(where) is checkpoint:
            self._written.pop(where, None)

    def _committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        try:
            committed = self._source.list_consumer_group_offsets(group)
        except KafkaError as error:
            logger.warning("%s: cannot read the offsets of group %s: %s", self._flow.name, group, error)
            return {}
        return {tp: item for tp, item in committed.items() if item is not None and self._flow.includes_topic(tp.topic)}

    def _checkpoints(
        self, group: str, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> Iterable[tuple[TopicPartition, Checkpoint]]:
        for tp, done in sorted(offsets.items()):
            downstream = self._syncs.translate(tp, done.offset)
            if downstream is not None:
                remote = TopicPartition(self._flow.remote_topic(tp.topic), tp.partition)
                yield remote, Checkpoint(group, *remote, done.offset, downstream, done.metadata or "")

    def sync_offsets(self) -> int:
        """Commit the last checkpoints in the target. Returns the number of changed groups."""
        changed = 0
        for group, checkpoints in self._current.items():
            if not checkpoints or not self._is_idle(group):
                continue
            try:
                committed = self._target.list_consumer_group_offsets(group)
                ahead = {
                    tp: OffsetAndMetadata(checkpoint.downstream, checkpoint.metadata)
                    for tp, checkpoint in checkpoints.items()
                    if (at := committed.get(tp)) is None or at.offset < checkpoint.downstream
                }
                if ahead:
                    self._target.alter_consumer_group_offsets(group, ahead)
                    changed += 1
            except KafkaError as error:
                # Perhaps a member has joined.
                logger.warning("%s: cannot sync the offsets of group %s: %s", self._flow.name, group, error)
        return changed

    def _is_idle(self, group: str) -> bool:
        try:
            return self._target.describe_consumer_groups(group)[group].state in _IDLE
        except AdminError as error:
            if error.code in _NO_GROUP:
                return True
            logger.warning("%s: cannot describe group %s: %s", self._flow.name, group, error)
            return False
