"""A topology: sources, processors, sinks and stores, and how it is told in Kafka's words. No I/O.

Nodes are immutable. What a processor does is made by its supplier, once for each task.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.stores import StoreBuilder


@dataclass(frozen=True)
class SourceNode:
    name: str
    topics: tuple[str, ...]
    """Where there is a pattern: those of the topics that match it, as far as they are known."""
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    timestamp_extractor: Callable[..., int] | None = None
    reset_policy: str | None = None
    pattern: re.Pattern[str] | None = None

    def told(self) -> str:
        """What it reads, as it does not change with the topics there are."""
        return ", ".join(sorted(self.topics)) if self.pattern is None else self.pattern.pattern


@dataclass(frozen=True)
class ProcessorNode:
    name: str
    supplier: Callable[[], Any]
    parents: tuple[str, ...]
    stores: tuple[str, ...] = ()
    users: bool = False
    """Made by a user with the Processor API."""


@dataclass(frozen=True)
class SinkNode:
    name: str
    topic: str | Callable[..., str]
    parents: tuple[str, ...]
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    partitioner: Callable[..., int | None] | None = None


Node = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True)
class RepartitionTopic:
    """A topic of the application's own. `users` if the user asked for it by `repartition`;
    otherwise it is there only because a key changed, and a shuffle does as well."""

    name: str
    partitions: int | None = None
    users: bool = False
    follows: bool = False
    """It has as many partitions as the topics that are read with it."""


@dataclass(frozen=True)
class Subtopology:
    """Nodes that belong together: what one task runs. `global_` for a store that every task has a
    copy of."""

    id: int
    nodes: tuple[Node, ...]
    stores: tuple[str, ...]
    global_: bool = False

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(one for one in self.nodes if isinstance(one, SourceNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(one for one in self.nodes if isinstance(one, SinkNode))

    @property
    def processors(self) -> tuple[ProcessorNode, ...]:
        return tuple(one for one in self.nodes if isinstance(one, ProcessorNode))


class Topology:
    """Built by a user (the Processor API) or by StreamsBuilder."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._stores: dict[str, StoreBuilder] = {}
        self._globals: dict[str, str] = {}
        self._internal: dict[str, RepartitionTopic] = {}
        self._copartitioned: list[tuple[str, ...]] = []

    # --- Kafka's Processor API

    def add_source(
        self,
        name: str,
        *topics: str | re.Pattern[str],
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        timestamp_extractor: Callable[..., int] | None = None,
        offset_reset: str | None = None,
    ) -> Topology:
        if not topics:
            raise TopologyException("You must provide at least one topic")
        pattern = topics[0] if isinstance(topics[0], re.Pattern) else None
        names = tuple(topic for topic in topics if isinstance(topic, str))
        if len(names) != len(topics) and (pattern is None or names or len(topics) > 1):
            raise TopologyException(f"Source {name} reads topics by their names, or by one pattern alone")
        node = SourceNode(name, names, key_serde, value_serde, timestamp_extractor, offset_reset, pattern)
        self._check_alone(node)
        self._add(node)
        return self

    def add_global_store(
        self,
        builder: StoreBuilder,
        source_name: str,
        topic: str,
        processor_name: str,
        supplier: Callable[[], Any],
        *,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        timestamp_extractor: Callable[..., int] | None = None,
    ) -> Topology:
        """A store that every task has a copy of. The processor of `supplier` keeps it by what is in
        the topic; all other processors may read it, without being connected with it."""
        source = SourceNode(source_name, (topic,), key_serde, value_serde, timestamp_extractor, "earliest")
        self.add_global_nodes(builder, source, ProcessorNode(processor_name, supplier, (source_name,), (), True))
        return self

    def add_processor(self, name: str, supplier: Callable[[], Any], *parents: str) -> Topology:
        """`supplier()` makes a processor: an object with `process(record)`, and `init(context)` and
        `close()` if it likes. What its own `stores()` gives is added and connected."""
        if not parents:
            raise TopologyException(f"Processor {name} must have at least one parent")
        self._add(ProcessorNode(name, supplier, self._known(parents, name), (), True))
        self.connect_stores_of(supplier, name)
        return self

    def add_sink(
        self,
        name: str,
        topic: str | Callable[..., str],
        *parents: str,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        partitioner: Callable[..., int | None] | None = None,
    ) -> Topology:
        if not parents:
            raise TopologyException(f"Sink {name} must have at least one parent")
        self._add(SinkNode(name, topic, self._known(parents, name), key_serde, value_serde, partitioner))
        return self

    def add_state_store(self, builder: StoreBuilder, *processors: str) -> Topology:
        known = self._stores.get(builder.name)
        if known is not None and known != builder:
            raise TopologyException(f"A different StateStore has already been added with the name {builder.name}")
        self._stores[builder.name] = builder
        for processor in processors:
            self.connect_processor_and_state_stores(processor, builder.name)
        return self

    def connect_processor_and_state_stores(self, processor: str, *stores: str) -> Topology:
        node = self._nodes.get(processor)
        if not isinstance(node, ProcessorNode):
            raise TopologyException(f"Processor {processor} is not added yet.")
        for store in stores:
            if store not in self._stores:
                raise TopologyException(f"StateStore {store} is not added yet.")
            if store not in self._globals and store not in node.stores:
                node = replace(node, stores=(*node.stores, store))
        self._nodes[processor] = node
        return self

    def describe(self) -> TopologyDescription:
        return TopologyDescription(self)

    def _check_alone(self, source: SourceNode) -> None:
        for one in self._nodes.values():
            if isinstance(one, SourceNode):
                self._check_apart(one, source)

    @staticmethod
    def _check_apart(one: SourceNode, two: SourceNode) -> None:
        for topic in two.topics:
            if topic in one.topics:
                raise TopologyException(f"Topic {topic} has already been registered by another source.")
        if one.pattern is not None and two.pattern is not None and one.pattern.pattern == two.pattern.pattern:
            raise TopologyException(f"Pattern {one.pattern.pattern} has already been registered by another source.")
        for by_name, other in ((one, two), (two, one)):
            for topic in by_name.topics:
                if other.pattern is not None and other.pattern.fullmatch(topic):
                    raise TopologyException(
                        f"Pattern {other.pattern.pattern} will match a topic that has already been registered by "
                        f"another source: {topic}"
                    )

    # --- for whoever builds and compiles

    def add_global_nodes(self, builder: StoreBuilder, source: SourceNode, processor: ProcessorNode) -> None:
        if builder.name in self._stores:
            raise TopologyException(f"StateStore {builder.name} is already added.")
        if processor.name in self._nodes or processor.name == source.name:
            raise TopologyException(f"Processor {processor.name} is already added.")
        self._check_alone(source)
        self._add(source)
        self._stores[builder.name] = builder
        self._add(replace(processor, stores=(builder.name,)))
        self._globals[builder.name] = source.name

    def connect_stores_of(self, supplier: Any, processor: str) -> None:
        """Add what a user's supplier says in `stores()`, and connect it."""
        stores = getattr(supplier, "stores", None)
        for builder in (stores() or ()) if callable(stores) else ():
            self.add_state_store(builder, processor)

    def add_node(self, node: Node) -> None:
        self._add(node)

    def replace_node(self, node: Node) -> None:
        self._nodes[node.name] = node

    def add_internal_topic(self, topic: RepartitionTopic) -> None:
        if topic.name in self._internal:
            raise TopologyException(f"Invalid topology: the topic {topic.name} is there already; name the steps apart")
        self._internal[topic.name] = topic

    def copartition(self, *nodes: str) -> None:
        """Records of one key must meet: the topics that feed these nodes must have the same number
        of partitions."""
        self._copartitioned.append(nodes)

    def copartitioned_topics(self) -> list[set[str]]:
        """Groups of topics that must have the same number of partitions. No topic is in two of
        them."""
        groups: list[set[str]] = []
        for nodes in self._copartitioned:
            group = {topic for source in self._sources_of(nodes) for topic in source.topics}
            for other in [one for one in groups if one & group]:
                groups.remove(other)
                group |= other
            groups.append(group)
        return groups

    def _sources_of(self, names: Iterable[str]) -> Iterator[SourceNode]:
        """All sources that feed nodes."""
        waiting, seen = list(names), set(names)
        while waiting:
            node = self._nodes[waiting.pop()]
            if isinstance(node, SourceNode):
                yield node
                continue
            waiting += [parent for parent in node.parents if parent not in seen]
            seen.update(node.parents)

    @property
    def nodes(self) -> dict[str, Node]:
        return self._nodes

    @property
    def stores(self) -> dict[str, StoreBuilder]:
        return self._stores

    @property
    def internal_topics(self) -> dict[str, RepartitionTopic]:
        return self._internal

    @property
    def global_stores(self) -> dict[str, str]:
        """Global stores, and the source each is filled from."""
        return self._globals

    def patterns(self) -> list[SourceNode]:
        return [one for one in self._nodes.values() if isinstance(one, SourceNode) and one.pattern is not None]

    def with_topics(self, there: Iterable[str]) -> Topology:
        """The same, with the patterns' topics among those that are there. A topic that two patterns
        match belongs to the first."""
        left = sorted(there)
        made = copy.copy(self)
        made._nodes = dict(self._nodes)
        for node in self.patterns():
            assert node.pattern is not None
            found = tuple(topic for topic in left if node.pattern.fullmatch(topic))
            left = [topic for topic in left if topic not in found]
            made._nodes[node.name] = replace(node, topics=found)
        return made

    def children(self, name: str) -> list[Node]:
        return [one for one in self._nodes.values() if not isinstance(one, SourceNode) and name in one.parents]

    def subtopologies(self) -> list[Subtopology]:
        """Numbered as Kafka does: in the order of their sources."""
        root = {name: name for name in self._nodes}

        def find(name: str) -> str:
            while root[name] != name:
                root[name] = root[root[name]]
                name = root[name]
            return name

        users: dict[str, str] = {}
        for node in self._nodes.values():
            for parent in () if isinstance(node, SourceNode) else node.parents:
                root[find(node.name)] = find(parent)
            for store in node.stores if isinstance(node, ProcessorNode) else ():
                if store not in self._globals:
                    root[find(node.name)] = find(users.setdefault(store, node.name))
        groups: dict[str, list[Node]] = {}
        for node in self._nodes.values():
            if isinstance(node, SourceNode):
                groups.setdefault(find(node.name), [])
        for name, node in self._nodes.items():
            groups.setdefault(find(name), []).append(node)
        made = []
        for number, nodes in enumerate(groups.values()):
            stores = dict.fromkeys(s for one in nodes if isinstance(one, ProcessorNode) for s in one.stores)
            is_global = any(store in self._globals for store in stores)
            made.append(Subtopology(number, tuple(nodes), tuple(stores), is_global))
        return made

    def _add(self, node: Node) -> None:
        if node.name in self._nodes:
            raise TopologyException(f"Processor {node.name} is already added.")
        self._nodes[node.name] = node

    def _known(self, parents: Sequence[str], name: str) -> tuple[str, ...]:
        for parent in parents:
            if parent == name:
                raise TopologyException(f"Processor {name} cannot be a parent of itself.")
            if parent not in self._nodes:
                raise TopologyException(f"Predecessor {parent} is not added yet for {name}")
            if isinstance(self._nodes[parent], SinkNode):
                raise TopologyException(f"Sink {parent} cannot be a parent of {name}")
        return tuple(parents)


