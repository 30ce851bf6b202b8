"""Steady load: idempotent producers, and a consumer group that commits. Both use the clients of
Kavka and of librdkafka.

Producers send to every partition in turn. They skip partitions with too many outstanding records,
so that a partition without a leader does not block other partitions. `History` stores all
responses.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException

from kavka import Consumer, KafkaError, OffsetAndMetadata, Producer, TopicPartition
from tests.chaos.history import History, Id, encode

GROUP = "chaos-group"
# Maximum number of outstanding records per producer and partition.
MAX_OUTSTANDING = 300
COMMIT_INTERVAL_S = 0.5
# Records per turn and partition, so that there are several records per batch and several batches in
# flight.
BURST = 5

# Long enough for a busy machine, short enough to leave a paused or isolated broker in time.
REQUEST_MS = 2000
SESSION_MS = 6000


class Worker(threading.Thread):
    """A client in a separate thread. `error` is the error that ended the thread."""

    def __init__(self, name: str, topic: str, bootstrap: str) -> None:
        super().__init__(name=name, daemon=True)
        self.topic = topic
        self.bootstrap = bootstrap
        self.error: BaseException | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error
            raise

    def work(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self._ended.set()


class Sender(Worker):
    """The common part of both producers: it selects partitions and counts records."""

    def __init__(self, name: str, history: History, topic: str, bootstrap: str, rate: float) -> None:
        super().__init__(name, topic, bootstrap)
        self.history = history
        self._pause_s = history.partitions * BURST / rate
        self._sending = threading.Event()
        self._sending.set()
        self._counters = [0] * history.partitions
        self._outstanding = [0] * history.partitions
        self._lock = threading.Lock()

    @property
    def outstanding(self) -> int:
        with self._lock:
            return sum(self._outstanding)

    def pause(self) -> None:
        self._sending.clear()

    def resume(self) -> None:
        self._sending.set()

    def rounds(self, send: Callable[[int, Id, bytes], None], idle: Callable[[], Any]) -> None:
        """Send to every partition in turn at the configured rate, until `end` is called."""
        next_round = time.monotonic()
        while not self._ended.is_set():
            if self._sending.is_set():
                for partition in range(self.history.partitions):
                    if self._outstanding[partition] < MAX_OUTSTANDING:
                        for _ in range(BURST):
                            self._send(partition, send)
            idle()
            next_round = max(next_round + self._pause_s, time.monotonic() - 1)
            time.sleep(max(0.0, next_round - time.monotonic()))

    def _send(self, partition: int, send: Callable[[int, Id, bytes], None]) -> None:
        counter = self._counters[partition]
        self._counters[partition] += 1
        with self._lock:
            self._outstanding[partition] += 1
        send(partition, Id(self.name, counter), encode(self.name, partition, counter))

    def outcome(self, partition: int, record: Id, offset: int, error: object) -> None:
        with self._lock:
            self._outstanding[partition] -= 1
        if error is None:
            self.history.ack(partition, offset, record)
        else:
            self.history.fail(partition, record, str(error))


class OurSender(Sender):
    def work(self) -> None:
        settings: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "acks": "all",
            "linger_ms": 5,
            "request_timeout_ms": REQUEST_MS,
            "delivery_timeout_ms": 180_000,
            "socket_connection_setup_timeout_ms": REQUEST_MS,
            "max_block_ms": 120_000,
        }
        with Producer(**settings) as producer:

            def send(partition: int, record: Id, value: bytes) -> None:
                def done(metadata: Any, error: BaseException | None) -> None:
                    self.outcome(partition, record, -1 if metadata is None else metadata.offset, error)

                producer.send(self.topic, value, partition=partition, callback=done)

            self.rounds(send, lambda: None)


class RdkafkaSender(Sender):
    def work(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "compression.type": "lz4",
                "socket.timeout.ms": REQUEST_MS,
                "request.timeout.ms": REQUEST_MS,
                "message.timeout.ms": 180_000,
                "socket.connection.setup.timeout.ms": REQUEST_MS,
                "log_level": 0,
            }
        )

        def send(partition: int, record: Id, value: bytes) -> None:
            def done(error: Any, message: Any) -> None:
                offset = None if message is None else message.offset()
                self.outcome(partition, record, -1 if offset is None else offset, error)

            producer.produce(self.topic, value, partition=partition, on_delivery=done)

        self.rounds(send, lambda: producer.poll(0))
        producer.flush(60)


class Reader(Worker):
    """A member of the group. A failed commit is repeated with the next commit, unless the
    partitions were revoked."""

    def __init__(self, name: str, history: History, topic: str, bootstrap: str) -> None:
        super().__init__(name, topic, bootstrap)
        self.history = history
        # The last assignment.
        self.partitions: list[int] = []
        # Times and errors of the last failed commits.
        self.commit_errors: deque[str] = deque(maxlen=5)

    def committed(self, offsets: dict[int, int]) -> None:
        self.history.commit(offsets)

    def assigned(self, partitions: Iterable[int]) -> None:
        self.partitions = sorted(partitions)
        self.history.assigned(self.name, self.partitions)

    def failed(self, error: Exception, offsets: object) -> None:
        self.commit_errors.append(f"{time.strftime('%H:%M:%S')} {offsets}: {error!r}")

    def __str__(self) -> str:
        return f"{self.name} has {self.partitions}, failed commits {list(self.commit_errors)}"


class OurReader(Reader):
    def work(self) -> None:
        settings: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "group_id": GROUP,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "partition_assignment_strategy": "range",
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": 1000,
            "request_timeout_ms": REQUEST_MS,
            "socket_connection_setup_timeout_ms": REQUEST_MS,
        }
        positions: dict[TopicPartition, int] = {}
        with Consumer(**settings) as consumer:

            def commit() -> None:
                offsets = {tp: OffsetAndMetadata(offset) for tp, offset in positions.items()}
                if offsets:
                    try:
                        consumer.commit_sync(offsets, timeout=5.0)
                        self.committed({tp.partition: offset for tp, offset in positions.items()})
                        positions.clear()
                    except KafkaError as error:
                        self.failed(error, offsets)

            reader = self

            class Listener:
                def on_partitions_assigned(self, partitions: Iterable[TopicPartition]) -> None:
                    reader.assigned(tp.partition for tp in partitions)

                def on_partitions_revoked(self, partitions: Iterable[TopicPartition]) -> None:
                    commit()
                    positions.clear()

                def on_partitions_lost(self, partitions: Iterable[TopicPartition]) -> None:
                    positions.clear()

            consumer.subscribe([self.topic], listener=Listener())
            last_commit = time.monotonic()
            while not self._ended.is_set():
                for tp, records in consumer.poll(0.2).by_partition().items():
                    for record in records:
                        self.history.read(self.name, tp.partition, record.offset, record.value)
                    positions[tp] = records[-1].offset + 1
                if time.monotonic() - last_commit > COMMIT_INTERVAL_S:
                    commit()
                    last_commit = time.monotonic()
            commit()


class RdkafkaReader(Reader):
    def work(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "range",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 1000,
                "socket.timeout.ms": 10_000,
                "socket.connection.setup.timeout.ms": REQUEST_MS,
                "check.crcs": True,
                "log_level": 0,
            }
        )
        positions: dict[int, int] = {}

        def commit() -> None:
            offsets = [confluent_kafka.TopicPartition(self.topic, p, offset) for p, offset in positions.items()]
            if offsets:
                try:
                    results = consumer.commit(offsets=offsets, asynchronous=False) or []
                    committed = {result.partition: result.offset for result in results if result.error is None}
                    self.committed(committed)
                    for partition in committed:
                        positions.pop(partition, None)
                except KafkaException as error:
                    self.failed(error, offsets)

        def revoked(_: Any, partitions: Iterable[confluent_kafka.TopicPartition]) -> None:
            commit()
            positions.clear()

        def assigned(_: Any, partitions: Iterable[confluent_kafka.TopicPartition]) -> None:
            self.assigned(tp.partition for tp in partitions)

        consumer.subscribe(
            [self.topic],
            on_assign=assigned,
            on_revoke=revoked,
            on_lost=lambda _, partitions: positions.clear(),
        )
        last_commit = time.monotonic()
        while not self._ended.is_set():
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    partition, offset = int(message.partition() or 0), int(message.offset() or 0)
                    self.history.read(self.name, partition, offset, message.value())
                    positions[partition] = offset + 1
            if time.monotonic() - last_commit > COMMIT_INTERVAL_S:
                commit()
                last_commit = time.monotonic()
        commit()
        consumer.close()


class Load:
    """All clients. `rate` is the number of records per second of one producer."""

    def __init__(self, history: History, topic: str, bootstrap: str, rate: float = 300.0) -> None:
        self.senders: list[Sender] = [
            OurSender("ours", history, topic, bootstrap, rate),
            RdkafkaSender("rdkafka", history, topic, bootstrap, rate),
        ]
        self.readers: list[Reader] = [
            OurReader("our-reader", history, topic, bootstrap),
            RdkafkaReader("rdkafka-reader", history, topic, bootstrap),
            RdkafkaReader("rdkafka-reader-2", history, topic, bootstrap),
        ]

    @property
    def workers(self) -> list[Worker]:
        return [*self.senders, *self.readers]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def dead(self) -> list[str]:
        """Return the clients that ended with an error."""
        return [f"{worker.name}: {worker.error!r}" for worker in self.workers if worker.error is not None]

    def pause(self) -> None:
        """Stop sending new records."""
        for sender in self.senders:
            sender.pause()

    def resume(self) -> None:
        for sender in self.senders:
            sender.resume()

    @property
    def outstanding(self) -> dict[str, int]:
        return {sender.name: sender.outstanding for sender in self.senders}

    @property
    def is_settled(self) -> bool:
        return not any(self.outstanding.values())

    def end(self) -> None:
        for worker in self.workers:
            worker.end()
        for worker in self.workers:
            if worker.is_alive():
                worker.join(90)
