"""The operators of tables: steps, and the nodes that run them.

A step has a store, or computes its table's values from its parent's. It sends old values with its
changes if an operator after it needs them. Both may change while the topology is built, not after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kavka.pipeline.streams.engine import Task
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.processors import Headers, Node, RecordOperator
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.stores import VERSIONED, ValueAndTimestamp
from kavka.pipeline.streams.topology import Operator
from kavka.pipeline.streams.versioned import VersionedStore

# Returns the value of a key with its time; of a versioned table also for a key and a time.
Getter = Callable[..., ValueAndTimestamp | None]


class Step(Operator):
    """The operator of a table. `store` is the name of its store, if it has one; with `has_history`
    that store is versioned."""

    has_history = False
    may_cache = True
    """If False, its node forwards every change, and the next node caches."""

    def __init__(self, store: str | None = None) -> None:
        self.store = store
        self.sends_old_values = False

    def is_versioned(self) -> bool:
        return self.has_history

    def node(self) -> Node:
        raise NotImplementedError

    def enable_sending_old_values(self, force: bool = True) -> bool:
        """Return whether the step sends old values from now on. Without `force` it does so only if
        no store has to be added for it."""
        self.sends_old_values = True
        return True

    def getter(self, task: Task) -> Getter:
        if self.store is None:
            raise TopologyException("a table without a store has no values to look up")
        get: Getter = task.store(self.store).get
        return get

    def getter_stores(self) -> tuple[str, ...]:
        return (self.store,) if self.store else ()


class TableNode(Node):
    """Updates the store and forwards changes: at once, or with caching at the end of the
    micro-batch, where a key's changes are merged."""

    def __init__(self, step: Step) -> None:
        self._store_name, self._sends_old_values = step.store, step.sends_old_values
        self._may_cache = step.may_cache

    def init(self) -> None:
        self.store: Any = None if self._store_name is None else self.task.store(self._store_name)
        self._is_versioned = self.store is not None and self.store.builder.kind == VERSIONED
        is_caching = self._may_cache and self.task.caching and self.store is not None and self.store.builder.caching
        self._cache: dict[Any, tuple[Any, Any, Any, int, Headers]] | None = {} if is_caching else None

    def put_and_forward(
        self, key: Any, new: Any, old: Any, timestamp: int, headers: Headers, data: bytes | None = None
    ) -> None:
        """`data` is the serialized key, if the caller has it."""
        if not self._is_versioned:
            data = self.store.serialize_key(key) if data is None else data
            self.store.put_at(data, None if new is None else (new, timestamp))
            self.forward_change(key, new, old, timestamp, headers, data)
            return
        next_time = self.store.put(key, new, timestamp)
        if next_time != VersionedStore.NOT_PUT:
            change = Change(new, old if self._sends_old_values else None, next_time == VersionedStore.LATEST)
            self.forward(key, change, timestamp, headers)

    def stored_value(self, key: Any) -> Any:
        """The value of the store, if it is needed: to send it as the old value, or because the
        cache forwards a deletion only of a key that had a value."""
        stored = self.store.get(key) if self._sends_old_values or self._cache is not None else None
        return None if stored is None else stored[0]

    def forward_change(self, key: Any, new: Any, old: Any, timestamp: int, headers: Headers, cache_key: Any) -> None:
        if self._cache is None:
            self.forward(key, Change(new, old if self._sends_old_values else None), timestamp, headers)
            return
        earlier = self._cache.pop(cache_key, None)
        self._cache[cache_key] = (key, new, old if earlier is None else earlier[2], timestamp, headers)

    def flush(self) -> None:
        if self._cache:
            changes, self._cache = self._cache, {}
            for key, new, old, timestamp, headers in changes.values():
                if new is not None or old is not None:
                    self.forward(key, Change(new, old if self._sends_old_values else None), timestamp, headers)


