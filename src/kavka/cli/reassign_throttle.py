"""Setting and clearing the throttles of replica moves, which are settings of brokers and topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kavka.cli.tool import note
from kavka.client.admin.throttles import LOG_DIR_RATE
from kavka.client.admin.types import AlterConfigOp, ConfigResource, TopicPartitionReplica
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin


def throttle_log_dirs(admin: Admin, rate: int, replicas: Iterable[TopicPartitionReplica]) -> None:
    """Limit the bytes per second that the brokers of these replicas move between log
    directories."""
    brokers = sorted({replica.broker_id for replica in replicas})
    if brokers:
        admin.incremental_alter_configs(
            {ConfigResource.broker(broker): [AlterConfigOp(LOG_DIR_RATE, str(rate))] for broker in brokers}
        )
    print(f"The replica-alter-dir throttle limit was set to {rate} B/s")


def clear_throttles(admin: Admin, replicas: Mapping[TopicPartition, Iterable[int]], *, quiet: bool = False) -> None:
    """Clear the throttles of all live brokers and of the topics in `replicas`.

    All live brokers are included, because the source brokers of completed reassignments are
    unknown.
    """
    live_brokers = {node.id for node in admin.describe_cluster().nodes}
    brokers = sorted(live_brokers | {broker for assigned in replicas.values() for broker in assigned})
    topics = sorted({tp.topic for tp in replicas})
    if not quiet:
        plural = "" if len(brokers) == 1 else "s"
        print(f"Clearing broker-level throttles on broker{plural} {','.join(map(str, brokers))}")
    for broker in brokers:
        if broker not in live_brokers:
            note("reassign-partitions", f"broker {broker} is offline: run --verify again later to clear its throttle")
    if not quiet:
        plural = "" if len(topics) == 1 else "s"
        print(f"Clearing topic-level throttles on topic{plural} {','.join(topics)}")
    admin.clear_throttles((broker for broker in brokers if broker in live_brokers), topics)
