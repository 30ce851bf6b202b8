"""Runs a topology record by record, in the test driver and in Spark's tasks.

A Task is one sub-topology over one partition of its topics, as in Kafka Streams. It has its own
stores and its own stream time. One thread uses it. It sends records to a collector. Its state is in
its stores and in `meta()`; the caller saves both together (`stores.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from kavka.client.errors import SchemaRegistryError
from kavka.client.producer.record import ProducerRecord
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.streams.error_handlers import CONTINUE, KEY, VALUE, ErrorHandlerContext, Response, SourceRecord
from kavka.pipeline.streams.errors import FailedProcessingException, InvalidStateStoreException, StreamsException
from kavka.pipeline.streams.processors import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Headers,
    Node,
    Punctuation,
    Record,
    RecordMetadata,
)
from kavka.pipeline.streams.serdes import Serde, resolved
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.state_map import MemoryMaps, OpenMap
from kavka.pipeline.streams.stores import Store
from kavka.pipeline.streams.timestamps import extractor_of
from kavka.pipeline.streams.topology import ProcessorNode, SinkNode, SourceNode, Subtopology, Topology

logger = logging.getLogger(__name__)

# The largest overhead of a batch and a record around key and value, without headers.
_OVERHEAD = 82

# A record that is read: topic, partition, offset, key, value, timestamp, headers.
Row = tuple[str, int, int, bytes | None, bytes | None, int, Headers]
# Topic, key, value, timestamp, headers, and the partition if a partitioner chose it.
Sent = tuple[str, bytes | None, bytes | None, int, Headers, int | None]


class Collector(Protocol):
    """Receives the records that a task sends."""

    def send(self, *record: *Sent) -> None: ...

    def partitions(self, topic: str) -> int: ...


class Guard:
    """Replaces a node if there is a processing exception handler, and calls it for the node's
    errors."""

    def __init__(self, node: Node, task: Task) -> None:
        self.name = node.name
        self._process, self._task = node.process, task

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            self._process(key, value, timestamp, headers)
        except FailedProcessingException:
            raise
        except Exception as error:
            self._task.handle_error(self.name, Record(key, value, timestamp, headers), error)


def node_serdes(spec: SourceNode | SinkNode, settings: Settings) -> tuple[Serde, Serde]:
    """The serdes of the keys and values of a source or sink."""
    defaults = settings.key_serde, settings.value_serde
    return resolved(spec.key_serde, *defaults), resolved(spec.value_serde, *reversed(defaults))


class Source(Node):
    """Deserializes the records of its topics."""

    def __init__(self, spec: SourceNode, task: Task) -> None:
        self.name = spec.name
        self._task = task
        self.key_serde, self.value_serde = node_serdes(spec, task.settings)
        extract = extractor_of(spec.timestamp_extractor, f"the timestamp extractor of {spec.name}")
        self._extract = extract or task.settings.timestamp_extractor

    def read(self, row: Row) -> tuple[Any, Any, int] | None:
        """Key, value and timestamp of a record; None if it is skipped."""
        topic, partition, offset, key, value, timestamp, headers = row
        try:
            pair = self.key_serde.deserialize(key), self.value_serde.deserialize(value)
        except SchemaRegistryError as error:
            # The record may be valid, so no handler may skip it.
            raise StreamsException(f"{topic}-{partition} offset {offset} cannot be read: {error}") from error
        except Exception as error:
            record = SourceRecord(*row)
            handler = self._task.settings.deserialization_handler
            if self._task.continues(handler(self._task.error_context(self.name), record, error)):
                return None
            raise StreamsException(
                f"{topic}-{partition} offset {offset} cannot be read with {self.key_serde}, {self.value_serde}: {error}"
            ) from error
        if self._extract is not None:
            timestamp = self._extract(Record(*pair, timestamp, headers), self._task.stream_time)
            if timestamp < 0:
                logger.warning("%s-%d offset %d has no timestamp and is skipped", topic, partition, offset)
                return None
        elif timestamp < 0:
            raise StreamsException(
                f"{topic}-{partition} offset {offset} has the timestamp {timestamp}: use a timestamp extractor, for "
                "example default.timestamp.extractor=LogAndSkipOnInvalidTimestamp"
            )
        return (*pair, timestamp)


class Sink:
    """Serializes records and sends them to the collector."""

    def __init__(self, spec: SinkNode, task: Task) -> None:
        self.name = spec.name
        self.children: list[Any] = []
        self._task = task
        self._topic = spec.topic
        self.full_topic = task.full_name(spec.topic) if isinstance(spec.topic, str) else ""
        """The name of its topic; empty if it depends on the record."""
        self.key_serde, self.value_serde = node_serdes(spec, task.settings)
        self.partitioner = spec.partitioner
        self.max_size = task.settings.max_request - _OVERHEAD

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        topic = self._topic if isinstance(self._topic, str) else self._topic(key, value, self._task.record)
        if timestamp < 0:
            raise StreamsException(f"{self.name} would write a record with the time {timestamp} to {topic}")
        origin = KEY
        try:
            key_data = self.key_serde.serialize(key)
            origin = VALUE
            value_data = self.value_serde.serialize(value)
        except SchemaRegistryError as error:
            raise FailedProcessingException(f"{self.name} to {topic}: {error}") from error
        except Exception as error:
            record = ProducerRecord(topic, value, key, None, timestamp, list(headers))
            handler = self._task.settings.production_handler
            response = handler.serialization(self._task.error_context(self.name), record, error, origin)
            self._continue(response, topic, error)
            return
        if len(key_data or b"") + len(value_data or b"") > self.max_size:
            limit = f"the record is larger than max.request.size ({self.max_size + _OVERHEAD} bytes)"
            too_large = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, limit)
            record = ProducerRecord(topic, value_data, key_data, None, timestamp, list(headers))
            handler = self._task.settings.production_handler
            self._continue(handler(self._task.error_context(self.name), record, too_large), topic, too_large)
            return
        name, partition = self.full_topic or self._task.full_name(topic), None
        if self.partitioner is not None:
            partition = self.partitioner(topic, key, value, self._task.collector.partitions(name))
        self._task.collector.send(name, key_data, value_data, timestamp, headers, partition)

    def _continue(self, response: Response, topic: str, error: Exception) -> None:
        """Skip the record that caused the error, if the handler allows it."""
        if not self._task.continues(response):
            raise FailedProcessingException(f"{self.name} to {topic}: {error}") from error


class Task:
    """One sub-topology for one partition. With `caching`, changes of tables are forwarded by
    `flush`."""

    def __init__(
        self,
        topology: Topology,
        sub: Subtopology,
        settings: Settings,
        collector: Collector,
        now: Callable[[], int],
        partition: int = 0,
        caching: bool = False,
        global_stores: Mapping[str, Store] | None = None,
        open_map: OpenMap | None = None,
    ) -> None:
        self.task_id = f"{sub.id}_{partition}"
        self.global_ = sub.global_
        self.partition = partition
        self.settings = settings
        self.collector = collector
        self.now = now
        self.caching = caching
        self.stream_time = -1
        # The record that is processed.
        self._row: Row | None = None
        self.global_stores = dict(global_stores or {})
        self._internal = topology.internal_topics
        serdes = settings.key_serde, settings.value_serde
        open_map = open_map or MemoryMaps()
        self.stores: dict[str, Store] = {name: topology.stores[name].build(*serdes, open_map) for name in sub.stores}
        # By node: punctuations, and the times at which those of the saved task are due.
        self._punctuations: list[tuple[str, Punctuation]] = []
        self._saved_times: dict[str, list[int]] = {}
        self.sources: dict[str, Source] = {}
        self._sources_by_name: dict[str, Source] = {}
        self.sinks: dict[str, Sink] = {}
        self.nodes: list[Node] = []
        self._to_close: list[Any] = []
        self._build(topology, sub)

    def _build(self, topology: Topology, sub: Subtopology) -> None:
        nodes: dict[str, Any] = {}
        for spec in sub.nodes:
            if isinstance(spec, SourceNode):
                nodes[spec.name] = self._sources_by_name[spec.name] = source = Source(spec, self)
                for topic in spec.topics:
                    self.sources[self.full_name(topic)] = source
            elif isinstance(spec, ProcessorNode):
                node = spec.operator.node()
                node.attach(self, spec)
                self.nodes.append(node)
                nodes[spec.name] = node
            else:
                nodes[spec.name] = self.sinks[spec.name] = Sink(spec, self)
        for spec in sub.nodes:
            children = [self._guarded(nodes[child.name]) for child in topology.children(spec.name)]
            nodes[spec.name].children = children
            if len(children) == 1:
                nodes[spec.name].forward = children[0].process

    def _guarded(self, node: Any) -> Any:
        return node if self.settings.processing_handler is None or isinstance(node, Sink) else Guard(node, self)

    def handle_error(self, node: str, record: Record | None, error: Exception) -> None:
        """Call the processing exception handler. Raises unless it says CONTINUE."""
        handler = self.settings.processing_handler
        if handler is None:
            raise error
        if not self.continues(handler(self.error_context(node), record, error)):
            raise FailedProcessingException(f"{node}: {type(error).__name__}: {error}") from error

    def error_context(self, node: str) -> ErrorHandlerContext:
        if self._row is None:
            return ErrorHandlerContext(node, self.task_id)
        topic, partition, offset, key, value, timestamp, headers = self._row
        return ErrorHandlerContext(node, self.task_id, topic, partition, offset, timestamp, headers, key, value)

    def continues(self, response: Response) -> bool:
        """Write the records that a handler adds, and return whether it says CONTINUE."""
        for record in response.dead_letter_queue_records:
            if self.global_:
                # Every task has a copy of the store, and would write the record.
                logger.warning("records of global stores are not written to %s", record.topic)
                continue
            timestamp = self.now() if record.timestamp is None else record.timestamp
            headers: Any = tuple(record.headers or ())
            self.collector.send(record.topic, record.key, record.value, timestamp, headers, record.partition)
        return response.result == CONTINUE

    def start(self, meta: Mapping[str, Any] | None = None) -> None:
        """Start with the restored stores, and with the `meta()` that was saved with them."""
        if meta:
            self.stream_time = meta["stream_time"]
            for node in self.nodes:
                node.observed = meta["observed"].get(node.name, -1)
            for name, position in meta["stores"].items():
                if name in self.stores:
                    self.stores[name].resume(position)
            self._saved_times = {name: list(times) for name, times in meta["punctuations"].items()}
        for node in self.nodes:
            node.init()

    def meta(self) -> dict[str, Any]:
        times: dict[str, list[int]] = {}
        for name, punctuation in self._punctuations:
            times.setdefault(name, []).append(punctuation.next)
        return {
            "stream_time": self.stream_time,
            "observed": {node.name: node.observed for node in self.nodes if node.observed >= 0},
            "stores": {name: store.position() for name, store in self.stores.items()},
            "punctuations": times,
        }

    def full_name(self, topic: str) -> str:
        """The topic's name in the cluster: a topic of the application begins with its id."""
        return f"{self.settings.application_id}-{topic}" if topic in self._internal else topic

    def also_reads(self, source: str, topic: str) -> bool:
        """Add a topic to a source. False if the task does not have the source."""
        if source in self._sources_by_name:
            self.sources[topic] = self._sources_by_name[source]
        return source in self._sources_by_name

    def store(self, name: str) -> Any:
        store = self.stores.get(name) or self.global_stores.get(name)
        if store is None:
            raise InvalidStateStoreException(f"there is no store {name}")
        return store

    def process(self, row: Row) -> None:
        source = self.sources[row[0]]
        self._row = row
        record = source.read(row)
        if record is not None:
            key, value, timestamp = record
            if timestamp > self.stream_time:
                self.stream_time = timestamp
            source.forward(key, value, timestamp, row[6])
            if self._punctuations:
                self.punctuate(STREAM_TIME, self.stream_time)
        self._row = None

    @property
    def record(self) -> RecordMetadata | None:
        """The place of the record that is processed."""
        return None if self._row is None else RecordMetadata(*self._row[:3])

    def flush(self) -> None:
        """End a micro-batch: forward cached changes, from the sources down."""
        for node in self.nodes:
            node.flush()

    def also_close(self, resource: Any) -> None:
        """Close it with the task's nodes."""
        self._to_close.append(resource)

    def close(self) -> None:
        for resource in (*self.nodes, *self._to_close):
            resource.close()

    @contextmanager
    def without_record(self) -> Iterator[None]:
        """Compute a value that belongs to no record of a topic."""
        before, self._row = self._row, None
        try:
            yield
        finally:
            self._row = before

    # --- punctuators

    def schedule(self, node: Any, interval: int, kind: str, callback: Callable[[int], None]) -> Punctuation:
        if self.global_:
            raise StreamsException(f"{node.name} fills a global store, and cannot have punctuators")
        if interval < 1:
            raise StreamsException("The minimum supported scheduling interval is 1 millisecond.")
        if kind not in (STREAM_TIME, WALL_CLOCK_TIME):
            raise StreamsException(f"{kind} is no PunctuationType")
        begin = 0 if kind == STREAM_TIME else self.now() + interval
        times = self._saved_times.get(node.name)
        punctuation = Punctuation(kind, interval, times.pop(0) if times else begin, callback)
        self._punctuations.append((node.name, punctuation))
        return punctuation

    def punctuate(self, kind: str, time: int) -> None:
        """Call the punctuators that are due, each once, even if several intervals have passed."""
        for name, punctuation in list(self._punctuations):
            if punctuation.kind == kind and not punctuation.cancelled and punctuation.next <= time:
                try:
                    punctuation.callback(time)
                except FailedProcessingException:
                    raise
                except Exception as error:
                    self.handle_error(name, None, error)
                punctuation.next += ((time - punctuation.next) // punctuation.interval + 1) * punctuation.interval
        self._punctuations = [pair for pair in self._punctuations if not pair[1].cancelled]

    def next_wall_clock(self) -> int | None:
        punctuations = (punctuation for _, punctuation in self._punctuations if not punctuation.cancelled)
        return min((each.next for each in punctuations if each.kind == WALL_CLOCK_TIME), default=None)
