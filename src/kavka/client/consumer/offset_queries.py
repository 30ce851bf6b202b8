"""Queries of the application for positions, lag, and offsets by time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from kavka.client.cluster import Cluster
from kavka.client.connections import cause_of
from kavka.client.consumer.offsets import LATEST, OffsetLookup, OffsetResult
from kavka.client.consumer.positions import Positions
from kavka.client.consumer.subscription import PartitionState, Subscriptions
from kavka.client.consumer.unread import Unread
from kavka.client.errors import KafkaTimeout
from kavka.client.types import OffsetAndTimestamp
from kavka.common.types import TopicPartition


class OffsetQueries:
    """Runs queries on the event loop, without changing a position. `raise_failure` raises a pending
    error of the background tasks. `restore_topics` removes the topics that a lookup has added to
    the cluster's metadata."""

    def __init__(
        self,
        cluster: Cluster,
        subscriptions: Subscriptions,
        unread: Unread,
        positions: Positions,
        lookup: OffsetLookup,
        read_committed: bool,
        raise_failure: Callable[[], None],
        restore_topics: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._unread = unread
        self._positions = positions
        self._lookup = lookup
        self._read_committed = read_committed
        self._raise_failure = raise_failure
        self._restore_topics = restore_topics

    async def position(self, tp: TopicPartition, deadline: float) -> int:
        """Return the position, after waiting for its lookup if necessary. Raises KafkaTimeout at
        the deadline."""
        # The partition may be revoked meanwhile, so get its state again after each wait.
        while (state := self._subscriptions.state(tp)).position < 0:
            self._raise_failure()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                reason = cause_of(self._cluster.connect_error())
                raise KafkaTimeout(f"timed out looking up the position of {tp}{reason}")
            await self._positions.wait(remaining)
        return state.position

    async def lag(self, partitions: Collection[TopicPartition], deadline: float) -> dict[TopicPartition, int]:
        states = [self._subscriptions.state(tp) for tp in partitions or list(self._subscriptions.partitions)]
        for state in states:
            await self.position(state.tp, deadline)
        unfetched = {state.tp: LATEST for state in states if state.lag(self._read_committed) is None}
        ends = await self._lookup.offsets_for_times(unfetched, deadline) if unfetched else {}
        result: dict[TopicPartition, int] = {}
        for state in states:
            lag = state.lag(self._read_committed)
            if lag is None:
                lag = max(0, ends[state.tp].offset - state.position)
            result[state.tp] = lag + self._undelivered(state)
        return result

    def current_lag(self, partition: TopicPartition) -> int | None:
        """Return the lag according to the last fetch, or None before the first fetch."""
        state = self._subscriptions.state(partition)
        lag = state.lag(self._read_committed)
        return None if lag is None else lag + self._undelivered(state)

    def largest_lag(self) -> int:
        lags = [state.lag(self._read_committed) for state in self._subscriptions.partitions.values()]
        return max((lag for lag in lags if lag is not None), default=0)

    def _undelivered(self, state: PartitionState) -> int:
        """Return the number of offsets that an iteration has taken but not yielded yet."""
        first = self._unread.first().get(state.tp)
        return 0 if first is None else max(0, state.position - first)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        for tp, timestamp in times.items():
            if timestamp < 0:
                raise ValueError(f"the timestamp for {tp} cannot be negative: {timestamp}")
        results = await self._look_up(times, deadline)
        return {tp: None if result.offset < 0 else _with_timestamp(result) for tp, result in results.items()}

    async def edge_offsets(
        self, partitions: Iterable[TopicPartition], edge: int, deadline: float
    ) -> dict[TopicPartition, int]:
        """Return the earliest (`edge` EARLIEST) or latest (LATEST) offsets of partitions."""
        results = await self._look_up(dict.fromkeys(partitions, edge), deadline)
        return {tp: result.offset for tp, result in results.items()}

    async def _look_up(
        self, times: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, OffsetResult]:
        if not times:
            return {}
        try:
            return await self._lookup.offsets_for_times(times, deadline)
        finally:
            self._restore_topics()


def _with_timestamp(result: OffsetResult) -> OffsetAndTimestamp:
    return OffsetAndTimestamp(
        result.offset, result.timestamp, result.leader_epoch if result.leader_epoch >= 0 else None
    )
