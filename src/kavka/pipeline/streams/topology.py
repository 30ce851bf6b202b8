"""A topology: sources, processors, sinks and stores, and its description. No I/O.

Nodes are immutable. The operator of a processor node creates the object that runs it in each task.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.stores import StoreBuilder


@dataclass(frozen=True)
class SourceNode:
    name: str
    topics: tuple[str, ...]
    """With a pattern: the topics that match it, once they are looked up."""
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    timestamp_extractor: Callable[..., int] | None = None
    reset_policy: str | None = None
    pattern: re.Pattern[str] | None = None

    def subscription(self) -> str:
        """The names of the topics, or the pattern."""
        return ", ".join(sorted(self.topics)) if self.pattern is None else self.pattern.pattern


class Operator:
    """The function of a processor node. Operators are immutable once the topology is built."""

    is_user_processor = False
    """Whether it runs a processor of the user, which may have state, forward records and schedule
    punctuators."""

    def node(self) -> Any:
        """The object that runs it in a task, record by record (`engine.Node`)."""
        raise NotImplementedError


@dataclass(frozen=True)
class ProcessorNode:
    name: str
    operator: Operator
    parents: tuple[str, ...]
    stores: tuple[str, ...] = ()


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
    """A topic of the application. A shuffle can replace it unless it is explicit: the user called
    `repartition`."""

    name: str
    partitions: int | None = None
    is_explicit: bool = False
    follows_reader: bool = False
    """Whether it has as many partitions as the other topics of the sub-topology that reads it."""


@dataclass(frozen=True)
class Subtopology:
    """The nodes that a task runs. With `global_`, they fill a store of which every task has a
    copy."""

    id: int
    nodes: tuple[Node, ...]
    stores: tuple[str, ...]
    global_: bool = False

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))

    @property
    def processors(self) -> tuple[ProcessorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ProcessorNode))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads."""
        return tuple(topic for source in self.sources for topic in source.topics)

    @property
    def has_user_processors(self) -> bool:
        return any(node.operator.is_user_processor for node in self.processors)


