"""Where to read: positions that are not known yet are found, and those that may not be right any more are checked.

Runs on the loop, in the background. A position that is not known may be set from here at any time: nobody reads a
partition without one. To change one that is known is an errand for the next poll.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from kavka.client.backoff import Backoff
from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.consumer.coordinator import Coordinator
from kavka.client.consumer.errors import LogTruncation, NoOffsetForPartition, OffsetOutOfRange
from kavka.client.consumer.offsets import EARLIEST, LATEST, EpochEnd, Found, OffsetLookup
from kavka.client.consumer.subscription import PartitionState, Subscriptions
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition

log = logging.getLogger(__name__)

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
# How long one attempt may take; the next one finds newer metadata.
ATTEMPT = 10.0


class ResetPolicy:
    """`auto.offset.reset`."""

    def __init__(self, text: str) -> None:
        self._time = {"earliest": EARLIEST, "latest": LATEST}.get(text)
        self.is_none = text == "none"
        self._back = 0
        if text.lower().startswith("by_duration:"):
            found = _DURATION.fullmatch(text.partition(":")[2])
            assert found is not None
            days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
            self._back = int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)

    def time(self) -> int:
        """What to look up; not for `none`."""
        return self._time if self._time is not None else max(0, int(time.time() * 1000) - self._back)


class Positions:
    """`want_poll` is called when there is something for the next poll; `fail` with what it shall raise."""

    def __init__(
        self,
        config: ClientConfig,
        cluster: Cluster,
        subscriptions: Subscriptions,
        coordinator: Coordinator,
        lookup: OffsetLookup,
        errand: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        fail: Callable[[BaseException], object],
        on_found: Callable[[], object],
    ) -> None:
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._coordinator = coordinator
        self._lookup = lookup
        self._errand = errand
        self._fail = fail
        self._on_found = on_found
        self.policy = ResetPolicy(config["auto.offset.reset"])
        self._backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])
        self._finding: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Find what is missing, and check what is in doubt, if that is not being done."""
        states = self._subscriptions.partitions.values()
        if (self._finding is None or self._finding.done()) and any(s.position < 0 for s in states):
            self._finding = asyncio.create_task(self._run(self._find), name="kavka-positions")
        if (self._checking is None or self._checking.done()) and any(s.validating for s in states):
            self._checking = asyncio.create_task(self._run(self._check), name="kavka-epochs")

    async def stop(self) -> None:
        tasks = [task for task in (self._finding, self._checking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait(self, timeout: float) -> None:
        """Until those that are being looked for are found, or not."""
        self.start()
        if self._finding is not None and not self._finding.done():
            await asyncio.wait({self._finding}, timeout=max(0.0, timeout))

    def on_metadata(self) -> None:
        """A partition with a new leader may have lost records that were read."""
        for state in self._subscriptions.partitions.values():
            self._doubt(state)
        self.start()

    def _doubt(self, state: PartitionState) -> None:
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
                log.debug("Looking for positions: %s", error)
            failures += 1
            await asyncio.sleep(self._backoff.delay(failures))

    # --- positions that are not known

    async def _find(self) -> bool:
        """One attempt; whether all are known."""
        deadline = time.monotonic() + ATTEMPT
        await self._from_commits([s for s in self._missing() if s.reset is None], deadline)
        await self._from_times([s for s in self._missing() if s.reset is not None], deadline)
        return not any(True for _ in self._missing())

    def _missing(self) -> Iterable[PartitionState]:
        return [state for state in self._subscriptions.partitions.values() if state.position < 0]

    async def _from_commits(self, states: list[PartitionState], deadline: float) -> None:
        if not states:
            return
        versions = {state.tp: state.version for state in states}
        committed = {}
        if self._coordinator.group_id is not None:
            committed = await self._coordinator.committed([state.tp for state in states], deadline)
        none: list[TopicPartition] = []
        for state in states:
            if not state.assigned or state.version != versions[state.tp]:
                continue
            found = committed.get(state.tp)
            if found is not None:
                self._set(state, found.offset, -1 if found.leader_epoch is None else found.leader_epoch)
            elif self.policy.is_none:
                none.append(state.tp)
            else:
                state.reset = self.policy.time()
        if none:
            raise NoOffsetForPartition(none)

    async def _from_times(self, states: list[PartitionState], deadline: float) -> None:
        if not states:
            return
        asked = {state.tp: (state.version, state.reset) for state in states}
        found: dict[TopicPartition, Found] = {}
        why = await self._lookup.ask({state.tp: state.reset or 0 for state in states}, found, deadline)
        for state in states:
            if (state.version, state.reset) != asked[state.tp] or not state.assigned or state.tp not in found:
                continue
            if found[state.tp].offset < 0:
                # Nothing is that young: read what comes.
                state.reset = LATEST
            else:
                log.info("%s begins at offset %s", state.tp, found[state.tp].offset)
                self._set(state, found[state.tp].offset, found[state.tp].leader_epoch)
        if why is not None:
            raise why

    def _set(self, state: PartitionState, offset: int, epoch: int) -> None:
        state.seek(offset, epoch)
        state.leader_epoch = -1
        self._doubt(state)
        self._on_found()
        self.start()  # it may be in doubt at once: the leader is another one than that of the record found

    def reset(self, state: PartitionState) -> None:
        """By the policy; for who polls. OffsetOutOfRange where there is none."""
        if self.policy.is_none:
            raise OffsetOutOfRange({state.tp: state.position})
        log.info("The offset %s of %s is out of range: reset", state.position, state.tp)
        state.seek_to_time(self.policy.time())

    # --- positions that are in doubt

    async def _check(self) -> bool:
        states = [state for state in self._subscriptions.partitions.values() if state.validating]
        asked = {state.tp: (state.version, state.next_offset) for state in states}
        ends = await self._lookup.epoch_ends(
            {state.tp: state.next_epoch for state in states}, time.monotonic() + ATTEMPT
        )
        for state in states:
            if (state.version, state.next_offset) != asked[state.tp] or state.tp not in ends:
                continue
            end = ends[state.tp]
            if end is None or end.end_offset >= state.next_offset:
                state.validating = False
                self._on_found()
            else:
                await self._errand(partial(self._truncated, state, state.version, end))
        return not any(state.validating for state in self._subscriptions.partitions.values())

    async def _truncated(self, state: PartitionState, version: int, end: EpochEnd) -> None:
        """Errand: what was fetched, and perhaps read, is not in the log any more."""
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
            log.warning("%s: what was read before offset %s is not known to its leader; reset", state.tp, position)
            state.seek_to_time(self.policy.time())
        else:
            log.warning("%s was truncated to offset %s, after records up to %s were read", state.tp, *end[1:], position)
            state.seek(end.end_offset, end.epoch)
        self._on_found()
        self.start()
