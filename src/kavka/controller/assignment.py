"""[pure] Placement of the replicas of new partitions.

Leaders are assigned round-robin from a random broker, so that each broker leads about as many. The
other replicas of a partition follow at a distance from the leader that grows by one with every
round, so that the followers of one broker's partitions are spread over all other brokers. With
racks, the brokers are ordered so that the rack changes at every step, and no rack gets a second
replica before every rack has one.
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
    """Replicas, preferred leader first, of `partitions` partitions from `first_partition` on.

    `brokers` are the live brokers with their racks. `fixed_start` (an index of the sorted brokers)
    replaces the random start: partitions that are added to a topic continue from its first
    partition.
    """
    if partitions <= 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"A topic needs at least one partition, not {partitions}.")
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"A replication factor is at least 1, not {replication_factor}."
        )
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"A replication factor of {replication_factor} needs as many brokers, only {len(brokers)} are available.",
        )
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    if racks and len(racks) < len(brokers):
        without = ", ".join(str(b) for b in sorted(brokers) if b not in racks)
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"Replicas cannot be spread over racks: broker {without} has none."
        )
    order = alternate_racks(racks) if racks else sorted(brokers)
    start = random.randrange(len(order)) if fixed_start is None else fixed_start
    shift = random.randrange(len(order)) if fixed_start is None else fixed_start
    result: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(order) == 0:
            shift += 1
        leader = (partition + start) % len(order)
        if racks:
            result[partition] = _spread(order, racks, leader, shift, replication_factor)
        else:
            followers = (_follower(leader, shift, i, len(order)) for i in range(replication_factor - 1))
            result[partition] = (order[leader], *(order[index] for index in followers))
    return result


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """All brokers, alternating between racks: for (a: 0, 1), (b: 2, 3), (c: 4) that is 0, 2, 4, 1,
    3."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(map(len, queues))
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _spread(
    order: Sequence[int], racks: Mapping[int, str], leader: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    rack_count = len(set(racks.values()))
    chosen = [order[leader]]
    used_racks = {racks[order[leader]]}
    step = 0
    while len(chosen) < replication_factor:
        broker = order[_follower(leader, shift * rack_count, step, len(order))]
        step += 1
        if broker in chosen or (racks[broker] in used_racks and len(used_racks) < rack_count):
            continue
        chosen.append(broker)
        used_racks.add(racks[broker])
    return tuple(chosen)


def _follower(leader: int, shift: int, index: int, brokers: int) -> int:
    """The index of the `index`-th replica after the leader, which is never the leader's."""
    return (leader + 1 + (shift + index) % (brokers - 1)) % brokers
