"""The blocking producer."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from threading import Event
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack
from weakref import WeakSet

from kavka.client.errors import ClientClosed, KafkaTimeout
from kavka.client.io_thread import IoThread, warn_unclosed
from kavka.client.metadata import PartitionMetadata
from kavka.client.producer._append import Accumulator, Batch, RecordFuture, SendPath
from kavka.client.producer.core import ProducerCore, WaitForRoom, WaitForTopic, wait_for_newer_metadata
from kavka.client.producer.send_batch import BatchFuture
from kavka.client.producer.transactions import Transactions
from kavka.client.producer_config import producer_config
from kavka.client.types import ConsumerGroupMetadata, K, OffsetAndMetadata, PreparedTransaction, TopicPartition, V
from kavka.records.batch import Buffer

if TYPE_CHECKING:
    from kavka.client.producer.record import Callback, Headers, ProducerRecord
    from kavka.client.settings import ProducerSettings

T = TypeVar("T")


class Producer(SendPath, Generic[K, V]):
    """Sends records to a cluster. Thread-safe: a program needs only one producer.

        with Producer(bootstrap_servers="localhost:9092") as producer:
            future = producer.send("orders", key="k1", value="v1")
            print(future.get(timeout=10).offset)

    `send` returns immediately; an I/O thread of the producer sends the records in batches.
    `close()`, or the end of the `with` block, sends the remaining records. A producer that is
    dropped without `close` issues a ResourceWarning and closes in the background. A producer that
    is still open at interpreter exit has `io_thread.EXIT_TIMEOUT_S` seconds to send the remaining
    records.

    `K` and `V` are the types that the serializers accept. See `producer_config.py` for the
    settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Unpack[ProducerSettings[K, V]]) -> None:
        settings = producer_config(config, keywords)
        self._core = ProducerCore(settings)
        SendPath.__init__(self, self._core.accumulator)
        self._core.configure_path(self)
        self._sync = settings["producer.type"] == "sync"
        self._max_block = settings.seconds("max.block.ms")
        name = settings["client.id"] or "producer"
        self._io = IoThread(f"kavka-{name}", self._core.close)
        _producers.add(self)
        try:
            self._io.run(self._core.start())
        except BaseException:
            self._io.stop()
            raise

    if TYPE_CHECKING:

        def send(
            self,
            topic: str | ProducerRecord[K, V],
            value: V | None = None,
            key: K | None = None,
            partition: int | None = None,
            timestamp: int | None = None,
            headers: Headers | None = None,
            callback: Callback | None = None,
        ) -> RecordFuture:
            """See `SendPath.send`."""

    def _send_slow_path(
        self,
        transaction: int,
        topic: Any,
        value: Any,
        key: Any,
        partition: Any,
        timestamp: Any,
        headers: Any,
        callback: Any,
    ) -> RecordFuture:
        if not self._io.alive and not self._core.closed:
            self._io.call_soon(lambda: None)
        steps = self._core.steps(transaction, topic, value, key, partition, timestamp, headers, callback)
        future = self._drive(steps)
        if self._sync:
            future.get(None)
        return future

    def send_batch(
        self, topic: str, partition: int, data: Buffer, first: int = 0, end: int = 0x7FFFFFFFFFFFFFFF
    ) -> BatchFuture:
        """Send the records of a fetched batch with offsets from `first` up to, but not including,
        `end`. The records are not decoded, and if possible a compressed batch is not recompressed.
        Blocks like `send`, but raises all errors that occur before the records are buffered."""
        transaction = self._accumulator.transaction
        return self._drive(self._core.batch_steps(transaction, topic, partition, data, first, end))

    def _drive(self, steps: Generator[WaitForTopic | WaitForRoom, Any, T]) -> T:
        try:
            wait = next(steps)
            while True:
                try:
                    self._wait(wait)
                except Exception as error:
                    wait = steps.throw(error)
                else:
                    wait = steps.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _wait(self, wait: WaitForTopic | WaitForRoom) -> None:
        if self._io.is_current:
            raise KafkaTimeout("send cannot wait inside a callback, which runs in the I/O thread")
        if isinstance(wait, WaitForTopic):
            cluster = self._core.cluster
            if wait.newer:
                self._io.run(wait_for_newer_metadata(cluster, wait.topic, wait.timeout))
            else:
                self._io.run(cluster.topic(wait.topic, wait.timeout))
            return
        event = Event()
        if wait.register(event.set):
            # The sender does not wait for linger.ms while a thread waits for room.
            self._core._wake()
            event.wait(wait.timeout)

    # --- pending records

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records of earlier `send` calls have an outcome. Meanwhile, batches are
        sent without waiting for `linger.ms`. Raises KafkaTimeout after `timeout` seconds."""
        core = self._core
        if core.closed:
            return
        self._io.check()
        if self._io.is_current:
            raise KafkaTimeout("flush cannot wait inside a callback")
        deadline = None if timeout is None else monotonic() + timeout
        accumulator = core.accumulator
        with accumulator.lock:
            accumulator.flushing += 1
        try:
            core._wake()
            for batch in reversed(core.snapshot()):
                _wait_for_batch(batch, accumulator, deadline)
        finally:
            with accumulator.lock:
                accumulator.flushing -= 1

    def purge(self, in_queue: bool = True, in_flight: bool = False) -> int:
        """Drop pending records, for example when the broker does not respond; see
        `ProducerCore.purge`. Returns the number of dropped records."""

        async def work() -> int:
            return self._core.purge(in_queue, in_flight)

        return self._io.run(work())

    def close(self, timeout: float | None = None) -> None:
        """Send the remaining records and close. Records that are not acknowledged within `timeout`
        seconds fail; None waits without limit."""
        if self._core.closed:
            return
        if self._io.forked:
            # The pending records belong to the parent process.
            self._core.closed = True
            return
        if self._io.is_current:
            # A callback cannot wait for the remaining records.
            self._core.closed = True
            self._io.loop.create_task(self._close_from_inside())
            return
        try:
            self._io.run(self._core.close(timeout))
        except ClientClosed:
            if not self._core.closed:
                raise
        finally:
            self._io.stop()

    def __del__(self) -> None:
        io = getattr(self, "_io", None)
        if io is not None and io.alive and self._core.is_open:
            io.abandon()
            warn_unclosed(self, io.name)

    async def _close_from_inside(self) -> None:
        await self._core.close(0.0)
        self._io.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the cluster

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """Return the partitions of a topic, with their leaders and replicas."""
        limit = self._max_block if timeout is None else timeout
        metadata = self._io.run(self._core.cluster.topic(topic, limit))
        return list(metadata.partitions)

    def metrics(self) -> dict[str, float]:
        """Return the metrics since the start, by Kafka's names."""
        return self._core.all_metrics()

    # --- transactions

    def init_transactions(self, timeout: float | None = None) -> None:
        """Get the producer id for `transactional.id`. Call it once, before the first transaction.
        The coordinator aborts the open transaction of an earlier producer with the same id. The
        timeout of this and the following methods defaults to `max.block.ms`."""
        self._io.run(self._transactions.init(self._limit(timeout)))

    def begin_transaction(self) -> None:
        """Begin a transaction. Records of later `send` calls belong to it."""

        async def work() -> None:
            self._transactions.begin()

        self._io.run(work())

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata | str,
        timeout: float | None = None,
    ) -> None:
        """Commit a consumer's offsets as part of the transaction."""
        self._io.run(self._transactions.send_offsets(offsets, group_metadata, self._limit(timeout)))

    def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction | None:
        """Send the remaining records, and wait until every record is acknowledged. Any process can
        then commit or abort the transaction by passing the result to `Admin.end_transactions`.
        Returns None if the transaction has neither records nor offsets. This producer can still end
        the transaction. Closing the producer leaves the transaction open until
        `transaction.timeout.ms` expires."""
        return self._io.run(self._transactions.prepare(self._limit(timeout)))

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Send the remaining records and commit. If a record failed, its error is raised, and only
        `abort_transaction` is allowed afterwards.

        After KafkaTimeout the transaction may have been committed: call `commit_transaction` again
        until it returns or raises another error. Until then `abort_transaction` raises
        IllegalState."""
        self._io.run(self._transactions.end(True, self._limit(timeout)))

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction. Records that were not sent yet fail. After KafkaTimeout, call
        `abort_transaction` again. Raises IllegalState after a `commit_transaction` that timed out:
        only the commit can be repeated."""
        self._io.run(self._transactions.end(False, self._limit(timeout)))

    @property
    def _transactions(self) -> Transactions:
        if self._core.closed:
            raise ClientClosed("the producer is closed")
        return self._core.require_transactions()

    def _limit(self, timeout: float | None) -> float:
        return self._max_block if timeout is None else timeout


_producers: WeakSet[Producer[Any, Any]] = WeakSet()


def _after_fork() -> None:
    """Make `send` use the slow path in a forked child. The child has no I/O thread, so the slow
    path raises an error."""
    for producer in list(_producers):
        producer._accumulator.topics = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _wait_for_batch(batch: Batch, accumulator: Accumulator, deadline: float | None) -> None:
    while not batch.done:
        if batch.parts is not None:
            for _, part in batch.parts:
                _wait_for_batch(part, accumulator, deadline)
            return
        event = Event()
        with accumulator.lock:
            is_registered = batch.add_waiter(event.set)
        remaining = None if deadline is None else max(0.0, deadline - monotonic())
        if is_registered and not event.wait(remaining):
            raise KafkaTimeout("flush did not complete within its timeout")
