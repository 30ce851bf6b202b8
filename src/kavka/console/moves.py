"""[pure] Plans reassignments that move as few replicas as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kavka.console.errors import Refused

Assignment = dict[int, tuple[int, ...]]


def propose(
    current: Mapping[int, Sequence[int]], brokers: Sequence[int], racks: Mapping[int, str | None], replication: int
) -> Assignment:
    """Assign `replication` replicas of each partition to these brokers, balanced by replicas and by
    preferred leaders, over different racks if possible. A replica stays on its broker unless the
    broker is not in the list or has more replicas than others."""
    if not brokers:
        raise Refused("choose brokers first", field="brokers")
    if replication > len(brokers):
        raise Refused(
            f"{replication} replicas need as many brokers, and {len(brokers)} are chosen", field="replication"
        )
    chosen = {p: [b for b in replicas if b in brokers][:replication] for p, replicas in current.items()}
    load = dict.fromkeys(brokers, 0)
    for replicas in chosen.values():
        for broker in replicas:
            load[broker] += 1
    for replicas in chosen.values():
        while len(replicas) < replication:
            used = {racks.get(broker) for broker in replicas} - {None}
            broker = min(
                (b for b in brokers if b not in replicas),
                key=lambda b: (racks.get(b) in used, load[b], brokers.index(b)),
            )
            load[broker] += 1
            replicas.append(broker)
    _even_out(chosen, load, racks)
    return _with_even_leaders(chosen, brokers)


def _even_out(chosen: Mapping[int, list[int]], load: dict[int, int], racks: Mapping[int, str | None]) -> None:
    """Move replicas to brokers with at emptiest two fewer, unless a rack would get a second replica
    of the partition."""
    changed = True
    while changed:
        changed = False
        for replicas in chosen.values():
            fullest = max(replicas, key=lambda b: load[b])
            others = {racks.get(b) for b in replicas if b != fullest} - {None}
            fewer = [
                b for b in load if b not in replicas and load[fullest] - load[b] >= 2 and racks.get(b) not in others
            ]
            if fewer:
                emptiest = min(fewer, key=lambda b: load[b])
                replicas[replicas.index(fullest)] = emptiest
                load[fullest] -= 1
                load[emptiest] += 1
                changed = True


def _with_even_leaders(chosen: Mapping[int, list[int]], brokers: Sequence[int]) -> Assignment:
    """Balance the preferred leaders, the first replica of each list. A leader is replaced if
    another replica leads at least two fewer partitions."""
    leads = dict.fromkeys(brokers, 0)
    for replicas in chosen.values():
        leads[replicas[0]] += 1
    changed = True
    while changed:
        changed = False
        for replicas in chosen.values():
            least = min(replicas, key=lambda broker: leads[broker])
            if leads[replicas[0]] - leads[least] >= 2:
                leads[replicas[0]] -= 1
                leads[least] += 1
                replicas.remove(least)
                replicas.insert(0, least)
                changed = True
    return {partition: tuple(replicas) for partition, replicas in chosen.items()}


def parse_replicas(partition: str, text: str | None) -> tuple[int, tuple[int, ...]]:
    """Parse the inputs of a form: `"3", "1, 2"` is partition 3 on brokers 1 and 2."""
    try:
        number = int(partition)
        brokers = tuple(int(piece) for piece in (text or "").replace(",", " ").split())
    except ValueError:
        raise Refused(f"partition {partition[:20]}: broker ids are expected, not '{(text or '')[:60]}'") from None
    if not brokers:
        raise Refused(f"partition {number} would have no replica")
    if len(set(brokers)) < len(brokers):
        raise Refused(f"partition {number} would have a broker twice")
    return number, brokers
