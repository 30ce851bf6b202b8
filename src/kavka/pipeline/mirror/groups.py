"""Consumer groups: translates the committed offsets of the source's groups to the target, writes
them as checkpoints and commits them in the target.

As in MirrorMaker 2 a checkpoint is written when it has changed. The mirror commits offsets only for
groups without members in the target, and never decreases a committed offset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
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
    """The content of the offset-syncs topic. Each `read` continues at the end of the previous one.
    Only one thread may call it."""

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
        """Read up to the current end of the topic. Raises KafkaTimeout."""
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
            logger.warning("Cannot decode a record of %s: %s", self._tp, error)
            return
        preceding = next((read_run_header(value) for name, value in headers if name == RUN_HEADER), 0)
        preceding = min(preceding, sync.upstream, sync.downstream)
        run = Run(sync.upstream - preceding, sync.downstream - preceding, preceding + 1)
        self._translations.setdefault(TopicPartition(sync.topic, sync.partition), Translation()).add(run)

    def translate(self, tp: TopicPartition, upstream: int) -> int | None:
        """Return the offset in the target for an offset of the source, None if it is unknown."""
        translation = self._translations.get(tp)
        return None if translation is None else translation.downstream(upstream)


class GroupSync:
    """Owns the last checkpoints of the groups. Only one thread may call it."""

    def __init__(
        self, flow: Flow, source: Admin, target: Admin, report: Callable[[str], object] = logger.warning
    ) -> None:
        self._flow = flow
        self._source = source
        self._target = target
        self._report = report
        self._syncs = OffsetSyncs(flow, source if flow.offset_syncs_location == "source" else target)
        self._producer = Producer({**flow.target_admin, "max.block.ms": "10000"})
        self._groups: list[str] = []
        self._written: dict[tuple[str, TopicPartition], Checkpoint] = {}
        self._current: dict[str, dict[TopicPartition, Checkpoint]] = {}

    def close(self) -> None:
        self._syncs.close()
        self._producer.close(1.0)

    def refresh_groups(self) -> None:
        listings = self._source.list_consumer_groups()
        self._groups = sorted(group.group_id for group in listings if self._flow.includes_group(group.group_id))

    def emit_checkpoints(self) -> int:
        """Translate the committed offsets of the groups, and write the changed checkpoints. Returns
        the number of written checkpoints."""
        # Read the commits before the syncs, so that the syncs cover all records before the commits.
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
                future = self._producer.send(topic, checkpoint.value(), checkpoint.key(), 0)
                future.add_errback(partial(self._on_write_error, (group, tp), checkpoint))
                written += 1
        self._producer.flush(_READ_TIMEOUT)
        return written

    def _on_write_error(self, key: tuple[str, TopicPartition], checkpoint: Checkpoint, error: BaseException) -> None:
        """Let the next round write the checkpoint again, even if it is unchanged. The producer's
        thread calls this."""
        self._report(f"a checkpoint of group {key[0]} was not written: {error}")
        if self._written.get(key) is checkpoint:
            self._written.pop(key, None)

    def _committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        try:
            committed = self._source.list_consumer_group_offsets(group)
        except KafkaError as error:
            self._report(f"cannot read the offsets of group {group}: {error}")
            return {}
        return {tp: item for tp, item in committed.items() if item is not None and self._flow.includes_topic(tp.topic)}

    def _checkpoints(
        self, group: str, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> Iterable[tuple[TopicPartition, Checkpoint]]:
        for tp, commit in sorted(offsets.items()):
            downstream = self._syncs.translate(tp, commit.offset)
            if downstream is not None:
                remote = TopicPartition(self._flow.remote_topic(tp.topic), tp.partition)
                yield remote, Checkpoint(group, *remote, commit.offset, downstream, commit.metadata or "")

    def sync_offsets(self) -> int:
        """Commit the last checkpoints in the target. Returns the number of changed groups."""
        changed = 0
        for group, checkpoints in self._current.items():
            if not checkpoints or not self._is_idle(group):
                continue
            try:
                committed = self._target.list_consumer_group_offsets(group)
                new_commits = {
                    tp: OffsetAndMetadata(checkpoint.downstream, checkpoint.metadata)
                    for tp, checkpoint in checkpoints.items()
                    if (commit := committed.get(tp)) is None or commit.offset < checkpoint.downstream
                }
                if new_commits:
                    self._target.alter_consumer_group_offsets(group, new_commits)
                    changed += 1
            except KafkaError as error:
                # A member may have joined the group in the meantime.
                logger.warning("%s: cannot sync the offsets of group %s: %s", self._flow.name, group, error)
        return changed

    def _is_idle(self, group: str) -> bool:
        try:
            return self._target.describe_consumer_groups(group)[group].state in _IDLE
        except AdminError as error:
            if error.code in _NO_GROUP:
                return True
            self._report(f"cannot describe group {group}: {error}")
            return False
