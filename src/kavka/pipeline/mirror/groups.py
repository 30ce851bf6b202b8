"""Groups: where each of the source would go on in the target, told as checkpoints and committed there.

As MirrorMaker 2 does it: a checkpoint is written when it has changed; offsets are committed in the target for groups
that nobody consumes with there, and never taken back to before what is committed there already.
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

log = logging.getLogger(__name__)

_READ_TIMEOUT = 60.0
# Of a group that can be given offsets; "Dead" is how some brokers say that there is none.
_IDLE = frozenset({"Empty", "Dead"})
_NO_GROUP = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class OffsetSyncs:
    """What the topic of offset syncs says, read on from where the last reading ended. For one thread."""

    def __init__(self, flow: Flow, admin: Admin) -> None:
        self._tp = TopicPartition(flow.offset_syncs_topic, 0)
        self._admin = admin
        settings = consumer_settings(flow.offset_syncs_settings)
        self._consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": "false"})
        self._consumer.assign([self._tp])
        self._consumer.seek_to_beginning([self._tp])
        self._known: dict[TopicPartition, Translation] = {}

    def close(self) -> None:
        self._consumer.close(1.0)

    def read(self) -> None:
        """Up to where the topic ends now."""
        end = self._admin.list_offsets({self._tp: OffsetSpec.latest()})[self._tp].offset
        deadline = time.monotonic() + _READ_TIMEOUT
        while self._consumer.position(self._tp) < end:
            for record in self._consumer.poll(0.2):
                self.take(record.key, record.value, record.headers)
            if time.monotonic() > deadline:
                raise KafkaTimeout(f"{self._tp} could not be read up to offset {end} within {_READ_TIMEOUT:g} s")

    def take(self, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> None:
        if key is None or value is None:
            return
        try:
            sync = OffsetSync.read(key, value)
        except RecordFormatError as error:
            log.warning("%s: %s", self._tp, error)
            return
        before = next((read_run_header(text) for name, text in headers if name == RUN_HEADER), 0)
        before = min(before, sync.upstream, sync.downstream)
        run = Run(sync.upstream - before, sync.downstream - before, before + 1)
        self._known.setdefault(TopicPartition(sync.topic, sync.partition), Translation()).add(run)

    def translate(self, tp: TopicPartition, upstream: int) -> int | None:
        found = self._known.get(tp)
        return None if found is None else found.downstream(upstream)


class GroupSync:
    """For one thread."""

    def __init__(self, flow: Flow, source: Admin, target: Admin) -> None:
        self._flow = flow
        self._source = source
        self._target = target
        self._syncs = OffsetSyncs(flow, source if flow.offset_syncs_location == "source" else target)
        self._producer = Producer({**flow.target_admin, "max.block.ms": "10000"})
        self._groups: list[str] = []
        self._told: dict[tuple[str, TopicPartition], Checkpoint] = {}
        self._now: dict[str, dict[TopicPartition, Checkpoint]] = {}

    def close(self) -> None:
        self._syncs.close()
        self._producer.close(1.0)

    def refresh_groups(self) -> None:
        allows = self._flow.group_filter.allows
        found = self._source.list_consumer_groups()
        self._groups = sorted(one.group_id for one in found if allows(one.group_id))

    def emit_checkpoints(self) -> int:
        """Translate what groups have committed; write what is new. How many were written."""
        # Commits first: what was mirrored by then is known when the syncs are read after them.
        committed = {group: self._committed(group) for group in self._groups}
        self._syncs.read()
        self._now = {}
        written = 0
        for group, offsets in committed.items():
            found = self._now[group] = dict(self._checkpoints(group, offsets))
            for tp, checkpoint in found.items():
                last = self._told.get((group, tp))
                if last is not None and not (
                    checkpoint.downstream > last.downstream or checkpoint.upstream < last.upstream
                ):
                    continue
                topic = self._flow.policy.checkpoints_topic(self._flow.source)
                self._told[group, tp] = checkpoint
                sent = self._producer.send(topic, checkpoint.value(), checkpoint.key(), 0)
                sent.add_errback(partial(self._not_told, (group, tp), checkpoint))
                written += 1
        self._producer.flush(_READ_TIMEOUT)
        return written

    def _not_told(self, where: tuple[str, TopicPartition], checkpoint: Checkpoint, error: BaseException) -> None:
        """It is written with the next ones, also if nothing has changed by then. Called by the producer's thread."""
        log.warning("%s: a checkpoint of group %s was not written: %s", self._flow.name, where[0], error)
        if self._told.get(where) is checkpoint:
            self._told.pop(where, None)

    def _committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        try:
            found = self._source.list_consumer_group_offsets(group)
        except KafkaError as error:
            log.warning("%s: the offsets of group %s could not be had: %s", self._flow.name, group, error)
            return {}
        return {tp: one for tp, one in found.items() if one is not None and self._flow.wants_topic(tp.topic)}

    def _checkpoints(
        self, group: str, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> Iterable[tuple[TopicPartition, Checkpoint]]:
        for tp, done in sorted(offsets.items()):
            downstream = self._syncs.translate(tp, done.offset)
            if downstream is not None:
                remote = TopicPartition(self._flow.remote_topic(tp.topic), tp.partition)
                yield remote, Checkpoint(group, *remote, done.offset, downstream, done.metadata or "")

    def sync_offsets(self) -> int:
        """Commit in the target what the last checkpoints say. How many groups were changed."""
        changed = 0
        for group, checkpoints in self._now.items():
            if not checkpoints or not self._is_idle(group):
                continue
            try:
                there = self._target.list_consumer_group_offsets(group)
                ahead = {
                    tp: OffsetAndMetadata(one.downstream, one.metadata)
                    for tp, one in checkpoints.items()
                    if (at := there.get(tp)) is None or at.offset < one.downstream
                }
                if ahead:
                    self._target.alter_consumer_group_offsets(group, ahead)
                    changed += 1
            except KafkaError as error:
                # Perhaps a member has joined since.
                log.warning("%s: the offsets of group %s were not synced: %s", self._flow.name, group, error)
        return changed

    def _is_idle(self, group: str) -> bool:
        try:
            return self._target.describe_consumer_groups(group)[group].state in _IDLE
        except AdminError as error:
            if error.code in _NO_GROUP:
                return True
            log.warning("%s: group %s could not be looked at: %s", self._flow.name, group, error)
            return False
