"""Determines missing positions, and validates positions after a change of leader.

Runs in the background, on the event loop. A missing position can be set at any time, since a
partition without a position is not read. Only a poll task changes an existing position.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial

from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.consumer.coordinator import Coordinator
from kavka.client.consumer.errors import LogTruncation, NoOffsetForPartition, OffsetOutOfRange
from kavka.client.consumer.offsets import EARLIEST, LATEST, EpochEnd, OffsetLookup, OffsetResult
from kavka.client.consumer.subscription import PartitionState, Subscriptions
from kavka.common.backoff import Backoff
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition

logger = logging.getLogger(__name__)

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
# Timeout of an attempt in seconds. The next attempt uses newer metadata.
ATTEMPT_TIMEOUT_S = 10.0


class ResetPolicy:
    """The policy of `auto.offset.reset`."""

    def __init__(self, text: str) -> None:
        self._time = {"earliest": EARLIEST, "latest": LATEST}.get(text)
        self.is_none = text == "none"
        self._duration_ms = 0
        if text.lower().startswith("by_duration:"):
            duration = _DURATION.fullmatch(text.partition(":")[2])
            assert duration is not None
            days, hours, minutes, seconds = (float(number or 0) for number in duration.groups())
            self._duration_ms = int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)

    def time(self) -> int:
        """Return the timestamp to look up. Must not be called for the policy `none`."""
        return self._time if self._time is not None else max(0, int(time.time() * 1000) - self._duration_ms)


class Positions:
    """Owns the two tasks that look up and validate positions. `run_in_poll` makes the next poll run
    a function, `fail` makes the next poll raise an error, and `on_position` is called when a
    position was set or validated."""

    def __init__(
        self,
        config: ClientConfig,
        cluster: Cluster,
        subscriptions: Subscriptions,
        coordinator: Coordinator,
        lookup: OffsetLookup,
        run_in_poll: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        fail: Callable[[BaseException], object],
        on_position: Callable[[], object],
    ) -> None:
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._coordinator = coordinator
        self._lookup = lookup
        self._run_in_poll = run_in_poll
        self._fail = fail
        self._on_position = on_position
        self.policy = ResetPolicy(config["auto.offset.reset"])
        self._backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])
        self._lookup_task: asyncio.Task[None] | None = None
        self._validation_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the tasks for missing and unvalidated positions if they are not running."""
        states = self._subscriptions.partitions.values()
        if (self._lookup_task is None or self._lookup_task.done()) and any(s.position < 0 for s in states):
            self._lookup_task = asyncio.create_task(self._run(self._look_up), name="kavka-positions")
        if (self._validation_task is None or self._validation_task.done()) and any(s.validating for s in states):
            self._validation_task = asyncio.create_task(self._run(self._validate), name="kavka-epochs")

    async def stop(self) -> None:
        tasks = [task for task in (self._lookup_task, self._validation_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the lookup in progress."""
        self.start()
        if self._lookup_task is not None and not self._lookup_task.done():
            await asyncio.wait({self._lookup_task}, timeout=max(0.0, timeout))

    def on_metadata(self) -> None:
        """Validate the positions of partitions with a new leader epoch, because the log of the new
        leader may lack records that were read."""
        for state in self._subscriptions.partitions.values():
            self._check_leader_epoch(state)
        self.start()

    def _check_leader_epoch(self, state: PartitionState) -> None:
        topic = self._cluster.topics.get(state.topic)
        if topic is None or state.partition >= len(topic.partitions):
            return
        epoch = topic.partitions[state.partition].leader_epoch
        if epoch > state.leader_epoch:
            state.leader_epoch = epoch
            if state.next_offset >= 0 and 0 <= state.next_epoch < epoch:
                state.validating = True

    async def _run(self, step: Callable[[], Awaitable[bool]]) -> None:
        failures = 0
        while True:
            try:
                if await step():
                    return
            except KafkaError as error:
                if not error.retriable:
                    self._fail(error)
                    return
                logger.debug("Cannot look up or validate positions: %s", error)
            failures += 1
            await asyncio.sleep(self._backoff.delay(failures))

    # --- missing positions

    async def _look_up(self) -> bool:
        """Look up the missing positions once. Returns True if no position is missing afterwards."""
        deadline = time.monotonic() + ATTEMPT_TIMEOUT_S
        await self._from_commits([s for s in self._missing() if s.reset is None], deadline)
        await self._from_times([s for s in self._missing() if s.reset is not None], deadline)
        return not self._missing()

    def _missing(self) -> list[PartitionState]:
        return [state for state in self._subscriptions.partitions.values() if state.position < 0]

    async def _from_commits(self, states: list[PartitionState], deadline: float) -> None:
        if not states:
            return
        versions = {state.tp: state.version for state in states}
        committed = {}
        if self._coordinator.group_id is not None:
            committed = await self._coordinator.committed([state.tp for state in states], deadline)
        without_offset: list[TopicPartition] = []
        for state in states:
            if not state.assigned or state.version != versions[state.tp]:
                continue
            position = committed.get(state.tp)
            if position is not None:
                self._set(state, position.offset, -1 if position.leader_epoch is None else position.leader_epoch)
            elif self.policy.is_none:
                without_offset.append(state.tp)
            else:
                state.reset = self.policy.time()
        if without_offset:
            raise NoOffsetForPartition(without_offset)

    async def _from_times(self, states: list[PartitionState], deadline: float) -> None:
        if not states:
            return
        versions = {state.tp: (state.version, state.reset) for state in states}
        results: dict[TopicPartition, OffsetResult] = {}
        error = await self._lookup.try_once({state.tp: state.reset or 0 for state in states}, results, deadline)
        for state in states:
            if (state.version, state.reset) != versions[state.tp] or not state.assigned or state.tp not in results:
                continue
            result = results[state.tp]
            if result.offset < 0:
                # All records are older than the timestamp: start at the end.
                state.reset = LATEST
            else:
                logger.info("%s starts at offset %s", state.tp, result.offset)
                self._set(state, result.offset, result.leader_epoch)
        if error is not None:
            raise error

    def _set(self, state: PartitionState, offset: int, epoch: int) -> None:
        state.seek(offset, epoch)
        state.leader_epoch = -1
        self._check_leader_epoch(state)
        self._on_position()
        # The new position may need validation.
        self.start()

    def reset(self, state: PartitionState) -> None:
        """Apply the reset policy; called by a poll. Raises OffsetOutOfRange if the policy is
        none."""
        if self.policy.is_none:
            raise OffsetOutOfRange({state.tp: state.position})
        logger.info("Offset %s of %s is out of range; resetting the position", state.position, state.tp)
        state.seek_to_time(self.policy.time())

    # --- validation of positions

    async def _validate(self) -> bool:
        """Validate positions once. Returns True if no position needs validation afterwards."""
        states = [state for state in self._subscriptions.partitions.values() if state.validating]
        versions = {state.tp: (state.version, state.next_offset) for state in states}
        ends = await self._lookup.epoch_ends(
            {state.tp: state.next_epoch for state in states}, time.monotonic() + ATTEMPT_TIMEOUT_S
        )
        for state in states:
            if (state.version, state.next_offset) != versions[state.tp] or state.tp not in ends:
                continue
            end = ends[state.tp]
            if end is None or end.end_offset >= state.next_offset:
                state.validating = False
                self._on_position()
            else:
                await self._run_in_poll(partial(self._handle_truncation, state, state.version, end))
        return not any(state.validating for state in self._subscriptions.partitions.values())

    async def _handle_truncation(self, state: PartitionState, version: int, end: EpochEnd) -> None:
        """Poll task: handle a log that was truncated below the next fetch offset, and perhaps below
        the position."""
        if state.version != version or not state.assigned:
            return
        position = state.position
        state.validating = False
        if end.end_offset >= position:
            state.fetch_again()
        elif self.policy.is_none:
            state.held = True
            self._fail(LogTruncation({state.tp: position}, {state.tp: end.end_offset if end.end_offset >= 0 else None}))
        elif end.end_offset < 0:
            logger.warning(
                "The leader of %s has no leader epoch for the records before offset %s; resetting the position",
                state.tp,
                position,
            )
            state.seek_to_time(self.policy.time())
        else:
            logger.warning(
                "The log of %s was truncated to offset %s, but records up to offset %s were already read",
                state.tp,
                *end[1:],
                position,
            )
            state.seek(end.end_offset, end.epoch)
        self._on_position()
        self.start()
