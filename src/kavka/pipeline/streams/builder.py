"""StreamsBuilder: where streams and tables begin. It names the nodes as Kafka does, by kind and
number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams.options import Consumed, Materialized, Named, check_name
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.stores import KEY_VALUE, VERSIONED, StoreBuilder
from kavka.pipeline.streams.tables import GlobalSource, SourceStep, Step
from kavka.pipeline.streams.topology import ProcessorNode, RepartitionTopic, SinkNode, SourceNode, Topology

if TYPE_CHECKING:
    from kavka.pipeline.streams.kstream import KStream
    from kavka.pipeline.streams.ktable import KTable


class GlobalKTable:
    """A table that every task has a copy of: streams join it by any key."""

    def __init__(self, step: Step, store: str) -> None:
        self.step, self._store = step, store

    @property
    def queryable_store_name(self) -> str:
        return self._store


class GlobalSupplier:
    """Makes the node that fills a global store."""

    def __init__(self, store: str) -> None:
        self._store = store

    def __call__(self) -> GlobalSource:
        return GlobalSource(self._store)


class StreamsBuilder:
    def __init__(self) -> None:
        self.topology = Topology()
        self._index = 0

    def stream(self, topics: str | re.Pattern[str] | Iterable[str], consumed: Consumed | None = None) -> KStream:
        """A stream of one topic's records, of several topics', or of all topics whose whole name a
        pattern matches."""
        from kavka.pipeline.streams.kstream import KStream

        how = consumed or Consumed()
        names = (topics,) if isinstance(topics, str | re.Pattern) else tuple(topics)
        name = self.new_name("KSTREAM-SOURCE-", Named(how.name))
        self.add_source(name, names, how)
        return KStream(self, name, how.key_serde, how.value_serde)

    def table(self, topic: str, consumed: Consumed | None = None, materialized: Materialized | None = None) -> KTable:
        """A topic as a table: the last value of each key."""
        from kavka.pipeline.streams.ktable import KTable

        how, kept = consumed or Consumed(), (materialized or Materialized()).for_(KEY_VALUE, VERSIONED)
        store = kept.store_name or self.new_store_name(f"{topic}-")
        source = self.new_name("KSTREAM-SOURCE-", Named(how.name and f"{how.name}-source"))
        name = self.new_name("KTABLE-SOURCE-", Named(how.name))
        key_serde, value_serde = kept.key_serde or how.key_serde, kept.value_serde or how.value_serde
        self.add_source(source, (topic,), how)
        builder = table_store(store, key_serde, value_serde, kept)

        def materialize() -> str:
            self.topology.add_state_store(builder, name)
            return store

        step = SourceStep(None, materialize, kept.kind == VERSIONED)
        self.add_processor(name, step.node, (source,))
        if kept.store_name is not None:
            step.getter_stores()
        return KTable(self, name, step, key_serde, value_serde)

    def global_table(
        self, topic: str, consumed: Consumed | None = None, materialized: Materialized | None = None
    ) -> GlobalKTable:
        how, kept = consumed or Consumed(), (materialized or Materialized()).for_(KEY_VALUE)
        store = kept.store_name or self.new_store_name(f"{topic}-")
        source = self.new_name("KSTREAM-SOURCE-", Named(how.name))
        name = self.new_name("KTABLE-SOURCE-")
        key_serde, value_serde = kept.key_serde or how.key_serde, kept.value_serde or how.value_serde
        self.topology.add_global_nodes(
            table_store(store, key_serde, value_serde, kept.with_caching_disabled()),
            SourceNode(source, (topic,), key_serde, value_serde, how.timestamp_extractor, "earliest"),
            ProcessorNode(name, GlobalSupplier(store), (source,)),
        )
        return GlobalKTable(Step(store), store)

    def add_state_store(self, builder: StoreBuilder) -> StreamsBuilder:
        self.topology.add_state_store(builder)
        return self

    def add_global_store(
        self, builder: StoreBuilder, topic: str, consumed: Consumed | None, supplier: Callable[[], Any]
    ) -> StreamsBuilder:
        """A store that every task has a copy of, kept by a processor of one's own
        (`Topology.add_global_store`)."""
        how = consumed or Consumed()
        source = self.new_name("KSTREAM-SOURCE-", Named(how.name and f"{how.name}-source"))
        name = self.new_name("KTABLE-SOURCE-", Named(how.name))
        self.topology.add_global_store(
            builder,
            source,
            topic,
            name,
            supplier,
            key_serde=how.key_serde,
            value_serde=how.value_serde,
            timestamp_extractor=how.timestamp_extractor,
        )
        return self

    def build(self, config: Any = None) -> Topology:
        return self.topology

    # --- for the streams and tables that this builder made

    def new_name(self, prefix: str, named: Named | None = None) -> str:
        """The user's name, or the next number. A name that is given takes a number all the same, as
        in Kafka."""
        name = f"{prefix}{self._index:010d}"
        self._index += 1
        return name if named is None or named.name is None else check_name(named.name)

    def new_store_name(self, prefix: str) -> str:
        name = f"{prefix}STATE-STORE-{self._index:010d}"
        self._index += 1
        return name

    def add_source(self, name: str, topics: tuple[str | re.Pattern[str], ...], how: Consumed) -> None:
        self.topology.add_source(
            name,
            *topics,
            key_serde=how.key_serde,
            value_serde=how.value_serde,
            timestamp_extractor=how.timestamp_extractor,
            offset_reset=how.reset_policy,
        )

    def add_processor(
        self, name: str, supplier: Callable[[], Any], parents: tuple[str, ...], stores: Iterable[str] = ()
    ) -> None:
        self.topology.add_node(ProcessorNode(name, supplier, parents))
        self.topology.connect_processor_and_state_stores(name, *stores)

    def repartition(
        self,
        parent: str | tuple[str, ...],
        topic: str,
        key_serde: Serde | None,
        value_serde: Serde | None,
        names: tuple[str, str],
        partitions: int | None = None,
        users: bool = False,
        partitioner: Callable[..., int | None] | None = None,
        follows: bool = False,
    ) -> str:
        """Write to a topic of the application's own and read it again; the name of the source.
        `names` are those of the sink and the source."""
        sink, source = names
        self.topology.add_internal_topic(RepartitionTopic(topic, partitions, users, follows))
        above = (parent,) if isinstance(parent, str) else parent
        self.topology.add_node(SinkNode(sink, topic, above, key_serde, value_serde, partitioner))
        self.topology.add_node(SourceNode(source, (topic,), key_serde, value_serde))
        return source


def table_store(
    name: str, key_serde: Serde | None, value_serde: Serde | None, kept: Materialized | None = None
) -> StoreBuilder:
    how = (kept or Materialized()).for_(KEY_VALUE, VERSIONED)
    if how.kind == VERSIONED:
        return StoreBuilder(VERSIONED, name, key_serde, value_serde, retention=how.retention or 0)
    return StoreBuilder(KEY_VALUE, name, key_serde, value_serde, timestamped=True, caching=how.caching)
