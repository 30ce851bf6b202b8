"""Replication throttles of reassignments. They are settings of brokers and topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kavka.client.admin.brokers import Brokers
from kavka.client.admin.configs import Configs
from kavka.client.admin.types import AlterConfigOp, ConfigResource, PartitionReassignment
from kavka.common.types import TopicPartition

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LOG_DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS, FOLLOWER_REPLICAS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)


class Throttles(Brokers, Configs):
    async def throttle_replication(
        self,
        rate: int,
        under_way: Mapping[TopicPartition, PartitionReassignment],
        proposed: Mapping[TopicPartition, Sequence[int]],
        current: Mapping[TopicPartition, Sequence[int]],
        *,
        timeout: float | None = None,
    ) -> None:
        """Limit the replication of reassignments in progress (`under_way`) and of new reassignments
        (`proposed`) to `rate` bytes per second on each source and target broker. `current` has the
        current replicas of the partitions in `proposed`."""
        moves: dict[TopicPartition, tuple[set[int], set[int]]] = {
            tp: (set(r.replicas) - set(r.adding_replicas), set(r.adding_replicas)) for tp, r in under_way.items()
        }
        for tp, replicas in proposed.items():
            sources = moves[tp][0] if tp in moves else set(current[tp])
            moves[tp] = sources, set(replicas) - sources
        leaders: dict[str, set[str]] = {}
        followers: dict[str, set[str]] = {}
        for tp, (sources, targets) in moves.items():
            leaders.setdefault(tp.topic, set()).update(f"{tp.partition}:{broker}" for broker in sources)
            followers.setdefault(tp.topic, set()).update(f"{tp.partition}:{broker}" for broker in targets)
        await self.incremental_alter_configs(
            {
                ConfigResource.topic(topic): [
                    AlterConfigOp(LEADER_REPLICAS, ",".join(sorted(leaders[topic]))),
                    AlterConfigOp(FOLLOWER_REPLICAS, ",".join(sorted(followers[topic]))),
                ]
                for topic in leaders
            },
            timeout=timeout,
        )
        brokers = sorted({broker for sources, targets in moves.values() for broker in sources | targets})
        await self.incremental_alter_configs(
            {
                ConfigResource.broker(broker): [
                    AlterConfigOp(LEADER_RATE, str(rate)),
                    AlterConfigOp(FOLLOWER_RATE, str(rate)),
                ]
                for broker in brokers
            },
            timeout=timeout,
        )

    async def clear_throttles(
        self, brokers: Iterable[int], topics: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Remove the throttles of these brokers and topics."""
        rates = [AlterConfigOp.delete(name) for name in (LEADER_RATE, FOLLOWER_RATE, LOG_DIR_RATE)]
        await self.incremental_alter_configs(
            {ConfigResource.broker(broker): rates for broker in sorted(set(brokers))}, timeout=timeout
        )
        lists = [AlterConfigOp.delete(name) for name in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
        await self.incremental_alter_configs(
            {ConfigResource.topic(topic): lists for topic in sorted(set(topics))}, timeout=timeout
        )