class TopologyDescription:
    """`str()` is what Kafka's TopologyDescription prints; `picture()` is the same as a graph for
    Mermaid."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.subtopologies = topology.subtopologies()

    def __str__(self) -> str:
        parts = []
        for sub in self.subtopologies:
            head = f"Sub-topology: {sub.id}"
            if sub.global_:
                head += " for global store (will not generate tasks)"
            lines = "".join(f"    {line}\n" for node in self._ordered(sub) for line in self._told(node))
            parts.append(f"{head}\n{lines}" if sub.global_ else f"{head}\n{lines}\n")
        return "Topologies:\n   " + "  ".join(parts)

    def picture(self) -> str:
        lines = ["graph TD"]
        for sub in self.subtopologies:
            lines.append(f"  subgraph s{sub.id} [Sub-topology {sub.id}]")
            lines += [f"    {self._id(node.name)}{self._shape(node)}" for node in self._ordered(sub)]
            lines.append("  end")
        for node in self._topology.nodes.values():
            lines += [f"  {self._id(node.name)} --> {self._id(one.name)}" for one in self._topology.children(node.name)]
            if isinstance(node, SourceNode):
                read = node.topics if node.pattern is None else (node.told(),)
                lines += [f'  t_{self._id(topic)}(["{topic}"]) --> {self._id(node.name)}' for topic in read]
            elif isinstance(node, SinkNode) and isinstance(node.topic, str):
                lines.append(f'  {self._id(node.name)} --> t_{self._id(node.topic)}(["{node.topic}"])')
        return "\n".join(lines) + "\n"

    @staticmethod
    def _id(name: str) -> str:
        return "".join(one if one.isalnum() else "_" for one in name)

    def _shape(self, node: Node) -> str:
        stores = f"<br/>{', '.join(node.stores)}" if isinstance(node, ProcessorNode) and node.stores else ""
        return f'["{node.name}{stores}"]'

    def _told(self, node: Node) -> Iterator[str]:
        if isinstance(node, SourceNode):
            listed = node.told() if node.pattern is not None else f"[{node.told()}]"
            yield f"Source: {node.name} (topics: {listed})"
        elif isinstance(node, ProcessorNode):
            yield f"Processor: {node.name} (stores: [{', '.join(node.stores)}])"
        elif isinstance(node.topic, str):
            yield f"Sink: {node.name} (topic: {node.topic})"
        else:
            yield f"Sink: {node.name} (extractor class: {getattr(node.topic, '__qualname__', node.topic)})"
        if not isinstance(node, SinkNode):
            yield f"  --> {self._listed(one.name for one in self._topology.children(node.name))}"
        if not isinstance(node, SourceNode):
            yield f"  <-- {', '.join(node.parents)}"

    @staticmethod
    def _listed(names: Iterable[str]) -> str:
        return ", ".join(sorted(names)) or "none"

    def _ordered(self, sub: Subtopology) -> list[Node]:
        """By how many nodes follow, the most first; then by name."""
        return sorted(sub.nodes, key=lambda one: (-self._size(one.name), one.name))

    def _size(self, name: str) -> int:
        return 1 + sum(self._size(one.name) for one in self._topology.children(name))
