"""KStream: records one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams import nodes
from kavka.pipeline.streams.builder import GlobalKTable, StreamsBuilder, table_store
from kavka.pipeline.streams.engine import UserNode
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.expressions import Expression, Listed
from kavka.pipeline.streams.grouped import KGroupedStream
from kavka.pipeline.streams.joins import StreamJoin, StreamTableJoin, WindowPut
from kavka.pipeline.streams.options import (
    Branched,
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Named,
    Produced,
    Repartitioned,
    StreamJoined,
)
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.stores import BUFFER, KEY_VALUE, VERSIONED, WINDOW, StoreBuilder
from kavka.pipeline.streams.tables import SourceStep
from kavka.pipeline.streams.windows import JoinWindows

if TYPE_CHECKING:
    from kavka.pipeline.streams.ktable import KTable


class KStream:
    """Immutable: each step gives a new stream. `rekeyed` says that keys may have changed since the
    topic was read, so that records of one key lie in many partitions."""

    def __init__(
        self,
        builder: StreamsBuilder,
        name: str,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        rekeyed: bool = False,
    ) -> None:
        self.builder, self.name = builder, name
        self.key_serde, self.value_serde = key_serde, value_serde
        self.rekeyed = rekeyed

    # --- one record at a time

    def filter(self, predicate: Callable[[Any, Any], Any], named: Named | None = None) -> KStream:
        return self._then("KSTREAM-FILTER-", partial(nodes.Filter, predicate, False), named)

    def filter_not(self, predicate: Callable[[Any, Any], Any], named: Named | None = None) -> KStream:
        return self._then("KSTREAM-FILTER-", partial(nodes.Filter, predicate, True), named)

    def select_key(self, mapper: Callable[[Any, Any], Any], named: Named | None = None) -> KStream:
        name = self._add("KSTREAM-KEY-SELECT-", partial(nodes.SelectKey, mapper), named)
        return KStream(self.builder, name, None, self.value_serde, True)

    def map(self, mapper: Callable[[Any, Any], tuple[Any, Any]], named: Named | None = None) -> KStream:
        return KStream(self.builder, self._add("KSTREAM-MAP-", partial(nodes.Map, mapper), named), rekeyed=True)

    def flat_map(self, mapper: Callable[[Any, Any], Any], named: Named | None = None) -> KStream:
        return KStream(self.builder, self._add("KSTREAM-FLATMAP-", partial(nodes.FlatMap, mapper), named), rekeyed=True)

    def map_values(self, mapper: Callable[..., Any], named: Named | None = None) -> KStream:
        """`mapper(value)`, or `mapper(key, value)`."""
        name = self._add("KSTREAM-MAPVALUES-", partial(nodes.MapValues, nodes.with_key(mapper)), named)
        return KStream(self.builder, name, self.key_serde, None, self.rekeyed)

    def flat_map_values(self, mapper: Callable[..., Any], named: Named | None = None) -> KStream:
        """`mapper(value)`, or `mapper(key, value)`, gives any number of values."""
        function = Listed(mapper) if isinstance(mapper, Expression) else nodes.with_key(mapper)
        name = self._add("KSTREAM-FLATMAPVALUES-", partial(nodes.FlatMapValues, function), named)
        return KStream(self.builder, name, self.key_serde, None, self.rekeyed)

    def peek(self, action: Callable[[Any, Any], Any], named: Named | None = None) -> KStream:
        return self._then("KSTREAM-PEEK-", partial(nodes.Peek, action, False), named)

    def foreach(self, action: Callable[[Any, Any], Any], named: Named | None = None) -> None:
        self._add("KSTREAM-FOREACH-", partial(nodes.Peek, action, True), named)

    def print(self, label: str | None = None, named: Named | None = None) -> None:
        """Write records to standard output, as Kafka's Printed.toSysOut does."""
        self._add("KSTREAM-PRINTER-", partial(nodes.Peek, _Printer(label or self.name), True), named)

    def merge(self, other: KStream, named: Named | None = None) -> KStream:
        name = self.builder.new_name("KSTREAM-MERGE-", named)
        self.builder.add_processor(name, nodes.PassThrough, (self.name, other.name))
        return KStream(self.builder, name, rekeyed=self.rekeyed or other.rekeyed)

    def split(self, named: Named | None = None) -> BranchedKStream:
        return BranchedKStream(self, self.builder.new_name("KSTREAM-BRANCH-", named))

    # --- topics

    def to(self, topic: str | Callable[..., str], produced: Produced | None = None) -> None:
        """To a topic, or to the one that `topic(key, value, record_metadata)` names."""
        how = produced or Produced()
        name = self.builder.new_name("KSTREAM-SINK-", Named(how.name))
        self.builder.topology.add_sink(
            name,
            topic,
            self.name,
            key_serde=how.key_serde or self.key_serde,
            value_serde=how.value_serde or self.value_serde,
            partitioner=how.partitioner,
        )

    def through(self, topic: str, produced: Produced | None = None) -> KStream:
        """To a topic, and on from there."""
        how = produced or Produced()
        self.to(topic, how)
        serdes = how.key_serde or self.key_serde, how.value_serde or self.value_serde
        return self.builder.stream(topic, Consumed.with_(*serdes))

    def repartition(self, repartitioned: Repartitioned | None = None) -> KStream:
        """Through a topic of the application's own, by key."""
        how = repartitioned or Repartitioned()
        name = self.builder.new_name("KSTREAM-REPARTITION-", Named(how.name))
        return self.regrouped(
            name, how.key_serde, how.value_serde, how.partitions, users=True, partitioner=how.partitioner
        )

    # --- tables and groups

    def group_by_key(self, grouped: Grouped | None = None) -> KGroupedStream:
        how = grouped or Grouped()
        return KGroupedStream(self, how.key_serde or self.key_serde, how.value_serde or self.value_serde, how.name)

    def group_by(self, mapper: Callable[[Any, Any], Any], grouped: Grouped | None = None) -> KGroupedStream:
        how = grouped or Grouped()
        stream = self.select_key(mapper)
        return KGroupedStream(stream, how.key_serde, how.value_serde or self.value_serde, how.name)

    def to_table(self, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
        from kavka.pipeline.streams.ktable import KTable

        kept = (materialized or Materialized()).for_(KEY_VALUE, VERSIONED)
        name = self.builder.new_name("KSTREAM-TOTABLE-", named)
        key_serde, value_serde = kept.key_serde or self.key_serde, kept.value_serde or self.value_serde
        store = kept.store_name or self.builder.new_store_name("KSTREAM-TOTABLE-")
        parent = self.regrouped(name, key_serde, value_serde).name if self.rekeyed else self.name
        builder = table_store(store, key_serde, value_serde, kept)

        def materialize() -> str:
            self.builder.topology.add_state_store(builder, name)
            return store

        step = SourceStep(None, materialize, kept.kind == VERSIONED)
        self.builder.add_processor(name, step.node, (parent,))
        if kept.store_name is not None:
            step.getter_stores()
        return KTable(self.builder, name, step, key_serde, value_serde)

    # --- the Processor API

    def process(self, supplier: Callable[[], Any], *stores: str, named: Named | None = None) -> KStream:
        """Each record to a processor of one's own (`Topology.add_processor` says what that is)."""
        return KStream(self.builder, self._user("KSTREAM-PROCESSOR-", supplier, stores, named, False), rekeyed=True)

    def process_values(self, supplier: Callable[[], Any], *stores: str, named: Named | None = None) -> KStream:
        """The same, but keys stay as they are."""
        name = self._user("KSTREAM-PROCESSVALUES-", supplier, stores, named, True)
        return KStream(self.builder, name, self.key_serde, None, self.rekeyed)

    # --- joins

    def join(self, other: Any, *arguments: Any, **options: Any) -> KStream:
        """With a stream: `join(stream, joiner, JoinWindows, StreamJoined)`; a table: `join(table,
        joiner, Joined)`; a global table: `join(table, key_mapper, joiner, Named)`. A joiner takes
        two values, or the key and two."""
        return self._join(other, False, False, *arguments, **options)

    def left_join(self, other: Any, *arguments: Any, **options: Any) -> KStream:
        return self._join(other, True, False, *arguments, **options)

    def outer_join(self, other: KStream, *arguments: Any, **options: Any) -> KStream:
        if not isinstance(other, KStream):
            raise TopologyException("a stream has an outer join with a stream alone")
        return self._join(other, True, True, *arguments, **options)

    # --- inside

    def _join(self, other: Any, left: bool, right: bool, *arguments: Any, **options: Any) -> KStream:
        if isinstance(other, KStream):
            return self._join_stream(other, left, right, *arguments, **options)
        if isinstance(other, GlobalKTable):
            return self._join_global(other, left, *arguments, **options)
        if hasattr(other, "step"):
            return self._join_table(other, left, *arguments, **options)
        raise TopologyException(f"a stream cannot be joined with a {type(other).__name__}")

    def _join_table(
        self, table: KTable, left: bool, joiner: Callable[..., Any], joined: Joined | None = None
    ) -> KStream:
        how = joined or Joined()
        key_serde, value_serde = how.key_serde or self.key_serde, how.value_serde or self.value_serde
        stream = self.regrouped(how.name or self.name, key_serde, value_serde) if self.rekeyed else self
        name = self.builder.new_name("KSTREAM-LEFTJOIN-" if left else "KSTREAM-JOIN-", Named(how.name))
        waiting: tuple[str, ...] = ()
        if how.grace is not None:
            if not table.step.is_versioned():
                raise TopologyException("KTable must be versioned to use a grace period in a stream table join.")
            waiting = (f"{name}-Buffer",)
            self.builder.topology.add_state_store(StoreBuilder(BUFFER, waiting[0]))
        self.builder.topology.copartition(stream.name, table.name)
        node = partial(StreamTableJoin, table.step, nodes.with_key(joiner, 2), left, None, how.grace, *waiting)
        self.builder.add_processor(name, node, (stream.name,), (*table.step.getter_stores(), *waiting))
        return KStream(self.builder, name, key_serde)

    def _join_global(
        self,
        table: GlobalKTable,
        left: bool,
        mapper: Callable[[Any, Any], Any],
        joiner: Callable[..., Any],
        named: Named | None = None,
    ) -> KStream:
        node = partial(StreamTableJoin, table.step, nodes.with_key(joiner, 2), left, mapper)
        name = self._add("KSTREAM-LEFTJOIN-", node, named)
        return KStream(self.builder, name, self.key_serde, None, self.rekeyed)

    def _join_stream(
        self,
        other: KStream,
        left: bool,
        right: bool,
        joiner: Callable[..., Any],
        windows: JoinWindows,
        joined: StreamJoined | None = None,
    ) -> KStream:
        if not isinstance(windows, JoinWindows):
            raise TopologyException("a join of streams needs JoinWindows")
        how = joined or StreamJoined()
        key_serde = how.key_serde or self.key_serde
        value_serde = how.value_serde or self.value_serde
        other_serde = how.other_value_serde or other.value_serde
        builder = self.builder
        this = self
        if self.rekeyed:
            this = self.regrouped(f"{how.name}-left" if how.name else self.name, key_serde, value_serde)
        if other.rekeyed:
            prefix = f"{how.name}-right" if how.name else other.name
            other = other.regrouped(prefix, how.key_serde or other.key_serde, other_serde)

        def called(suffix: str, prefix: str) -> str:
            generated = builder.new_name(prefix)
            return f"{how.name}{suffix}" if how.name else generated

        this_window = called("-this-windowed", "KSTREAM-WINDOWED-")
        other_window = called("-other-windowed", "KSTREAM-WINDOWED-")
        outer_this, outer_other = "KSTREAM-OUTERTHIS-", "KSTREAM-OUTEROTHER-"
        this_base = builder.new_name(outer_this if right else "KSTREAM-JOINTHIS-")
        other_base = builder.new_name(outer_other if left else "KSTREAM-JOINOTHER-")
        this_join = f"{how.name}{'-outer-this-join' if right else '-this-join'}" if how.name else this_base
        other_join = f"{how.name}{'-outer-other-join' if left else '-other-join'}" if how.name else other_base
        merge = called("-merge", "KSTREAM-MERGE-")
        base = how.store_name
        this_store = f"{base}{'-outer-this-join' if right else '-this-join'}-store" if base else f"{this_base}-store"
        other_store = f"{base}{'-outer-other-join' if left else '-other-join'}-store" if base else f"{other_base}-store"
        kept = windows.size + windows.grace
        for store, serde in ((this_store, value_serde), (other_store, other_serde)):
            builder.topology.add_state_store(
                StoreBuilder(WINDOW, store, key_serde, serde, retention=kept, window_size=windows.size, duplicates=True)
            )
        pending = None
        if left or right:
            shared = f"KSTREAM-OUTERSHARED-{this_base[-10:]}-store"
            pending = f"{base}-{'outer' if right else 'left'}-shared-join-store" if base else shared
            builder.topology.add_state_store(StoreBuilder(BUFFER, pending))
        builder.topology.copartition(this.name, other.name)
        function = nodes.with_key(joiner, 2)
        builder.add_processor(this_window, partial(WindowPut, this_store), (this.name,), (this_store,))
        builder.add_processor(other_window, partial(WindowPut, other_store), (other.name,), (other_store,))
        more = () if pending is None else (pending,)
        one = partial(StreamJoin, True, left, windows, function, this_store, other_store, pending)
        two = partial(StreamJoin, False, right, windows, function, other_store, this_store, pending)
        builder.add_processor(this_join, one, (this_window,), (other_store, *more))
        builder.add_processor(other_join, two, (other_window,), (this_store, *more))
        builder.add_processor(merge, nodes.PassThrough, (this_join, other_join))
        return KStream(builder, merge, key_serde)

    def regrouped(
        self,
        topic: str,
        key_serde: Serde | None,
        value_serde: Serde | None,
        partitions: int | None = None,
        users: bool = False,
        partitioner: Callable[..., int | None] | None = None,
    ) -> KStream:
        builder = self.builder
        sink, keyed, source = (builder.new_name(f"KSTREAM-{kind}-") for kind in ("SINK", "FILTER", "SOURCE"))
        if not re.fullmatch("KSTREAM.*-[0-9]{10}", topic):
            sink, keyed, source = (f"{topic}-repartition-{kind}" for kind in ("sink", "filter", "source"))
        builder.add_processor(keyed, nodes.NonNullKey, (self.name,))
        serdes = key_serde or self.key_serde, value_serde or self.value_serde
        builder.repartition(keyed, f"{topic}-repartition", *serdes, (sink, source), partitions, users, partitioner)
        return KStream(builder, source, *serdes)

    def _user(
        self, prefix: str, supplier: Callable[[], Any], stores: tuple[str, ...], named: Named | None, fixed: bool
    ) -> str:
        name = self.builder.new_name(prefix, named)
        self.builder.add_processor(name, partial(UserNode, supplier, fixed), (self.name,), ())
        self.builder.topology.connect_stores_of(supplier, name)
        self.builder.topology.connect_processor_and_state_stores(name, *stores)
        return name

    def _then(self, prefix: str, node: Callable[[], Any], named: Named | None) -> KStream:
        name = self._add(prefix, node, named)
        return KStream(self.builder, name, self.key_serde, self.value_serde, self.rekeyed)

    def _add(self, prefix: str, node: Callable[[], Any], named: Named | None) -> str:
        name = self.builder.new_name(prefix, named)
        self.builder.add_processor(name, node, (self.name,))
        return name


class _Printer:
    def __init__(self, label: str) -> None:
        self._label = label

    def __call__(self, key: Any, value: Any) -> None:
        print(f"[{self._label}]: {key}, {value}", flush=True)


class BranchedKStream:
    """`stream.split().branch(predicate, Branched).….default_branch()`: a dict of streams by
    name."""

    def __init__(self, stream: KStream, name: str) -> None:
        self._stream, self._name = stream, name
        self._predicates: list[Callable[[Any, Any], Any]] = []
        self._names: list[str] = []
        self._found: dict[str, KStream] = {}
        stream.builder.add_processor(name, _BranchSupplier(self._predicates, self._names), (stream.name,))

    def branch(self, predicate: Callable[[Any, Any], Any], branched: Branched | None = None) -> BranchedKStream:
        self._predicates.append(predicate)
        self._add(branched or Branched(), str(len(self._predicates)))
        return self

    def default_branch(self, branched: Branched | None = None) -> dict[str, KStream]:
        self._add(branched or Branched(), "0")
        return self._found

    def no_default_branch(self) -> dict[str, KStream]:
        return self._found

    def _add(self, how: Branched, number: str) -> None:
        stream = self._stream
        name = f"{self._name}{how.name or number}"
        self._names.append(name)
        stream.builder.new_name("KSTREAM-BRANCHCHILD-")
        stream.builder.add_processor(name, nodes.PassThrough, (self._name,))
        made = KStream(stream.builder, name, stream.key_serde, stream.value_serde, stream.rekeyed)
        if how.consumer is not None:
            how.consumer(made)
            return
        self._found[name] = how.chain(made) if how.chain is not None else made


class _BranchSupplier:
    def __init__(self, predicates: list[Callable[[Any, Any], Any]], names: list[str]) -> None:
        self._predicates, self._names = predicates, names

    def __call__(self) -> nodes.Branch:
        return nodes.Branch(self._predicates, self._names)