class Topology:
    """Built by a user (the Processor API) or by StreamsBuilder."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.stores: dict[str, StoreBuilder] = {}
        # Global stores, and the source of each.
        self.global_stores: dict[str, str] = {}
        self.internal_topics: dict[str, RepartitionTopic] = {}
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
        self._check_topics(node)
        self.add_node(node)
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
        """Add a store of which every task has a copy. The processor of `supplier` fills it from the
        topic. All other processors may read it without being connected to it."""
        from kavka.pipeline.streams.operators import Process

        source = SourceNode(source_name, (topic,), key_serde, value_serde, timestamp_extractor, "earliest")
        self.add_global_nodes(builder, source, ProcessorNode(processor_name, Process(supplier), (source_name,)))
        return self

    def add_processor(self, name: str, supplier: Callable[[], Any], *parents: str) -> Topology:
        """`supplier()` returns a processor: an object with `process(record)`, and with
        `init(context)` and `close()` if it needs them. The stores that the supplier's `stores()`
        returns are added and connected."""
        from kavka.pipeline.streams.operators import Process

        if not parents:
            raise TopologyException(f"Processor {name} must have at least one parent")
        self.add_node(ProcessorNode(name, Process(supplier), self._checked_parents(parents, name)))
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
        self.add_node(SinkNode(name, topic, self._checked_parents(parents, name), key_serde, value_serde, partitioner))
        return self

    def add_state_store(self, builder: StoreBuilder, *processors: str) -> Topology:
        if self.stores.get(builder.name, builder) != builder:
            raise TopologyException(f"A different StateStore has already been added with the name {builder.name}")
        self.stores[builder.name] = builder
        for processor in processors:
            self.connect_processor_and_state_stores(processor, builder.name)
        return self

    def connect_processor_and_state_stores(self, processor: str, *stores: str) -> Topology:
        node = self.nodes.get(processor)
        if not isinstance(node, ProcessorNode):
            raise TopologyException(f"Processor {processor} is not added yet.")
        for store in stores:
            if store not in self.stores:
                raise TopologyException(f"StateStore {store} is not added yet.")
            if store not in self.global_stores and store not in node.stores:
                node = replace(node, stores=(*node.stores, store))
        self.nodes[processor] = node
        return self

    def describe(self) -> TopologyDescription:
        return TopologyDescription(self)

    def explain(self, partitions: Mapping[str, int] | int = 1, config: Mapping[str, Any] | None = None) -> str:
        """Describe how each node will run, in how many tasks, and why not faster. `partitions` are
        those of the topics, `config` is the application's."""
        from kavka.pipeline.streams.lowering import explain

        return explain(self, partitions, config)

    def _check_topics(self, source: SourceNode) -> None:
        """Check that no other source reads topics of this source."""
        for other in self.nodes.values():
            if not isinstance(other, SourceNode):
                continue
            for topic in source.topics:
                if topic in other.topics:
                    raise TopologyException(f"Topic {topic} has already been registered by another source.")
            pattern = source.pattern.pattern if source.pattern is not None else None
            if other.pattern is not None and other.pattern.pattern == pattern:
                raise TopologyException(f"Pattern {pattern} has already been registered by another source.")
            self._check_pattern(source, other)
            self._check_pattern(other, source)

    @staticmethod
    def _check_pattern(source: SourceNode, other: SourceNode) -> None:
        for topic in other.topics if source.pattern is not None else ():
            if source.pattern is not None and source.pattern.fullmatch(topic):
                raise TopologyException(
                    f"Pattern {source.pattern.pattern} will match a topic that has already been registered by "
                    f"another source: {topic}"
                )

    # --- for the builder and the compiler

    def add_global_nodes(self, builder: StoreBuilder, source: SourceNode, processor: ProcessorNode) -> None:
        if builder.name in self.stores:
            raise TopologyException(f"StateStore {builder.name} is already added.")
        if processor.name in self.nodes or processor.name == source.name:
            raise TopologyException(f"Processor {processor.name} is already added.")
        self._check_topics(source)
        self.add_node(source)
        self.stores[builder.name] = builder
        self.add_node(replace(processor, stores=(builder.name,)))
        self.global_stores[builder.name] = source.name

    def connect_stores_of(self, supplier: Any, processor: str) -> None:
        """Add and connect the stores that the `stores()` of a user's supplier returns."""
        stores = getattr(supplier, "stores", None)
        for builder in (stores() or ()) if callable(stores) else ():
            self.add_state_store(builder, processor)

    def add_node(self, node: Node) -> None:
        if node.name in self.nodes:
            raise TopologyException(f"Processor {node.name} is already added.")
        self.nodes[node.name] = node

    def replace_node(self, node: Node) -> None:
        self.nodes[node.name] = node

    def add_internal_topic(self, topic: RepartitionTopic) -> None:
        if topic.name in self.internal_topics:
            raise TopologyException(
                f"Invalid topology: two operators use the topic {topic.name}: give them different names"
            )
        self.internal_topics[topic.name] = topic

    def copartition(self, *nodes: str) -> None:
        """Require the same number of partitions of all topics that these nodes read, so that a task
        has all records of a key."""
        self._copartitioned.append(nodes)

    def copartitioned_topics(self) -> list[set[str]]:
        """Disjoint groups of topics that must have the same number of partitions."""
        groups: list[set[str]] = []
        for nodes in self._copartitioned:
            group = {topic for source in self._sources_of(nodes) for topic in source.topics}
            for other in [other for other in groups if other & group]:
                groups.remove(other)
                group |= other
            groups.append(group)
        return groups

    def _sources_of(self, names: Iterable[str]) -> Iterator[SourceNode]:
        """The sources above these nodes."""
        pending, visited = list(names), set(names)
        while pending:
            node = self.nodes[pending.pop()]
            if isinstance(node, SourceNode):
                yield node
                continue
            pending += [parent for parent in node.parents if parent not in visited]
            visited.update(node.parents)

    def patterns(self) -> list[SourceNode]:
        """The sources with a pattern."""
        return [node for node in self.nodes.values() if isinstance(node, SourceNode) and node.pattern is not None]

    def with_topics(self, topics: Iterable[str]) -> Topology:
        """This topology with the topics that its patterns match. A topic that two patterns match
        belongs to the first."""
        remaining = sorted(topics)
        topology = copy.copy(self)
        topology.nodes = dict(self.nodes)
        for node in self.patterns():
            assert node.pattern is not None
            matching = tuple(topic for topic in remaining if node.pattern.fullmatch(topic))
            remaining = [topic for topic in remaining if topic not in matching]
            topology.nodes[node.name] = replace(node, topics=matching)
        return topology

    def children(self, name: str) -> list[Node]:
        return [node for node in self.nodes.values() if not isinstance(node, SourceNode) and name in node.parents]

    def subtopologies(self) -> list[Subtopology]:
        """Numbered as in Kafka, in the order of their sources."""
        root = {name: name for name in self.nodes}

        def find(name: str) -> str:
            while root[name] != name:
                root[name] = root[root[name]]
                name = root[name]
            return name

        users: dict[str, str] = {}
        for node in self.nodes.values():
            for parent in () if isinstance(node, SourceNode) else node.parents:
                root[find(node.name)] = find(parent)
            for store in node.stores if isinstance(node, ProcessorNode) else ():
                if store not in self.global_stores:
                    root[find(node.name)] = find(users.setdefault(store, node.name))
        groups: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            if isinstance(node, SourceNode):
                groups.setdefault(find(node.name), [])
        for name, node in self.nodes.items():
            groups.setdefault(find(name), []).append(node)
        subtopologies = []
        for number, nodes in enumerate(groups.values()):
            stores = dict.fromkeys(s for node in nodes if isinstance(node, ProcessorNode) for s in node.stores)
            is_global = any(store in self.global_stores for store in stores)
            subtopologies.append(Subtopology(number, tuple(nodes), tuple(stores), is_global))
        return subtopologies

    def _checked_parents(self, parents: Sequence[str], name: str) -> tuple[str, ...]:
        for parent in parents:
            if parent == name:
                raise TopologyException(f"Processor {name} cannot be a parent of itself.")
            if parent not in self.nodes:
                raise TopologyException(f"Predecessor {parent} is not added yet for {name}")
            if isinstance(self.nodes[parent], SinkNode):
                raise TopologyException(f"Sink {parent} cannot be a parent of {name}")
        return tuple(parents)


