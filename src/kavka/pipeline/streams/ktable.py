"""KTable: the last value of each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams import nodes
from kavka.pipeline.streams.builder import StreamsBuilder, table_store
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.foreign import ByKey, ForeignJoin, response_serde, subscription_serde, to_the_asking_task
from kavka.pipeline.streams.grouped import KGroupedTable
from kavka.pipeline.streams.options import Grouped, Materialized, Named, TableJoined
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.stores import BUFFER, SUBSCRIPTIONS, VERSIONED, StoreBuilder
from kavka.pipeline.streams.suppress import SuppressStep
from kavka.pipeline.streams.tables import DerivedStep, FilterStep, JoinStep, Kept, RegroupStep, SourceStep, Step
from kavka.pipeline.streams.topology import ProcessorNode
from kavka.pipeline.streams.transforms import TransformStep
from kavka.pipeline.streams.windows import Suppressed

if TYPE_CHECKING:
    from kavka.pipeline.streams.kstream import KStream


class KTable:
    """Immutable: each step gives a new table. `grace` is that of the windows its keys are in, if
    they are."""

    def __init__(
        self,
        builder: StreamsBuilder,
        name: str,
        step: Step,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        grace: int | None = None,
    ) -> None:
        self.builder, self.name, self.step = builder, name, step
        self.key_serde, self.value_serde = key_serde, value_serde
        self.grace = grace

    @property
    def queryable_store_name(self) -> str | None:
        return self.step.store

    def filter(
        self, predicate: Callable[[Any, Any], Any], materialized: Materialized | None = None, named: Named | None = None
    ) -> KTable:
        return self._filtered(predicate, False, materialized, named)

    def filter_not(
        self, predicate: Callable[[Any, Any], Any], materialized: Materialized | None = None, named: Named | None = None
    ) -> KTable:
        return self._filtered(predicate, True, materialized, named)

    def map_values(
        self, mapper: Callable[..., Any], materialized: Materialized | None = None, named: Named | None = None
    ) -> KTable:
        """`mapper(value)`, or `mapper(key, value)`."""
        store, serdes = self._store(materialized, "KTABLE-MAPVALUES-", None)
        step = DerivedStep(self.step, nodes.with_key(mapper), store)
        return self._then("KTABLE-MAPVALUES-", step, named, store, serdes, materialized)

    def transform_values(
        self,
        supplier: Callable[[], Any],
        *stores: str,
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        """`supplier()` makes a transformer: an object with `transform(read_only_key, value)`, which
        is called with None for a key that is deleted, too, and `init(context)` and `close()` if it
        likes. `stores` are the names of those that it uses; what the supplier's own `stores()`
        gives is added and connected."""
        store, serdes = self._store(materialized, "", None)
        name = self.builder.new_name("KTABLE-TRANSFORMVALUES-", named)
        step = TransformStep(self.step, supplier, name, store)
        step.history = _is_versioned(materialized)
        topology = self.builder.topology
        if store is not None:
            topology.add_state_store(table_store(store, *serdes, materialized))
        self.builder.add_processor(name, step.node, (self.name,))
        topology.connect_stores_of(supplier, name)
        topology.connect_processor_and_state_stores(name, *stores, *(() if store is None else (store,)))
        node = topology.nodes[name]
        assert isinstance(node, ProcessorNode)
        step.stores = node.stores
        return KTable(self.builder, name, step, *serdes, self.grace)

    def to_stream(self, mapper: Callable[[Any, Any], Any] | None = None, named: Named | None = None) -> KStream:
        from kavka.pipeline.streams.kstream import KStream

        name = self.builder.new_name("KTABLE-TOSTREAM-", named)
        self.builder.add_processor(name, nodes.ToStream, (self.name,))
        stream = KStream(self.builder, name, self.key_serde, self.value_serde)
        return stream if mapper is None else stream.select_key(mapper)

    def group_by(self, mapper: Callable[[Any, Any], tuple[Any, Any]], grouped: Grouped | None = None) -> KGroupedTable:
        """`mapper(key, value)` gives a new key and a new value."""
        how = grouped or Grouped()
        name = self.builder.new_name("KTABLE-SELECT-")
        self.builder.add_processor(name, RegroupStep(self.step, mapper).node, (self.name,))
        return KGroupedTable(self, name, how.key_serde, how.value_serde, how.name)

    def suppress(self, suppressed: Suppressed) -> KTable:
        if suppressed.final and self.grace is None:
            raise TopologyException("until_window_closes is for windowed tables: this one has no windows")
        if self.step.is_versioned():
            raise TopologyException("suppress() is only supported for non-versioned KTables")
        builder = self.builder
        name = builder.new_name("KTABLE-SUPPRESS-", Named(suppressed.name))
        store = f"{suppressed.name}-store" if suppressed.name else builder.new_store_name("KTABLE-SUPPRESS-")
        builder.topology.add_state_store(StoreBuilder(BUFFER, store))
        step = SuppressStep(self.step, suppressed, self.grace or 0, store)
        builder.add_processor(name, step.node, (self.name,), (store,))
        return KTable(builder, name, step, self.key_serde, self.value_serde, self.grace)

    def join(self, other: KTable, *arguments: Any, **options: Any) -> KTable:
        """By the same key: `join(table, joiner, Materialized, Named)`; by a foreign key:
        `join(table, foreign_key_extractor, joiner, TableJoined, Materialized)`, where
        `foreign_key_extractor` gives the key of the other table for a value, or for a key and a
        value."""
        if _is_foreign(arguments, options):
            return self._join_foreign(other, False, *arguments, **options)
        return self._join(other, False, False, *arguments, **options)

    def left_join(self, other: KTable, *arguments: Any, **options: Any) -> KTable:
        if _is_foreign(arguments, options):
            return self._join_foreign(other, True, *arguments, **options)
        return self._join(other, True, False, *arguments, **options)

    def outer_join(self, other: KTable, *arguments: Any, **options: Any) -> KTable:
        return self._join(other, True, True, *arguments, **options)

    # --- inside

    def _join(
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
        sides = [
            builder.new_name(f"KTABLE-JOIN{side.upper()}-", Named(f"{base}-join-{side}" if base else None))
            for side in ("this", "other")
        ]
        store, (key_serde, value_serde) = self._store(materialized, "", None)
        step = JoinStep(self.step, other.step, nodes.with_key(joiner, 2), left, right, store)
        step.history = _is_versioned(materialized)
        for side, name, parent, table in zip(step.sides, sides, (self, other), (other, self), strict=True):
            builder.add_processor(name, side.node, (parent.name,), table.step.getter_stores())
        if store is not None:
            builder.topology.add_state_store(table_store(store, key_serde, value_serde, materialized))
        builder.add_processor(merge, step.node, tuple(sides), () if store is None else (store,))
        return KTable(builder, merge, step, key_serde, value_serde, self.grace)

    def _join_foreign(
        self,
        other: KTable,
        left: bool,
        foreign_key_extractor: Callable[..., Any],
        joiner: Callable[..., Any],
        joined: TableJoined | Named | Materialized | None = None,
        materialized: Materialized | TableJoined | Named | None = None,
    ) -> KTable:
        if not isinstance(other, KTable):
            raise TopologyException(f"a table cannot be joined with a {type(other).__name__}")
        given = (joined, materialized)
        kept = next((one for one in given if isinstance(one, Materialized)), None) or Materialized()
        how = next((one for one in given if isinstance(one, TableJoined)), None) or TableJoined()
        named = next((one for one in given if isinstance(one, Named)), None)
        builder, base = self.builder, how.name or (None if named is None else named.name)

        def called(suffix: str, prefix: str) -> str:
            return builder.new_name(f"KTABLE-{prefix}-", Named(base and f"{base}{suffix}"))

        asking = called("-subscription-registration", "FK-JOIN-SUBSCRIPTION-REGISTRATION") + "-topic"
        send = called("-subscription-registration-processor", "FK-JOIN-SUBSCRIPTION-REGISTRATION")
        ends = called("-subscription-registration-sink", "SINK"), called("-subscription-registration-source", "SOURCE")
        store = called("-subscription-store", "FK-JOIN-SUBSCRIPTION-STATE-STORE")
        receive, match, changes = (
            called(suffix, "FK-JOIN-SUBSCRIPTION-PROCESSOR")
            for suffix in ("-subscription-receive", "-subscription-join-foreign", "-foreign-join-subscription")
        )
        answering = called("-subscription-response", "FK-JOIN-SUBSCRIPTION-RESPONSE") + "-topic"
        back = called("-subscription-response-sink", "SINK"), called("-subscription-response-source", "SOURCE")
        resolve = called("-subscription-response-resolver", "FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR")
        result = called("-result", "FK-JOIN-OUTPUT")
        if kept.store_name is None:
            builder.new_store_name("KTABLE-FK-JOIN-OUTPUT-")

        join = ForeignJoin(
            self.step,
            other.step,
            nodes.with_key(foreign_key_extractor),
            nodes.with_key(joiner, 2),
            left,
            other.key_serde,
            self.value_serde,
            store,
        )
        asked, answered = subscription_serde(self.key_serde), response_serde(other.value_serde)
        topology = builder.topology
        topology.add_state_store(StoreBuilder(SUBSCRIPTIONS, store, self.key_serde, asked, timestamped=True))
        chosen = None if how.other_partitioner is None else ByKey(how.other_partitioner)
        replied = to_the_asking_task if how.partitioner is None else ByKey(how.partitioner)

        builder.add_processor(send, join.send, (self.name,))
        builder.repartition(send, asking, other.key_serde, asked, ends, None, True, chosen, follows=True)
        builder.add_processor(receive, join.receive, (ends[1],), (store,))
        builder.add_processor(match, join.join_foreign, (receive,), other.step.getter_stores())
        builder.add_processor(changes, join.foreign_changes, (other.name,), (store,))
        both = (match, changes)
        builder.repartition(both, answering, self.key_serde, answered, back, None, True, replied, follows=True)
        builder.add_processor(resolve, join.resolve, (back[1],), self.step.getter_stores())
        # The tables need not be co-partitioned, but each topic between them must be with the table
        # whose tasks read it.
        topology.copartition(ends[1], other.name)
        topology.copartition(back[1], self.name)

        made = table_store(kept.store_name or "", self.key_serde, kept.value_serde, kept)

        def materialize() -> str:
            if kept.store_name is None:
                raise TopologyException("a join by a foreign key must be Materialized to be looked up")
            topology.add_state_store(made, result)
            return kept.store_name

        step = SourceStep(None, materialize, made.kind == VERSIONED)
        builder.add_processor(result, step.node, (resolve,))
        if kept.store_name is not None:
            step.getter_stores()
        return KTable(builder, result, step, kept.key_serde or self.key_serde, kept.value_serde)

    def _filtered(
        self,
        predicate: Callable[[Any, Any], Any],
        negated: bool,
        materialized: Materialized | None,
        named: Named | None,
    ) -> KTable:
        store, serdes = self._store(materialized, "KTABLE-FILTER-", self.value_serde)
        step = FilterStep(self.step, Kept(predicate, negated), store)
        return self._then("KTABLE-FILTER-", step, named, store, serdes, materialized)

    def _store(
        self, materialized: Materialized | None, prefix: str, value_serde: Serde | None
    ) -> tuple[str | None, tuple[Serde | None, Serde | None]]:
        """The name of the store, if the user names one, and the serdes. Kafka counts a name that is
        not used."""
        if materialized is None:
            return None, (self.key_serde, value_serde)
        if materialized.store_name is None and prefix:
            self.builder.new_store_name(prefix)
        serdes = materialized.key_serde or self.key_serde, materialized.value_serde or value_serde
        return materialized.store_name, serdes

    def _then(
        self,
        prefix: str,
        step: DerivedStep,
        named: Named | None,
        store: str | None,
        serdes: tuple[Serde | None, Serde | None],
        materialized: Materialized | None,
    ) -> KTable:
        name = self.builder.new_name(prefix, named)
        step.history = _is_versioned(materialized)
        if store is not None:
            self.builder.topology.add_state_store(table_store(store, *serdes, materialized))
        self.builder.add_processor(name, step.node, (self.name,), () if store is None else (store,))
        return KTable(self.builder, name, step, *serdes, self.grace)


def _is_versioned(materialized: Materialized | None) -> bool:
    return materialized is not None and materialized.kind == VERSIONED


def _is_foreign(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether what was given to a join has a function that gives a foreign key."""
    return "foreign_key_extractor" in options or sum(map(callable, arguments)) + ("joiner" in options) > 1
