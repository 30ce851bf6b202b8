"""Plans of where partitions are to be: read from JSON, written as JSON, proposed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from kavka.cli.partitions import member, read_json
from kavka.cli.tool import ToolError
from kavka.client.admin.types import TopicPartitionReplica
from kavka.common.types import TopicPartition

ANY = "any"
Assignment = dict[TopicPartition, list[int]]


@dataclass(slots=True)
class Plan:
    """The brokers of each partition, and for some replicas the directory on their broker."""

    replicas: Assignment = field(default_factory=dict)
    directories: dict[TopicPartitionReplica, str] = field(default_factory=dict)

    def check(self) -> None:
        """What may not be executed; what is only verified or called off may be empty."""
        if not self.replicas:
            raise ToolError("Partition reassignment list cannot be empty")
        for tp, replicas in self.replicas.items():
            if not replicas:
                raise ToolError("Partition replica list cannot be empty")
            doubled = sorted({broker for broker in replicas if replicas.count(broker) > 1})
            if doubled:
                raise ToolError(
                    "Partition replica lists may not contain duplicate entries: "
                    f"{tp} contains multiple entries for {','.join(map(str, doubled))}"
                )


def _versioned(path: str) -> object:
    data = read_json(path)
    if not isinstance(data, dict):
        raise ToolError(f"{path}: an object is expected")
    if data.get("version", 1) != 1:
        raise ToolError(f"Not supported version field value {data['version']}")
    return data


def read_topics(path: str) -> list[str]:
    entries = member(_versioned(path), "topics", list, path)
    topics = [member(entry, "topic", str, f"{path}: topic {n}") for n, entry in enumerate(entries, start=1)]
    doubled = sorted({topic for topic in topics if topics.count(topic) > 1})
    if doubled:
        raise ToolError(f"List of topics to reassign contains duplicate entries: {doubled}")
    return topics


def read_plan(path: str) -> Plan:
    plan = Plan()
    for number, entry in enumerate(member(_versioned(path), "partitions", list, path), start=1):
        where = f"{path}: partition {number}"
        tp = TopicPartition(member(entry, "topic", str, where), member(entry, "partition", int, where))
        replicas = member(entry, "replicas", list, where)
        if not all(isinstance(broker, int) and not isinstance(broker, bool) for broker in replicas):
            raise ToolError(f'{where}: "replicas" must be a list of broker ids')
        directories = entry.get("log_dirs", [ANY] * len(replicas))
        if not isinstance(directories, list) or not all(isinstance(directory, str) for directory in directories):
            raise ToolError(f'{where}: "log_dirs" must be a list of paths')
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


def propose(current: Assignment, racks: Mapping[int, str | None]) -> Assignment:
    """Spread the partitions of each topic evenly over the brokers, and the replicas of each over the racks; as many
    replicas as there are now."""
    proposed: Assignment = {}
    brokers = _by_turns(racks)
    for topic in sorted({tp.topic for tp in current}):
        partitions = sorted(tp for tp in current if tp.topic == topic)
        wanted = len(current[partitions[0]])
        if wanted > len(brokers):
            raise ToolError(f"Replication factor: {wanted} larger than available brokers: {len(brokers)}.")
        start = random.randrange(len(brokers))
        shift = random.randrange(len(brokers))
        for number, tp in enumerate(partitions):
            # Followers of partitions with the same leader shall not all be on the same brokers.
            if number and number % len(brokers) == 0:
                shift += 1
            proposed[tp] = _replicas(brokers, racks, (start + number) % len(brokers), shift, wanted)
    return proposed


def _by_turns(racks: Mapping[int, str | None]) -> list[int]:
    """Brokers in an order in which neighbours are in different racks as far as that goes."""
    grouped: dict[str | None, list[int]] = {}
    for broker in sorted(racks):
        grouped.setdefault(racks[broker], []).append(broker)
    rounds = zip_longest(*(grouped[rack] for rack in sorted(grouped, key=str)))
    return [broker for turn in rounds for broker in turn if broker is not None]


def _replicas(brokers: list[int], racks: Mapping[int, str | None], first: int, shift: int, wanted: int) -> list[int]:
    """The leader at `first`, then those after it: a rack is not used twice while there are others."""
    chosen = [brokers[first]]
    others = len(brokers) - 1
    order = [brokers[(first + 1 + (shift + step) % others) % len(brokers)] for step in range(others)]
    while len(chosen) < wanted:
        used = {racks[broker] for broker in chosen}
        if set(racks.values()) <= used:
            used = set()
        left = [broker for broker in order if broker not in chosen]
        chosen.append(next((broker for broker in left if racks[broker] not in used), left[0]))
    return chosen
