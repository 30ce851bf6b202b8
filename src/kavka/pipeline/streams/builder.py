"""StreamsBuilder: creates streams and tables. It names nodes as Kafka does, by kind and number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.options import Consumed, Materialized, Named, Partitioner, check_name
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.stores import KEY_VALUE, VERSIONED, StoreBuilder
from kavka.pipeline.streams.tables import GlobalTable, SourceStep, Step
from kavka.pipeline.streams.topology import Operator, ProcessorNode, RepartitionTopic, SinkNode, SourceNode, Topology

if TYPE_CHECKING:
    from kavka.pipeline.streams.kstream import KStream
    from kavka.pipeline.streams.ktable import KTable


@dataclass(frozen=True, eq=False)
class GlobalKTable:
    """A table of which every task has a copy. Streams join it by any key."""

    step: Step
    queryable_store_name: str


class StreamsBuilder:
    def __init__(self) -> None:
        self.topology = Topology()
        self._index = 0

    def stream(self, topics: str | re.Pattern[str] | Iterable[str], consumed: Consumed | None = None) -> KStream:
        """A stream of the records of a topic, of several topics, or of all topics whose whole name
        matches a pattern."""
        from kavka.pipeline.streams.kstream import KStream

        consumed = consumed or Consumed()
        names = (topics,) if isinstance(topics, str | re.Pattern) else tuple(topics)
        name = self.new_name("KSTREAM-SOURCE-", Named(consumed.name))
        self._add_source(name, names, consumed)
        return KStream(self, name, consumed.key_serde, consumed.value_serde)

    def table(self, topic: str, consumed: Consumed | None = None, materialized: Materialized | None = None) -> KTable:
        """A topic as a table: the latest value of each key."""
        consumed, materialized = consumed or Consumed(), materialized or Materialized()
        store = materialized.store_name or self.new_store_name(f"{topic}-")
        source = self.new_name("KSTREAM-SOURCE-", Named(consumed.name and f"{consumed.name}-source"))
        name = self.new_name("KTABLE-SOURCE-", Named(consumed.name))
        self._add_source(source, (topic,), consumed)
        return self.add_table(name, source, store, materialized.or_serdes(consumed.key_serde, consumed.value_serde))

    def global_table(
        self, topic: str, consumed: Consumed | None = None, materialized: Materialized | None = None
    ) -> GlobalKTable:
        consumed, materialized = consumed or Consumed(), (materialized or Materialized()).check_kind(KEY_VALUE)
        materialized = materialized.or_serdes(consumed.key_serde, consumed.value_serde).with_caching_disabled()
        serdes = materialized.key_serde, materialized.value_serde
        store = materialized.store_name or self.new_store_name(f"{topic}-")
        source = self.new_name("KSTREAM-SOURCE-", Named(consumed.name))
        name = self.new_name("KTABLE-SOURCE-")
        self.topology.add_global_nodes(
            table_store(store, materialized),
            SourceNode(source, (topic,), *serdes, consumed.timestamp_extractor, "earliest"),
            ProcessorNode(name, GlobalTable(store), (source,)),
        )
        return GlobalKTable(Step(store), store)

    def add_state_store(self, builder: StoreBuilder) -> StreamsBuilder:
        self.topology.add_state_store(builder)
        return self

    def add_global_store(
        self, builder: StoreBuilder, topic: str, consumed: Consumed | None, supplier: Callable[[], Any]
    ) -> StreamsBuilder:
        """A store of which every task has a copy, filled by a processor of the user
        (`Topology.add_global_store`)."""
        consumed = consumed or Consumed()
        source = self.new_name("KSTREAM-SOURCE-", Named(consumed.name and f"{consumed.name}-source"))
        name = self.new_name("KTABLE-SOURCE-", Named(consumed.name))
        self.topology.add_global_store(builder, source, topic, name, supplier, **consumed.for_source())
        return self

    def build(self, config: Any = None) -> Topology:
        return self.topology

    # --- for the streams and tables of this builder

    def new_name(self, prefix: str, named: Named | None = None) -> str:
        """The user's name, or the prefix and the next number. As in Kafka, a user's name also takes
        a number."""
        name = f"{prefix}{self._index:010d}"
        self._index += 1
        return name if named is None or named.name is None else check_name(named.name)

    def new_store_name(self, prefix: str) -> str:
        return self.new_name(f"{prefix}STATE-STORE-")

    def _add_source(self, name: str, topics: tuple[str | re.Pattern[str], ...], consumed: Consumed) -> None:
        self.topology.add_source(name, *topics, offset_reset=consumed.reset_policy, **consumed.for_source())

    def add_processor(
        self, name: str, operator: Operator, parents: tuple[str, ...], stores: Iterable[str] = ()
    ) -> None:
        self.topology.add_node(ProcessorNode(name, operator, parents))
        self.topology.connect_processor_and_state_stores(name, *stores)

    def add_table(self, name: str, parent: str, store_name: str | None, materialized: Materialized) -> KTable:
        """A table of the records of `parent`. If the user does not name its store, it gets the
        store `store_name` when an operator needs its values."""
        from kavka.pipeline.streams.ktable import KTable

        store = table_store(store_name or "", materialized)

        def materialize() -> str:
            if store_name is None:
                raise TopologyException("a join by a foreign key must be Materialized to be looked up")
            self.topology.add_state_store(store, name)
            return store_name

        step = SourceStep(materialize, store.kind == VERSIONED)
        self.add_processor(name, step, (parent,))
        if materialized.store_name is not None:
            step.getter_stores()
        return KTable(self, name, step, store.key_serde, store.value_serde)

    def repartition(
        self,
        parents: tuple[str, ...],
        topic: RepartitionTopic,
        serdes: tuple[Serde | None, Serde | None],
        names: tuple[str, str],
        partitioner: Partitioner | None = None,
    ) -> None:
        """Write to a topic of the application and read it. `serdes` are for keys and values,
        `names` for the sink and the source."""
        sink, source = names
        self.topology.add_internal_topic(topic)
        self.topology.add_node(SinkNode(sink, topic.name, parents, *serdes, partitioner))
        self.topology.add_node(SourceNode(source, (topic.name,), *serdes))


def table_store(name: str, materialized: Materialized) -> StoreBuilder:
    materialized.check_kind(KEY_VALUE, VERSIONED)
    serdes = materialized.key_serde, materialized.value_serde
    if materialized.kind == VERSIONED:
        return StoreBuilder(VERSIONED, name, *serdes, retention=materialized.retention or 0)
    return StoreBuilder(KEY_VALUE, name, *serdes, timestamped=True, caching=materialized.caching)
