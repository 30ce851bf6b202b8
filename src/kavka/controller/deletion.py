"""How a topic goes away.

    marked           /admin/delete_topics/T was made, by whoever wants it gone
    being deleted    its partitions are gone for clients; brokers were told to stop its replicas and delete their files
    deleted          every replica's broker said it did: the topic's nodes are removed, the mark last

A broker that is dead, a disk that has failed, or a move of its partitions holds the deletion up: the topic is *not
deletable now*, and tried again when the broker or the disk is back, or the move is done. A new controller begins again
from the mark; deleting twice does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from kavka.common.types import TopicPartition
from kavka.controller.context import ControllerContext, Replica
from kavka.controller.machines import StateMachines
from kavka.controller.partition_states import PartitionState
from kavka.controller.replica_states import ReplicaState
from kavka.controller.tree import FencedTree
from kavka.metadata import paths

log = logging.getLogger(__name__)


class TopicDeletions:
    def __init__(
        self,
        context: ControllerContext,
        machines: StateMachines,
        tree: FencedTree,
        tell_metadata: Callable[[Iterable[TopicPartition]], Any],
        on_deleted: Callable[[str], Any],
    ) -> None:
        self._context = context
        self._machines = machines
        self._tree = tree
        self._tell_metadata = tell_metadata
        self._on_deleted = on_deleted

    async def replicas_deleted(self, replicas: Iterable[Replica]) -> None:
        """Their broker says that their files are gone."""
        started = [r for r in replicas if self._context.replica_state(r) is ReplicaState.DELETION_STARTED]
        await self._machines.replicas_to(started, ReplicaState.DELETION_SUCCESSFUL)
        await self.resume()

    async def replicas_not_deleted(self, replicas: Iterable[Replica]) -> None:
        """Their broker or disk failed while it was deleting."""
        failed = [r for r in replicas if r.partition.topic in self._context.topics_to_delete]
        await self._machines.replicas_to(
            [r for r in failed if self._context.replica_state(r) is ReplicaState.DELETION_STARTED],
            ReplicaState.DELETION_INELIGIBLE,
        )
        self._context.topics_not_deletable_now.update(r.partition.topic for r in failed)
        await self.resume()

    async def replicas_back(self, replicas: Iterable[Replica]) -> None:
        """They can be reached again: what waited for them goes on."""
        await self.resume_for({r.partition.topic for r in replicas})

    async def resume_for(self, topics: set[str]) -> None:
        """What held them up may be over."""
        going = topics & self._context.topics_to_delete
        self._context.topics_not_deletable_now -= going
        if going:
            await self.resume()

    async def resume(self) -> None:
        ready: list[str] = []
        for topic in sorted(self._context.topics_to_delete):
            replicas = list(self._context.replicas(self._context.partitions_of([topic])))
            states = {self._context.replica_state(r) for r in replicas}
            if states <= {ReplicaState.DELETION_SUCCESSFUL}:
                await self._complete(topic)
                continue
            if ReplicaState.DELETION_STARTED in states or topic in self._context.topics_not_deletable_now:
                continue
            again = [r for r in replicas if self._context.replica_state(r) is ReplicaState.DELETION_INELIGIBLE]
            await self._machines.replicas_to(again, ReplicaState.OFFLINE)
            ready.append(topic)
        if ready:
            await self._delete(ready)

    async def _delete(self, topics: list[str]) -> None:
        unseen = [topic for topic in topics if topic not in self._context.topics_being_deleted]
        partitions = self._context.partitions_of(unseen)
        await self._machines.partitions_to(partitions, PartitionState.OFFLINE)
        await self._machines.partitions_to(partitions, PartitionState.NON_EXISTENT)
        self._context.topics_being_deleted.update(unseen)
        self._tell_metadata(self._context.partitions_of(topics))
        await self._delete_replicas(topics)

    async def _delete_replicas(self, topics: list[str]) -> None:
        unreachable: list[Replica] = []
        reachable: list[Replica] = []
        for replica in self._context.replicas(self._context.partitions_of(topics)):
            if not self._context.is_online(replica):
                unreachable.append(replica)
            elif self._context.replica_state(replica) is not ReplicaState.DELETION_SUCCESSFUL:
                reachable.append(replica)
        await self._machines.replicas_to(
            [r for r in unreachable if self._context.replica_state(r) is ReplicaState.OFFLINE],
            ReplicaState.DELETION_INELIGIBLE,
        )
        await self._machines.replicas_to(reachable, ReplicaState.OFFLINE)
        await self._machines.replicas_to(reachable, ReplicaState.DELETION_STARTED)
        waiting = {r.partition.topic for r in unreachable}
        if waiting:
            log.info("These topics are deleted when all their replicas can be reached: %s", ", ".join(sorted(waiting)))
            self._context.topics_not_deletable_now |= waiting

    async def _complete(self, topic: str) -> None:
        replicas = list(self._context.replicas(self._context.partitions_of([topic])))
        await self._machines.replicas_to(replicas, ReplicaState.NON_EXISTENT)
        # The mark last, and the topic's own node next to last: from either of them a new controller goes on.
        for path in (paths.topic_config(topic), paths.topic(topic), paths.delete_topic(topic)):
            await self._tree.delete_tree(path)
        self._context.forget_topic(topic)
        log.info("Topic %s is deleted", topic)
        self._on_deleted(topic)
