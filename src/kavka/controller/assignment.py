"""[pure] Placement of the replicas of new partitions.

Leaders are assigned round-robin from a random broker, so that each broker leads about the same
number of partitions. The distance between the leader and its followers grows by one with every
round, so that the followers of one broker's partitions are spread over all other brokers. With
racks, the brokers are ordered so that the rack changes at every step, and no rack gets a second
replica of a partition before every rack has one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from kavka.common.errors import ErrorCode, KafkaError


def assign(
    brokers: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    fixed_start: int | None = None,
    first_partition: int = 0,
) -> dict[int, tuple[int, ...]]:
    """Return the replicas of each partition from `first_partition` on. The first replica is the
    preferred leader. Raises KafkaError if the replicas cannot be placed.

    `brokers` are the live brokers with their racks. `fixed_start`, an index into the sorted
    brokers, replaces the random start when partitions are added to a topic.
    """
    if partitions <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"A topic needs at least one partition; {partitions} were requested."
        )
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor must be at least 1, not {replication_factor}.",
        )
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"A replication factor of {replication_factor} exceeds the number of live brokers, {len(brokers)}.",
        )
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    if racks and len(racks) < len(brokers):
        without_rack = ", ".join(str(broker) for broker in sorted(brokers) if broker not in racks)
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"Not all brokers have a rack; brokers without a rack: {without_rack}."
        )
    ordered_brokers = alternate_racks(racks) if racks else sorted(brokers)
    start = random.randrange(len(ordered_brokers)) if fixed_start is None else fixed_start
    shift = random.randrange(len(ordered_brokers)) if fixed_start is None else fixed_start
    result: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(ordered_brokers) == 0:
            shift += 1
        leader = (partition + start) % len(ordered_brokers)
        if racks:
            result[partition] = _spread(ordered_brokers, racks, leader, shift, replication_factor)
        else:
            followers = (_follower(leader, shift, i, len(ordered_brokers)) for i in range(replication_factor - 1))
            result[partition] = (ordered_brokers[leader], *(ordered_brokers[index] for index in followers))
    return result


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """All brokers in an order that alternates between racks. For the racks (a: 0, 1), (b: 2, 3),
    (c: 4) the order is 0, 2, 4, 1, 3."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(map(len, queues))
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _spread(
    ordered_brokers: Sequence[int], racks: Mapping[int, str], leader: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    rack_count = len(set(racks.values()))
    chosen = [ordered_brokers[leader]]
    used_racks = {racks[ordered_brokers[leader]]}
    step = 0
    while len(chosen) < replication_factor:
        broker = ordered_brokers[_follower(leader, shift * rack_count, step, len(ordered_brokers))]
        step += 1
        if broker in chosen or (racks[broker] in used_racks and len(used_racks) < rack_count):
            continue
        chosen.append(broker)
        used_racks.add(racks[broker])
    return tuple(chosen)


def _follower(leader: int, shift: int, index: int, brokers: int) -> int:
    """Return the position of the `index`-th follower in the broker list. It is never the leader's
    position."""
    return (leader + 1 + (shift + index) % (brokers - 1)) % brokers
