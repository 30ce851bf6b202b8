"""What runs a topology, record by record: the same for the test driver and in Spark's tasks.

A Task is one sub-topology over one partition of its topics, as in Kafka Streams: it has its own
stores and its own stream time. One thread uses it. What it sends goes to a collector; what it
remembers is in its stores and in `meta()`, and whoever runs it keeps both together (`stores.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kavka.client.producer.record import ProducerRecord
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.streams.error_handlers import CONTINUE, KEY, VALUE, ErrorHandlerContext, Response, SourceRecord
from kavka.pipeline.streams.errors import FailedProcessingException, InvalidStateStoreException, StreamsException
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.state_map import MemoryMaps, OpenMap
from kavka.pipeline.streams.stores import Store
from kavka.pipeline.streams.timestamps import extractor_of
from kavka.pipeline.streams.topology import ProcessorNode, SinkNode, SourceNode, Subtopology, Topology
from kavka.pipeline.streams.windows import Duration, millis

logger = logging.getLogger(__name__)

Headers = tuple[tuple[str, bytes | None], ...]

# The most that a batch and a record have around key and value, without headers.
_AROUND = 82

STREAM_TIME, WALL_CLOCK_TIME = "stream-time", "wall-clock-time"


class PunctuationType:
    STREAM_TIME = STREAM_TIME
    WALL_CLOCK_TIME = WALL_CLOCK_TIME


@dataclass(frozen=True)
class Record:
    """What a processor gets and gives on."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()

    def with_key(self, key: Any) -> Record:
        return Record(key, self.value, self.timestamp, self.headers)

    def with_value(self, value: Any) -> Record:
        return Record(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: int) -> Record:
        return Record(self.key, self.value, timestamp, self.headers)

    def with_headers(self, headers: Headers) -> Record:
        return Record(self.key, self.value, self.timestamp, tuple(headers))


class RecordMetadata(NamedTuple):
    topic: str
    partition: int
    offset: int


class Collector(Protocol):
    """Where a task's records go: bytes, and a partition where somebody chose one."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None: ...

    def partitions(self, topic: str) -> int: ...


class Node:
    """A processor at work in a task. `observed` is the highest time it saw; it survives with the
    task."""

    observed = -1

    def attach(self, task: Task, spec: ProcessorNode) -> None:
        self.task = task
        self.name = spec.name
        self.children: list[Any] = []

    def init(self) -> None:
        """Once, when all nodes and stores are there."""

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        raise NotImplementedError

    def forward(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for child in self.children:
            child.process(key, value, timestamp, headers)

    def flush(self) -> None:
        """Send on what was held back for the end of a micro-batch."""

    def close(self) -> None:
        """Kafka's processors may have something to let go of."""


