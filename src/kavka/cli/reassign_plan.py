"""Reading, checking, generating and writing reassignment plans."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

from kavka.cli.partitions import member, partition_entries, read_json
from kavka.cli.tool import ToolError
from kavka.client.admin.types import TopicPartitionReplica
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin

ANY = "any"
Assignment = dict[TopicPartition, list[int]]


@dataclass(slots=True)
class Plan:
    """The target brokers of each partition, and the target log directories of some replicas.

    --verify and --cancel accept an empty plan. `check` must pass before a plan is executed.
    """

    replicas: Assignment = field(default_factory=dict)
    directories: dict[TopicPartitionReplica, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ToolError if the plan cannot be executed."""
        if not self.replicas:
            raise ToolError("Partition reassignment list cannot be empty")
        for tp, replicas in self.replicas.items():
            if not replicas:
                raise ToolError("Partition replica list cannot be empty")
            duplicates = sorted({broker for broker in replicas if replicas.count(broker) > 1})
            if duplicates:
                raise ToolError(
                    "Partition replica lists may not contain duplicate entries: "
                    f"{tp} contains multiple entries for {','.join(map(str, duplicates))}"
                )


def read_versioned_json(path: str) -> object:
    """Read a JSON object of version 1. Raise ToolError for other content."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise ToolError(f"{path}: must be a JSON object")
    if data.get("version", 1) != 1:
        raise ToolError(f"Not supported version field value {data['version']}")
    return data


def read_topics(path: str) -> list[str]:
    """Read the file of --topics-to-move-json-file. Raise ToolError if it is invalid."""
    entries = member(read_versioned_json(path), "topics", list, path)
    topics = [member(entry, "topic", str, f"{path}: topic {n}") for n, entry in enumerate(entries, start=1)]
    duplicates = sorted({topic for topic in topics if topics.count(topic) > 1})
    if duplicates:
        raise ToolError(f"List of topics to reassign contains duplicate entries: {duplicates}")
    return topics


def read_plan(path: str) -> Plan:
    """Read the file of --reassignment-json-file. Raise ToolError if it is invalid."""
    plan = Plan()
    for tp, entry, location in partition_entries(read_versioned_json(path), path):
        replicas = member(entry, "replicas", list, location)
        if not all(isinstance(broker, int) and not isinstance(broker, bool) for broker in replicas):
            raise ToolError(f'{location}: "replicas" must be a list of broker ids')
        directories = entry.get("log_dirs", [ANY] * len(replicas))
        if not isinstance(directories, list) or not all(isinstance(directory, str) for directory in directories):
            raise ToolError(f'{location}: "log_dirs" must be a list of paths')
        if len(directories) != len(replicas):
            raise ToolError(
                f"Size of replicas list {replicas} is different from size of log dirs list {directories} "
                f"for partition {tp}"
            )
        if tp in plan.replicas:
            raise ToolError(f"Partition reassignment contains duplicate topic partitions: {tp}")
        plan.replicas[tp] = replicas
        for broker, directory in zip(replicas, directories, strict=True):
            if directory != ANY:
                plan.directories[TopicPartitionReplica(tp.topic, tp.partition, broker)] = directory
    return plan


def as_reassignment_json(assignment: Mapping[TopicPartition, Iterable[int]]) -> str:
    partitions = []
    for tp, brokers in sorted(assignment.items()):
        replicas = list(brokers)
        entry = {"topic": tp.topic, "partition": tp.partition, "replicas": replicas, "log_dirs": [ANY] * len(replicas)}
        partitions.append(entry)
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"), ensure_ascii=False)


def current_replicas(admin: Admin, topics: Iterable[str]) -> Assignment:
    """Return the replicas of all partitions of the topics. Raise ToolError if a topic does not
    exist."""
    from kavka.client.admin import AdminError
    from kavka.common.errors import ErrorCode

    try:
        descriptions = admin.describe_topics(sorted(set(topics)))
    except AdminError as error:
        topic = next(iter(error.errors))
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ToolError(f"Topic {topic} not found.") from None
        raise
    return {
        TopicPartition(description.name, info.partition): [node.id for node in info.replicas]
        for description in descriptions.values()
        for info in description.partitions
    }


def propose(current: Assignment, racks: Mapping[int, str | None]) -> Assignment:
    """Spread the partitions of each topic evenly over the brokers, and their replicas over the
    racks. The replication factor does not change. Raise ToolError if there are too few brokers."""
    proposed: Assignment = {}
    brokers = _alternate_racks(racks)
    for topic in sorted({tp.topic for tp in current}):
        partitions = sorted(tp for tp in current if tp.topic == topic)
        factor = len(current[partitions[0]])
        if factor > len(brokers):
            raise ToolError(f"Replication factor: {factor} larger than available brokers: {len(brokers)}.")
        start = random.randrange(len(brokers))
        shift = random.randrange(len(brokers))
        for index, tp in enumerate(partitions):
            # Partitions with the same leader get different followers.
            if index and index % len(brokers) == 0:
                shift += 1
            proposed[tp] = _replicas(brokers, racks, (start + index) % len(brokers), shift, factor)
    return proposed


def _alternate_racks(racks: Mapping[int, str | None]) -> list[int]:
    """Order the brokers so that neighbours are in different racks location possible."""
    brokers_by_rack: dict[str | None, list[int]] = {}
    for broker in sorted(racks):
        brokers_by_rack.setdefault(racks[broker], []).append(broker)
    rounds = zip_longest(*(brokers_by_rack[rack] for rack in sorted(brokers_by_rack, key=str)))
    return [broker for brokers in rounds for broker in brokers if broker is not None]


def _replicas(brokers: list[int], racks: Mapping[int, str | None], first: int, shift: int, factor: int) -> list[int]:
    """Choose the broker at index `first` as the leader, and followers after it. A rack is used
    again only after all racks are used."""
    chosen = [brokers[first]]
    others = len(brokers) - 1
    order = [brokers[(first + 1 + (shift + step) % others) % len(brokers)] for step in range(others)]
    while len(chosen) < factor:
        used = {racks[broker] for broker in chosen}
        if set(racks.values()) <= used:
            used = set()
        remaining = [broker for broker in order if broker not in chosen]
        chosen.append(next((broker for broker in remaining if racks[broker] not in used), remaining[0]))
    return chosen
