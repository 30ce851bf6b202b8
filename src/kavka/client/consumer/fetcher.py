"""Fetching ahead of the program: at any time one request on its way to each broker that leads (or is near to) a
partition with room in the buffer. Runs on the loop.

What an answer brings goes into the buffer as it came; whoever polls opens it. A partition that cannot be read is left
alone for a while, and what needs a decision (an offset out of range) is left for the next poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from kavka.client.backoff import Backoff
from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.connection import Connection
from kavka.client.consumer._decode import Fetched, end_of_batches, new_buffer
from kavka.client.consumer.buffer import FetchBuffer
from kavka.client.consumer.fetch_session import FIRST_WITH_TOPIC_IDS, FetchSession, Wanted
from kavka.client.consumer.metrics import ConsumerMetrics
from kavka.client.consumer.subscription import PartitionState, Subscriptions
from kavka.client.errors import error_of
from kavka.client.metadata import Node
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData

log = logging.getLogger(__name__)

CHANNEL = "fetch"
# How many answers of full size may wait for the program, of each partition.
AHEAD = 2
# Where max.partition.fetch.bytes is not set, a partition that always fills its answers, to a program that waits for
# them, is asked for more at a time, up to this: with 1 MB the time between answers is a quarter of the whole.
MOST_AT_A_TIME = 2 * 1024 * 1024

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
    """`on_data` is called when there is more in the buffer; `on_problem(state, version, error)` when somebody has to
    decide what to do about a partition."""

    def __init__(
        self,
        config: ClientConfig,
        cluster: Cluster,
        subscriptions: Subscriptions,
        buffer: FetchBuffer,
        metrics: ConsumerMetrics,
        on_data: Callable[[], object],
        on_problem: Callable[[PartitionState, int, KafkaError], object],
    ) -> None:
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._buffer = buffer
        self._metrics = metrics
        self._on_data = on_data
        self._on_problem = on_problem
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: dict[int, FetchSession] = {}
        _keep_free_memory()
        self._busy: set[int] = set()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False
        self._backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])
        self._min_bytes = config["fetch.min.bytes"]
        self._max_bytes = config["fetch.max.bytes"]
        self._max_wait = config["fetch.max.wait.ms"]
        self._partition_bytes: int = config["max.partition.fetch.bytes"]
        self._most = self._partition_bytes
        if not config.given("max.partition.fetch.bytes"):
            self._most = max(self._partition_bytes, min(MOST_AT_A_TIME, self._max_bytes))
        self._check_crcs = config["check.crcs"]
        self._rack = config["client.rack"]
        self.read_committed = config["isolation.level"] == "read_committed"
        self._timeout = config.seconds("request.timeout.ms")
        self._replica_age = config.seconds("metadata.max.age.ms")

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._cluster.on_connected(lambda _node: self.kick())
        self._cluster.on_update(lambda _cluster: self.kick())

    async def close(self, timeout: float) -> None:
        """Tell the brokers that their sessions are over, and do not insist."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        sends = []
        for node, session in self._sessions.items():
            request = session.closing()
            if request is not None and node not in self._busy and node in self._cluster.nodes:
                connection = self._cluster.ready_connection(node, CHANNEL)
                if connection is not None:
                    sends.append(connection.send(request, timeout=max(timeout, 0.001)))
        if sends:
            await asyncio.wait(sends, timeout=min(timeout, 1.0))
        self._sessions.clear()

    # --- sending

    def kick(self) -> None:
        """Something may be fetched that could not be before. On the loop."""
        if not self._scheduled and not self._closed and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._send_scheduled)

    def _send_scheduled(self) -> None:
        self._scheduled = False
        self._send_all()

    def _send_all(self) -> None:
        if self._closed or self._cluster.closed:
            return
        self._buffer.hungry = False
        for node, states in self._by_node().items():
            if node in self._busy:
                continue
            connection = self._cluster.ready_connection(node, CHANNEL)
            if connection is not None:
                pause = connection.throttled_until - self._now()
                if pause > 0:
                    self._kick_at(connection.throttled_until)
                else:
                    self._send(node, connection, states)

    def _by_node(self) -> dict[int, list[PartitionState]]:
        """The partitions to fetch now, by the broker to ask."""
        now = self._now()
        cluster = self._cluster
        nodes: dict[int, list[PartitionState]] = {}
        room = self._max_bytes
        stale = False
        for state in self._subscriptions.partitions.values():
            buffered = state.fetched_bytes - state.drained_bytes
            if not state.paused:
                room -= buffered
            if state.position < 0 or state.paused or state.held or state.validating:
                continue
            if buffered >= AHEAD * (state.fetch_bytes or self._partition_bytes):
                self._buffer.hungry = True
                continue
            if state.retry_at > now:
                self._kick_at(state.retry_at)
                continue
            topic = cluster.topics.get(state.topic)
            if topic is None or state.partition >= len(topic.partitions):
                stale = True
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
                stale = True
        if stale:
            cluster.request_update()
        if room <= 0:
            self._buffer.hungry = True
            return {}
        return nodes

    def _send(self, node: int, connection: Connection, states: list[PartitionState]) -> None:
        session = self._sessions.get(node)
        if session is None:
            session = self._sessions[node] = FetchSession()
        wanted: dict[TopicPartition, Wanted] = {}
        asked: dict[TopicPartition, tuple[PartitionState, int, int]] = {}
        for state in states:
            topic = self._cluster.topics[state.topic]
            wanted[state.tp] = Wanted(
                topic.topic_id,
                state.next_offset,
                topic.partitions[state.partition].leader_epoch,
                state.fetch_bytes or self._partition_bytes,
            )
            asked[state.tp] = state, state.version, state.next_offset
        request, highest = session.request(wanted)
        self._fill(request)
        try:
            version = connection.version_of(FetchRequest.API_KEY, highest)
        except KafkaError as error:
            self._cannot_ask(session, states, error)
            return
        connection.new_buffer = new_buffer
        answer = _Answer(self, node, session, asked, version, self._now())
        self._busy.add(node)
        try:
            connection.send_to(request, version, answer, self._timeout + self._max_wait / 1000)
        except KafkaError as error:
            answer.set_exception(error)

    def _cannot_ask(self, session: FetchSession, states: list[PartitionState], error: KafkaError) -> None:
        """The broker supports no fitting version of Fetch. The next poll raises the error, and fetching is tried again
        later: the broker may be upgraded."""
        session.failed()
        self._problem(states[0], states[0].version, error)
        for state in states:
            state.retry_at = states[0].retry_at
        self.kick()

    def _fill(self, request: FetchRequest) -> None:
        request.max_wait_ms = self._max_wait
        request.min_bytes = self._min_bytes
        request.max_bytes = self._max_bytes
        request.isolation_level = 1 if self.read_committed else 0
        request.rack_id = self._rack

    # --- answers

    def answered(self, answer: _Answer, response: FetchResponse) -> None:
        self._busy.discard(answer.node)
        self._metrics.fetched(self._now() - answer.sent)
        if not answer.session.answered(response):
            error = error_of(response.error_code)
            log.debug("Broker %s ends the fetch session: %s", answer.node, error)
            if response.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._wait(answer)
            self.kick()
            return
        names = answer.session.names
        endpoints = [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
        size = 0
        for topic in response.responses:
            name = names.get(topic.topic_id, "") if answer.version >= FIRST_WITH_TOPIC_IDS else topic.topic
            for data in topic.partitions:
                found = answer.asked.get(TopicPartition(name, data.partition_index))
                if found is None:
                    continue
                state, version, offset = found
                if state.version != version or state.next_offset != offset:
                    continue
                if data.error_code:
                    self._refused(state, data, answer.node, endpoints)
                else:
                    size += self._took(state, version, data)
        # The next request leaves before the program is told of these records: it would keep this thread waiting.
        self._send_all()
        if size:
            self._metrics.fetch_size.add(size)
            self._on_data()

    def failed(self, answer: _Answer, error: BaseException) -> None:
        self._busy.discard(answer.node)
        answer.session.failed()
        if self._closed:
            return
        log.debug("No answer to a fetch from broker %s: %s", answer.node, error)
        self._wait(answer)
        self._cluster.request_update()
        self.kick()

    def _wait(self, answer: _Answer) -> None:
        until = self._now() + self._backoff.delay(1)
        for state, _, _ in answer.asked.values():
            state.preferred = -1
            state.retry_at = until

    def _took(self, state: PartitionState, version: int, data: PartitionData) -> int:
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        state.log_start = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.preferred = data.preferred_read_replica
            state.preferred_until = self._now() + self._replica_age
        records = data.records
        if records is None or not len(records):
            return 0
        after, epoch, end = end_of_batches(records)
        if end == 0:
            self._problem(
                state,
                version,
                KafkaError(
                    ErrorCode.RECORD_LIST_TOO_LARGE,
                    f"{state.tp} has a batch at offset {state.next_offset} that is larger than "
                    f"max.partition.fetch.bytes ({self._partition_bytes}) allows",
                ),
            )
            return 0
        aborted: list[tuple[int, int]] | None = None
        if self.read_committed:
            aborted = sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions or ())
        fetched = Fetched(
            state.topic, state.partition, records, state.next_offset, self._check_crcs, aborted, state, version
        )
        asked = state.fetch_bytes or self._partition_bytes
        if asked < self._most and fetched.size > asked // 2 and state.fetched_bytes == state.drained_bytes:
            state.fetch_bytes = min(2 * asked, self._most)
        state.fetched_bytes += fetched.size
        if after > state.next_offset:
            state.next_offset = after
        state.next_epoch = epoch
        self._buffer.append(fetched)
        return fetched.size

    def _refused(self, state: PartitionState, data: PartitionData, node: int, endpoints: list[Node]) -> None:
        code = data.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if state.preferred >= 0 and node == state.preferred:
                # A follower may not have it yet, or not any more; the leader decides.
                state.preferred = -1
            else:
                self._problem(state, state.version, error_of(code))
        elif code in _NEEDS_METADATA:
            state.preferred = -1
            leader = data.current_leader
            known = self._cluster.update_leader(
                state.topic, state.partition, leader.leader_id, leader.leader_epoch, endpoints
            )
            if not known:
                state.retry_at = self._now() + self._backoff.delay(1)
                self._cluster.request_update()
        elif code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CORRUPT_MESSAGE):
            self._problem(state, state.version, error_of(code, f"{state.tp}: {error_of(code)}"))
        else:
            log.warning("Fetching %s failed: %s", state.tp, error_of(code))
            state.retry_at = self._now() + self._backoff.delay(2)

    def _problem(self, state: PartitionState, version: int, error: KafkaError) -> None:
        state.retry_at = self._now() + self._backoff.delay(3)
        self._on_problem(state, version, error)

    # --- time

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _kick_at(self, when: float) -> None:
        assert self._loop is not None
        if self._timer is not None and (self._timer_at <= when and not self._timer.cancelled()):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.kick()


def _keep_free_memory() -> None:
    """Make glibc keep the memory of responses that were read, instead of returning it to the system.

    glibc returns free memory at the end of the heap when there is more than twice the largest block that was mapped and
    freed. Freeing a block of 4 MB raises that limit. Without it, every poll asks for the same pages again."""
    del bytearray(4 * 1024 * 1024)[:]


class _Answer:
    """Where a fetch's answer goes: handled inside the read that brought it, with no turn of the loop between."""

    __slots__ = ("_done", "asked", "fetcher", "node", "sent", "session", "version")

    def __init__(
        self,
        fetcher: Fetcher,
        node: int,
        session: FetchSession,
        asked: dict[TopicPartition, tuple[PartitionState, int, int]],
        version: int,
        sent: float,
    ) -> None:
        self.fetcher = fetcher
        self.node = node
        self.session = session
        self.asked = asked
        self.version = version
        self.sent = sent
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self._done = True
        try:
            self.fetcher.answered(self, result)
        except Exception as error:
            log.exception("An answer to a fetch could not be taken in")
            self.fetcher.failed(self, error)

    def set_exception(self, exception: BaseException, /) -> None:
        self._done = True
        self.fetcher.failed(self, exception)