class SourceStep(Step):
    """The table of a topic. It gets a store, by `materialize`, as soon as its values are needed."""

    def __init__(self, materialize: Callable[[], str], has_history: bool = False) -> None:
        super().__init__()
        self._materialize, self.has_history = materialize, has_history

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_materialize"}

    def enable_sending_old_values(self, force: bool = True) -> bool:
        if force:
            self.getter_stores()
        self.sends_old_values = self.store is not None
        return self.sends_old_values

    def getter_stores(self) -> tuple[str, ...]:
        if self.store is None:
            self.store = self._materialize()
        return (self.store,)

    def node(self) -> Node:
        return TableSource(self)


class TableSource(TableNode):
    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return
        if self.store is None:
            self.forward(key, Change(value), timestamp, headers)
            return
        old = self.store.get(key)
        self.put_and_forward(key, value, None if old is None else old[0], timestamp, headers)


@dataclass(frozen=True)
class GlobalTable(RecordOperator):
    """Fills a global store."""

    store: str

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is not None:
            node.task.store(self.store).put(key, None if value is None else ValueAndTimestamp(value, timestamp))


class ChildStep(Step):
    """A table whose value for a key depends on its parent's value for that key alone. Without a
    store it computes its values from its parent's."""

    def __init__(self, parent: Step, store: str | None) -> None:
        super().__init__(store)
        self.parent = parent

    def enable_sending_old_values(self, force: bool = True) -> bool:
        has_old_values = self.store is not None or self.parent.enable_sending_old_values(force)
        self.sends_old_values = has_old_values or self.sends_old_values
        return self.sends_old_values

    def getter_stores(self) -> tuple[str, ...]:
        return (self.store,) if self.store else self.parent.getter_stores()

    def is_versioned(self) -> bool:
        return self.has_history if self.store else self.parent.is_versioned()


class MapValuesStep(ChildStep):
    def __init__(self, parent: Step, function: Callable[[Any, Any], Any], store: str | None) -> None:
        super().__init__(parent, store)
        self.function = function

    def getter(self, task: Task) -> Getter:
        if self.store is not None:
            return super().getter(task)
        parent_value, function = self.parent.getter(task), self.function

        def get(key: Any, *as_of: int) -> ValueAndTimestamp | None:
            stored = parent_value(key, *as_of)
            value = None if stored is None else function(key, stored[0])
            return None if stored is None or value is None else ValueAndTimestamp(value, stored[1])

        return get

    def drops_empty_changes(self) -> bool:
        """Whether a change from no value to no value is dropped."""
        return False

    def node(self) -> Node:
        return _MapValues(self)


class FilterStep(MapValuesStep):
    """Its function returns the value, or None. It sends old values where that needs no store, to
    drop changes of values that it filters out before and after."""

    def __init__(self, parent: Step, predicate: Callable[[Any, Any], Any], store: str | None) -> None:
        super().__init__(parent, FilteredValue(predicate), store)
        self.sends_old_values = parent.enable_sending_old_values(force=False)

    def drops_empty_changes(self) -> bool:
        return self.sends_old_values and not self.parent.is_versioned()


@dataclass(frozen=True)
class FilteredValue:
    predicate: Callable[[Any, Any], Any]

    def __call__(self, key: Any, value: Any) -> Any:
        return value if self.predicate(key, value) else None


class _MapValues(TableNode):
    def __init__(self, step: MapValuesStep) -> None:
        super().__init__(step)
        self._function, self._drops_empty_changes = step.function, step.drops_empty_changes()

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        new = None if value.new is None else self._function(key, value.new)
        old = None
        if self.store is not None:
            old = self.stored_value(key)
        elif self._sends_old_values and value.old is not None:
            old = self._function(key, value.old)
        if self._drops_empty_changes and old is None and new is None:
            return
        if self.store is not None:
            self.put_and_forward(key, new, old, timestamp, headers)
        else:
            self.forward(key, Change(new, old, value.latest), timestamp, headers)


