"""Sends proposed ISR changes to the controller (Kafka's AlterPartitionManager).

One request is in flight at a time. Changes that are proposed meanwhile are sent together in the
next request. A failed request is retried with a backoff of up to one second. A failure is logged
when its reason changes, and once a minute while it lasts. The partition's leader role gets the
outcome: `on_isr_accepted` or `on_isr_refused`. A change becomes obsolete when the controller sends
an order for its partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

from kavka.common.backoff import Backoff
from kavka.common.errors import KafkaError, known_code
from kavka.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
)
from kavka.protocol.primitives import ZERO_UUID
from kavka.replication.partition import Partition
from kavka.replication.partition_state import PendingIsr

logger = logging.getLogger(__name__)

RETRY_BACKOFF = Backoff(50, 1_000, jitter=0)
LOG_INTERVAL_S = 60.0
RECOVERED = 0

Send = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]
Changes = list[tuple[Partition, PendingIsr]]


class IsrChanges:
    """Owns the submitted changes that have no response. Only the loop thread calls it."""

    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], send: Send) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._changes: dict[Partition, PendingIsr] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._failures = 0
        self._logged_reason = ""
        self._logged_at = 0.0

    def submit(self, partition: Partition, pending: PendingIsr) -> None:
        """Send the change. It replaces an earlier change of the same partition."""
        if self._closed:
            return
        self._changes[partition] = pending
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="isr-changes")

    async def close(self) -> None:
        self._closed = True
        self._changes.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            # All changes of this turn of the loop go into one request.
            await asyncio.sleep(0)
            while changes := self._drop_obsolete():
                reason = await self._send_changes(changes)
                if reason is None:
                    self._on_success()
                else:
                    self._on_failure(len(changes), reason)
                    await asyncio.sleep(RETRY_BACKOFF.delay(self._failures))
        finally:
            self._task = None
            self._failures = 0

    def _drop_obsolete(self) -> Changes:
        """Drop the obsolete changes. Returns the remaining changes."""
        self._changes = {
            partition: pending for partition, pending in self._changes.items() if partition.isr_state is pending
        }
        return list(self._changes.items())

    async def _send_changes(self, changes: Changes) -> str | None:
        """Send one request. Returns None if all changes have an outcome, otherwise the reason why
        changes have to be sent again."""
        try:
            response = await self._send(self._request(changes))
        except (KafkaError, OSError) as error:
            return f"the controller is unreachable: {error}"
        except Exception as error:
            if not self._failures:
                logger.exception("The AlterPartition request failed")
            return f"the request failed: {error!r}"
        if response.error_code:
            # After STALE_BROKER_EPOCH this broker registers again. A broker that is no longer the
            # controller responds with other codes.
            return f"the controller responded with {known_code(response.error_code).name}"
        return self._apply(changes, response)

    def _on_success(self) -> None:
        if self._failures:
            logger.info("The controller accepts ISR changes again, after %d failed requests", self._failures)
        self._failures = 0
        self._logged_reason = ""

    def _on_failure(self, change_count: int, reason: str) -> None:
        self._failures += 1
        now = asyncio.get_running_loop().time()
        if reason != self._logged_reason or now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_reason, self._logged_at = reason, now
            logger.info("%d ISR changes are pending after %d failed requests: %s", change_count, self._failures, reason)

    def _request(self, changes: Changes) -> AlterPartitionRequest:
        topics: dict[tuple[str, UUID], AlterPartitionRequestTopicData] = {}
        for partition, pending in changes:
            name = partition.topic_partition.topic
            topic = topics.setdefault(
                (name, partition.topic_id),
                AlterPartitionRequestTopicData(topic_name=name, topic_id=partition.topic_id, partitions=[]),
            )
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=partition.topic_partition.partition,
                    leader_epoch=pending.leader_epoch,
                    # Every supported controller accepts version 3, which has broker epochs.
                    new_isr_with_epochs=[
                        BrokerState(broker_id=broker_id, broker_epoch=self._broker_epoch_of(partition, broker_id))
                        for broker_id in sorted(pending.proposed)
                    ],
                    leader_recovery_state=RECOVERED,
                    partition_epoch=pending.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )

    def _broker_epoch_of(self, partition: Partition, broker_id: int) -> int:
        if broker_id == self._broker_id:
            return self._broker_epoch()
        role = partition.leader_role
        follower = role.followers.get(broker_id) if role is not None else None
        return -1 if follower is None else follower.broker_epoch

    def _apply(self, changes: Changes, response: AlterPartitionResponse) -> str | None:
        results = {
            (topic.topic_name if topic.topic_id == ZERO_UUID else topic.topic_id, result.partition_index): result
            for topic in response.topics
            for result in topic.partitions
        }
        reason: str | None = None
        for partition, pending in changes:
            tp = partition.topic_partition
            result = results.get((partition.topic_id, tp.partition)) or results.get(tp)
            if result is None:
                reason = f"no result for {tp}"
            elif not self._complete(partition, pending, result):
                reason = f"{known_code(result.error_code).name} for {tp}"
            elif self._changes.get(partition) is pending:
                del self._changes[partition]
        return reason

    def _complete(self, partition: Partition, pending: PendingIsr, result: AlterPartitionResponsePartitionData) -> bool:
        """Pass the outcome to the leader role. Returns False if the change has to be sent again."""
        role = partition.leader_role
        if role is None:
            return True
        try:
            if result.error_code:
                return not role.on_isr_refused(pending, known_code(result.error_code))
            role.on_isr_accepted(pending, result.leader_epoch, result.partition_epoch, frozenset(result.isr))
        except Exception:
            logger.exception("Cannot apply the ISR change of %s", partition.topic_partition)
        return True
