"""`KTable.transform_values`: a user's transformer computes the values of a table. It may have
stores and punctuators.

Where other operators look up values of the table and it has no store, another transformer of the
supplier computes them from the parent's values, as in Kafka. A transformer that depends on earlier
calls should be materialized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kavka.pipeline.streams.engine import Task
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.processors import Headers, Node, ProcessorContext, Record, call_optional, supplied_by
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.stores import ValueAndTimestamp
from kavka.pipeline.streams.tables import ChildStep, Getter, Step, TableNode

_UNKNOWN_TIME = -1


class TransformContext(ProcessorContext):
    """The context of a transformer. It cannot forward records."""

    _timestamp: int = _UNKNOWN_TIME
    _headers: Headers = ()

    def forward(self, record: Record, child_name: str | None = None) -> None:
        raise StreamsException(f"{self._node.name} cannot forward records: return the new value from transform()")

    def timestamp(self) -> int:
        return self._timestamp

    def headers(self) -> Headers:
        return self._headers

    @contextmanager
    def at(self, timestamp: int, headers: Headers) -> Iterator[None]:
        before = self._timestamp, self._headers
        self._timestamp, self._headers = timestamp, headers
        try:
            yield
        finally:
            self._timestamp, self._headers = before


class _Transformer:
    """A user's transformer in its task."""

    def __init__(self, step: TransformStep, task: Task) -> None:
        self.name, self.store_names = step.name, step.stores
        what = "a transformer: an object with transform(read_only_key, value)"
        self._transformer = supplied_by(step.supplier, "transform", what)
        self._context = TransformContext(self, task)
        call_optional(self._transformer, "init", self._context)

    def __call__(self, key: Any, value: Any, timestamp: int, headers: Headers = ()) -> Any:
        with self._context.at(timestamp, headers):
            return self._transformer.transform(key, value)

    def close(self) -> None:
        call_optional(self._transformer, "close")


class TransformStep(ChildStep):
    """A table whose values a transformer computes from its parent's, None included."""

    is_user_processor = True

    def __init__(self, parent: Step, supplier: Callable[[], Any], name: str, store: str | None) -> None:
        super().__init__(parent, store)
        self.supplier, self.name = supplier, name
        self.stores: tuple[str, ...] = ()

    def getter(self, task: Task) -> Getter:
        if self.store is not None:
            return super().getter(task)
        parent_value, transform = self.parent.getter(task), _Transformer(self, task)
        task.also_close(transform)

        def get(key: Any, *as_of: int) -> ValueAndTimestamp | None:
            stored = parent_value(key, *as_of)
            timestamp = _UNKNOWN_TIME if stored is None else stored[1]
            with task.without_record():
                value = transform(key, None if stored is None else stored[0], timestamp)
            return None if value is None else ValueAndTimestamp(value, timestamp)

        return get

    def node(self) -> Node:
        return _Transform(self)


class _Transform(TableNode):
    def __init__(self, step: TransformStep) -> None:
        super().__init__(step)
        self._step = step

    def init(self) -> None:
        super().init()
        self._transform = _Transformer(self._step, self.task)

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        new = self._transform(key, value.new, timestamp, headers)
        if self.store is not None:
            self.put_and_forward(key, new, self.stored_value(key), timestamp, headers)
            return
        old = self._transform(key, value.old, timestamp, headers) if self._sends_old_values else None
        self.forward(key, Change(new, old, value.latest), timestamp, headers)

    def close(self) -> None:
        self._transform.close()
