"""Checkpoints of consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.mirror import groups
from kavka.pipeline.mirror.flow import Flow


class Target:
    """Replaces a producer. It stores records, or fails them while `is_down`."""

    def __init__(self) -> None:
        self.is_down = False
        self.written: list[bytes] = []

    def send(self, topic: str, value: bytes, key: bytes, partition: int) -> Any:
        if self.is_down:
            return SimpleNamespace(add_errback=self._fail)
        self.written.append(value)
        return SimpleNamespace(add_errback=lambda call: None)

    def _fail(self, call: Callable[[BaseException], None]) -> None:
        call(KafkaError(ErrorCode.REQUEST_TIMED_OUT))

    def flush(self, timeout: float) -> None:
        pass


def test_a_failed_checkpoint_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target()
    syncs = SimpleNamespace(read=lambda: None, translate=lambda tp, upstream: upstream + 100)
    monkeypatch.setattr(groups, "OffsetSyncs", lambda flow, admin: syncs)
    monkeypatch.setattr(groups, "Producer", lambda settings: target)
    source = SimpleNamespace(
        list_consumer_groups=lambda: [SimpleNamespace(group_id="g")],
        list_consumer_group_offsets=lambda group: {TopicPartition("t", 0): OffsetAndMetadata(5, "")},
    )
    flow = Flow("a", "b", {}, {}, {}, {})
    sync = groups.GroupSync(flow, source, SimpleNamespace())  # type: ignore[arg-type]
    sync.refresh_groups()
    target.is_down = True
    sync.emit_checkpoints()
    target.is_down = False
    assert target.written == []
    sync.emit_checkpoints()
    assert len(target.written) == 1
    sync.emit_checkpoints()
    assert len(target.written) == 1, "an unchanged checkpoint is not written again"
