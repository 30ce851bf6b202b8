"""Deletion of topics.

    marked           /admin/delete_topics/T exists
    being deleted    clients no longer see the topic; brokers stop its replicas and delete the files
    deleted          all brokers have confirmed; the topic's nodes are removed, and then the mark

A dead broker, a failed disk or a reassignment blocks the deletion: the topic is in
`topics_not_deletable_now`. The deletion is retried when the broker or the disk is online again, or
when the reassignment completes. A new controller restarts the deletion from the mark. Deleting a
replica twice has no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kavka.common.types import TopicPartition
from kavka.controller.context import ControllerContext, Replica
from kavka.controller.machines import StateMachines
from kavka.controller.partition_states import PartitionState
from kavka.controller.replica_states import ReplicaState
from kavka.controller.tree import FencedTree
from kavka.metadata import paths

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class TopicDeletions:
    """Deletes the topics in `topics_to_delete`. Only the controller's events call it."""

    _context: ControllerContext
    _machines: StateMachines
    _tree: FencedTree
    _send_metadata: Callable[[Iterable[TopicPartition]], Any]
    _on_deleted: Callable[[str], Any]

    async def on_replicas_deleted(self, replicas: Iterable[Replica]) -> None:
        """Called when a broker has deleted the files of these replicas."""
        started = [r for r in replicas if self._context.replica_state(r) is ReplicaState.DELETION_STARTED]
        await self._machines.move_replicas(started, ReplicaState.DELETION_SUCCESSFUL)
        await self.resume()

    async def on_replicas_not_deleted(self, replicas: Iterable[Replica]) -> None:
        """Called when the broker or the disk of these replicas failed during the deletion."""
        failed = [r for r in replicas if r.partition.topic in self._context.topics_to_delete]
        await self._machines.move_replicas(
            [r for r in failed if self._context.replica_state(r) is ReplicaState.DELETION_STARTED],
            ReplicaState.DELETION_INELIGIBLE,
        )
        self._context.topics_not_deletable_now.update(r.partition.topic for r in failed)
        await self.resume()

    async def on_replicas_online(self, replicas: Iterable[Replica]) -> None:
        """Continue the deletions that waited for these replicas."""
        await self.resume_for({r.partition.topic for r in replicas})

    async def resume_for(self, topics: set[str]) -> None:
        """Retry deletions that may no longer be blocked."""
        unblocked = topics & self._context.topics_to_delete
        self._context.topics_not_deletable_now -= unblocked
        if unblocked:
            await self.resume()

    async def resume(self) -> None:
        """Complete the deletions that all brokers have confirmed. Start or retry the deletions that
        are not blocked."""
        ready_topics: list[str] = []
        for topic in sorted(self._context.topics_to_delete):
            replicas = list(self._context.replicas(self._context.partitions_of([topic])))
            states = {self._context.replica_state(r) for r in replicas}
            if states <= {ReplicaState.DELETION_SUCCESSFUL}:
                await self._complete(topic)
                continue
            if ReplicaState.DELETION_STARTED in states or topic in self._context.topics_not_deletable_now:
                continue
            ineligible = [r for r in replicas if self._context.replica_state(r) is ReplicaState.DELETION_INELIGIBLE]
            await self._machines.move_replicas(ineligible, ReplicaState.OFFLINE)
            ready_topics.append(topic)
        if ready_topics:
            await self._delete(ready_topics)

    async def _delete(self, topics: list[str]) -> None:
        new_topics = [topic for topic in topics if topic not in self._context.topics_being_deleted]
        partitions = self._context.partitions_of(new_topics)
        await self._machines.move_partitions(partitions, PartitionState.OFFLINE)
        await self._machines.move_partitions(partitions, PartitionState.NON_EXISTENT)
        self._context.topics_being_deleted.update(new_topics)
        self._send_metadata(self._context.partitions_of(topics))
        await self._delete_replicas(topics)

    async def _delete_replicas(self, topics: list[str]) -> None:
        unreachable: list[Replica] = []
        reachable: list[Replica] = []
        for replica in self._context.replicas(self._context.partitions_of(topics)):
            if not self._context.is_online(replica):
                unreachable.append(replica)
            elif self._context.replica_state(replica) is not ReplicaState.DELETION_SUCCESSFUL:
                reachable.append(replica)
        await self._machines.move_replicas(
            [r for r in unreachable if self._context.replica_state(r) is ReplicaState.OFFLINE],
            ReplicaState.DELETION_INELIGIBLE,
        )
        await self._machines.move_replicas(reachable, ReplicaState.OFFLINE)
        await self._machines.move_replicas(reachable, ReplicaState.DELETION_STARTED)
        blocked_topics = {r.partition.topic for r in unreachable}
        if blocked_topics:
            logger.info("The deletion of topics %s waits for unreachable replicas", ", ".join(sorted(blocked_topics)))
            self._context.topics_not_deletable_now |= blocked_topics

    async def _complete(self, topic: str) -> None:
        replicas = list(self._context.replicas(self._context.partitions_of([topic])))
        await self._machines.move_replicas(replicas, ReplicaState.NON_EXISTENT)
        # The mark is removed last, so that a new controller continues after a crash at any point.
        for path in (paths.topic_config(topic), paths.topic(topic), paths.delete_topic(topic)):
            await self._tree.delete_tree(path)
        self._context.forget_topic(topic)
        logger.info("Deleted topic %s", topic)
        self._on_deleted(topic)
