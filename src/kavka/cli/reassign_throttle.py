"""How much the moving of replicas may take of the network and the disks: settings of brokers and topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kavka.cli.tool import note
from kavka.client.admin.types import (
    AlterConfigOp,
    ConfigResource,
    PartitionReassignment,
    TopicPartitionReplica,
)
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LOG_DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS, FOLLOWER_REPLICAS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)


def throttle_replication(
    admin: Admin,
    rate: int,
    under_way: Mapping[TopicPartition, PartitionReassignment],
    proposed: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
) -> None:
    """Both for what is moved already and for what is about to be."""
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
    admin.incremental_alter_configs(
        {
            ConfigResource.topic(topic): [
                AlterConfigOp(LEADER_REPLICAS, ",".join(sorted(leaders[topic]))),
                AlterConfigOp(FOLLOWER_REPLICAS, ",".join(sorted(followers[topic]))),
            ]
            for topic in leaders
        }
    )
    brokers = sorted({broker for both in moves.values() for some in both for broker in some})
    admin.incremental_alter_configs(
        {
            ConfigResource.broker(broker): [
                AlterConfigOp(LEADER_RATE, str(rate)),
                AlterConfigOp(FOLLOWER_RATE, str(rate)),
            ]
            for broker in brokers
        }
    )
    print(f"The inter-broker throttle limit was set to {rate} B/s")


def throttle_log_dirs(admin: Admin, rate: int, replicas: Iterable[TopicPartitionReplica]) -> None:
    brokers = sorted({replica.broker_id for replica in replicas})
    if brokers:
        admin.incremental_alter_configs(
            {ConfigResource.broker(broker): [AlterConfigOp(LOG_DIR_RATE, str(rate))] for broker in brokers}
        )
    print(f"The replica-alter-dir throttle limit was set to {rate} B/s")


def clear_throttles(admin: Admin, replicas: Mapping[TopicPartition, Iterable[int]], *, quiet: bool = False) -> None:
    """Of all brokers, since nobody knows any more which were sources; and of the topics of the plan."""
    alive = {node.id for node in admin.describe_cluster().nodes}
    brokers = sorted(alive | {broker for some in replicas.values() for broker in some})
    topics = sorted({tp.topic for tp in replicas})
    if not quiet:
        many = "" if len(brokers) == 1 else "s"
        print(f"Clearing broker-level throttles on broker{many} {','.join(map(str, brokers))}")
    for broker in brokers:
        if broker not in alive:
            note("reassign-partitions", f"broker {broker} is not there: its throttle stays until --verify finds it")
    rates = [AlterConfigOp.delete(name) for name in (LEADER_RATE, FOLLOWER_RATE, LOG_DIR_RATE)]
    admin.incremental_alter_configs({ConfigResource.broker(broker): rates for broker in brokers if broker in alive})
    if not quiet:
        many = "" if len(topics) == 1 else "s"
        print(f"Clearing topic-level throttles on topic{many} {','.join(topics)}")
    if topics:
        lists = [AlterConfigOp.delete(name) for name in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
        admin.incremental_alter_configs({ConfigResource.topic(topic): lists for topic in topics})
