"""AlterPartition requests that fail: the delays between retries, and the log lines."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kavka.client.errors import Disconnected
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from kavka.replication import isr_changes
from kavka.replication.in_sync import FollowerState, may_join
from kavka.replication.isr_changes import IsrChanges
from kavka.replication.partition_state import PendingIsr, PendingShrinkIsr

TOPIC_ID = UUID(int=7)


class Partition(SimpleNamespace):
    """A fake of a partition and of its leader role."""

    __hash__ = object.__hash__

    @property
    def leader_role(self) -> Any:
        return self

    def on_isr_refused(self, pending: PendingIsr, code: ErrorCode) -> bool:
        return True

    def on_isr_accepted(self, *outcome: Any) -> None:
        self.isr_state = None


def accepted(request: AlterPartitionRequest) -> AlterPartitionResponse:
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopicData(
                topic_id=TOPIC_ID, partitions=[AlterPartitionResponsePartitionData(partition_index=0, isr=[0])]
            )
        ]
    )


def refused(code: ErrorCode) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=int(code))


def failed_to_write(request: AlterPartitionRequest) -> AlterPartitionResponse:
    response = accepted(request)
    response.topics[0].partitions[0].error_code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
    return response


def run(monkeypatch: pytest.MonkeyPatch, outcomes: list[Any]) -> list[float]:
    """Send one change until it is accepted; returns the delays between the requests."""
    delays: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds:
            delays.append(seconds)
        await real(0)

    async def send(request: AlterPartitionRequest) -> AlterPartitionResponse:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome(request) if callable(outcome) else outcome

    async def body() -> None:
        partition: Any = Partition(topic_partition=TopicPartition("t", 0), topic_id=TOPIC_ID, followers={})
        changes = IsrChanges(0, lambda: 5, send)
        partition.isr_state = PendingShrinkIsr(frozenset((0, 1)), frozenset((0, 1)), frozenset((0,)), 1, 1)
        changes.submit(partition, partition.isr_state)
        while partition.isr_state is not None:
            await real(0)
        await changes.close()

    monkeypatch.setattr(isr_changes.asyncio, "sleep", sleep)
    asyncio.run(asyncio.wait_for(body(), 20))
    return delays


def test_failed_requests_are_retried_with_a_growing_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = run(monkeypatch, [refused(ErrorCode.STALE_BROKER_EPOCH)] * 3000 + [accepted])
    assert delays[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert sum(delays) > 2900, "about one a second"


def test_a_repeated_failure_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kavka.replication.isr_changes")
    outcomes = [refused(ErrorCode.STALE_BROKER_EPOCH)] * 500 + [Disconnected("closed")] * 500 + [failed_to_write] * 500
    run(monkeypatch, [*outcomes, accepted])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4, lines
    assert "STALE_BROKER_EPOCH" in lines[0]
    assert "closed" in lines[1]
    assert "UNKNOWN_SERVER_ERROR for t-0" in lines[2]
    assert "again, after 1500 failed requests" in lines[3]


def test_a_refused_follower_is_proposed_again_after_a_growing_delay() -> None:
    follower = FollowerState(1)
    now, proposals = 0.0, []
    while now < 10:
        follower.record_fetch(5, 0, now, 5, 100)
        if may_join(follower, 5, 0):
            proposals.append(now)
            follower.refuse(now, ineligible=True)
        now += 0.01
    assert 10 < len(proposals) < 20
    follower.record_fetch(5, 0, now, 5, 101)
    assert may_join(follower, 5, 0), "it is proposed at once after a restart"
    for _ in range(5000):
        follower.refuse(now, ineligible=False)
    assert follower.propose_at == now + 1.0
