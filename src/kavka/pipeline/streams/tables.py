"""The steps of tables: what each is while a topology is built (a Step), and at work (a Node).

A step knows whether somebody downstream needs old values (`send_old`) and where its table's values
can be had: in its own store, or worked out from its parent's. Both may change until the topology is
built, never after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kavka.pipeline.streams.engine import Headers, Node, Task
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.stores import VERSIONED, ValueAndTimestamp
from kavka.pipeline.streams.versioned import VersionedStore

# Of a key, the value with its time; of a versioned table also of a key and a time.
Getter = Callable[..., ValueAndTimestamp | None]


class Step:
    """A table. `store` is the name of its own store, if it has one; with `history` it is a
    versioned one."""

    history = False

    def __init__(self, store: str | None = None) -> None:
        self.store = store
        self.send_old = False

    def is_versioned(self) -> bool:
        return self.history

    def node(self) -> Node:
        raise NotImplementedError

    def enable_old(self, force: bool = True) -> bool:
        """Old values are to be told; with `force` off only if no store has to be made for that.
        Whether they are."""
        self.send_old = True
        return True

    def getter(self, task: Task) -> Getter:
        if self.store is None:
            raise TopologyException("a table without a store has no values to look up")
        get: Getter = task.store(self.store).get
        return get

    def getter_stores(self) -> tuple[str, ...]:
        return (self.store,) if self.store else ()


class TableNode(Node):
    """Tells changes on: at once, or at the end of a micro-batch the last of each key. Where it
    `holds` nothing back, somebody after it does."""

    holds = True

    def __init__(self, store: str | None, send_old: bool) -> None:
        self._store_name, self._send_old = store, send_old

    @property
    def sends_old(self) -> bool:
        """Whether somebody is told what a value was before."""
        return self._send_old

    def init(self) -> None:
        self.store = None if self._store_name is None else self.task.store(self._store_name)
        self._versioned = self.store is not None and self.store.builder.kind == VERSIONED
        caching = self.holds and self.task.caching and self.store is not None and self.store.builder.caching
        self._held: dict[Any, tuple[Any, Any, Any, int, Headers]] | None = {} if caching else None

    def keep(self, key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        """Put a new value in the store, and tell."""
        assert self.store is not None
        if not self._versioned:
            self.store.put(key, None if new is None else ValueAndTimestamp(new, timestamp))
            self.tell(key, new, old, timestamp, headers, self.ident(key))
            return
        put = self.store.put(key, new, timestamp)
        if put != VersionedStore.NOT_PUT:
            change = Change(new, old if self._send_old else None, put == VersionedStore.LATEST)
            self.forward(key, change, timestamp, headers)

    def kept_before(self, key: Any) -> Any:
        """What the store has of a key, if somebody is to hear of it; of what is held back, the end
        of a key is told only if there was one."""
        assert self.store is not None
        held = self.store.get(key) if self._send_old or self._held is not None else None
        return None if held is None else held[0]

    def tell(self, key: Any, new: Any, old: Any, timestamp: int, headers: Headers, ident: Any) -> None:
        if self._held is None:
            self.forward(key, Change(new, old if self._send_old else None), timestamp, headers)
            return
        held = self._held.pop(ident, None)
        self._held[ident] = (key, new, old if held is None else held[2], timestamp, headers)

    def ident(self, key: Any) -> Any:
        return self.store._need_key(key) if self._held is not None and self.store is not None else None

    def flush(self) -> None:
        if self._held:
            held, self._held = self._held, {}
            for key, new, old, timestamp, headers in held.values():
                if new is not None or old is not None:
                    self.forward(key, Change(new, old if self._send_old else None), timestamp, headers)


class SourceStep(Step):
    """A table that is a topic's. It has a store as soon as somebody needs its values: `materialize`
    makes it."""

    def __init__(self, store: str | None, materialize: Callable[[], str], history: bool = False) -> None:
        super().__init__(store)
        self._materialize, self.history = materialize, history

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "send_old": self.send_old, "history": self.history}

    def enable_old(self, force: bool = True) -> bool:
        if force:
            self.getter_stores()
        self.send_old = self.store is not None
        return self.send_old

    def getter_stores(self) -> tuple[str, ...]:
        if self.store is None:
            self.store = self._materialize()
        return (self.store,)

    def node(self) -> Node:
        return TableSource(self.store, self.send_old)


class TableSource(TableNode):
    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return
        if self.store is None:
            self.forward(key, Change(value), timestamp, headers)
            return
        old = self.store.get(key)
        self.keep(key, value, None if old is None else old[0], timestamp, headers)


class GlobalSource(Node):
    """Fills a global store."""

    def __init__(self, store: str) -> None:
        self._store_name = store

    def init(self) -> None:
        self._store = self.task.store(self._store_name)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is not None:
            self._store.put(key, None if value is None else ValueAndTimestamp(value, timestamp))


class FollowingStep(Step):
    """A table that follows from one other, key by key. Without a store of its own, values are had
    from that one's."""

    def __init__(self, parent: Step, store: str | None) -> None:
        super().__init__(store)
        self.parent = parent

    def enable_old(self, force: bool = True) -> bool:
        self.send_old = self.store is not None or self.parent.enable_old(force) or self.send_old
        return self.send_old

    def getter_stores(self) -> tuple[str, ...]:
        return (self.store,) if self.store else self.parent.getter_stores()

    def is_versioned(self) -> bool:
        return self.history if self.store else self.parent.is_versioned()


