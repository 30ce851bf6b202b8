"""The core that the blocking producer (`producer.py`) and the asyncio producer (`aio.py`) share.

`steps` is the slow path of `send`, for everything that the fast path in `_append.py` does not
handle. It is a generator that yields conditions; the blocking and the asyncio producer wait for
them in different ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from time import monotonic, time
from typing import Any

from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.errors import (
    BufferExhausted,
    ClientClosed,
    IllegalState,
    KafkaTimeout,
    Purged,
    SchemaRegistryError,
    SerializationError,
    error_of,
)
from kavka.client.metadata import TopicMetadata
from kavka.client.producer._append import (
    RECORD_OVERHEAD,
    Accumulator,
    Batch,
    PartitionQueue,
    RecordFuture,
    SendPath,
    TopicQueues,
)
from kavka.client.producer.completion import Completion
from kavka.client.producer.encoding import encoded_headers
from kavka.client.producer.failures import FailureLog
from kavka.client.producer.interceptors import Interceptors
from kavka.client.producer.metrics import ProducerMetrics
from kavka.client.producer.partitioners import (
    UniformStickyPartitioner,
    make_partitioner,
    next_sticky,
    partition_of_key,
)
from kavka.client.producer.record import Callback, ProducerRecord
from kavka.client.producer.send_batch import BatchFuture, content_of
from kavka.client.producer.sender import Sender
from kavka.client.producer.sequences import Sequences
from kavka.client.producer.transactions import ENDING, State, Transactions
from kavka.client.serializers import AutoSerializer, BytesSerializer, Convert, make_serializer
from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest
from kavka.records.batch import Buffer
from kavka.records.compression import CODEC_IDS, CODEC_NAMES, DEFAULT_LEVELS, GZIP

logger = logging.getLogger(__name__)

_auto_serializer = AutoSerializer()


@dataclass(slots=True)
class WaitForTopic:
    """`steps` needs the metadata of this topic. `newer` requires a new metadata response."""

    topic: str
    timeout: float
    newer: bool = False


@dataclass(slots=True)
class WaitForRoom:
    """`steps` needs room in the buffer. `releases` is `Accumulator.releases` before the append that
    found no room."""

    accumulator: Accumulator
    timeout: float
    releases: int

    def register(self, waiter: Callable[[], object]) -> bool:
        """Call `waiter` when there may be room. Returns False if room was freed since the append or
        the accumulator is closed; the caller must then retry immediately."""
        with self.accumulator.lock:
            if self.accumulator.closed or self.accumulator.releases != self.releases:
                return False
            self.accumulator.room_waiters.append(waiter)
            return True


Steps = Generator["WaitForTopic | WaitForRoom", Any, RecordFuture]


class ProducerCore:
    """Owns the accumulator, the sender, the cluster client and the transactions of one producer.

    The application's threads call `steps` and `batch_steps`. All other methods run on the event
    loop, except methods that any thread may call according to their docstring.
    """

    def __init__(self, config: ClientConfig, cluster: Cluster | None = None) -> None:
        self.config = config
        self.closed = False
        self.fatal: KafkaError | None = None
        self.metrics = ProducerMetrics()
        configs = config.originals
        key_object, self._serialize_key = make_serializer("key.serializer", config["key.serializer"], configs)
        value_object, self._serialize_value = make_serializer("value.serializer", config["value.serializer"], configs)
        self.interceptors = Interceptors(config["interceptor.classes"], configs)
        self._partitioner = make_partitioner(config["partitioner.class"], configs)
        ignore_keys = config["partitioner.ignore.keys"]
        if isinstance(self._partitioner, UniformStickyPartitioner):
            self._partitioner, ignore_keys = None, True
        self._ignore_keys = ignore_keys
        self._policy = config["buffer.full.policy"]
        self._max_block = config.seconds("max.block.ms")
        self.accumulator = Accumulator(
            config["batch.size"],
            config["batch.max.bytes"],
            config["buffer.memory"],
            config["max.request.size"],
            config["batch.num.messages"],
            config["queue.buffering.max.messages"],
            self._wake,
            next_sticky,
        )
        self.completion = Completion(self.accumulator)
        self.failures = FailureLog(self.accumulator.unreported_failures, config["transactional.id"] is not None)
        self.cluster = cluster or Cluster(config, allow_auto_create=True)
        transactional = config["transactional.id"] is not None
        self.sequences = Sequences(transactional) if config["enable.idempotence"] else None
        self.sender = Sender(self.cluster, self.accumulator, config, self.sequences, self.completion, self.metrics)
        self.sender.on_tick = self.failures.report
        self.transactions: Transactions | None = None
        if transactional:
            assert self.sequences is not None
            self.transactions = self._make_transactions(self.sequences)
        elif self.sequences is not None:
            self.sender.request_producer_id = self._request_producer_id
        self.queues: dict[str, TopicQueues] = {}
        self._text = key_object is None and value_object is None
        # The fast path accepts bytes, and strings as UTF-8. Interceptors, custom partitioners and
        # other serializers require the slow path.
        self._allows_fast_path = (
            not self.interceptors
            and self._partitioner is None
            and config["producer.type"] == "async"
            and all(item is None or type(item) is BytesSerializer for item in (key_object, value_object))
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer_id_task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def _make_transactions(self, sequences: Sequences) -> Transactions:
        transactions = Transactions(
            self.cluster,
            self.config,
            sequences,
            on_state=self._on_transaction_state,
            flush=self.flush,
            has_unsent=lambda: bool(self.accumulator.incomplete),
            drop_unsent=self.drop_unsent,
            wake=self.sender.run,
        )
        self.accumulator.transaction = -1
        self.sender.may_send = transactions.may_send
        self.sender.on_failure = transactions.fail
        self.sender.on_doubt = transactions.fail_in_doubt
        return transactions

    def configure_path(self, path: SendPath) -> None:
        """Set up the fast path. The core keeps no reference to `path`: the blocking producer
        is a SendPath, and must be garbage collected after the application drops it, while its event
        loop still runs."""
        path._ignore_keys = self._ignore_keys
        path._accepts_text_keys = path._accepts_text_values = self._text

    # --- start and stop, on the loop

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.accumulator.loop_thread = get_ident()
        self.cluster.on_update(self._on_metadata)
        await self.cluster.start()
        self.sender.start()

    @property
    def is_open(self) -> bool:
        return self._loop is not None and not self.closed

    def abandon(self) -> None:
        """Close a producer that the application dropped, on its event loop and without waiting. Any
        thread may call it."""
        loop = self._loop
        assert loop is not None
        if loop.is_closed():
            logger.warning("The producer's event loop is closed: %d records are lost", self.accumulator.records)
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._close_abandoned)

    def _close_abandoned(self) -> None:
        if not self.closed:
            self._closing = asyncio.ensure_future(self.close(None))

    async def close(self, timeout: float | None) -> None:
        """Abort an open transaction and send the remaining records. Records that are not
        acknowledged within `timeout` seconds fail."""
        self.closed = True
        self.accumulator.topics = {}
        deadline = None if timeout is None else monotonic() + timeout
        try:
            if self.transactions is not None:
                await self.transactions.finish(30.0 if timeout is None else timeout)
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - monotonic())):
                await self.flush()
        except (TimeoutError, KafkaError):
            logger.warning(
                "The producer was closed before all records were sent: %d records fail", self.accumulator.records
            )
        finally:
            # Even if the closing task is cancelled, every record gets an outcome.
            await self._end()

    async def _end(self) -> None:
        with self.accumulator.lock:
            self.accumulator.closed = True
        self.sender.stop()
        if self._producer_id_task is not None:
            self._producer_id_task.cancel()
        await self.cluster.close()
        self.fail_all(ClientClosed("the producer was closed before the record was sent"))
        self.failures.report(final=True)
        self.interceptors.close()
        close_partitioner = getattr(self._partitioner, "close", None)
        if callable(close_partitioner):
            try:
                close_partitioner()
            except Exception:
                logger.exception("Cannot close the partitioner")

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(self.sender.run)
            except RuntimeError:
                logger.debug("Cannot wake the sender: the event loop is closed")

    # --- metadata

    def _on_metadata(self, cluster: Cluster) -> None:
        """Copy leaders and partition counts into the queues, and update the fast path's topics."""
        with self.accumulator.lock:
            for name, topic in cluster.topics.items():
                queues = self.queues.get(name)
                if queues is None:
                    queues = TopicQueues(name)
                self._update_topic(queues, topic)
                self.queues[name] = queues
        self._update_fast_path()
        self.sender.run()

    def _update_topic(self, queues: TopicQueues, topic: TopicMetadata) -> None:
        while len(queues.queues) < len(topic.partitions):
            queue = PartitionQueue(self.accumulator, queues.name, len(queues.queues))
            queue.codec, queue.level = self._compression(queues.name)
            queues.queues.append(queue)
        for partition in topic.partitions:
            queues.queues[partition.partition].leader = partition.leader
        # A topic that has fewer partitions than before was deleted and recreated.
        for queue in queues.queues[len(topic.partitions) :]:
            queue.leader = -1
        queues.count = len(topic.partitions)
        if queues.available != topic.available:
            queues.available = topic.available
            queues.sticky = next_sticky(queues)

    def _compression(self, topic: str) -> tuple[int, int | None]:
        codec = CODEC_IDS[self.config["compression.type"]]
        compressed_topics = self.config["compressed.topics"]
        if not codec or (compressed_topics and topic not in compressed_topics):
            return 0, None
        if codec not in DEFAULT_LEVELS:
            return codec, None
        level: int = self.config[f"compression.{CODEC_NAMES[codec]}.level"]
        return codec, None if codec == GZIP and level == -1 else level

    def _update_fast_path(self) -> None:
        """Set the topics for which `send` may use the fast path."""
        is_usable = self._allows_fast_path and not self.closed and self.fatal is None
        if self.transactions is not None:
            is_usable = is_usable and self.transactions.state is State.IN_TRANSACTION
        topics = self.cluster.topics
        self.accumulator.topics = {name: q for name, q in self.queues.items() if name in topics} if is_usable else {}

    def _on_transaction_state(self) -> None:
        assert self.transactions is not None
        is_open = self.transactions.state is State.IN_TRANSACTION
        self.sender.second_protocol = self.transactions.second_protocol
        self.sender.flush_all = self.transactions.state in ENDING
        with self.accumulator.lock:
            self.accumulator.transaction = self.transactions.number if is_open else -1
        self._update_fast_path()
        if not is_open:
            # A `send` that waits for room must fail, since its transaction is no longer open.
            self._wake_room_waiters()

    def require_transactions(self) -> Transactions:
        if self.transactions is None:
            raise IllegalState("transactions require a transactional.id")
        return self.transactions

    # --- send

    def steps(
        self,
        transaction: int,
        topic: Any,
        value: Any,
        key: Any,
        partition: Any,
        timestamp: Any,
        headers: Any,
        callback: Callback | None,
    ) -> Steps:
        """Send a record and return its future. `transaction` is the value of
        `Accumulator.transaction` when `send` was called.

        Raises errors of the call itself: an invalid argument, a value that cannot be serialized, a
        closed producer, a transaction that has ended. Other errors, such as a timeout or a full
        buffer, are the outcome of the future.
        """
        if self.closed:
            raise ClientClosed("the producer is closed")
        record = (
            topic
            if isinstance(topic, ProducerRecord)
            else ProducerRecord(topic, value, key, partition, timestamp, headers)
        )
        if not isinstance(record.topic, str):
            raise TypeError(f"the topic must be text, not {type(record.topic).__name__}")
        if record.timestamp is not None and (not isinstance(record.timestamp, int) or record.timestamp < 0):
            raise ValueError(f"the timestamp must be milliseconds since 1970, not {record.timestamp!r}")
        if record.partition is not None and (not isinstance(record.partition, int) or record.partition < 0):
            raise ValueError(f"the partition must be a number of 0 or more, not {record.partition!r}")
        if self.interceptors:
            record = self.interceptors.on_send(record)
        callback = self.interceptors.callback(callback)
        try:
            if self.fatal is not None:
                raise self.fatal
            self._check_open(transaction)
            return (yield from self._append(transaction, record, callback))
        except (ClientClosed, IllegalState, SchemaRegistryError, SerializationError) as error:
            self.interceptors.on_acknowledgement(None, error)
            raise
        except KafkaError as error:
            if self.transactions is not None:
                self._call_on_loop(partial(self.transactions.fail, error, transaction))
            future = self._failed_future(error, record)
            if callback is not None:
                try:
                    callback(*future.outcome())
                except Exception:
                    logger.exception("A producer callback raised an exception")
            return future

    def batch_steps(
        self, transaction: int, topic: str, partition: int, data: Buffer, first: int, end: int
    ) -> Generator[WaitForTopic | WaitForRoom, Any, BatchFuture]:
        """Like `steps`, for the records of a fetched batch (`send_batch.py`). Raises all errors."""
        if self.closed:
            raise ClientClosed("the producer is closed")
        if self.fatal is not None:
            raise self.fatal
        content = content_of(data, first, end)
        deadline = monotonic() + self._max_block
        queues = yield from self._topic(topic, partition, deadline)
        while True:
            queue = queues.queues[partition]
            self._add_to_transaction(queue, transaction)
            releases = self.accumulator.releases
            future = content.append(self.accumulator, queue, transaction)
            if future is not None:
                return future
            yield from self._room(deadline, transaction, releases)

    def _check_open(self, transaction: int) -> None:
        if self.transactions is not None:
            self.transactions.check_open(transaction)

    def _add_to_transaction(self, queue: PartitionQueue, transaction: int) -> None:
        """Add the partition to the transaction. Raises an error if the transaction is not open. The
        transaction may end after this check, so the append checks again."""
        if self.transactions is None:
            return
        self.transactions.check_open(transaction)
        if queue.in_transaction != transaction:
            with self.accumulator.lock:
                if self.accumulator.transaction == transaction:
                    self.transactions.add(queue)

    def _append(self, transaction: int, record: ProducerRecord, callback: Callback | None) -> Steps:
        deadline = monotonic() + self._max_block
        queues = yield from self._topic(record.topic, record.partition, deadline)
        headers = encoded_headers(record.headers)
        key = self._serialize("key", self._serialize_key, record.topic, record.key, record.headers)
        value = self._serialize("value", self._serialize_value, record.topic, record.value, record.headers)
        size = RECORD_OVERHEAD + len(headers) + len(key or b"") + len(value or b"")
        for limit, name in (
            (self.accumulator.max_record, "max.request.size"),
            (self.accumulator.buffer_limit, "buffer.memory"),
        ):
            if size > limit:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE, f"the record has {size} bytes, more than {name} ({limit})"
                )
        timestamp = record.timestamp if record.timestamp is not None else int(time() * 1000)
        while True:
            queue = queues.queues[self._partition(queues, record, key, value, size)]
            self._add_to_transaction(queue, transaction)
            releases = self.accumulator.releases
            future = self.accumulator.append(queue, transaction, timestamp, key, value, headers, callback)
            if future is not None:
                return future
            yield from self._room(deadline, transaction, releases)

    def _topic(self, name: str, partition: int | None, deadline: float) -> Generator[WaitForTopic, Any, TopicQueues]:
        queues = self.queues.get(name) if name in self.cluster.topics else None
        newer = False
        while queues is None or (partition is not None and partition >= queues.count) or not queues.count:
            try:
                yield WaitForTopic(name, max(0.0, deadline - monotonic()), newer)
            except KafkaTimeout:
                if queues is None:
                    raise
                raise KafkaTimeout(
                    f"topic {name} has no partition {partition}: it has {queues.count} partitions"
                ) from None
            queues = self.queues.get(name)
            newer = True
        return queues

    def _room(self, deadline: float, transaction: int, releases: int) -> Generator[WaitForRoom, Any, None]:
        """Wait for room after an append that returned None. Raises an error if the producer is
        closed, the transaction is not open, or the wait timed out or is not allowed."""
        self._check_not_closed()
        self._check_open(transaction)
        remaining = deadline - monotonic()
        if self._policy == "fail" or remaining <= 0:
            accumulator = self.accumulator
            waited = "" if self._policy == "fail" else f" for {self._max_block:g} s"
            raise BufferExhausted(
                f"the buffer is full{waited}: {accumulator.used} of {accumulator.buffer_limit} bytes and "
                f"{accumulator.records} records are pending (buffer.memory, buffer.full.policy)"
            )
        if self._policy == "clear":
            self._call_on_loop(partial(self._clear_for, transaction))
        yield WaitForRoom(self.accumulator, max(0.0, remaining), releases)
        self._check_not_closed()

    def _check_not_closed(self) -> None:
        if self.closed:
            raise ClientClosed("the producer was closed before the record was buffered")

    def _clear_for(self, transaction: int) -> None:
        if transaction == self.accumulator.transaction:
            self.purge()

    def _call_on_loop(self, work: Callable[[], object]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            raise ClientClosed("the producer is closed") from None

    def _serialize(self, field: str, convert: Convert | None, topic: str, value: Any, headers: Any) -> Any:
        try:
            data = _auto_serializer.serialize(topic, value) if convert is None else convert(topic, value, headers)
        except (SerializationError, SchemaRegistryError):
            raise
        except Exception as error:
            raise SerializationError(f"the {field} for topic {topic} cannot be serialized: {error}") from error
        if data is None or isinstance(data, bytes):
            return data
        if isinstance(data, (bytearray, memoryview)):
            return bytes(data)
        raise SerializationError(f"the {field}'s serializer returned a {type(data).__name__}, not bytes")

    def _partition(
        self, queues: TopicQueues, record: ProducerRecord, key: bytes | None, value: bytes | None, size: int
    ) -> int:
        if record.partition is not None:
            return record.partition
        if self._partitioner is not None:
            topic = self.cluster.topics.get(queues.name)
            if topic is None:
                raise KafkaTimeout(f"no metadata of topic {queues.name}")
            partition = self._partitioner.partition(queues.name, record.key, key, record.value, value, topic)
            if not isinstance(partition, int) or not 0 <= partition < queues.count:
                raise ValueError(f"the partitioner returned {partition!r}; {queues.name} has {queues.count} partitions")
            return partition
        if key is not None and not self._ignore_keys:
            return partition_of_key(key, queues.count)
        with self.accumulator.lock:
            partition = queues.sticky
            queues.sticky_bytes += size
            if queues.sticky_bytes >= self.accumulator.batch_size and queues.count > 1:
                queues.sticky_bytes = 0
                queues.sticky = next_sticky(queues)
        return partition

    def _failed_future(self, error: KafkaError, record: ProducerRecord) -> RecordFuture:
        """Return a failed future for a record that was not appended to a batch of the
        accumulator."""
        partition = -1 if record.partition is None else record.partition
        batch = Batch(PartitionQueue(self.accumulator, record.topic, partition), -1, None)
        batch.count = 1
        # Remove the traceback: its frames refer to the future and would keep it alive.
        batch.error = error.with_traceback(None)
        batch.done = True
        return RecordFuture(batch, 0, -1, -1, -1)

    # --- pending batches

    def snapshot(self) -> list[Batch]:
        """Return the batches without an outcome, the oldest first."""
        with self.accumulator.lock:
            return list(self.accumulator.incomplete)

    async def flush(self) -> None:
        """Wait until every record of an earlier `send` has an outcome."""
        accumulator = self.accumulator
        with accumulator.lock:
            accumulator.flushing += 1
            end = accumulator.next_number
        try:
            self.sender.run()
            # Keep no reference to a batch while waiting: see `Batch.__del__`.
            while (waiter := self._waiter_before(end)) is not None:
                await waiter
        finally:
            with accumulator.lock:
                accumulator.flushing -= 1

    def _waiter_before(self, end: int) -> asyncio.Future[None] | None:
        """Return a future that completes with the newest batch whose number is below `end`, or None
        if there is no such batch. The parts of a split batch have the number of that batch."""
        with self.accumulator.lock:
            for batch in reversed(self.accumulator.incomplete):
                if batch.number < end:
                    waiter = asyncio.get_running_loop().create_future()
                    batch.add_waiter(partial(_complete, waiter))
                    return waiter
        return None

    def purge(self, in_queue: bool = True, in_flight: bool = False) -> int:
        """Drop records that were never sent (`in_queue`), and records that were sent but not
        acknowledged (`in_flight`), which the broker may still store. Their outcome is Purged, and
        their transaction fails. Returns the number of dropped records."""
        count = 0
        for batch in self.snapshot():
            if batch.done or batch.parts is not None:
                continue
            if in_flight if batch.attempts else in_queue:
                count += batch.count
                self.sender.drop(batch, Purged("the record was purged from the producer's buffer"))
        if count and self.transactions is not None:
            self.transactions.fail(Purged(f"{count} records of the transaction were purged"))
        self.sender.run()
        return count

    def drop_unsent(self, error: KafkaError) -> None:
        """Fail the batches without a sequence. Called when their transaction is aborted."""
        for batch in self.snapshot():
            if not batch.done and batch.parts is None and batch.base_sequence < 0:
                self.sender.drop(batch, error)

    def fail_all(self, error: KafkaError) -> None:
        for batch in self.snapshot():
            if not batch.done and batch.parts is None:
                self.sender.drop(batch, error)
        self._wake_room_waiters()

    def _wake_room_waiters(self) -> None:
        with self.accumulator.lock:
            self.accumulator.releases += 1
            waiters, self.accumulator.room_waiters = self.accumulator.room_waiters, []
        for waiter in waiters:
            waiter()

    # --- the producer id of an idempotent producer without transactions

    def _request_producer_id(self) -> None:
        if self._producer_id_task is None or self._producer_id_task.done():
            self._producer_id_task = asyncio.ensure_future(self._get_producer_id())

    async def _get_producer_id(self) -> None:
        assert self.sequences is not None
        backoff = Backoff(self.config["retry.backoff.ms"], self.config["retry.backoff.max.ms"])
        failures = 0
        while not self.sequences.has_producer_id and not self.cluster.closed:
            try:
                request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0x7FFFFFFF)
                response = await self.cluster.request(None, request)
                if response.error_code:
                    raise error_of(response.error_code)
                self.sequences.set(response.producer_id, response.producer_epoch)
            except KafkaError as error:
                if not error.retriable:
                    self._fail_permanently(error)
                    return
                failures += 1
                await asyncio.sleep(backoff.delay(failures))
        self.sender.run()

    def _fail_permanently(self, error: KafkaError) -> None:
        self.fatal = KafkaError(error.code, f"cannot get a producer id, which enable.idempotence requires: {error}")
        self._update_fast_path()
        self.fail_all(self.fatal)

    # --- metrics

    def all_metrics(self) -> dict[str, float]:
        accumulator = self.accumulator
        connections = self.cluster.connections()
        return {
            **self.metrics.snapshot(),
            "buffer-total-bytes": accumulator.buffer_limit,
            "buffer-available-bytes": accumulator.buffer_limit - accumulator.used,
            "buffer-records": accumulator.records,
            "waiting-threads": len(accumulator.room_waiters),
            "requests-in-flight": sum(c.in_flight for c in connections),
            "connection-count": len(connections),
            "connection-creation-total": self.cluster.connections_opened,
            "outgoing-byte-total": sum(c.bytes_out for c in connections),
            "incoming-byte-total": sum(c.bytes_in for c in connections),
        }


def _complete(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def wait_for_newer_metadata(cluster: Cluster, topic: str, timeout: float) -> None:
    """Wait for a new metadata response, because the topic may have new partitions."""
    cluster.add_topic(topic)
    await cluster.wait_for_update(cluster.request_update(), timeout)