@dataclass(frozen=True)
class Regroup(RecordOperator):
    """`KTable.group_by`: selects the keys, before the repartition topic."""

    parent: Step
    mapper: Callable[[Any, Any], tuple[Any, Any]]

    def __post_init__(self) -> None:
        self.parent.enable_sending_old_values()

    def process(self, node: Node, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if not value.latest and self.parent.is_versioned():
            return
        new = self._mapped(key, value.new)
        old = self._mapped(key, value.old)
        if new is not None and old is not None and new[0] == old[0]:
            node.forward(new[0], Change(new[1], old[1]), timestamp, headers)
            return
        if old is not None:
            node.forward(old[0], Change(None, old[1]), timestamp, headers)
        if new is not None:
            node.forward(new[0], Change(new[1], None), timestamp, headers)

    def _mapped(self, key: Any, value: Any) -> tuple[Any, Any] | None:
        pair = None if value is None else self.mapper(key, value)
        return None if pair is None or pair[0] is None or pair[1] is None else pair


class JoinStep(Step):
    """The result of a join of two tables. With `keep_left`, a left value without a right value is
    joined with None; with `keep_right`, a right value without a left value."""

    def __init__(
        self, this: Step, other: Step, joiner: Callable[..., Any], keep_left: bool, keep_right: bool, store: str | None
    ) -> None:
        super().__init__(store)
        self.this, self.other, self.joiner = this, other, joiner
        self.keep_left, self.keep_right = keep_left, keep_right
        self.sides_send_old_values = False

    def enable_sending_old_values(self, force: bool = True) -> bool:
        if self.store is None:
            self.this.enable_sending_old_values()
            self.other.enable_sending_old_values()
            self.sides_send_old_values = True
        return super().enable_sending_old_values(force)

    def node(self) -> Node:
        return _JoinMerge(self)

    def joined(self, key: Any, left: Any, right: Any) -> Any:
        if (left is None and right is None) or (left is None and not self.keep_right):
            return None
        if right is None and not self.keep_left:
            return None
        return self.joiner(key, left, right)

    def getter(self, task: Task) -> Getter:
        if self.store is not None:
            return super().getter(task)
        this_value, other_value = self.this.getter(task), self.other.getter(task)

        def get(key: Any) -> ValueAndTimestamp | None:
            left, right = this_value(key), other_value(key)
            value = self.joined(key, left and left[0], right and right[0])
            if value is None:
                return None
            return ValueAndTimestamp(value, max(stored[1] for stored in (left, right) if stored is not None))

        return get

    def getter_stores(self) -> tuple[str, ...]:
        return (self.store,) if self.store else (*self.this.getter_stores(), *self.other.getter_stores())


@dataclass(frozen=True)
class JoinSide(Operator):
    """One side of a join of tables: joins a change of this side with the other side's value."""

    join: JoinStep
    own: Step
    other: Step
    is_left: bool

    def joined(self, key: Any, own: Any, other: Any) -> Any:
        return self.join.joined(key, own, other) if self.is_left else self.join.joined(key, other, own)

    def node(self) -> Node:
        return _JoinSide(self)


class _JoinSide(Node):
    def __init__(self, side: JoinSide) -> None:
        self._side, self._is_versioned = side, side.own.is_versioned()
        self._needs_other = not (side.join.keep_left if side.is_left else side.join.keep_right)

    def init(self) -> None:
        self._get = self._side.other.getter(self.task)

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if key is None or (self._is_versioned and not value.latest):
            return
        stored = self._get(key)
        other = None if stored is None else stored[0]
        if other is None and (self._needs_other or (value.new is None and value.old is None)):
            return
        new, old = self._side.joined(key, value.new, other), None
        if self._side.join.sides_send_old_values:
            old = self._side.joined(key, value.old, other)
        self.forward(key, Change(new, old), timestamp if stored is None else max(timestamp, stored[1]), headers)


class _JoinMerge(TableNode):
    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if self.store is None:
            self.forward(key, value, timestamp, headers)
        else:
            self.put_and_forward(key, value.new, self.stored_value(key), timestamp, headers)