class DerivedStep(FollowingStep):
    """Its values are what a function makes of the other's."""

    def __init__(self, parent: Step, function: Callable[[Any, Any], Any], store: str | None) -> None:
        super().__init__(parent, store)
        self.function = function

    def getter(self, task: Task) -> Getter:
        if self.store is not None:
            return super().getter(task)
        inner, function = self.parent.getter(task), self.function

        def get(key: Any, *as_of: int) -> ValueAndTimestamp | None:
            found = inner(key, *as_of)
            value = None if found is None else function(key, found[0])
            return None if found is None or value is None else ValueAndTimestamp(value, found[1])

        return get

    def node(self) -> Node:
        return Derived(self.function, self.store, self.send_old, skip_nothing=False)


class FilterStep(DerivedStep):
    """Where old values can be had for nothing, what is left out and was before is not told at
    all."""

    def __init__(self, parent: Step, function: Callable[[Any, Any], Any], store: str | None) -> None:
        super().__init__(parent, function, store)
        self.send_old = parent.enable_old(force=False)

    def node(self) -> Node:
        return Derived(self.function, self.store, self.send_old, skip_nothing=not self.parent.is_versioned())


class Kept:
    """A predicate as a function of a value: the value, or None."""

    def __init__(self, predicate: Callable[[Any, Any], Any], negated: bool) -> None:
        self._predicate, self._negated = predicate, negated

    def __call__(self, key: Any, value: Any) -> Any:
        return value if bool(self._predicate(key, value)) != self._negated else None


class Derived(TableNode):
    def __init__(
        self, function: Callable[[Any, Any], Any], store: str | None, send_old: bool, skip_nothing: bool
    ) -> None:
        super().__init__(store, send_old)
        self._function, self._skip_nothing = function, skip_nothing

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        new = None if value.new is None else self._function(key, value.new)
        old = None
        if self.store is not None:
            old = self.kept_before(key)
        elif self._send_old and value.old is not None:
            old = self._function(key, value.old)
        if self._send_old and self._skip_nothing and old is None and new is None:
            return
        if self.store is not None:
            self.keep(key, new, old, timestamp, headers)
        else:
            self.forward(key, Change(new, old, value.latest), timestamp, headers)


