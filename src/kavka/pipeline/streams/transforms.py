"""`KTable.transform_values`: values of a table made by an object of the user's, which may have
stores and punctuators.

Wherever values of the table are looked up and it has no store of its own, they are worked out from
its parent's by an object that the supplier makes for that purpose, as in Kafka: transformers that
remember something are to be materialized if others look their values up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kavka.pipeline.streams.engine import Headers, Node, ProcessorContext, Record, Task, made_by
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.stores import ValueAndTimestamp
from kavka.pipeline.streams.tables import FollowingStep, Getter, Step, TableNode

_UNKNOWN_TIME = -1


class TransformContext(ProcessorContext):
    """What a transformer may ask of its task: nothing is forwarded, what `transform` gives is what
    goes on."""

    _timestamp: int = _UNKNOWN_TIME
    _headers: Headers = ()

    def forward(self, record: Record, child_name: str | None = None) -> None:
        raise StreamsException(
            f"{self._node.name} cannot forward records: the value that transform() gives goes on, with its key"
        )

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
    """One that the supplier made, in its task."""

    def __init__(self, step: TransformStep, task: Task) -> None:
        self.name, self.store_names = step.name, step.stores
        what = "a transformer: an object with transform(read_only_key, value)"
        self._made = made_by(step.supplier, "transform", what)
        self._context = TransformContext(self, task)
        init = getattr(self._made, "init", None)
        if init is not None:
            init(self._context)

    def __call__(self, key: Any, value: Any, timestamp: int, headers: Headers = ()) -> Any:
        with self._context.at(timestamp, headers):
            return self._made.transform(key, value)

    def close(self) -> None:
        close = getattr(self._made, "close", None)
        if close is not None:
            close()


class TransformStep(FollowingStep):
    """A table whose values a transformer makes of another's; also of what is not there."""

    users = True

    def __init__(self, parent: Step, supplier: Callable[[], Any], name: str, store: str | None) -> None:
        super().__init__(parent, store)
        self.supplier, self.name = supplier, name
        self.stores: tuple[str, ...] = ()

    def getter(self, task: Task) -> Getter:
        if self.store is not None:
            return super().getter(task)
        inner, transform = self.parent.getter(task), _Transformer(self, task)
        task.also_close(transform)

        def get(key: Any, *as_of: int) -> ValueAndTimestamp | None:
            found = inner(key, *as_of)
            timestamp = _UNKNOWN_TIME if found is None else found[1]
            with task.without_record():
                value = transform(key, None if found is None else found[0], timestamp)
            return None if value is None else ValueAndTimestamp(value, timestamp)

        return get

    def node(self) -> Node:
        return Transformed(self)


class Transformed(TableNode):
    def __init__(self, step: TransformStep) -> None:
        super().__init__(step.store, step.send_old)
        self._step = step

    def init(self) -> None:
        super().init()
        self._transform = _Transformer(self._step, self.task)

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        new = self._transform(key, value.new, timestamp, headers)
        if self.store is not None:
            self.keep(key, new, self.kept_before(key), timestamp, headers)
            return
        old = self._transform(key, value.old, timestamp, headers) if self._send_old else None
        self.forward(key, Change(new, old, value.latest), timestamp, headers)

    def close(self) -> None:
        self._transform.close()
