"""The sender drains batches from the accumulator, sends them to the leaders, and handles responses
and retries until each batch has an outcome.

`run` is called on the event loop after every event that may allow a request: a batch is full, a
response arrived, a connection opened, metadata changed, a timer fired. A run sends all batches that
may be sent. A request has at most one batch of each partition. A partition's batches are sent in
order. With idempotence, sequences preserve this order across retries (`sequences.py`). Without
idempotence, the order is preserved only if max.in.flight.requests.per.connection is 1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import UUID

from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.connection import Connection
from kavka.client.errors import ClientClosed, KafkaTimeout, error_of
from kavka.client.metadata import Node, error_code
from kavka.client.producer._append import Accumulator, Batch, PartitionQueue
from kavka.client.producer.completion import Completion
from kavka.client.producer.encoding import encode_batch
from kavka.client.producer.metrics import ProducerMetrics
from kavka.client.producer.sequences import Sequences
from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kavka.protocol.primitives import ZERO_UUID

logger = logging.getLogger(__name__)

PRODUCE = int(ApiKey.PRODUCE)
MIN_PRODUCE_VERSION = 3
"""Older versions of Produce accept only older record formats, which the producer does not write."""
MAX_TOPIC_NAME_VERSION = 12
"""Later versions of Produce identify topics by id."""
MAX_FIRST_PROTOCOL_VERSION = 11
"""With later versions of Produce, the broker adds a partition to the transaction when it receives
the partition's first batch. `transaction_requests.py` describes the two transaction protocols."""

# After these errors the leader may have changed, so the producer needs new metadata.
_NEEDS_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class _PendingRequest:
    """A request in flight. `Connection` completes it like a future."""

    sender: Sender
    batches: list[Batch]
    topic_names: dict[UUID, str]
    api_version: int
    sent_at: float
    is_done: bool = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: Any) -> None:
        self.is_done = True
        self.sender.on_response(self, result)

    def set_exception(self, exception: BaseException) -> None:
        self.is_done = True
        self.sender.on_connection_lost(self, exception)


