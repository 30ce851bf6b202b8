"""Topics as they are found in the tree: new ones, grown ones, and those that are marked for deletion."""

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

log = logging.getLogger(__name__)


class TopicChanges:
    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context
        self._modified: set[str] = set()

    async def load(self) -> None:
        """All topics, at the beginning of a term."""
        term = self._term
        await self._read(await term.tree.store.children(paths.TOPICS, term.watch(events.TopicChange())))
        self._context.topics_to_delete.update(await self._marked())

    async def _read(self, names: Iterable[str]) -> list[str]:
        """Take topics and the states of their partitions into the context; returns those that could be read."""
        read: list[str] = []
        without_id: dict[str, tuple[TopicNode, Stat]] = {}
        for name, (node, stat) in (await self._nodes(names)).items():
            if node.topic_id is None:
                without_id[name] = node, stat
            else:
                self._context.add_topic(name, node.topic_id, node.partitions)
                read.append(name)
        read += await self._give_ids(without_id)
        states = await self._term.tree.read_states(self._context.partitions_of(read))
        self._context.leaderships.update(states)
        return read

    async def _nodes(self, names: Iterable[str]) -> dict[str, tuple[TopicNode, Stat]]:
        by_path = {paths.topic(name): name for name in names}
        nodes = await self._term.tree.get_all(list(by_path), lambda path: self._term.watch_topic(by_path[path]))
        found: dict[str, tuple[TopicNode, Stat]] = {}
        for name, node in zip(by_path.values(), nodes, strict=True):
            if node is None:
                continue
            try:
                found[name] = TopicNode.decode(name, node[0]), node[1]
            except MalformedNode as error:
                log.error("Topic %s is left out: %s", name, error)
        return found

    async def _give_ids(self, topics: dict[str, tuple[TopicNode, Stat]]) -> list[str]:
        """Topics of releases that knew no ids get one. A node that changed meanwhile comes again as a change."""
        new = {name: TopicNode(paths.random_id(), node.partitions) for name, (node, _) in topics.items()}
        outcomes = await self._term.tree.write(
            [SetData(paths.topic(name), node.encode(), topics[name][1].version) for name, node in new.items()]
        )
        given: list[str] = []
        for (name, node), outcome in zip(new.items(), outcomes, strict=True):
            if isinstance(outcome, StoreError):
                log.error("Topic %s is left without an id: %s", name, outcome)
                continue
            assert node.topic_id is not None
            self._context.add_topic(name, node.topic_id, node.partitions)
            given.append(name)
        # Writing them set off the watches.
        await self._nodes(new)
        return given

    async def changed(self) -> None:
        term, context = self._term, self._context
        names = set(await term.tree.store.children(paths.TOPICS, term.watch(events.TopicChange())))
        for name in context.topics.keys() - names:
            context.forget_topic(name)
        new = await self._read(sorted(names - context.topics.keys()))
        await self._new_partitions(context.partitions_of(new))

    def note_modified(self, name: str) -> None:
        if not self._modified:
            self._term.put(events.TopicModification())
        self._modified.add(name)

    async def modified(self) -> None:
        """Partitions were added. Replicas that differ are not taken from here: only the controller moves them."""
        names, self._modified = self._modified, set()
        added: list[TopicPartition] = []
        for name, (node, _) in (await self._nodes(sorted(names))).items():
            topic = self._context.topics.get(name)
            if topic is None:
                self._term.put(events.TopicChange())
            elif name not in self._context.topics_to_delete:
                new = {p: assignment for p, assignment in node.partitions.items() if p not in topic.partitions}
                topic.partitions.update(new)
                added += (TopicPartition(name, p) for p in new)
        await self._new_partitions(added)

    async def _new_partitions(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        log.info("New partitions: %s", ", ".join(map(str, partitions)))
        machines = self._term.machines
        replicas = list(self._context.replicas(partitions))
        await machines.partitions_to(partitions, PartitionState.NEW)
        await machines.replicas_to(replicas, ReplicaState.NEW)
        await machines.partitions_to(partitions, PartitionState.ONLINE)
        await machines.replicas_to(replicas, ReplicaState.ONLINE)

    # ---- deletion

    async def _marked(self) -> list[str]:
        """Topics with a mark. Marks on topics that are not there, or while deletion is switched off, are removed."""
        term = self._term
        marked = await term.tree.store.children(paths.DELETE_TOPICS, term.watch(events.TopicDeletion()))
        known = [name for name in marked if name in self._context.topics and term.settings.deletion_enabled()]
        kept = set(known)
        await term.tree.delete_all([paths.delete_topic(name) for name in marked if name not in kept])
        return known

    async def marked(self) -> None:
        self._context.topics_to_delete.update(await self._marked())
        self.hold_up_deletions()
        await self._term.deletions.resume()

    def hold_up_deletions(self) -> None:
        """While partitions of a topic are being moved it stays."""
        moving = {tp.topic for tp in self._context.reassigning}
        self._context.topics_not_deletable_now |= moving & self._context.topics_to_delete