class TopologyDescription:
    """`str()` is what Kafka's TopologyDescription prints; `picture()` is the same as a Mermaid
    graph."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.subtopologies = topology.subtopologies()

    def __str__(self) -> str:
        parts = []
        for sub in self.subtopologies:
            head = f"Sub-topology: {sub.id}"
            if sub.global_:
                head += " for global store (will not generate tasks)"
            lines = "".join(f"    {line}\n" for node in self._ordered(sub) for line in self._lines(node))
            parts.append(f"{head}\n{lines}" if sub.global_ else f"{head}\n{lines}\n")
        return "Topologies:\n   " + "  ".join(parts)

    def picture(self) -> str:
        lines = ["graph TD"]
        for sub in self.subtopologies:
            lines.append(f"  subgraph s{sub.id} [Sub-topology {sub.id}]")
            for node in self._ordered(sub):
                stores = f"<br/>{', '.join(node.stores)}" if isinstance(node, ProcessorNode) and node.stores else ""
                lines.append(f'    {self._id(node.name)}["{node.name}{stores}"]')
            lines.append("  end")
        for node in self._topology.nodes.values():
            children = self._topology.children(node.name)
            lines += [f"  {self._id(node.name)} --> {self._id(child.name)}" for child in children]
            if isinstance(node, SourceNode):
                topics = node.topics if node.pattern is None else (node.subscription(),)
                lines += [f'  t_{self._id(topic)}(["{topic}"]) --> {self._id(node.name)}' for topic in topics]
            elif isinstance(node, SinkNode) and isinstance(node.topic, str):
                lines.append(f'  {self._id(node.name)} --> t_{self._id(node.topic)}(["{node.topic}"])')
        return "\n".join(lines) + "\n"

    @staticmethod
    def _id(name: str) -> str:
        return "".join(letter if letter.isalnum() else "_" for letter in name)

    def _lines(self, node: Node) -> Iterator[str]:
        if isinstance(node, SourceNode):
            topics = node.subscription() if node.pattern is not None else f"[{node.subscription()}]"
            yield f"Source: {node.name} (topics: {topics})"
        elif isinstance(node, ProcessorNode):
            yield f"Processor: {node.name} (stores: [{', '.join(node.stores)}])"
        elif isinstance(node.topic, str):
            yield f"Sink: {node.name} (topic: {node.topic})"
        else:
            yield f"Sink: {node.name} (extractor class: {getattr(node.topic, '__qualname__', node.topic)})"
        if not isinstance(node, SinkNode):
            children = sorted(child.name for child in self._topology.children(node.name))
            yield f"  --> {', '.join(children) or 'none'}"
        if not isinstance(node, SourceNode):
            yield f"  <-- {', '.join(node.parents)}"

    def _ordered(self, sub: Subtopology) -> list[Node]:
        """By the number of nodes below, the largest first; then by name."""
        return sorted(sub.nodes, key=lambda node: (-self._size(node.name), node.name))

    def _size(self, name: str) -> int:
        return 1 + sum(self._size(child.name) for child in self._topology.children(name))
