"""The objects that run processors in a task: nodes, and the context of a user's processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.stores import Store
from kavka.pipeline.streams.topology import Operator, ProcessorNode
from kavka.pipeline.streams.windows import Duration, millis

if TYPE_CHECKING:
    from kavka.pipeline.streams.engine import Task

Headers = tuple[tuple[str, bytes | None], ...]

STREAM_TIME, WALL_CLOCK_TIME = "stream-time", "wall-clock-time"


class PunctuationType:
    STREAM_TIME = STREAM_TIME
    WALL_CLOCK_TIME = WALL_CLOCK_TIME


@dataclass(frozen=True)
class Record:
    """A record that a processor receives or forwards."""

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


class Node:
    """A processor in a task. `observed` is the highest timestamp it has received; it is saved with
    the task."""

    observed = -1

    def attach(self, task: Task, spec: ProcessorNode) -> None:
        self.task = task
        self.name = spec.name
        self.children: list[Any] = []

    def init(self) -> None:
        """Called once, when all nodes and stores exist."""

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        raise NotImplementedError

    def forward(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for child in self.children:
            child.process(key, value, timestamp, headers)

    def flush(self) -> None:
        """Forward cached changes at the end of a micro-batch."""

    def close(self) -> None:
        """Release resources of a user's processor."""


class RecordOperator(Operator):
    """An operator that keeps nothing between records: `process` is all that its node does."""

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        raise NotImplementedError

    def node(self) -> Node:
        node = Node()
        node.process = partial(self.process, node)  # type: ignore[method-assign]
        return node


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
    """A global store for processors that do not fill it. Each task has a separate copy."""

    _WRITING = frozenset({"put", "put_all", "put_if_absent", "delete", "remove"})

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in self._WRITING:
            raise StreamsException(f"Global store is read only: {self._store.builder.name}.{name}")
        return getattr(self._store, name)


def supplied_by(supplier: Any, method: str, what: str) -> Any:
    """The object of a user's supplier, which is a function or has `get`, as in Kafka."""
    supplied = supplier.get() if hasattr(supplier, "get") else supplier()
    if supplied is None or not hasattr(supplied, method):
        raise StreamsException(f"{supplier} does not supply {what}")
    return supplied


def call_optional(target: Any, method: str, *arguments: Any) -> None:
    """Call a method that a user's object may leave out."""
    function = getattr(target, method, None)
    if function is not None:
        function(*arguments)


class ProcessorContext:
    """The interface of a task to a user's processor. Its node has a name and `store_names`."""

    def __init__(self, node: Any, task: Task) -> None:
        self._node, self._task = node, task
        self.application_id = task.settings.application_id
        self.task_id = task.task_id

    def forward(self, record: Record, child_name: str | None = None) -> None:
        if not isinstance(record, Record):
            raise StreamsException(f"{self._node.name} forwards a {type(record).__name__}: it must be a Record")
        children = self._node.children
        if child_name is not None:
            children = [child for child in children if child.name == child_name]
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
        """Has no effect: every micro-batch ends with a commit."""

    def app_configs(self) -> Mapping[str, Any]:
        return self._task.settings.config


class UserNode(Node):
    """Runs a processor of the Processor API."""

    def __init__(self, supplier: Callable[[], Any], fixed_key: bool = False) -> None:
        self.fixed_key = fixed_key
        self._processor = supplied_by(supplier, "process", "a processor: an object with process(record)")
        self.key: Any = None

    def attach(self, task: Task, spec: ProcessorNode) -> None:
        super().attach(task, spec)
        self.store_names = spec.stores

    def init(self) -> None:
        call_optional(self._processor, "init", ProcessorContext(self, self.task))

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.key = key
        self._processor.process(Record(key, value, timestamp, headers))

    def close(self) -> None:
        call_optional(self._processor, "close")
