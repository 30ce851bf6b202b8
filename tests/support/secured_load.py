"""Producers and consumers that run while the security of their broker changes: Kavka's clients and
librdkafka. Each request is recorded with its time."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import confluent_kafka

import kavka
from kavka.common.errors import ErrorCode, KafkaError

DENIED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
# After a denial librdkafka refuses records of the topic itself, until it has new metadata.
NOT_SENT = -1
TIMEOUT_S = 30.0


class Outcome(NamedTuple):
    """A record that was sent at this time, and the error code of its response."""

    sent_at: float
    value: bytes
    code: int


class Arrival(NamedTuple):
    at: float
    value: bytes


class _Worker(ABC):
    """Calls `step` in a thread until `stop`. `failures` are errors that no test expects."""

    def __init__(self) -> None:
        self.failures: list[object] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def step(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.step()
        except Exception as error:
            self.failures.append(error)
        finally:
            self.close()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(2 * TIMEOUT_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Sender(_Worker):
    """Sends one record at a time to partition 0 of a topic."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.topic = topic
        self.outcomes: list[Outcome] = []

    @abstractmethod
    def send(self, value: bytes) -> int:
        """Return the error code of the response."""

    def step(self) -> None:
        sent_at, value = time.monotonic(), b"%d" % len(self.outcomes)
        self.outcomes.append(Outcome(sent_at, value, self.send(value)))
        time.sleep(0.002)

    def accepted(self) -> list[bytes]:
        return [outcome.value for outcome in self.outcomes if outcome.code == 0]

    def codes_between(self, start: float, end: float) -> set[int]:
        """The error codes of the records that were sent in this time."""
        return {outcome.code for outcome in self.outcomes if start < outcome.sent_at < end}


class OurSender(Sender):
    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        super().__init__(topic)
        self._producer = kavka.Producer(dict(settings), linger_ms=0, retries=0, enable_idempotence=False)

    def send(self, value: bytes) -> int:
        try:
            self._producer.send(self.topic, value, partition=0).result(TIMEOUT_S)
        except KafkaError as error:
            if error.code != DENIED:
                raise
            return int(error.code)
        return 0

    @property
    def connections_opened(self) -> int:
        return self._producer._core.cluster.connections_opened

    def close(self) -> None:
        self._producer.close()


class ConfluentSender(Sender):
    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        super().__init__(topic)
        own: dict[str, Any] = {
            "retries": 0,
            "linger.ms": 0,
            "topic.metadata.refresh.interval.ms": 100,
            "error_cb": self._on_error,
            "log_level": 0,
        }
        self._producer = confluent_kafka.Producer({**settings, **own})

    def send(self, value: bytes) -> int:
        codes: list[int] = []

        def on_delivery(error: confluent_kafka.KafkaError | None, message: object) -> None:
            codes.append(0 if error is None else error.code())

        try:
            self._producer.produce(self.topic, value, partition=0, on_delivery=on_delivery)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != DENIED:
                raise
            self._producer.poll(0.01)
            return NOT_SENT
        if self._producer.flush(TIMEOUT_S) or codes[0] not in (0, DENIED):
            raise RuntimeError(f"not delivered: {codes}")
        return codes[0]

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.code() != DENIED:
            self.failures.append(error)

    def close(self) -> None:
        self._producer.flush(TIMEOUT_S)


class Receiver(_Worker):
    """Reads partition 0 of a topic from its start. `denials` are the times of refused fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: list[Arrival] = []
        self.denials: list[float] = []

    def has_received(self, count: int) -> bool:
        return len(self.arrivals) >= count

    def values(self) -> list[bytes]:
        return [arrival.value for arrival in self.arrivals]


class OurReceiver(Receiver):
    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        super().__init__()
        self._consumer = kavka.Consumer(dict(settings), auto_offset_reset="earliest")
        self._consumer.assign([kavka.TopicPartition(topic, 0)])

    def step(self) -> None:
        try:
            records = self._consumer.poll(0.1)
        except KafkaError as error:
            if error.code != DENIED:
                raise
            self.denials.append(time.monotonic())
            return
        self.arrivals += [Arrival(time.monotonic(), record.value or b"") for record in records]

    def close(self) -> None:
        self._consumer.close()


class ConfluentReceiver(Receiver):
    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        super().__init__()
        own: dict[str, Any] = {
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "error_cb": self._on_error,
            "log_level": 0,
        }
        # With a group, the connection to the coordinator is open when the first record arrives.
        self._consumer = confluent_kafka.Consumer({**settings, **own})
        self._consumer.subscribe([topic])

    def step(self) -> None:
        message = self._consumer.poll(0.1)
        if message is None:
            return
        if (error := message.error()) is None:
            self.arrivals.append(Arrival(time.monotonic(), message.value() or b""))
        elif error.code() == DENIED:
            self.denials.append(time.monotonic())
        else:
            self.failures.append(error)

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.code() != DENIED:
            self.failures.append(error)

    def close(self) -> None:
        self._consumer.close()
