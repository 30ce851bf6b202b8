"""Changes of ISRs on their way to the controller.

One request is in flight at a time; what is proposed meanwhile goes together in the next one. A request that failed, or
that the controller could not take, is made anew from what is still wanted, after a delay that doubles up to a second. A
failure is logged when its reason changes, and once a minute while it lasts. A partition hears of its change's end with
`isr_accepted` or `isr_refused`; one that has got another order meanwhile ignores it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

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
from kavka.replication.shared import IsrChange

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.05
LAST_RETRY_S = 1.0
LOG_AGAIN_S = 60.0
RECOVERED = 0

Send = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]
Key = tuple[str, int]


class IsrChanges:
    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], send: Send) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._wanted: dict[Key, IsrChange] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._retry_s = FIRST_RETRY_S
        self._failures = 0
        self._logged_reason = ""
        self._logged_at = 0.0

    def submit(self, change: IsrChange) -> None:
        """Ask for it, in place of what was asked for the same partition before and is not answered yet."""
        if self._closed:
            return
        self._wanted[change.partition.topic_partition] = change
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="isr-changes")

    async def close(self) -> None:
        self._closed = True
        self._wanted.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            # What the fetches of this turn propose goes together.
            await asyncio.sleep(0)
            while self._drop_stale():
                changes = list(self._wanted.values())
                reason = await self._ask(changes)
                if reason is None:
                    self._succeeded()
                else:
                    self._log_failure(len(changes), reason)
                    await asyncio.sleep(self._retry_s)
                    self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)
        finally:
            self._task = None
            self._failures = 0
            self._retry_s = FIRST_RETRY_S

    def _drop_stale(self) -> bool:
        """Forget what is not wanted any more; whether anything is left."""
        self._wanted = {key: one for key, one in self._wanted.items() if one.partition.pending_isr is one}
        return bool(self._wanted)

    async def _ask(self, changes: list[IsrChange]) -> str | None:
        """One request with these changes; None where all are answered, else why some have to be asked for again."""
        try:
            response = await self._send(self._request(changes))
        except (KafkaError, OSError) as error:
            return f"the controller cannot be reached: {error}"
        except Exception as error:
            if not self._failures:
                log.exception("The request for changes of ISRs failed")
            return f"the request failed: {error!r}"
        if response.error_code:
            # A stale broker epoch is that of a broker that is signing in again; another controller may be found.
            return f"the controller answered {known_code(response.error_code).name}"
        return self._take(changes, response)

    def _succeeded(self) -> None:
        if self._failures:
            log.info("Changes of ISRs are answered again, after %d failed requests", self._failures)
        self._failures = 0
        self._retry_s = FIRST_RETRY_S
        self._logged_reason = ""

    def _log_failure(self, changes: int, reason: str) -> None:
        self._failures += 1
        now = asyncio.get_running_loop().time()
        if reason != self._logged_reason or now - self._logged_at >= LOG_AGAIN_S:
            self._logged_reason, self._logged_at = reason, now
            log.info("Changes of %d ISRs wait, after %d failed requests: %s", changes, self._failures, reason)

    def _request(self, changes: list[IsrChange]) -> AlterPartitionRequest:
        topics: dict[tuple[str, UUID], AlterPartitionRequestTopicData] = {}
        for change in changes:
            partition = change.partition
            name = partition.topic_partition.topic
            topic = topics.get((name, partition.topic_id))
            if topic is None:
                topic = topics[name, partition.topic_id] = AlterPartitionRequestTopicData(
                    topic_name=name, topic_id=partition.topic_id, partitions=[]
                )
            members = sorted(change.isr)
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=partition.topic_partition.partition,
                    leader_epoch=change.leader_epoch,
                    # Version 3, which every controller that we meet has: the members with their epochs.
                    new_isr_with_epochs=[self._member(change, one) for one in members],
                    leader_recovery_state=RECOVERED,
                    partition_epoch=change.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )

    def _member(self, change: IsrChange, broker_id: int) -> BrokerState:
        if broker_id == self._broker_id:
            return BrokerState(broker_id=broker_id, broker_epoch=self._broker_epoch())
        follower = change.partition.followers.get(broker_id)
        return BrokerState(broker_id=broker_id, broker_epoch=-1 if follower is None else follower.broker_epoch)

    def _take(self, changes: list[IsrChange], response: AlterPartitionResponse) -> str | None:
        by_id: dict[tuple[UUID, int], AlterPartitionResponsePartitionData] = {}
        by_name: dict[Key, AlterPartitionResponsePartitionData] = {}
        for topic in response.topics:
            for answer in topic.partitions:
                if topic.topic_id != ZERO_UUID:
                    by_id[topic.topic_id, answer.partition_index] = answer
                else:
                    by_name[topic.topic_name, answer.partition_index] = answer
        unanswered: str | None = None
        for change in changes:
            tp = change.partition.topic_partition
            found = by_id.get((change.partition.topic_id, tp.partition)) or by_name.get((tp.topic, tp.partition))
            if found is None:
                unanswered = f"no answer for {tp}"
            elif not self._answered(change, found):
                unanswered = f"{known_code(found.error_code).name} for {tp}"
            elif self._wanted.get(tp) is change:
                del self._wanted[tp]
        return unanswered

    def _answered(self, change: IsrChange, answer: AlterPartitionResponsePartitionData) -> bool:
        """False where it has to be asked for again."""
        try:
            if answer.error_code:
                return not change.partition.isr_refused(change, known_code(answer.error_code))
            change.partition.isr_accepted(change, answer.leader_epoch, answer.partition_epoch, frozenset(answer.isr))
        except Exception:
            log.exception("What follows a change of the ISR of %s failed", change.partition.topic_partition)
        return True
