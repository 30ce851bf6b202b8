"""Prefetches records, with at most one fetch in flight per broker. A partition is fetched while its
buffered data is below the limit. Runs on the event loop.

The buffer gets the undecoded bytes of a response; polls decode them. After an error, a partition is
not fetched until a backoff expires. Errors that a poll must handle, such as an offset out of range,
are reported to the next poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.connection import Connection
from kavka.client.consumer._decode import Fetched, end_of_batches, new_buffer, receive
from kavka.client.consumer.buffer import FetchBuffer
from kavka.client.consumer.fetch_session import MIN_TOPIC_ID_VERSION, FetchSession, FetchTarget
from kavka.client.consumer.metrics import ConsumerMetrics
from kavka.client.consumer.subscription import PartitionState, Subscriptions
from kavka.client.errors import error_of
from kavka.client.metadata import Node
from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData

logger = logging.getLogger(__name__)

CHANNEL = "fetch"
# The maximum number of full responses that the buffer holds per partition.
MAX_PREFETCHED_RESPONSES = 2
# If max.partition.fetch.bytes is not set, the fetch size of a partition doubles up to this size
# while its responses are more than half full and the buffer is empty. With the default of 1 MB, a
# consumer spends a quarter of its time waiting for the next response.
MAX_PARTITION_FETCH_BYTES = 2 * 1024 * 1024

_NEEDS_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)


class Fetcher:
    """Owns the fetch sessions and the fetches in flight. `on_data` is called after data was added
    to the buffer, and `on_error(state, state_version, error)` for an error that a poll must
    handle."""

    def __init__(
        self,
        config: ClientConfig,
        cluster: Cluster,
        subscriptions: Subscriptions,
        buffer: FetchBuffer,
        metrics: ConsumerMetrics,
        on_data: Callable[[], object],
        on_error: Callable[[PartitionState, int, KafkaError], object],
    ) -> None:
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._buffer = buffer
        self._metrics = metrics
        self._on_data = on_data
        self._on_error = on_error
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: dict[int, FetchSession] = {}
        _raise_trim_threshold()
        self._in_flight: set[int] = set()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False
        self._backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])
        self._min_bytes = config["fetch.min.bytes"]
        self._max_bytes = config["fetch.max.bytes"]
        self._max_wait = config["fetch.max.wait.ms"]
        self._partition_bytes: int = config["max.partition.fetch.bytes"]
        self._max_partition_fetch_bytes = self._partition_bytes
        if not config.is_explicit("max.partition.fetch.bytes"):
            self._max_partition_fetch_bytes = max(
                self._partition_bytes, min(MAX_PARTITION_FETCH_BYTES, self._max_bytes)
            )
        self._check_crcs = config["check.crcs"]
        self._rack = config["client.rack"]
        self.read_committed = config["isolation.level"] == "read_committed"
        self._timeout = config.seconds("request.timeout.ms")
        self._replica_age = config.seconds("metadata.max.age.ms")

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._cluster.on_connection_change(lambda _node: self.wake())
        self._cluster.on_update(lambda _cluster: self.wake())

    async def close(self, timeout: float) -> None:
        """Close the fetch sessions at the brokers, without retries."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        sends = []
        for node, session in self._sessions.items():
            request = session.close_request()
            if request is not None and node not in self._in_flight and node in self._cluster.nodes:
                connection = self._cluster.ready_connection(node, CHANNEL)
                if connection is not None:
                    sends.append(connection.send(request, timeout=max(timeout, 0.001)))
        if sends:
            await asyncio.wait(sends, timeout=min(timeout, 1.0))
        self._sessions.clear()

    # --- sending

    def wake(self) -> None:
        """Send fetches soon: a partition may have become fetchable. Call it on the event loop."""
        if not self._scheduled and not self._closed and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._send_scheduled)

    def _send_scheduled(self) -> None:
        self._scheduled = False
        self._send_all()

    def _send_all(self) -> None:
        if self._closed or self._cluster.closed:
            return
        self._buffer.needs_room = False
        for node, states in self._by_node().items():
            if node in self._in_flight:
                continue
            connection = self._cluster.ready_connection(node, CHANNEL)
            if connection is not None:
                pause = connection.throttled_until - self._now()
                if pause > 0:
                    self._wake_at(connection.throttled_until)
                else:
                    self._send(node, connection, states)

    def _by_node(self) -> dict[int, list[PartitionState]]:
        """Return the partitions that can be fetched now, by broker id."""
        now = self._now()
        cluster = self._cluster
        nodes: dict[int, list[PartitionState]] = {}
        free_bytes = self._max_bytes
        needs_metadata = False
        for state in self._subscriptions.partitions.values():
            buffered = state.fetched_bytes - state.drained_bytes
            if not state.paused:
                free_bytes -= buffered
            if state.position < 0 or state.paused or state.held or state.validating:
                continue
            if buffered >= MAX_PREFETCHED_RESPONSES * (state.fetch_bytes or self._partition_bytes):
                self._buffer.needs_room = True
                continue
            if state.retry_at > now:
                self._wake_at(state.retry_at)
                continue
            topic = cluster.topics.get(state.topic)
            if topic is None or state.partition >= len(topic.partitions):
                needs_metadata = True
                continue
            node = topic.partitions[state.partition].leader
            if state.preferred >= 0:
                if now < state.preferred_until and state.preferred in cluster.nodes:
                    node = state.preferred
                else:
                    state.preferred = -1
            if node in cluster.nodes:
                nodes.setdefault(node, []).append(state)
            else:
                needs_metadata = True
        if needs_metadata:
            cluster.request_update()
        if free_bytes <= 0:
            self._buffer.needs_room = True
            return {}
        return nodes

    def _send(self, node: int, connection: Connection, states: list[PartitionState]) -> None:
        session = self._sessions.get(node)
        if session is None:
            session = self._sessions[node] = FetchSession()
        targets: dict[TopicPartition, FetchTarget] = {}
        requested: dict[TopicPartition, tuple[PartitionState, int, int]] = {}
        for state in states:
            topic = self._cluster.topics[state.topic]
            targets[state.tp] = FetchTarget(
                topic.topic_id,
                state.next_offset,
                topic.partitions[state.partition].leader_epoch,
                state.fetch_bytes or self._partition_bytes,
            )
            requested[state.tp] = state, state.version, state.next_offset
        request, max_version = session.request(targets)
        self._fill(request)
        try:
            api_version = connection.version_of(FetchRequest.API_KEY, max_version)
        except KafkaError as error:
            self._on_unsupported(session, states, error)
            return
        connection.new_buffer = new_buffer
        connection.receive = receive
        fetch = _PendingFetch(self, node, session, requested, api_version, self._now())
        self._in_flight.add(node)
        try:
            connection.send_with_handler(request, api_version, fetch, self._timeout + self._max_wait / 1000)
        except KafkaError as error:
            fetch.set_exception(error)

    def _on_unsupported(self, session: FetchSession, states: list[PartitionState], error: KafkaError) -> None:
        """Handle a broker that supports no suitable version of Fetch. The next poll raises the
        error. Fetches are retried after a backoff, because the broker may be upgraded."""
        session.reset()
        self._report_error(states[0], states[0].version, error)
        for state in states:
            state.retry_at = states[0].retry_at
        self.wake()

    def _fill(self, request: FetchRequest) -> None:
        request.max_wait_ms = self._max_wait
        request.min_bytes = self._min_bytes
        request.max_bytes = self._max_bytes
        request.isolation_level = 1 if self.read_committed else 0
        request.rack_id = self._rack

    # --- responses

    def on_response(self, fetch: _PendingFetch, response: FetchResponse) -> None:
        self._in_flight.discard(fetch.node)
        self._metrics.fetch_latency.add(self._now() - fetch.sent_at)
        if not fetch.session.handle_response(response):
            error = error_of(response.error_code)
            logger.debug("Broker %s returned an error, restarting the fetch session: %s", fetch.node, error)
            if response.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._back_off(fetch)
            self.wake()
            return
        names = fetch.session.names
        endpoints = [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
        size = 0
        for topic in response.responses:
            name = names.get(topic.topic_id, "") if fetch.api_version >= MIN_TOPIC_ID_VERSION else topic.topic
            for data in topic.partitions:
                requested_partition = fetch.requested.get(TopicPartition(name, data.partition_index))
                if requested_partition is None:
                    continue
                state, state_version, offset = requested_partition
                if state.version != state_version or state.next_offset != offset:
                    continue
                if data.error_code:
                    self._on_partition_error(state, data, fetch.node, endpoints)
                else:
                    size += self._accept(state, state_version, data)
        # Send the next request before waking the application, whose thread would compete for the
        # GIL.
        self._send_all()
        if size:
            self._metrics.fetch_size.add(size)
            self._on_data()

    def on_failure(self, fetch: _PendingFetch, error: BaseException) -> None:
        self._in_flight.discard(fetch.node)
        fetch.session.reset()
        if self._closed:
            return
        logger.debug("A fetch from broker %s failed: %s", fetch.node, error)
        self._back_off(fetch)
        self._cluster.request_update()
        self.wake()

    def _back_off(self, fetch: _PendingFetch) -> None:
        until = self._now() + self._backoff.delay(1)
        for state, _, _ in fetch.requested.values():
            state.preferred = -1
            state.retry_at = until

    def _accept(self, state: PartitionState, state_version: int, data: PartitionData) -> int:
        """Add the records of a response to the buffer. Returns their size in bytes."""
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        state.log_start = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.preferred = data.preferred_read_replica
            state.preferred_until = self._now() + self._replica_age
        records = data.records
        if records is None or not len(records):
            return 0
        next_offset, epoch, end = end_of_batches(records)
        if end == 0:
            self._report_error(
                state,
                state_version,
                KafkaError(
                    ErrorCode.RECORD_LIST_TOO_LARGE,
                    f"the batch of {state.tp} at offset {state.next_offset} is larger than "
                    f"max.partition.fetch.bytes ({self._partition_bytes})",
                ),
            )
            return 0
        aborted: list[tuple[int, int]] | None = None
        if self.read_committed:
            aborted = sorted((t.first_offset, t.producer_id) for t in data.aborted_transactions or ())
        fetched = Fetched(
            state.topic, state.partition, records, state.next_offset, self._check_crcs, aborted, state, state_version
        )
        limit = state.fetch_bytes or self._partition_bytes
        if (
            limit < self._max_partition_fetch_bytes
            and fetched.size > limit // 2
            and state.fetched_bytes == state.drained_bytes
        ):
            state.fetch_bytes = min(2 * limit, self._max_partition_fetch_bytes)
        state.fetched_bytes += fetched.size
        if next_offset > state.next_offset:
            state.next_offset = next_offset
        state.next_epoch = epoch
        self._buffer.append(fetched)
        return fetched.size

    def _on_partition_error(self, state: PartitionState, data: PartitionData, node: int, endpoints: list[Node]) -> None:
        code = data.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if state.preferred >= 0 and node == state.preferred:
                # The offset may be out of range at a follower only: fetch from the leader.
                state.preferred = -1
            else:
                self._report_error(state, state.version, error_of(code))
        elif code in _NEEDS_METADATA:
            state.preferred = -1
            leader = data.current_leader
            is_updated = self._cluster.update_leader(
                state.topic, state.partition, leader.leader_id, leader.leader_epoch, endpoints
            )
            if not is_updated:
                state.retry_at = self._now() + self._backoff.delay(1)
                self._cluster.request_update()
        elif code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CORRUPT_MESSAGE):
            self._report_error(state, state.version, error_of(code, f"{state.tp}: {error_of(code)}"))
        else:
            logger.warning("Cannot fetch %s: %s", state.tp, error_of(code))
            state.retry_at = self._now() + self._backoff.delay(2)

    def _report_error(self, state: PartitionState, state_version: int, error: KafkaError) -> None:
        state.retry_at = self._now() + self._backoff.delay(3)
        self._on_error(state, state_version, error)

    # --- time

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _wake_at(self, deadline: float) -> None:
        assert self._loop is not None
        if self._timer is not None and (self._timer_at <= deadline and not self._timer.cancelled()):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()


def _raise_trim_threshold() -> None:
    """Make glibc keep the memory of consumed responses instead of returning it to the system, so
    that polls do not allocate the same pages again.

    glibc returns free memory at the end of the heap if it exceeds the trim threshold: twice the
    size of the largest mapped block that was ever freed. Freeing a block of 4 MB raises the
    threshold."""
    del bytearray(4 * 1024 * 1024)[:]


@dataclass(slots=True, eq=False)
class _PendingFetch:
    """The response handler of a fetch. The connection calls it directly when it has decoded the
    response, not in a later iteration of the event loop."""

    fetcher: Fetcher
    node: int
    session: FetchSession
    requested: dict[TopicPartition, tuple[PartitionState, int, int]]
    """By partition: its state, and the state's version and next offset when the request was
    sent."""
    api_version: int
    sent_at: float
    _done: bool = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self._done = True
        try:
            self.fetcher.on_response(self, result)
        except Exception as error:
            logger.exception("Cannot process a fetch response of broker %s", self.node)
            self.fetcher.on_failure(self, error)

    def set_exception(self, exception: BaseException, /) -> None:
        self._done = True
        self.fetcher.on_failure(self, exception)