@dataclass
class Punctuation:
    kind: str
    interval: int
    next: int
    callback: Callable[[int], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class ReadOnly:
    """A global store for those who do not keep it: each task has a copy of its own."""

    _WRITING = frozenset({"put", "put_all", "put_if_absent", "delete", "remove"})

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in self._WRITING:
            raise StreamsException(f"Global store is read only: {self._store.builder.name}.{name}")
        return getattr(self._store, name)


def made_by(supplier: Any, method: str, what: str) -> Any:
    """What a user's supplier makes: it is called, or has `get` as Kafka's suppliers do."""
    made = supplier.get() if hasattr(supplier, "get") else supplier()
    if made is None or not hasattr(made, method):
        raise StreamsException(f"{supplier} does not supply {what}")
    return made


class ProcessorContext:
    """What a user's processor may ask of its task. Of its node it needs the name and
    `store_names`."""

    def __init__(self, node: Any, task: Task) -> None:
        self._node, self._task = node, task
        self.application_id = task.settings.application_id
        self.task_id = task.task_id

    def forward(self, record: Record, child_name: str | None = None) -> None:
        if not isinstance(record, Record):
            raise StreamsException(f"{self._node.name} forwards a {type(record).__name__}: it must be a Record")
        children = self._node.children
        if child_name is not None:
            children = [one for one in children if one.name == child_name]
            if not children:
                raise StreamsException(f"Unknown downstream node: {child_name}")
        if self._node.fixed_key and record.key is not self._node.key and record.key != self._node.key:
            raise StreamsException(f"{self._node.name} may not change the key")
        for child in children:
            child.process(record.key, record.value, record.timestamp, record.headers)

    def get_state_store(self, name: str) -> Any:
        if name in self._node.store_names:
            return self._task.store(name)
        if name not in self._task.global_stores:
            raise StreamsException(f"Processor {self._node.name} has no access to StateStore {name}")
        return ReadOnly(self._task.store(name))

    def schedule(self, interval: Duration, kind: str, callback: Callable[[int], None]) -> Punctuation:
        """Call `callback(timestamp)` every `interval` of stream time or of wall-clock time."""
        return self._task.schedule(self._node, millis(interval, "the interval"), kind, callback)

    def current_stream_time_ms(self) -> int:
        return self._task.stream_time

    def current_system_time_ms(self) -> int:
        return self._task.now()

    def record_metadata(self) -> RecordMetadata | None:
        return self._task.record

    def commit(self) -> None:
        """Kafka commits soon after; here the micro-batch ends with a commit anyway."""

    def app_configs(self) -> Mapping[str, Any]:
        return self._task.settings.config


class UserNode(Node):
    """Holds a processor of the Processor API."""

    def __init__(self, supplier: Callable[[], Any], fixed_key: bool = False) -> None:
        self.fixed_key = fixed_key
        self._processor = made_by(supplier, "process", "a processor: an object with process(record)")
        self.key: Any = None

    def attach(self, task: Task, spec: ProcessorNode) -> None:
        super().attach(task, spec)
        self.store_names = spec.stores

    def init(self) -> None:
        init = getattr(self._processor, "init", None)
        if init is not None:
            init(ProcessorContext(self, self.task))

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.key = key
        self._processor.process(Record(key, value, timestamp, headers))

    def close(self) -> None:
        close = getattr(self._processor, "close", None)
        if close is not None:
            close()


class Guard:
    """Stands for a node where there is a processing exception handler, which is asked about what
    the node itself cannot do with a record."""

    def __init__(self, node: Node, task: Task) -> None:
        self.name = node.name
        self._process, self._task = node.process, task

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            self._process(key, value, timestamp, headers)
        except FailedProcessingException:
            raise
        except Exception as error:
            self._task.ask_about(self.name, Record(key, value, timestamp, headers), error)


def source_serdes(spec: SourceNode, settings: Settings) -> tuple[Serde, Serde]:
    """The serdes of a source's keys and values."""
    key_serde, value_serde = spec.key_serde or settings.key_serde, spec.value_serde or settings.value_serde
    key_default, value_default = settings.key_serde, settings.value_serde
    return key_serde.resolved(key_default, value_default), value_serde.resolved(value_default, key_default)


class Source:
    """Where records come in."""

    def __init__(self, spec: SourceNode, task: Task) -> None:
        self.name = spec.name
        self.children: list[Any] = []
        self._task, settings = task, task.settings
        self.key_serde, self.value_serde = source_serdes(spec, settings)
        extract = extractor_of(spec.timestamp_extractor, f"the timestamp extractor of {spec.name}")
        self._extract = extract or settings.timestamp_extractor

    def take(
        self, at: RecordMetadata, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers, latest: int
    ) -> tuple[Any, Any, int] | None:
        """Key, value and time of a record; None if it is left out."""
        try:
            found = self.key_serde.deserialize(key), self.value_serde.deserialize(value)
        except Exception as error:
            record = SourceRecord(*at, key, value, timestamp, headers)
            handler = self._task.settings.deserialization_handler
            if self._task.follows(handler(self._task.error_context(self.name), record, error)):
                return None
            raise StreamsException(
                f"{at.topic}-{at.partition} offset {at.offset} cannot be read with {self.key_serde}, "
                f"{self.value_serde}: {error}"
            ) from error
        if self._extract is not None:
            timestamp = self._extract(Record(*found, timestamp, headers), latest)
            if timestamp < 0:
                logger.warning("%s-%d offset %d has no time and is left out", at.topic, at.partition, at.offset)
                return None
        elif timestamp < 0:
            raise StreamsException(
                f"{at.topic}-{at.partition} offset {at.offset} has the timestamp {timestamp}: use a timestamp "
                "extractor, for example default.timestamp.extractor=LogAndSkipOnInvalidTimestamp"
            )
        return (*found, timestamp)


class Sink:
    """Where records go out."""

    def __init__(self, spec: SinkNode, task: Task) -> None:
        self.name = spec.name
        self.children: list[Any] = []
        self._task = task
        self._topic = spec.topic
        default_key, default_value = task.settings.key_serde, task.settings.value_serde
        self.key_serde: Serde = (spec.key_serde or default_key).resolved(default_key, default_value)
        self.value_serde: Serde = (spec.value_serde or default_value).resolved(default_value, default_key)
        self.partitioner = spec.partitioner
        self.max_size = task.settings.max_request - _AROUND

    @property
    def full_topic(self) -> str:
        """The name of its topic, where that does not depend on the record."""
        assert isinstance(self._topic, str)
        return self._task.full_name(self._topic)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        topic = self._topic if isinstance(self._topic, str) else self._topic(key, value, self._task.record)
        if timestamp < 0:
            raise StreamsException(f"{self.name} would write a record with the time {timestamp} to {topic}")
        origin = KEY
        try:
            key_data = self.key_serde.serialize(key)
            origin = VALUE
            data = key_data, self.value_serde.serialize(value)
        except Exception as error:
            record = ProducerRecord(topic, value, key, None, timestamp, list(headers))
            handler = self._task.settings.production_handler
            if self._task.follows(handler.serialization(self._task.error_context(self.name), record, error, origin)):
                return
            raise FailedProcessingException(f"{self.name} to {topic}: {error}") from error
        if len(data[0] or b"") + len(data[1] or b"") > self.max_size:
            limit = f"the record is larger than max.request.size ({self.max_size + _AROUND} bytes)"
            record = ProducerRecord(topic, data[1], data[0], None, timestamp, list(headers))
            handler, too_large = self._task.settings.production_handler, KafkaError(ErrorCode.MESSAGE_TOO_LARGE, limit)
            if self._task.follows(handler(self._task.error_context(self.name), record, too_large)):
                return
            raise FailedProcessingException(f"{self.name} to {topic}: {limit}")
        collector = self._task.collector
        chosen = None
        if self.partitioner is not None:
            chosen = self.partitioner(topic, key, value, collector.partitions(self._task.full_name(topic)))
        collector.send(self._task.full_name(topic), *data, timestamp, headers, chosen)


class Task:
    """One sub-topology for one partition. `caching`: changes of tables are held back until
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
        self.record: RecordMetadata | None = None
        # Key, value, timestamp and headers of `record`, as they were read.
        self._raw: tuple[bytes | None, bytes | None, int, Headers] = (None, None, -1, ())
        self.global_stores = dict(global_stores or {})
        self._internal = topology.internal_topics
        serdes = settings.key_serde, settings.value_serde
        open_map = open_map or MemoryMaps()
        self.stores: dict[str, Store] = {name: topology.stores[name].build(*serdes, open_map) for name in sub.stores}
        self._punctuations: list[tuple[str, Punctuation]] = []
        self._pending: dict[str, list[int]] = {}
        self.sources: dict[str, Source] = {}
        self._by_name: dict[str, Source] = {}
        self.sinks: dict[str, Sink] = {}
        self.nodes: list[Node] = []
        self._to_close: list[Any] = []
        self._build(topology, sub)

    def _build(self, topology: Topology, sub: Subtopology) -> None:
        made: dict[str, Any] = {}
        for spec in sub.nodes:
            if isinstance(spec, SourceNode):
                made[spec.name] = self._by_name[spec.name] = source = Source(spec, self)
                for topic in spec.topics:
                    self.sources[self.full_name(topic)] = source
            elif isinstance(spec, ProcessorNode):
                node = spec.operator.node()
                node.attach(self, spec)
                self.nodes.append(node)
                made[spec.name] = node
            else:
                made[spec.name] = self.sinks[spec.name] = Sink(spec, self)
        for spec in sub.nodes:
            made[spec.name].children = [self._guarded(made[one.name]) for one in topology.children(spec.name)]

    def _guarded(self, node: Any) -> Any:
        return node if self.settings.processing_handler is None or isinstance(node, Sink) else Guard(node, self)

    def ask_about(self, node: str, record: Record | None, error: Exception) -> None:
        """What becomes of an error of the user's: it is passed over, or it ends the stream."""
        handler = self.settings.processing_handler
        if handler is None:
            raise error
        if not self.follows(handler(self.error_context(node), record, error)):
            raise FailedProcessingException(f"{node}: {type(error).__name__}: {error}") from error

    def error_context(self, node: str) -> ErrorHandlerContext:
        if self.record is None:
            return ErrorHandlerContext(node, self.task_id)
        key, value, timestamp, headers = self._raw
        return ErrorHandlerContext(node, self.task_id, *self.record, timestamp, headers, key, value)

    def follows(self, response: Response) -> bool:
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
        """When the stores have been restored. `meta` is what `meta()` gave when they were kept."""
        if meta:
            self.stream_time = meta["stream_time"]
            for node in self.nodes:
                node.observed = meta["observed"].get(node.name, -1)
            for name, position in meta["stores"].items():
                if name in self.stores:
                    self.stores[name].resume(position)
            self._pending = {name: list(times) for name, times in meta["punctuations"].items()}
        for node in self.nodes:
            node.init()

    def meta(self) -> dict[str, Any]:
        times: dict[str, list[int]] = {}
        for name, one in self._punctuations:
            times.setdefault(name, []).append(one.next)
        return {
            "stream_time": self.stream_time,
            "observed": {node.name: node.observed for node in self.nodes if node.observed >= 0},
            "stores": {name: store.position() for name, store in self.stores.items()},
            "punctuations": times,
        }

    def full_name(self, topic: str) -> str:
        """Topics of the application's own bear its id."""
        return f"{self.settings.application_id}-{topic}" if topic in self._internal else topic

    def also_reads(self, source: str, topic: str) -> bool:
        """A topic more for a source; whether the source is here."""
        if source in self._by_name:
            self.sources[topic] = self._by_name[source]
        return source in self._by_name

    def store(self, name: str) -> Any:
        found = self.stores.get(name) or self.global_stores.get(name)
        if found is None:
            raise InvalidStateStoreException(f"there is no store {name}")
        return found

    def process(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers = (),
    ) -> None:
        source = self.sources[topic]
        self.record = at = RecordMetadata(topic, partition, offset)
        self._raw = key, value, timestamp, headers
        found = source.take(at, key, value, timestamp, headers, self.stream_time)
        if found is not None:
            if found[2] > self.stream_time:
                self.stream_time = found[2]
            for child in source.children:
                child.process(*found, headers)
            if self._punctuations:
                self.punctuate(STREAM_TIME, self.stream_time)
        self.record = None

    def flush(self) -> None:
        """The end of a micro-batch: tell on what was held back, from the sources down."""
        for node in self.nodes:
            node.flush()

    def also_close(self, thing: Any) -> None:
        """With the task's nodes."""
        self._to_close.append(thing)

    def close(self) -> None:
        for one in (*self.nodes, *self._to_close):
            one.close()

    @contextmanager
    def without_record(self) -> Iterator[None]:
        """While something is worked out that no record of a topic is behind."""
        before, self.record = self.record, None
        try:
            yield
        finally:
            self.record = before

    # --- punctuators

    def schedule(self, node: Any, interval: int, kind: str, callback: Callable[[int], None]) -> Punctuation:
        if self.global_:
            raise StreamsException(f"{node.name} keeps a global store, and cannot be called by time")
        if interval < 1:
            raise StreamsException("The minimum supported scheduling interval is 1 millisecond.")
        if kind not in (STREAM_TIME, WALL_CLOCK_TIME):
            raise StreamsException(f"{kind} is no PunctuationType")
        begin = 0 if kind == STREAM_TIME else self.now() + interval
        kept = self._pending.get(node.name)
        made = Punctuation(kind, interval, kept.pop(0) if kept else begin, callback)
        self._punctuations.append((node.name, made))
        return made

    def punctuate(self, kind: str, time: int) -> bool:
        """Call what is due; whether there was something. What was missed is made up for by one
        call."""
        called = False
        for name, one in list(self._punctuations):
            if one.kind == kind and not one.cancelled and one.next <= time:
                try:
                    one.callback(time)
                except FailedProcessingException:
                    raise
                except Exception as error:
                    self.ask_about(name, None, error)
                called = True
                one.next += one.interval
                if one.next <= time:
                    one.next = one.next + (time - one.next) // one.interval * one.interval + one.interval
        if called or any(one.cancelled for _, one in self._punctuations):
            self._punctuations = [(name, one) for name, one in self._punctuations if not one.cancelled]
        return called

    def next_wall_clock(self) -> int | None:
        times = [one.next for _, one in self._punctuations if one.kind == WALL_CLOCK_TIME and not one.cancelled]
        return min(times, default=None)
