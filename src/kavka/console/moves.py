"""Plans reassignments that move as few replicas as possible. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kavka.console.errors import Refused

Assignment = dict[int, tuple[int, ...]]


def propose(
    current: Mapping[int, Sequence[int]], brokers: Sequence[int], racks: Mapping[int, str | None], replication: int
) -> Assignment:
    """Return an assignment of `replication` replicas per partition to these brokers. Replicas and
    preferred leaders are balanced over the brokers, and the replicas of a partition are in
    different racks if possible. A replica stays on its broker unless the broker is not in the list
    or has more replicas than others. Raises Refused if there are too few brokers."""
    if not brokers:
        raise Refused("select at least one broker", field="brokers")
    if replication > len(brokers):
        raise Refused(
            f"{replication} replicas need as many brokers, and {len(brokers)} are selected", field="replication"
        )
    assignment = {p: [b for b in replicas if b in brokers][:replication] for p, replicas in current.items()}
    load = dict.fromkeys(brokers, 0)
    for replicas in assignment.values():
        for broker in replicas:
            load[broker] += 1
    for replicas in assignment.values():
        while len(replicas) < replication:
            used_racks = {racks.get(broker) for broker in replicas} - {None}
            broker = min(
                (b for b in brokers if b not in replicas),
                key=lambda b: (racks.get(b) in used_racks, load[b], brokers.index(b)),
            )
            load[broker] += 1
            replicas.append(broker)
    _balance_replicas(assignment, load, racks)
    return _with_balanced_leaders(assignment, brokers)


def _balance_replicas(
    assignment: Mapping[int, list[int]], load: dict[int, int], racks: Mapping[int, str | None]
) -> None:
    """Move replicas to brokers that have at least two fewer, unless a rack would get a second
    replica of the partition."""
    changed = True
    while changed:
        changed = False
        for replicas in assignment.values():
            fullest = max(replicas, key=lambda b: load[b])
            other_racks = {racks.get(b) for b in replicas if b != fullest} - {None}
            candidates = [
                b
                for b in load
                if b not in replicas and load[fullest] - load[b] >= 2 and racks.get(b) not in other_racks
            ]
            if candidates:
                emptiest = min(candidates, key=lambda b: load[b])
                replicas[replicas.index(fullest)] = emptiest
                load[fullest] -= 1
                load[emptiest] += 1
                changed = True


def _with_balanced_leaders(assignment: Mapping[int, list[int]], brokers: Sequence[int]) -> Assignment:
    """Return the assignment with balanced preferred leaders, the first replica of each list. A
    preferred leader is replaced if another replica is the preferred leader of at least two fewer
    partitions."""
    leader_counts = dict.fromkeys(brokers, 0)
    for replicas in assignment.values():
        leader_counts[replicas[0]] += 1
    changed = True
    while changed:
        changed = False
        for replicas in assignment.values():
            candidate = min(replicas, key=lambda broker: leader_counts[broker])
            if leader_counts[replicas[0]] - leader_counts[candidate] >= 2:
                leader_counts[replicas[0]] -= 1
                leader_counts[candidate] += 1
                replicas.remove(candidate)
                replicas.insert(0, candidate)
                changed = True
    return {partition: tuple(replicas) for partition, replicas in assignment.items()}


def parse_replicas(partition: str, text: str | None) -> tuple[int, tuple[int, ...]]:
    """Parse the inputs of a form: `"3", "1, 2"` is partition 3 on brokers 1 and 2. Raises Refused
    for invalid inputs."""
    try:
        partition_id = int(partition)
        brokers = tuple(int(broker) for broker in (text or "").replace(",", " ").split())
    except ValueError:
        raise Refused(f"partition {partition[:20]}: expected broker ids, not '{(text or '')[:60]}'") from None
    if not brokers:
        raise Refused(f"partition {partition_id} would have no replica")
    if len(set(brokers)) < len(brokers):
        raise Refused(f"partition {partition_id} would have two replicas on a broker")
    return partition_id, brokers
