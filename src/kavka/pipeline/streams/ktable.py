"""KTable: the latest value of each key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams import foreign, operators
from kavka.pipeline.streams.builder import StreamsBuilder, table_store
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.grouped import KGroupedTable
from kavka.pipeline.streams.options import Grouped, Materialized, Named, TableJoined, first_of
from kavka.pipeline.streams.serdes import Serde, wrapped
from kavka.pipeline.streams.stores import BUFFER, SUBSCRIPTIONS, VERSIONED, StoreBuilder
from kavka.pipeline.streams.suppress import SuppressStep
from kavka.pipeline.streams.tables import FilterStep, JoinSide, JoinStep, MapValuesStep, Regroup, Step
from kavka.pipeline.streams.topology import ProcessorNode, RepartitionTopic
from kavka.pipeline.streams.transforms import TransformStep
from kavka.pipeline.streams.windows import Suppressed

if TYPE_CHECKING:
    from kavka.pipeline.streams.kstream import KStream


@dataclass(frozen=True, eq=False)
class KTable:
    """Immutable: each operator returns a new table. `grace` is that of the windows of its keys, if
    they are windowed."""

    builder: StreamsBuilder
    name: str
    step: Step
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    grace: int | None = None

    @property
    def queryable_store_name(self) -> str | None:
        return self.step.store

    def filter(
        self, predicate: Callable[[Any, Any], Any], materialized: Materialized | None = None, named: Named | None = None
    ) -> KTable:
        store = self._store(materialized, self.value_serde, "KTABLE-FILTER-")
        return self._add("KTABLE-FILTER-", FilterStep(self.step, predicate, store.name or None), named, store)

    def filter_not(
        self, predicate: Callable[[Any, Any], Any], materialized: Materialized | None = None, named: Named | None = None
    ) -> KTable:
        return self.filter(operators.Negated(predicate), materialized, named)

    def map_values(
        self, mapper: Callable[..., Any], materialized: Materialized | None = None, named: Named | None = None
    ) -> KTable:
        """`mapper(value)` or `mapper(key, value)` returns the new value."""
        store = self._store(materialized, None, "KTABLE-MAPVALUES-")
        step = MapValuesStep(self.step, operators.with_key(mapper), store.name or None)
        return self._add("KTABLE-MAPVALUES-", step, named, store)

    def transform_values(
        self,
        supplier: Callable[[], Any],
        *stores: str,
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        """`supplier()` returns a transformer: an object with `transform(read_only_key, value)`, and
        with `init(context)` and `close()` if it needs them. A deleted key has the value None.
        `stores` are the names of the stores that it uses. The stores that the supplier's `stores()`
        returns are added and connected."""
        store = self._store(materialized, None)
        name = self.builder.new_name("KTABLE-TRANSFORMVALUES-", named)
        step = TransformStep(self.step, supplier, name, store.name or None)
        table, topology = self._add_named(name, step, store, is_connected=False), self.builder.topology
        topology.connect_stores_of(supplier, name)
        topology.connect_processor_and_state_stores(name, *stores, *((store.name,) if store.name else ()))
        node = topology.nodes[name]
        assert isinstance(node, ProcessorNode)
        step.stores = node.stores
        return table

    def to_stream(self, mapper: Callable[[Any, Any], Any] | None = None, named: Named | None = None) -> KStream:
        from kavka.pipeline.streams.kstream import KStream

        name = self.builder.new_name("KTABLE-TOSTREAM-", named)
        self.builder.add_processor(name, operators.ToStream(), (self.name,))
        stream = KStream(self.builder, name, self.key_serde, self.value_serde)
        return stream if mapper is None else stream.select_key(mapper)

    def group_by(self, mapper: Callable[[Any, Any], tuple[Any, Any]], grouped: Grouped | None = None) -> KGroupedTable:
        """`mapper(key, value)` returns the new key and the new value."""
        grouped = grouped or Grouped()
        name = self.builder.new_name("KTABLE-SELECT-")
        self.builder.add_processor(name, Regroup(self.step, mapper), (self.name,))
        return KGroupedTable(self, name, grouped.key_serde, grouped.value_serde, grouped.name)

    def suppress(self, suppressed: Suppressed) -> KTable:
        if suppressed.final and self.grace is None:
            raise TopologyException("until_window_closes is for windowed tables: this table has no windows")
        if self.step.is_versioned():
            raise TopologyException("suppress() is only supported for non-versioned KTables")
        builder = self.builder
        name = builder.new_name("KTABLE-SUPPRESS-", Named(suppressed.name))
        store = f"{suppressed.name}-store" if suppressed.name else builder.new_store_name("KTABLE-SUPPRESS-")
        builder.topology.add_state_store(StoreBuilder(BUFFER, store))
        step = SuppressStep(self.step, suppressed, self.grace or 0, store)
        builder.add_processor(name, step, (self.name,), (store,))
        return KTable(builder, name, step, self.key_serde, self.value_serde, self.grace)

    def join(self, other: KTable, *arguments: Any, **options: Any) -> KTable:
        """By the same key: `join(table, joiner, Materialized, Named)`; by a foreign key:
        `join(table, foreign_key_extractor, joiner, TableJoined, Materialized)`, where
        `foreign_key_extractor` returns the key of the other table for a value, or for a key and a
        value."""
        return self._join(other, False, False, *arguments, **options)

    def left_join(self, other: KTable, *arguments: Any, **options: Any) -> KTable:
        return self._join(other, True, False, *arguments, **options)

    def outer_join(self, other: KTable, *arguments: Any, **options: Any) -> KTable:
        return self._join_by_key(other, True, True, *arguments, **options)

    def _join(self, other: KTable, left: bool, right: bool, *arguments: Any, **options: Any) -> KTable:
        if "foreign_key_extractor" in options or sum(map(callable, arguments)) + ("joiner" in options) > 1:
            return self._join_foreign(other, left, *arguments, **options)
        return self._join_by_key(other, left, right, *arguments, **options)

    def _join_by_key(
        self,
        other: KTable,
        left: bool,
        right: bool,
        joiner: Callable[..., Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        if not isinstance(other, KTable):
            raise TopologyException(f"a table cannot be joined with a {type(other).__name__}")
        builder = self.builder
        builder.topology.copartition(self.name, other.name)
        merge = builder.new_name("KTABLE-MERGE-", named)
        base = None if named is None else named.name
        sides = tuple(
            builder.new_name(f"KTABLE-JOIN{side.upper()}-", Named(f"{base}-join-{side}" if base else None))
            for side in ("this", "other")
        )
        store = self._store(materialized, None)
        step = JoinStep(self.step, other.step, operators.with_key(joiner, 2), left, right, store.name or None)
        # A side without a match forwards a deletion only if it had a value.
        for table, is_kept in ((self, left), (other, right)):
            if is_kept:
                table.step.enable_sending_old_values()
        for name, is_left, own, table in zip(sides, (True, False), (self, other), (other, self), strict=True):
            side = JoinSide(step, own.step, table.step, is_left)
            builder.add_processor(name, side, (own.name,), table.step.getter_stores())
        return self._add_named(merge, step, store, sides)

    def _join_foreign(
        self,
        other: KTable,
        left: bool,
        foreign_key_extractor: Callable[..., Any],
        joiner: Callable[..., Any],
        joined: TableJoined | Named | Materialized | None = None,
        materialized: Materialized | TableJoined | Named | None = None,
    ) -> KTable:
        """Add the processors and topics of a foreign-key join.

        The function is long, because Kafka numbers all names before the first processor is added,
        and each processor refers to several of these names.
        """
        if not isinstance(other, KTable):
            raise TopologyException(f"a table cannot be joined with a {type(other).__name__}")
        options = joined, materialized
        table_joined = first_of(TableJoined, *options) or TableJoined()
        result_store = (first_of(Materialized, *options) or Materialized()).or_serdes(self.key_serde, None)
        named = first_of(Named, *options)
        builder, base = self.builder, table_joined.name or (None if named is None else named.name)

        def new_name(suffix: str, prefix: str) -> str:
            return builder.new_name(f"KTABLE-{prefix}-", Named(base and f"{base}{suffix}"))

        def topic(suffix: str, prefix: str) -> RepartitionTopic:
            return RepartitionTopic(f"{new_name(suffix, prefix)}-topic", is_explicit=True, follows_reader=True)

        # Kafka numbers the names in this order.
        subscriptions = topic("-subscription-registration", "FK-JOIN-SUBSCRIPTION-REGISTRATION")
        send = new_name("-subscription-registration-processor", "FK-JOIN-SUBSCRIPTION-REGISTRATION")
        subscription_ends = (
            new_name("-subscription-registration-sink", "SINK"),
            new_name("-subscription-registration-source", "SOURCE"),
        )
        store = new_name("-subscription-store", "FK-JOIN-SUBSCRIPTION-STATE-STORE")
        receive, respond, respond_to_all = (
            new_name(suffix, "FK-JOIN-SUBSCRIPTION-PROCESSOR")
            for suffix in ("-subscription-receive", "-subscription-join-foreign", "-foreign-join-subscription")
        )
        responses = topic("-subscription-response", "FK-JOIN-SUBSCRIPTION-RESPONSE")
        response_ends = (
            new_name("-subscription-response-sink", "SINK"),
            new_name("-subscription-response-source", "SOURCE"),
        )
        resolve = new_name("-subscription-response-resolver", "FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR")
        result = new_name("-result", "FK-JOIN-OUTPUT")
        if result_store.store_name is None:
            builder.new_store_name("KTABLE-FK-JOIN-OUTPUT-")

        extractor, function = operators.with_key(foreign_key_extractor), operators.with_key(joiner, 2)
        serdes = other.key_serde, self.value_serde
        join = foreign.ForeignJoin(self.step, other.step, extractor, function, left, *serdes, store)
        stage = partial(foreign.ForeignStage, join)
        by_subscription = wrapped(foreign.subscription_serde, self.key_serde, of_other=True)
        topology = builder.topology
        topology.add_state_store(StoreBuilder(SUBSCRIPTIONS, store, self.key_serde, by_subscription, timestamped=True))
        to_other, to_this = table_joined.other_partitioner, table_joined.partitioner

        builder.add_processor(send, stage(foreign.Send), (self.name,))
        builder.repartition(
            (send,),
            subscriptions,
            (other.key_serde, by_subscription),
            subscription_ends,
            None if to_other is None else foreign.KeyPartitioner(to_other),
        )
        builder.add_processor(receive, stage(foreign.Receive), (subscription_ends[1],), (store,))
        builder.add_processor(respond, stage(foreign.Respond), (receive,), other.step.getter_stores())
        builder.add_processor(respond_to_all, stage(foreign.RespondToAll), (other.name,), (store,))
        builder.repartition(
            (respond, respond_to_all),
            responses,
            (self.key_serde, wrapped(foreign.response_serde, other.value_serde)),
            response_ends,
            foreign.response_partition if to_this is None else foreign.KeyPartitioner(to_this),
        )
        builder.add_processor(resolve, stage(foreign.Resolve), (response_ends[1],), self.step.getter_stores())
        # The tables need not be co-partitioned. Each topic between them must be co-partitioned with
        # the table whose tasks read it.
        topology.copartition(subscription_ends[1], other.name)
        topology.copartition(response_ends[1], self.name)
        return builder.add_table(result, resolve, result_store.store_name, result_store)

    def _store(self, materialized: Materialized | None, value_serde: Serde | None, prefix: str = "") -> StoreBuilder:
        """The store of the next table, whose name is empty unless the user names it. With a prefix,
        a store without a name takes a number, as in Kafka."""
        if materialized is not None and materialized.store_name is None and prefix:
            self.builder.new_store_name(prefix)
        materialized = (materialized or Materialized()).or_serdes(self.key_serde, value_serde)
        return table_store(materialized.store_name or "", materialized)

    def _add(self, prefix: str, step: Step, named: Named | None, store: StoreBuilder) -> KTable:
        return self._add_named(self.builder.new_name(prefix, named), step, store)

    def _add_named(
        self, name: str, step: Step, store: StoreBuilder, parents: tuple[str, ...] = (), is_connected: bool = True
    ) -> KTable:
        step.has_history = store.kind == VERSIONED
        if store.name:
            self.builder.topology.add_state_store(store)
        stores = (store.name,) if store.name and is_connected else ()
        self.builder.add_processor(name, step, parents or (self.name,), stores)
        return KTable(self.builder, name, step, store.key_serde, store.value_serde, self.grace)
