"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack

from kavka.client.errors import ClientClosed
from kavka.client.io_thread import warn_unclosed
from kavka.client.metadata import PartitionMetadata
from kavka.client.producer._append import RecordFuture, SendPath
from kavka.client.producer.core import ProducerCore, Steps, WaitForRoom, WaitForTopic, wait_for_newer_metadata
from kavka.client.producer.record import Callback, Headers, ProducerRecord, RecordMetadata
from kavka.client.producer.transactions import Transactions
from kavka.client.producer_config import producer_config
from kavka.client.types import ConsumerGroupMetadata, K, OffsetAndMetadata, PreparedTransaction, TopicPartition, V

if TYPE_CHECKING:
    from kavka.client.settings import ProducerSettings


class Producer(Generic[K, V]):
    """Sends records to a cluster, on the event loop that started it. Many tasks may share a
    producer.

        async with Producer(bootstrap_servers="localhost:9092") as producer:
            future = await producer.send("orders", key="k1", value="v1")
            print((await future).offset)

    Without `async with`, call `await producer.start()` and `await producer.close()`. A producer
    that is dropped without `close` issues a ResourceWarning and closes in the background while its
    event loop runs.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Unpack[ProducerSettings[K, V]]) -> None:
        settings = producer_config(config, keywords)
        self._core = ProducerCore(settings)
        self._path = SendPath(self._core.accumulator)
        self._core.configure_path(self._path)
        self._try_send = self._path.try_send
        self._sync = settings["producer.type"] == "sync"
        self._max_block = settings.seconds("max.block.ms")

    async def start(self) -> Self:
        await self._core.start()
        return self

    async def close(self, timeout: float | None = None) -> None:
        """Send the remaining records and close. Records that are not acknowledged within `timeout`
        seconds fail; None waits without limit."""
        if not self._core.closed:
            await self._core.close(timeout)

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None and core.is_open:
            core.abandon()
            warn_unclosed(self, core.config["client.id"])

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- sending

    async def send(
        self,
        topic: str | ProducerRecord[K, V],
        value: V | None = None,
        key: K | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers | None = None,
        callback: Callback | None = None,
    ) -> RecordFuture:
        """Send a record. Waits only while metadata is missing or the buffer is full. Await the
        returned future to wait for the acknowledgement."""
        transaction = self._core.accumulator.transaction
        future = self._try_send(topic, value, key, partition, timestamp, headers, callback)
        if future is None:
            steps = self._core.steps(transaction, topic, value, key, partition, timestamp, headers, callback)
            future = await self._drive(steps)
            if self._sync:
                await future
        return future

    async def send_and_wait(
        self,
        topic: str | ProducerRecord[K, V],
        value: V | None = None,
        key: K | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send, and wait for the acknowledgement."""
        future = await self.send(topic, value, key, partition, timestamp, headers)
        return await future

    async def _drive(self, steps: Steps) -> RecordFuture:
        try:
            wait = next(steps)
            while True:
                try:
                    await self._wait(wait)
                except Exception as error:
                    wait = steps.throw(error)
                else:
                    wait = steps.send(None)
        except StopIteration as stop:
            future: RecordFuture = stop.value
            return future

    async def _wait(self, wait: WaitForTopic | WaitForRoom) -> None:
        cluster = self._core.cluster
        if isinstance(wait, WaitForTopic):
            if wait.newer:
                await wait_for_newer_metadata(cluster, wait.topic, wait.timeout)
            else:
                await cluster.topic(wait.topic, wait.timeout)
            return
        room = asyncio.Event()
        if not wait.register(room.set):
            return
        self._core.sender.run()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait.timeout):
                await room.wait()

    async def flush(self) -> None:
        """Wait until all records of earlier `send` calls have an outcome."""
        await self._core.flush()

    def purge(self, in_queue: bool = True, in_flight: bool = False) -> int:
        """Drop pending records; see `ProducerCore.purge`. Returns the number of dropped records."""
        return self._core.purge(in_queue, in_flight)

    # --- the cluster

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        metadata = await self._core.cluster.topic(topic, self._limit(timeout))
        return list(metadata.partitions)

    def metrics(self) -> dict[str, float]:
        return self._core.all_metrics()

    # --- transactions: see the blocking producer

    async def init_transactions(self, timeout: float | None = None) -> None:
        await self._transactions.init(self._limit(timeout))

    async def begin_transaction(self) -> None:
        self._transactions.begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata | str,
        timeout: float | None = None,
    ) -> None:
        await self._transactions.send_offsets(offsets, group_metadata, self._limit(timeout))

    async def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction | None:
        return await self._transactions.prepare(self._limit(timeout))

    async def commit_transaction(self, timeout: float | None = None) -> None:
        await self._transactions.end(True, self._limit(timeout))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        await self._transactions.end(False, self._limit(timeout))

    @property
    def _transactions(self) -> Transactions:
        if self._core.closed:
            raise ClientClosed("the producer is closed")
        return self._core.require_transactions()

    def _limit(self, timeout: float | None) -> float:
        return self._max_block if timeout is None else timeout
