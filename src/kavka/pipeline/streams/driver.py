"""TopologyTestDriver: runs a topology in this process, without brokers and Spark, for tests.

A record is processed completely before the next one. With a cache (the default, as in Kafka) a
table's changes of a key by one record are merged. Each sub-topology has one task, of partition 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kavka.pipeline.streams.engine import Sent, Task
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.processors import WALL_CLOCK_TIME, Headers
from kavka.pipeline.streams.queries import QueryableStoreType, QueryableStoreTypes, read_only
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.stores import Store
from kavka.pipeline.streams.topology import Topology
from kavka.pipeline.streams.windows import Duration, millis


class TestRecord(NamedTuple):
    """A record that a test writes or reads."""

    key: Any
    value: Any
    timestamp: int | None = None
    headers: Headers = ()


# pytest takes a class of this name for tests.
TestRecord.__test__ = False  # type: ignore[attr-defined]


class _Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


class TopologyTestDriver:
    __test__ = False

    def __init__(
        self, topology: Topology, config: Mapping[str, Any] | None = None, initial_wall_clock_time: int = 0
    ) -> None:
        self._settings = settings_of({"application.id": "test-app", **(config or {})}, need_servers=False)
        self._clock = initial_wall_clock_time
        self._offsets: dict[str, int] = {}
        self._output: dict[str, deque[_Sent]] = {}
        self._queue: deque[tuple[str, _Sent]] = deque()
        self._globals: list[Task] = []
        self._tasks: list[Task] = []
        global_stores: dict[str, Store] = {}
        for sub in sorted(topology.subtopologies(), key=lambda sub: not sub.global_):
            task = Task(
                topology,
                sub,
                self._settings,
                self,
                lambda: self._clock,
                caching=self._settings.cache_bytes > 0,
                global_stores=global_stores,
            )
            task.start()
            if sub.global_:
                global_stores.update(task.stores)
                self._globals.append(task)
            else:
                self._tasks.append(task)
        self._patterns = topology.patterns()
        self._topics = {topic for task in (*self._globals, *self._tasks) for topic in task.sources}

    # --- topics

    def create_input_topic(
        self,
        topic: str,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        start_timestamp: int | None = None,
        auto_advance: Duration = 0,
    ) -> TestInputTopic:
        """Records have the wall-clock time, or start at `start_timestamp` and advance by
        `auto_advance`."""
        serdes = key_serde or self._settings.key_serde, value_serde or self._settings.value_serde
        return TestInputTopic(self, topic, *serdes, start_timestamp, millis(auto_advance, "the advance"))

    def create_output_topic(
        self, topic: str, key_serde: Serde | None = None, value_serde: Serde | None = None
    ) -> TestOutputTopic:
        serdes = key_serde or self._settings.key_serde, value_serde or self._settings.value_serde
        return TestOutputTopic(self, topic, *serdes)

    def producer_topics(self) -> set[str]:
        """The topics that the topology has written to."""
        return set(self._output)

    def source_topics(self) -> set[str]:
        """The topics that the topology reads. For a pattern, those that have records."""
        return set(self._topics)

    # --- time and stores

    def advance_wall_clock_time(self, by: Duration) -> None:
        self._clock += millis(by, "the advance")
        for task in self._tasks:
            task.punctuate(WALL_CLOCK_TIME, self._clock)
            task.flush()
            self._run()

    def now(self) -> int:
        return self._clock

    def get_state_store(self, name: str) -> Any:
        """The store, or None if it does not exist."""
        return self.get_all_state_stores().get(name)

    get_timestamped_key_value_store = get_timestamped_window_store = get_state_store
    get_session_store = get_versioned_key_value_store = get_state_store

    def get_key_value_store(self, name: str) -> Any:
        """The store of a table, without the timestamps of its values."""
        return self._plain(name, QueryableStoreTypes.key_value_store())

    def get_window_store(self, name: str) -> Any:
        return self._plain(name, QueryableStoreTypes.window_store())

    def _plain(self, name: str, kind: QueryableStoreType) -> Any:
        store = self.get_state_store(name)
        if store is None or not store.builder.timestamped:
            return store
        return read_only(name, kind, lambda: store)

    def get_all_state_stores(self) -> dict[str, Any]:
        return {name: store for task in (*self._globals, *self._tasks) for name, store in task.stores.items()}

    def close(self) -> None:
        for task in (*self._tasks, *self._globals):
            task.close()

    def __enter__(self) -> TopologyTestDriver:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- serialized records

    def pipe(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> None:
        if not self._reads(topic):
            raise StreamsException(f"Unknown topic: {topic}")
        self._queue.append((topic, _Sent(key, value, timestamp, headers)))
        self._run()

    def send(self, *record: *Sent) -> None:
        topic, key, value, timestamp, headers, _ = record
        sent = _Sent(key, value, timestamp, headers)
        self._output.setdefault(topic, deque()).append(sent)
        if self._reads(topic):
            self._queue.append((topic, sent))

    def partitions(self, topic: str) -> int:
        return 1

    def output(self, topic: str) -> deque[_Sent]:
        return self._output.setdefault(topic, deque())

    def _reads(self, topic: str) -> bool:
        """Whether the topology reads a topic. A topic that matches a pattern is read from its first
        record on."""
        if topic in self._topics:
            return True
        for node in self._patterns:
            if node.pattern is not None and node.pattern.fullmatch(topic):
                next(task for task in self._tasks if task.also_reads(node.name, topic))
                self._topics.add(topic)
                return True
        return False

    def _run(self) -> None:
        while self._queue:
            topic, sent = self._queue.popleft()
            offset = self._offsets.get(topic, 0)
            self._offsets[topic] = offset + 1
            for task in (*self._globals, *self._tasks):
                if topic in task.sources:
                    task.process((topic, 0, offset, *sent))
                    task.punctuate(WALL_CLOCK_TIME, self._clock)
                    task.flush()


@dataclass(eq=False)
class TestInputTopic:
    __test__ = False

    _driver: TopologyTestDriver
    _topic: str
    _key_serde: Serde
    _value_serde: Serde
    _time: int | None
    _advance: int

    def pipe_input(
        self, key: Any = None, value: Any = None, timestamp: int | None = None, headers: Headers = ()
    ) -> None:
        if isinstance(key, TestRecord):
            key, value, timestamp, headers = key
        if timestamp is None:
            timestamp = self._time if self._time is not None else self._driver.now()
            if self._time is not None:
                self._time += self._advance
        data = self._key_serde.serialize(key), self._value_serde.serialize(value)
        self._driver.pipe(self._topic, *data, timestamp, tuple(headers))

    def pipe_value(self, value: Any, timestamp: int | None = None) -> None:
        self.pipe_input(None, value, timestamp)

    def pipe_key_value_list(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        for key, value in pairs:
            self.pipe_input(key, value)

    def pipe_value_list(self, values: Iterable[Any]) -> None:
        for value in values:
            self.pipe_input(None, value)

    def pipe_record_list(self, records: Iterable[TestRecord]) -> None:
        for record in records:
            self.pipe_input(record)

    def advance_time(self, by: Duration) -> None:
        if self._time is None:
            raise StreamsException("the topic uses the wall-clock time: set start_timestamp to advance its time")
        self._time += millis(by, "the advance")


@dataclass(eq=False)
class TestOutputTopic:
    __test__ = False

    _driver: TopologyTestDriver
    _topic: str
    _key_serde: Serde
    _value_serde: Serde

    def read_record(self) -> TestRecord:
        queue = self._driver.output(self._topic)
        if not queue:
            raise StreamsException(f"Empty topic: {self._topic}")
        key, value, timestamp, headers = queue.popleft()
        return TestRecord(self._key_serde.deserialize(key), self._value_serde.deserialize(value), timestamp, headers)

    def read_value(self) -> Any:
        return self.read_record().value

    def read_key_value(self) -> tuple[Any, Any]:
        return self.read_record()[:2]

    def read_records_to_list(self) -> list[TestRecord]:
        return [self.read_record() for _ in range(self.get_queue_size())]

    def read_key_values_to_list(self) -> list[tuple[Any, Any]]:
        return [record[:2] for record in self.read_records_to_list()]

    def read_values_to_list(self) -> list[Any]:
        return [record.value for record in self.read_records_to_list()]

    def read_key_values_to_map(self) -> dict[Any, Any]:
        return dict(self.read_key_values_to_list())

    def is_empty(self) -> bool:
        return not self._driver.output(self._topic)

    def get_queue_size(self) -> int:
        return len(self._driver.output(self._topic))
