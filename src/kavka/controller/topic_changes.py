"""Changes of topics in the znode tree: new topics, added partitions, and marks for deletion."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kavka.common.types import TopicPartition
from kavka.controller import events
from kavka.controller.partition_states import PartitionState
from kavka.controller.replica_states import ReplicaState
from kavka.metadata import paths
from kavka.metadata.paths import MalformedNode, TopicNode
from kavka.metadata.store import SetData, Stat, StoreError

if TYPE_CHECKING:
    from kavka.controller.term import Term

logger = logging.getLogger(__name__)


class TopicChanges:
    """Reads topics from the tree into the context. Only the controller's events call it."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context
        self._modified: set[str] = set()

    async def load(self) -> None:
        """Load all topics at the start of a term."""
        term = self._term
        await self._read(await term.tree.store.children(paths.TOPICS, term.watch(events.TopicChange())))
        self._context.topics_to_delete.update(await self._marked_topics())

    async def _read(self, names: Iterable[str]) -> list[str]:
        """Add topics and the states of their partitions to the context. Returns the topics that
        could be read."""
        loaded: list[str] = []
        without_id: dict[str, tuple[TopicNode, Stat]] = {}
        for name, (node, stat) in (await self._nodes(names)).items():
            if node.topic_id is None:
                without_id[name] = node, stat
            else:
                self._context.add_topic(name, node.topic_id, node.partitions)
                loaded.append(name)
        loaded += await self._assign_ids(without_id)
        states = await self._term.tree.read_states(self._context.partitions_of(loaded))
        self._context.leaderships.update(states)
        return loaded

    async def _nodes(self, names: Iterable[str]) -> dict[str, tuple[TopicNode, Stat]]:
        by_path = {paths.topic(name): name for name in names}
        nodes = await self._term.tree.get_all(list(by_path), lambda path: self._term.watch_topic(by_path[path]))
        nodes_by_topic: dict[str, tuple[TopicNode, Stat]] = {}
        for name, node in zip(by_path.values(), nodes, strict=True):
            if node is None:
                continue
            try:
                nodes_by_topic[name] = TopicNode.decode(name, node[0]), node[1]
            except MalformedNode as error:
                logger.error("Ignoring topic %s: %s", name, error)
        return nodes_by_topic

    async def _assign_ids(self, topics: dict[str, tuple[TopicNode, Stat]]) -> list[str]:
        """Assign ids to topics of old releases. Returns the topics whose id was written. If a node
        changes concurrently, its watch fires again."""
        with_id = {name: TopicNode(paths.random_topic_id(), node.partitions) for name, (node, _) in topics.items()}
        outcomes = await self._term.tree.write(
            [SetData(paths.topic(name), node.encode(), topics[name][1].version) for name, node in with_id.items()]
        )
        written: list[str] = []
        for (name, node), outcome in zip(with_id.items(), outcomes, strict=True):
            if isinstance(outcome, StoreError):
                logger.error("Cannot write the id of topic %s: %s", name, outcome)
                continue
            assert node.topic_id is not None
            self._context.add_topic(name, node.topic_id, node.partitions)
            written.append(name)
        # Writing the nodes has fired their watches: set the watches again.
        await self._nodes(with_id)
        return written

    async def process_changes(self) -> None:
        """Handle created and deleted topic nodes."""
        term, context = self._term, self._context
        names = set(await term.tree.store.children(paths.TOPICS, term.watch(events.TopicChange())))
        for name in context.topics.keys() - names:
            context.forget_topic(name)
        new_topics = await self._read(sorted(names - context.topics.keys()))
        await self._start_partitions(context.partitions_of(new_topics))

    def record_modified(self, name: str) -> None:
        if not self._modified:
            self._term.put(events.TopicModification())
        self._modified.add(name)

    async def process_modifications(self) -> None:
        """Handle added partitions. Changed replicas are ignored, because only the controller
        reassigns partitions."""
        names, self._modified = self._modified, set()
        added: list[TopicPartition] = []
        for name, (node, _) in (await self._nodes(sorted(names))).items():
            topic = self._context.topics.get(name)
            if topic is None:
                self._term.put(events.TopicChange())
            elif name not in self._context.topics_to_delete:
                new_partitions = {p: a for p, a in node.partitions.items() if p not in topic.partitions}
                topic.partitions.update(new_partitions)
                added += (TopicPartition(name, p) for p in new_partitions)
        await self._start_partitions(added)

    async def _start_partitions(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        logger.info("New partitions: %s", ", ".join(map(str, partitions)))
        machines = self._term.machines
        replicas = list(self._context.replicas(partitions))
        await machines.move_partitions(partitions, PartitionState.NEW)
        await machines.move_replicas(replicas, ReplicaState.NEW)
        await machines.move_partitions(partitions, PartitionState.ONLINE)
        await machines.move_replicas(replicas, ReplicaState.ONLINE)

    # ---- deletion

    async def _marked_topics(self) -> list[str]:
        """Return the topics that are marked for deletion. Removes the marks of unknown topics, and
        all marks if deletion is disabled."""
        term = self._term
        marked = await term.tree.store.children(paths.DELETE_TOPICS, term.watch(events.TopicDeletion()))
        deletable = [name for name in marked if name in self._context.topics and term.settings.deletion_enabled()]
        valid = set(deletable)
        await term.tree.delete_all([paths.delete_topic(name) for name in marked if name not in valid])
        return deletable

    async def process_deletion_marks(self) -> None:
        """Start the deletion of marked topics."""
        self._context.topics_to_delete.update(await self._marked_topics())
        self.block_deletions()
        await self._term.deletions.resume()

    def block_deletions(self) -> None:
        """Block the deletion of topics whose partitions are being reassigned."""
        moving = {tp.topic for tp in self._context.reassigning}
        self._context.topics_not_deletable_now |= moving & self._context.topics_to_delete