class Sender:
    """Owns the batches from their removal from the accumulator's queues until their outcome. Only
    the event loop may call it."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        config: ClientConfig,
        sequences: Sequences | None,
        completion: Completion,
        metrics: ProducerMetrics,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._sequences = sequences
        self._completion = completion
        self._metrics = metrics
        self._linger = config.seconds("linger.ms")
        self._acks = -1 if config["acks"] == "all" else int(config["acks"])
        self._max_in_flight = config["max.in.flight.requests.per.connection"]
        self._max_request_size = config["max.request.size"]
        self._retries = config["retries"]
        self._request_timeout_ms = config["request.timeout.ms"]
        self._delivery_timeout = config.seconds("delivery.timeout.ms")
        self._backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])
        self._transactional_id: str | None = config["transactional.id"]
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._running = False
        self._stopped = False
        # Hooks of the transactions and the core. `on_tick` is called at least every second.
        self.may_send: Callable[[PartitionQueue], bool] = lambda queue: True
        self.request_producer_id: Callable[[], None] = lambda: None
        self.on_failure: Callable[[KafkaError], None] = lambda error: None
        self.on_doubt: Callable[[], None] = lambda: None
        self.on_tick: Callable[[], None] = lambda: None
        self.second_protocol = False
        self.flush_all = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._cluster.on_connection_change(lambda node_id: self.run())
        self._expire_batches()

    def stop(self) -> None:
        """Send no more requests. Batches without an outcome stay as they are."""
        self._stopped = True
        for timer in (self._timer, self._expiry_timer):
            if timer is not None:
                timer.cancel()

    # --- choosing batches

    def run(self) -> None:
        """Send all batches that may be sent now."""
        accumulator = self._accumulator
        accumulator.awake = False
        if self._running or self._stopped or not accumulator.pending:
            return
        self._running = True
        try:
            if not self._prepare_sequences():
                return
            next_time = self._send_all()
            if next_time < _NEVER:
                self._set_timer(next_time)
        except Exception:
            logger.exception("The sender failed; retrying")
            self._set_timer(monotonic() + 0.1)
        finally:
            self._running = False

    def _prepare_sequences(self) -> bool:
        """Resolve abandoned batches and bump the epoch if necessary. Returns whether batches can be
        sent: with idempotence, a producer id is required."""
        sequences = self._sequences
        if sequences is None:
            return True
        if sequences.resolve():
            self.on_doubt()
        sequences.bump_epoch()
        if not sequences.has_producer_id:
            self.request_producer_id()
            return sequences.has_producer_id
        return True

    def _send_all(self) -> float:
        """Send requests until no broker accepts more. Returns the time at which the linger time or
        backoff of the next batch ends."""
        while True:
            # By broker id: its connection, or None if it does not accept a request now.
            brokers: dict[int, Connection | None] = {}
            batches_by_node, next_time = self._choose(brokers)
            if not batches_by_node:
                return next_time
            for node_id, batches in batches_by_node.items():
                connection = brokers[node_id]
                assert connection is not None
                self._send(connection, batches)

    def _choose(self, brokers: dict[int, Connection | None]) -> tuple[dict[int, list[Batch]], float]:
        """Drain at most one batch of each partition. Returns the batches by broker id, and the time
        at which the linger time or backoff of the next batch ends. Adds the connections to
        `brokers`."""
        accumulator, sequences, linger = self._accumulator, self._sequences, self._linger
        batches_by_node: dict[int, list[Batch]] = {}
        sizes: dict[int, int] = {}
        next_time = _NEVER
        now = monotonic()
        with accumulator.lock:
            ignores_linger = accumulator.flushing or accumulator.closed or accumulator.room_waiters or self.flush_all
            for queue in list(accumulator.pending):
                head = queue.batches[0]
                if head.attempts:
                    ready_at = queue.retry_at
                elif ignores_linger or head is not queue.tail or head.size >= queue.target:
                    ready_at = 0.0
                else:
                    ready_at = head.created + linger
                if ready_at > now:
                    next_time = min(next_time, ready_at)
                    continue
                leader = queue.leader
                if leader not in brokers:
                    brokers[leader] = self._available_connection(leader)
                if brokers[leader] is None:
                    if leader not in self._cluster.nodes:
                        # Metadata covers only topics in use; this topic may have been idle for
                        # longer than metadata.max.idle.ms.
                        self._cluster.add_topic(queue.topic)
                    continue
                if sequences is not None:
                    if not sequences.may_send(queue, head):
                        continue
                elif self._max_in_flight == 1 and queue.in_flight:
                    continue
                if not self.may_send(queue):
                    continue
                size = sizes.get(leader, 0)
                if size and size + head.size > self._max_request_size:
                    continue
                sizes[leader] = size + head.size
                self._drain(queue, head)
                batches_by_node.setdefault(leader, []).append(head)
        return batches_by_node, next_time

    def _available_connection(self, node_id: int) -> Connection | None:
        """Return the connection if it accepts a request now. Otherwise returns None, and `run` is
        called again later."""
        if node_id < 0 or node_id not in self._cluster.nodes:
            self._cluster.request_update()
            return None
        connection = self._cluster.ready_connection(node_id)
        if connection is None or connection.in_flight >= self._max_in_flight:
            return None
        now = monotonic()
        if connection.throttled_until > now:
            self._set_timer(connection.throttled_until)
            return None
        if not connection.writable:
            self._set_timer(now + 0.001)
            return None
        return connection

    def _drain(self, queue: PartitionQueue, batch: Batch) -> None:
        """Remove the batch from its queue, close it and assign its sequence. The caller holds the
        lock."""
        queue.batches.popleft()
        if batch is queue.tail:
            queue.tail = None
        # Move the queue to the end, so that other partitions are first in the next run.
        del self._accumulator.pending[queue]
        if queue.batches:
            self._accumulator.pending[queue] = None
        batch.in_flight = True
        if self._sequences is not None:
            self._sequences.assign(queue, batch)
        else:
            queue.in_flight.append(batch)

    # --- sending

    def _send(self, connection: Connection, batches: list[Batch]) -> None:
        now = monotonic()
        metrics = self._metrics
        topics: dict[str, TopicProduceData] = {}
        names: dict[UUID, str] = {}
        try:
            max_version = None
            if self._transactional_id is not None and not self.second_protocol:
                max_version = MAX_FIRST_PROTOCOL_VERSION
            api_version = connection.version_of(PRODUCE, max_version)
            if api_version < MIN_PRODUCE_VERSION:
                raise error_of(
                    ErrorCode.UNSUPPORTED_VERSION, f"{connection.name} does not support record format version 2"
                )
            for batch in batches:
                queue = batch.queue
                topic = topics.get(queue.topic)
                if topic is None:
                    metadata = self._cluster.topics.get(queue.topic)
                    topic_id = ZERO_UUID if metadata is None else metadata.topic_id
                    topic = topics[queue.topic] = TopicProduceData(name=queue.topic, topic_id=topic_id)
                    names[topic_id] = queue.topic
                    # The topic is in use: keep it in the metadata.
                    self._cluster.add_topic(queue.topic)
                was_encoded = batch.data is not None
                data = encode_batch(batch, queue.codec, queue.level, self._transactional_id is not None)
                if not was_encoded or (batch.codec >= 0 and not batch.attempts):
                    metrics.batches += 1
                    metrics.batch_bytes += batch.size
                    metrics.queue_time += now - batch.created
                    metrics.compressed_bytes += len(data)
                if not was_encoded and queue.codec:
                    self._completion.shrink(batch, len(data))
                topic.partition_data.append(PartitionProduceData(index=queue.partition, records=data))
            if ZERO_UUID in names:
                api_version = min(api_version, MAX_TOPIC_NAME_VERSION)
            request = ProduceRequest(
                transactional_id=self._transactional_id,
                acks=self._acks,
                timeout_ms=self._request_timeout_ms,
                topic_data=list(topics.values()),
            )
            pending_request = _PendingRequest(self, batches, names, api_version, now)
            for batch in batches:
                batch.attempts += 1
            metrics.requests += 1
            if self._acks == 0:
                connection.send_one_way(request, api_version)
                for batch in batches:
                    self._complete(batch, -1, -1)
            else:
                connection.send_with_handler(request, api_version, pending_request, self._request_timeout_ms / 1000)
        except KafkaError as error:
            for batch in batches:
                self._handle_error(batch, error.code, str(error), is_not_stored=not batch.attempts)
        except Exception as error:
            logger.exception("Cannot build or send a produce request")
            for batch in batches:
                self._handle_error(batch, ErrorCode.UNKNOWN_SERVER_ERROR, f"the batch cannot be sent: {error!r}")

    # --- responses

    def on_response(self, request: _PendingRequest, response: ProduceResponse) -> None:
        metrics = self._metrics
        latency = monotonic() - request.sent_at
        metrics.responses += 1
        metrics.latency += latency
        metrics.latency_max = max(metrics.latency_max, latency)
        metrics.throttle += response.throttle_time_ms
        pending = {(batch.queue.topic, batch.queue.partition): batch for batch in request.batches}
        nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
        for topic in response.responses:
            name = (
                topic.name
                if request.api_version <= MAX_TOPIC_NAME_VERSION
                else request.topic_names.get(topic.topic_id, "")
            )
            for partition in topic.partition_responses:
                batch = pending.pop((name, partition.index), None)
                if batch is None or batch.done or batch.parts is not None:
                    continue
                if partition.error_code == 0:
                    self._complete(batch, partition.base_offset, partition.log_append_time_ms)
                    continue
                leader = partition.current_leader
                if leader.leader_id >= 0:
                    self._cluster.update_leader(name, partition.index, leader.leader_id, leader.leader_epoch, nodes)
                self._handle_error(
                    batch,
                    error_code(partition.error_code),
                    partition.error_message,
                    partition.log_start_offset,
                    {r.batch_index: r.batch_index_error_message for r in partition.record_errors},
                )
        for batch in pending.values():
            if not batch.done and batch.parts is None:
                self._handle_error(
                    batch, ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's response does not contain the batch"
                )
        self.run()

    def on_connection_lost(self, request: _PendingRequest, error: BaseException) -> None:
        """Handle a lost connection: the broker may or may not have stored the batches."""
        is_closed = isinstance(error, ClientClosed)
        for batch in request.batches:
            if not batch.done and batch.parts is None:
                code = ErrorCode.UNKNOWN_SERVER_ERROR if is_closed else ErrorCode.NETWORK_EXCEPTION
                self._handle_error(batch, code, str(error), is_not_stored=False)
        if not is_closed:
            self._loop.call_soon(self.run)

    def _complete(self, batch: Batch, base_offset: int, log_append_time: int) -> None:
        if self._sequences is not None:
            self._sequences.on_stored(batch, base_offset)
        elif batch in batch.queue.in_flight:
            batch.queue.in_flight.remove(batch)
        self._metrics.records += batch.count
        self._completion.finish(batch, base_offset, log_append_time, None, reuse=self._acks != 0)

    def _handle_error(
        self,
        batch: Batch,
        code: ErrorCode,
        message: str | None,
        log_start_offset: int = -1,
        record_errors: dict[int, str | None] | None = None,
        is_not_stored: bool = True,
    ) -> None:
        """Retry, split, or fail the batch. `is_not_stored` means that the broker cannot have stored
        the batch in this attempt."""
        queue, sequences = batch.queue, self._sequences
        batch.in_flight = False
        if code in _NEEDS_METADATA:
            self._cluster.request_update()
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # The broker has stored the batch, but its offset is unknown.
            self._complete(batch, -1, -1)
            return
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            self._split(batch)
            return
        may_retry = batch.attempts <= self._retries and monotonic() < batch.created + self._delivery_timeout
        if may_retry and self._is_retriable(batch, code, log_start_offset):
            self._metrics.record_retries += batch.count
            queue.retry_at = monotonic() + self._backoff.delay(batch.attempts)
            logger.debug("%s-%d: %s, retrying", queue.topic, queue.partition, code.name)
            self._put_back(queue, [batch])
            return
        if sequences is None and batch in queue.in_flight:
            queue.in_flight.remove(batch)
        error = error_of(code, message)
        self.on_failure(error)
        if sequences is not None:
            if is_not_stored and may_retry:
                sequences.on_failed(batch, code)
            else:
                # The broker may have stored one of the attempts.
                sequences.abandon(batch)
        self.fail(batch, error, record_errors, reuse=is_not_stored)

    def _is_retriable(self, batch: Batch, code: ErrorCode, log_start_offset: int) -> bool:
        if self._sequences is not None and batch.base_sequence >= 0:
            return self._sequences.should_retry(batch, code, log_start_offset)
        return KafkaError(code).retriable

    def fail(
        self, batch: Batch, error: KafkaError, record_errors: dict[int, str | None] | None = None, reuse: bool = False
    ) -> None:
        """Set an error as the outcome. If `record_errors` names invalid records, the other records
        of the batch fail with INVALID_RECORD, because the broker stores none of them."""
        queue = batch.queue
        errors: dict[int, KafkaError] | None = None
        if record_errors:
            errors = {i: KafkaError(error.code, text or error.message) for i, text in record_errors.items()}
            error = KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{queue.topic}-{queue.partition}: other records of the batch are invalid: {error.message}",
            )
        self._metrics.record_errors += batch.count
        self._completion.finish(batch, -1, -1, error, errors, reuse=reuse)

    def _put_back(self, queue: PartitionQueue, batches: Iterable[Batch]) -> None:
        """Return batches to the front of the queue, ordered by their numbers."""
        accumulator = self._accumulator
        with accumulator.lock:
            for batch in batches:
                batch.in_flight = False
                if self._sequences is None and batch in queue.in_flight:
                    queue.in_flight.remove(batch)
                index = 0
                for other in queue.batches:
                    if not other.attempts or (other.number, other.first) > (batch.number, batch.first):
                        break
                    index += 1
                queue.batches.insert(index, batch)
            accumulator.pending[queue] = None

    def _split(self, batch: Batch) -> None:
        """Replace a batch that is too large with smaller batches that have the same records and
        sequences."""
        self._metrics.batch_splits += 1
        parts = self._completion.split(batch)
        queue = batch.queue
        if self._sequences is not None and batch.base_sequence >= 0:
            self._sequences.replace(batch, parts)
        elif batch in queue.in_flight:
            queue.in_flight.remove(batch)
        queue.retry_at = 0.0
        for part in parts:
            part.attempts = batch.attempts
        self._put_back(queue, parts)

    # --- time

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        self.run()

    def _expire_batches(self) -> None:
        """Fail sent and unsent batches older than `delivery.timeout.ms`."""
        if self._stopped:
            return
        self._expiry_timer = self._loop.call_later(
            min(1.0, max(0.02, self._delivery_timeout / 20)), self._expire_batches
        )
        created_before = monotonic() - self._delivery_timeout
        expired: list[Batch] = []
        with self._accumulator.lock:
            for batch in self._accumulator.incomplete:
                if batch.created > created_before:
                    break
                if batch.parts is None:
                    expired.append(batch)
        for batch in expired:
            self._expire(batch)
        if expired:
            self.run()
        self.on_tick()

    def _expire(self, batch: Batch) -> None:
        queue = batch.queue
        if batch.done:
            return
        waited = monotonic() - batch.created
        was_sent = batch.attempts > 0
        error = KafkaTimeout(
            f"{queue.topic}-{queue.partition}: {batch.count} records were not "
            f"{'acknowledged' if was_sent else 'sent'} within {waited:.1f} s (delivery.timeout.ms)"
        )
        self.drop(batch, error)
        self.on_failure(error)

    def drop(self, batch: Batch, error: KafkaError) -> None:
        """Remove a batch from its queue and fail it, because it is expired or purged or its
        producer is closed. If the batch has a sequence, the partition is unresolved afterwards."""
        queue = batch.queue
        with self._accumulator.lock:
            if batch in queue.batches:
                queue.batches.remove(batch)
                if batch is queue.tail:
                    queue.tail = None
                if not queue.batches:
                    self._accumulator.pending.pop(queue, None)
        if self._sequences is not None and batch.base_sequence >= 0:
            self._sequences.abandon(batch)
        elif batch in queue.in_flight:
            queue.in_flight.remove(batch)
        self.fail(batch, error)