class RegroupStep(Step):
    """What `KTable.group_by` puts before its repartition topic."""

    def __init__(self, parent: Step, mapper: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        super().__init__()
        self.parent, self.mapper = parent, mapper
        parent.enable_old()

    def node(self) -> Node:
        return Regroup(self.mapper, self.parent.is_versioned())


class Regroup(Node):
    def __init__(self, mapper: Callable[[Any, Any], tuple[Any, Any]], versioned: bool) -> None:
        self._mapper, self._versioned = mapper, versioned

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if self._versioned and not value.latest:
            return
        new = self._mapped(key, value.new)
        old = self._mapped(key, value.old)
        if new is not None and old is not None and new[0] == old[0]:
            self.forward(new[0], Change(new[1], old[1]), timestamp, headers)
            return
        if old is not None:
            self.forward(old[0], Change(None, old[1]), timestamp, headers)
        if new is not None:
            self.forward(new[0], Change(new[1], None), timestamp, headers)

    def _mapped(self, key: Any, value: Any) -> tuple[Any, Any] | None:
        found = None if value is None else self._mapper(key, value)
        return None if found is None or found[0] is None or found[1] is None else found


class JoinStep(Step):
    """Where the two sides of a join of tables meet. `left`, `right`: whether a side may be missing
    on the other."""

    def __init__(
        self, this: Step, other: Step, joiner: Callable[..., Any], keep_left: bool, keep_right: bool, store: str | None
    ) -> None:
        super().__init__(store)
        self.this, self.other, self.joiner = this, other, joiner
        self.keep_left, self.keep_right = keep_left, keep_right
        self.sides = (
            JoinSide(self, this, other, True),
            JoinSide(self, other, this, False),
        )

    def enable_old(self, force: bool = True) -> bool:
        if self.store is None:
            self.this.enable_old()
            self.other.enable_old()
            for side in self.sides:
                side.send_old = True
        self.send_old = True
        return True

    def node(self) -> Node:
        return JoinMerge(self.store, self.send_old)

    def joined(self, key: Any, left: Any, right: Any) -> Any:
        if (left is None and right is None) or (left is None and not self.keep_right):
            return None
        if right is None and not self.keep_left:
            return None
        return self.joiner(key, left, right)

    def getter(self, task: Task) -> Getter:
        if self.store is not None:
            return super().getter(task)
        this, other = self.this.getter(task), self.other.getter(task)

        def get(key: Any) -> ValueAndTimestamp | None:
            left, right = this(key), other(key)
            value = self.joined(key, left and left[0], right and right[0])
            if value is None:
                return None
            return ValueAndTimestamp(value, max(one[1] for one in (left, right) if one is not None))

        return get

    def getter_stores(self) -> tuple[str, ...]:
        return (self.store,) if self.store else (*self.this.getter_stores(), *self.other.getter_stores())


class JoinSide(Step):
    def __init__(self, join: JoinStep, own: Step, other: Step, left: bool) -> None:
        super().__init__()
        self.join, self.own, self.other, self.left = join, own, other, left

    def node(self) -> Node:
        return TableJoin(self)


class TableJoin(Node):
    """One side of a join of two tables: a change here, and what the other side has."""

    def __init__(self, side: JoinSide) -> None:
        self._side, self._join = side, side.join

    def init(self) -> None:
        self._get = self._side.other.getter(self.task)
        self._versioned = self._side.own.is_versioned()

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if key is None or (self._versioned and not value.latest):
            return
        found = self._get(key)
        other = None if found is None else found[0]
        needs_other = not (self._join.keep_left if self._side.left else self._join.keep_right)
        if other is None and needs_other:
            return
        new, old = self._joined(key, value.new, other), None
        if self._side.send_old:
            old = self._joined(key, value.old, other)
        if other is None and value.new is None and value.old is None and self._side.send_old:
            return
        stamp = timestamp if found is None else max(timestamp, found[1])
        self.forward(key, Change(new, old), stamp, headers)

    def _joined(self, key: Any, own: Any, other: Any) -> Any:
        left, right = (own, other) if self._side.left else (other, own)
        return self._join.joined(key, left, right)


class JoinMerge(TableNode):
    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if self.store is None:
            self.forward(key, value, timestamp, headers)
            return
        self.keep(key, value.new, self.kept_before(key), timestamp, headers)
