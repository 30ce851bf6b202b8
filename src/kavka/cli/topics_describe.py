"""`kavka topics --describe`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kavka.cli.names import NO_ID, ids, uuid_of
from kavka.cli.options import Arguments
from kavka.cli.output import at_terminal, print_json, print_table, style
from kavka.cli.tool import ToolError
from kavka.cli.topics import FILTERS, matching_topics
from kavka.client.admin.types import (
    ConfigEntry,
    ConfigResource,
    PartitionReassignment,
    TopicDescription,
    TopicPartitionInfo,
)
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition, uuid_text

if TYPE_CHECKING:
    from kavka.client.admin import Admin

MIN_ISR = "min.insync.replicas"


@dataclass(slots=True)
class _Partition:
    """A partition with its active reassignment and its min.insync.replicas."""

    info: TopicPartitionInfo
    reassignment: PartitionReassignment | None
    min_isr: int

    @property
    def replication_factor(self) -> int:
        """The number of replicas, without those that an active reassignment adds."""
        reassignment = self.reassignment
        if reassignment is None or not {*reassignment.adding_replicas, *reassignment.removing_replicas} & {
            node.id for node in self.info.replicas
        }:
            return len(self.info.replicas)
        return len(reassignment.replicas) - len(reassignment.adding_replicas)

    def matches(self, filter_name: str, live_brokers: set[int]) -> bool:
        """Return whether the partition matches a filter option, for example
        `under-replicated-partitions`."""
        in_sync, leader = len(self.info.isr), self.info.leader
        match filter_name:
            case "under-replicated-partitions":
                return in_sync < self.replication_factor
            case "unavailable-partitions":
                return leader is None or leader.id not in live_brokers
            case "under-min-isr-partitions":
                return leader is None or in_sync < self.min_isr
            case _:
                return in_sync == self.min_isr


def describe(admin: Admin, args: Arguments) -> None:
    descriptions = _descriptions(admin, args)
    if not descriptions:
        if args["json"]:
            print_json([])
        return
    names = [description.name for description in descriptions]
    configs = admin.describe_configs([ConfigResource.topic(name) for name in names])
    filters = [name for name in FILTERS if name in args]
    live_brokers = {node.id for node in admin.describe_cluster().nodes}
    reassignments = _reassignments(admin, descriptions)
    described: list[dict[str, Any]] = []
    for description in descriptions:
        settings = configs[ConfigResource.topic(description.name)]
        overrides = [entry for entry in settings.values() if not entry.is_default]
        min_isr = int(settings[MIN_ISR].value or 1) if MIN_ISR in settings else 1
        partitions = [
            _Partition(info, reassignments.get(TopicPartition(description.name, info.partition)), min_isr)
            for info in sorted(description.partitions, key=lambda info: info.partition)
        ]
        factor = partitions[0].replication_factor if partitions else 0
        with_heading = not filters and (bool(overrides) or not args["topics-with-overrides"])
        if args["topics-with-overrides"]:
            partitions = []
        elif filters:
            partitions = [p for p in partitions if any(p.matches(name, live_brokers) for name in filters)]
        if args["json"]:
            if with_heading or partitions:
                described.append(_as_json(description, factor, overrides, partitions))
        elif at_terminal():
            if with_heading or partitions:
                _show_table(description, factor, overrides, partitions)
        else:
            _show_plain(description, factor, overrides, partitions, with_heading)
    if args["json"]:
        print_json(described)


def _descriptions(admin: Admin, args: Arguments) -> list[TopicDescription]:
    must_exist = not args["if-exists"]
    if "topic-id" not in args:
        names = matching_topics(admin, args, must_exist=must_exist)
        max_partitions = args["partition-size-limit-per-response"]
        return list(admin.describe_topics(names, partitions_per_response=max_partitions).values()) if names else []
    text = args["topic-id"]
    topic_id = uuid_of(text)
    listings = [listing for listing in admin.list_topics(list_internal=True).values() if listing.topic_id == topic_id]
    if not listings and must_exist:
        raise ToolError(f"TopicId '{text}' does not exist as expected")
    return list(admin.describe_topics([listing.name for listing in listings]).values()) if listings else []


def _reassignments(admin: Admin, descriptions: list[TopicDescription]) -> dict[TopicPartition, PartitionReassignment]:
    partitions = [TopicPartition(d.name, info.partition) for d in descriptions for info in d.partitions]
    try:
        return admin.list_partition_reassignments(partitions)
    except KafkaError as error:
        # Omit the reassignments if the user may not list them or the cluster does not support them.
        if error.code in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION):
            return {}
        raise


def _show_plain(
    description: TopicDescription,
    factor: int,
    overrides: list[ConfigEntry],
    partitions: list[_Partition],
    with_heading: bool,
) -> None:
    if with_heading:
        topic_id = "" if description.topic_id == NO_ID else f"\tTopicId: {uuid_text(description.topic_id)}"
        configs = ",".join(f"{entry.name}={entry.value}" for entry in overrides)
        print(
            f"Topic: {description.name}{topic_id}\tPartitionCount: {len(description.partitions)}"
            f"\tReplicationFactor: {factor}\tConfigs: {configs}"
        )
    for partition in partitions:
        info = partition.info
        line = (
            f"\tTopic: {description.name}\tPartition: {info.partition}"
            f"\tLeader: {'none' if info.leader is None else info.leader.id}"
            f"\tReplicas: {ids(info.replicas)}\tIsr: {ids(info.isr)}"
        )
        if partition.reassignment is not None:
            line += f"\tAdding Replicas: {ids(partition.reassignment.adding_replicas)}"
            line += f"\tRemoving Replicas: {ids(partition.reassignment.removing_replicas)}"
        line += f"\tElr: {'N/A' if info.eligible_leaders is None else ids(info.eligible_leaders)}"
        line += f"\tLastKnownElr: {'N/A' if info.last_known_eligible is None else ids(info.last_known_eligible)}"
        print(line)


def _show_table(
    description: TopicDescription, factor: int, overrides: list[ConfigEntry], partitions: list[_Partition]
) -> None:
    count = len(description.partitions)
    print(
        style(description.name, "bold", "cyan")
        + f"  {count} partition{'' if count == 1 else 's'}, {factor} replica{'' if factor == 1 else 's'} each"
        + style(f"  {uuid_text(description.topic_id)}", "dim")
    )
    for entry in overrides:
        print(f"  {entry.name}={entry.value}")
    if partitions:
        headings = ["PARTITION", "LEADER", "REPLICAS", "ISR"]
        has_reassignments = any(partition.reassignment for partition in partitions)
        rows = []
        for p in partitions:
            row: list[object] = [p.info.partition, "none" if p.info.leader is None else p.info.leader.id]
            row += [ids(p.info.replicas), ids(p.info.isr)]
            if has_reassignments:
                row += [ids(p.reassignment.adding_replicas if p.reassignment else ())]
                row += [ids(p.reassignment.removing_replicas if p.reassignment else ())]
            rows.append(row)
        under_replicated = {ids(p.info.isr) for p in partitions if len(p.info.isr) < p.replication_factor}
        print_table(
            headings + (["ADDING", "REMOVING"] if has_reassignments else []),
            rows,
            right_aligned=("PARTITION",),
            cell_styles=lambda heading, cell: (
                ("red",) if cell == "none" else ("yellow",) if heading == "ISR" and cell in under_replicated else ()
            ),
        )
    print()


def _as_json(
    description: TopicDescription, factor: int, overrides: list[ConfigEntry], partitions: list[_Partition]
) -> dict[str, Any]:
    return {
        "topic": description.name,
        "topicId": None if description.topic_id == NO_ID else uuid_text(description.topic_id),
        "partitionCount": len(description.partitions),
        "replicationFactor": factor,
        "configs": {entry.name: entry.value for entry in overrides},
        "partitions": [
            {
                "partition": p.info.partition,
                "leader": None if p.info.leader is None else p.info.leader.id,
                "leaderEpoch": p.info.leader_epoch,
                "replicas": [node.id for node in p.info.replicas],
                "isr": [node.id for node in p.info.isr],
                "offline": [node.id for node in p.info.offline_replicas],
                "addingReplicas": list(p.reassignment.adding_replicas) if p.reassignment else [],
                "removingReplicas": list(p.reassignment.removing_replicas) if p.reassignment else [],
            }
            for p in partitions
        ],
    }
