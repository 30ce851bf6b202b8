"""KStream: a stream of records."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams import operators
from kavka.pipeline.streams.builder import GlobalKTable, StreamsBuilder
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.grouped import KGroupedStream
from kavka.pipeline.streams.joins import StreamJoin, StreamTableJoin, WindowPut
from kavka.pipeline.streams.options import (
    Branched,
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Named,
    Partitioner,
    Produced,
    Repartitioned,
    StreamJoined,
)
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.stores import BUFFER, WINDOW, StoreBuilder
from kavka.pipeline.streams.topology import Operator, ProcessorNode, RepartitionTopic
from kavka.pipeline.streams.windows import JoinWindows

if TYPE_CHECKING:
    from kavka.pipeline.streams.ktable import KTable


@dataclass(frozen=True, eq=False)
class KStream:
    """Immutable: each operator returns a new stream. With `needs_repartition`, keys may have
    changed since the topic was read, and records of a key may be in several partitions."""

    builder: StreamsBuilder
    name: str
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    needs_repartition: bool = False

    # --- operators without state

    def filter(self, predicate: Callable[[Any, Any], Any], named: Named | None = None) -> KStream:
        return self._then("KSTREAM-FILTER-", operators.Filter(predicate), named)

    def filter_not(self, predicate: Callable[[Any, Any], Any], named: Named | None = None) -> KStream:
        return self._then("KSTREAM-FILTER-", operators.Filter(predicate, negated=True), named)

    def select_key(self, mapper: Callable[[Any, Any], Any], named: Named | None = None) -> KStream:
        stream = self._then("KSTREAM-KEY-SELECT-", operators.SelectKey(mapper), named)
        return replace(stream, key_serde=None, needs_repartition=True)

    def map(self, mapper: Callable[[Any, Any], tuple[Any, Any]], named: Named | None = None) -> KStream:
        return self._then("KSTREAM-MAP-", operators.Map(mapper), named)._with_new_records()

    def flat_map(self, mapper: Callable[[Any, Any], Any], named: Named | None = None) -> KStream:
        return self._then("KSTREAM-FLATMAP-", operators.Map(mapper, flat=True), named)._with_new_records()

    def map_values(self, mapper: Callable[..., Any], named: Named | None = None) -> KStream:
        """`mapper(value)` or `mapper(key, value)` returns the new value."""
        operator = operators.MapValues(operators.with_key(mapper))
        return replace(self._then("KSTREAM-MAPVALUES-", operator, named), value_serde=None)

    def flat_map_values(self, mapper: Callable[..., Any], named: Named | None = None) -> KStream:
        """`mapper(value)` or `mapper(key, value)` returns any number of values."""
        operator = operators.FlatMapValues.of(mapper)
        return replace(self._then("KSTREAM-FLATMAPVALUES-", operator, named), value_serde=None)

    def peek(self, action: Callable[[Any, Any], Any], named: Named | None = None) -> KStream:
        return self._then("KSTREAM-PEEK-", operators.Peek(action), named)

    def foreach(self, action: Callable[[Any, Any], Any], named: Named | None = None) -> None:
        self._then("KSTREAM-FOREACH-", operators.Peek(action, ends=True), named)

    def print(self, label: str | None = None, named: Named | None = None) -> None:
        """Write records to standard output, as Kafka's Printed.toSysOut does."""
        self._then("KSTREAM-PRINTER-", operators.Peek(_Printer(label or self.name), ends=True), named)

    def merge(self, other: KStream, named: Named | None = None) -> KStream:
        name = self.builder.new_name("KSTREAM-MERGE-", named)
        self.builder.add_processor(name, operators.PassThrough(), (self.name, other.name))
        return KStream(self.builder, name, needs_repartition=self.needs_repartition or other.needs_repartition)

    def split(self, named: Named | None = None) -> BranchedKStream:
        return BranchedKStream(self, self.builder.new_name("KSTREAM-BRANCH-", named))

    # --- topics

    def to(self, topic: str | Callable[..., str], produced: Produced | None = None) -> None:
        """Write to a topic, or to the topic that `topic(key, value, record_metadata)` returns."""
        produced = produced or Produced()
        self.builder.topology.add_sink(
            self.builder.new_name("KSTREAM-SINK-", Named(produced.name)),
            topic,
            self.name,
            key_serde=produced.key_serde or self.key_serde,
            value_serde=produced.value_serde or self.value_serde,
            partitioner=produced.partitioner,
        )

    def through(self, topic: str, produced: Produced | None = None) -> KStream:
        """Write to a topic, and read it."""
        produced = produced or Produced()
        self.to(topic, produced)
        serdes = produced.key_serde or self.key_serde, produced.value_serde or self.value_serde
        return self.builder.stream(topic, Consumed.with_(*serdes))

    def repartition(self, repartitioned: Repartitioned | None = None) -> KStream:
        """Write to a topic of the application, partitioned by key, and read it."""
        options = repartitioned or Repartitioned()
        # Unlike other names, a user's name takes no number here, as in Kafka.
        name = options.name or self.builder.new_name("KSTREAM-REPARTITION-")
        return self.repartitioned(
            name, options.key_serde, options.value_serde, options.partitions, True, options.partitioner
        )

    # --- tables and groups

    def group_by_key(self, grouped: Grouped | None = None) -> KGroupedStream:
        grouped = grouped or Grouped()
        serdes = grouped.key_serde or self.key_serde, grouped.value_serde or self.value_serde
        return KGroupedStream(self, *serdes, grouped.name)

    def group_by(self, mapper: Callable[[Any, Any], Any], grouped: Grouped | None = None) -> KGroupedStream:
        return self.select_key(mapper).group_by_key(grouped)

    def to_table(self, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
        materialized = (materialized or Materialized()).or_serdes(self.key_serde, self.value_serde)
        name = self.builder.new_name("KSTREAM-TOTABLE-", named)
        store = materialized.store_name or self.builder.new_store_name("KSTREAM-TOTABLE-")
        parent = self
        if self.needs_repartition:
            parent = self.repartitioned(name, materialized.key_serde, materialized.value_serde)
        return self.builder.add_table(name, parent.name, store, materialized)

    # --- the Processor API

    def process(self, supplier: Callable[[], Any], *stores: str, named: Named | None = None) -> KStream:
        """Send each record to a processor of the user (`Topology.add_processor`)."""
        operator = operators.Process(supplier)
        return self._process("KSTREAM-PROCESSOR-", operator, named, stores)._with_new_records()

    def process_values(self, supplier: Callable[[], Any], *stores: str, named: Named | None = None) -> KStream:
        """As `process`, but the processor cannot change the keys."""
        operator = operators.Process(supplier, fixed_key=True)
        return replace(self._process("KSTREAM-PROCESSVALUES-", operator, named, stores), value_serde=None)

    # --- joins

    def join(self, other: Any, *arguments: Any, **options: Any) -> KStream:
        """With a stream: `join(stream, joiner, JoinWindows, StreamJoined)`; a table: `join(table,
        joiner, Joined)`; a global table: `join(table, key_mapper, joiner, Named)`. A joiner takes
        both values, or the key and both values."""
        return self._join(other, False, False, *arguments, **options)

    def left_join(self, other: Any, *arguments: Any, **options: Any) -> KStream:
        return self._join(other, True, False, *arguments, **options)

    def outer_join(self, other: KStream, *arguments: Any, **options: Any) -> KStream:
        if not isinstance(other, KStream):
            raise TopologyException("a stream has an outer join with a stream alone")
        return self._join(other, True, True, *arguments, **options)

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
        joined = joined or Joined()
        serdes = joined.key_serde or self.key_serde, joined.value_serde or self.value_serde
        stream = self.repartitioned(joined.name or self.name, *serdes) if self.needs_repartition else self
        name = self.builder.new_name("KSTREAM-LEFTJOIN-" if left else "KSTREAM-JOIN-", Named(joined.name))
        buffer: tuple[str, ...] = ()
        if joined.grace is not None:
            if not table.step.is_versioned():
                raise TopologyException("KTable must be versioned to use a grace period in a stream table join.")
            buffer = (f"{name}-Buffer",)
            self.builder.topology.add_state_store(StoreBuilder(BUFFER, *buffer))
        self.builder.topology.copartition(stream.name, table.name)
        operator = StreamTableJoin(table.step, operators.with_key(joiner, 2), left, None, joined.grace, *buffer)
        self.builder.add_processor(name, operator, (stream.name,), (*table.step.getter_stores(), *buffer))
        return KStream(self.builder, name, serdes[0])

    def _join_global(
        self,
        table: GlobalKTable,
        left: bool,
        mapper: Callable[[Any, Any], Any],
        joiner: Callable[..., Any],
        named: Named | None = None,
    ) -> KStream:
        operator = StreamTableJoin(table.step, operators.with_key(joiner, 2), left, mapper)
        return replace(self._then("KSTREAM-LEFTJOIN-", operator, named), value_serde=None)

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
        joined = joined or StreamJoined()
        key_serde = joined.key_serde or self.key_serde
        value_serde = joined.value_serde or self.value_serde
        other_serde = joined.other_value_serde or other.value_serde
        builder, base, this = self.builder, joined.name, self
        if self.needs_repartition:
            this = self.repartitioned(f"{base}-left" if base else self.name, key_serde, value_serde)
        if other.needs_repartition:
            topic = f"{base}-right" if base else other.name
            other = other.repartitioned(topic, joined.key_serde or other.key_serde, other_serde)

        def new_name(prefix: str, suffix: str) -> str:
            return builder.new_name(prefix, Named(base and f"{base}{suffix}"))

        this_window = new_name("KSTREAM-WINDOWED-", "-this-windowed")
        other_window = new_name("KSTREAM-WINDOWED-", "-other-windowed")
        this_suffix, other_suffix = "-outer-this-join" if right else "-this-join", "-other-join"
        if left:
            other_suffix = "-outer-other-join"
        this_generated = builder.new_name("KSTREAM-OUTERTHIS-" if right else "KSTREAM-JOINTHIS-")
        other_generated = builder.new_name("KSTREAM-OUTEROTHER-" if left else "KSTREAM-JOINOTHER-")
        this_join = f"{base}{this_suffix}" if base else this_generated
        other_join = f"{base}{other_suffix}" if base else other_generated
        merge = new_name("KSTREAM-MERGE-", "-merge")
        store_base = joined.store_name
        this_store = f"{store_base}{this_suffix}-store" if store_base else f"{this_generated}-store"
        other_store = f"{store_base}{other_suffix}-store" if store_base else f"{other_generated}-store"
        for store, serde in ((this_store, value_serde), (other_store, other_serde)):
            retention, size = windows.size + windows.grace, windows.size
            builder.topology.add_state_store(
                StoreBuilder(WINDOW, store, key_serde, serde, retention=retention, window_size=size, duplicates=True)
            )
        pending: tuple[str, ...] = ()
        if left or right:
            shared = f"KSTREAM-OUTERSHARED-{this_generated[-10:]}-store"
            pending = (f"{store_base}-{'outer' if right else 'left'}-shared-join-store" if store_base else shared,)
            builder.topology.add_state_store(StoreBuilder(BUFFER, *pending))
        builder.topology.copartition(this.name, other.name)
        function = operators.with_key(joiner, 2)
        builder.add_processor(this_window, WindowPut(this_store), (this.name,), (this_store,))
        builder.add_processor(other_window, WindowPut(other_store), (other.name,), (other_store,))
        from_this = StreamJoin(True, left, windows, function, this_store, other_store, *pending)
        from_other = StreamJoin(False, right, windows, function, other_store, this_store, *pending)
        builder.add_processor(this_join, from_this, (this_window,), (other_store, *pending))
        builder.add_processor(other_join, from_other, (other_window,), (this_store, *pending))
        builder.add_processor(merge, operators.PassThrough(), (this_join, other_join))
        return KStream(builder, merge, key_serde)

    # --- for other operators

    def repartitioned(
        self,
        topic: str,
        key_serde: Serde | None,
        value_serde: Serde | None,
        partitions: int | None = None,
        is_explicit: bool = False,
        partitioner: Partitioner | None = None,
    ) -> KStream:
        """The stream after a repartition topic, partitioned by key."""
        builder = self.builder
        sink, keyed, source = (builder.new_name(f"KSTREAM-{kind}-") for kind in ("SINK", "FILTER", "SOURCE"))
        if not re.fullmatch("KSTREAM.*-[0-9]{10}", topic):
            sink, keyed, source = (f"{topic}-repartition-{kind}" for kind in ("sink", "filter", "source"))
        builder.add_processor(keyed, operators.NonNullKey(), (self.name,))
        serdes = key_serde or self.key_serde, value_serde or self.value_serde
        repartition_topic = RepartitionTopic(f"{topic}-repartition", partitions, is_explicit)
        builder.repartition((keyed,), repartition_topic, serdes, (sink, source), partitioner)
        return KStream(builder, source, *serdes)

    def _then(self, prefix: str, operator: Operator, named: Named | None) -> KStream:
        name = self.builder.new_name(prefix, named)
        self.builder.add_processor(name, operator, (self.name,))
        return replace(self, name=name)

    def _process(
        self, prefix: str, operator: operators.Process, named: Named | None, stores: tuple[str, ...]
    ) -> KStream:
        stream, topology = self._then(prefix, operator, named), self.builder.topology
        topology.connect_stores_of(operator.supplier, stream.name)
        topology.connect_processor_and_state_stores(stream.name, *stores)
        return stream

    def _with_new_records(self) -> KStream:
        return KStream(self.builder, self.name, needs_repartition=True)


@dataclass(frozen=True)
class _Printer:
    label: str

    def __call__(self, key: Any, value: Any) -> None:
        print(f"[{self.label}]: {key}, {value}", flush=True)


class BranchedKStream:
    """`stream.split().branch(predicate, Branched).….default_branch()` returns a dict of streams by
    name."""

    def __init__(self, stream: KStream, name: str) -> None:
        self._stream, self._name = stream, name
        self._operator = operators.Branch()
        self._streams: dict[str, KStream] = {}
        stream.builder.add_processor(name, self._operator, (stream.name,))

    def branch(self, predicate: Callable[[Any, Any], Any], branched: Branched | None = None) -> BranchedKStream:
        self._operator = replace(self._operator, predicates=(*self._operator.predicates, predicate))
        self._add(branched or Branched(), str(len(self._operator.predicates)))
        return self

    def default_branch(self, branched: Branched | None = None) -> dict[str, KStream]:
        self._add(branched or Branched(), "0")
        return self._streams

    def no_default_branch(self) -> dict[str, KStream]:
        return self._streams

    def _add(self, branched: Branched, number: str) -> None:
        stream, builder = self._stream, self._stream.builder
        name = f"{self._name}{branched.name or number}"
        self._operator = replace(self._operator, names=(*self._operator.names, name))
        builder.topology.replace_node(ProcessorNode(self._name, self._operator, (stream.name,)))
        builder.new_name("KSTREAM-BRANCHCHILD-")
        builder.add_processor(name, operators.PassThrough(), (self._name,))
        branch = replace(stream, name=name)
        if branched.consumer is not None:
            branched.consumer(branch)
            return
        self._streams[name] = branched.chain(branch) if branched.chain is not None else branch
