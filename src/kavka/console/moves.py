"""Where partitions could go [pure]: a plan that moves no more than it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kavka.console.errors import Refused

Assignment = dict[int, tuple[int, ...]]


def propose(
    current: Mapping[int, Sequence[int]], brokers: Sequence[int], racks: Mapping[int, str | None], replication: int
) -> Assignment:
    """`replication` replicas of each partition on these brokers, evenly, the preferred leaders evenly too, racks as
    different as can be. A replica stays where it is as long as its broker is wanted and has no more than its share."""
    if not brokers:
        raise Refused("choose brokers first", field="brokers")
    if replication > len(brokers):
        raise Refused(
            f"{replication} replicas need as many brokers, and {len(brokers)} are chosen", field="replication"
        )
    share = -(-len(current) * replication // len(brokers))
    load = dict.fromkeys(brokers, 0)
    chosen: dict[int, list[int]] = {}
    for partition, replicas in current.items():
        kept = [b for b in replicas if b in load and load[b] < share][:replication]
        for broker in kept:
            load[broker] += 1
        chosen[partition] = kept
    for kept in chosen.values():
        while len(kept) < replication:
            used = {racks.get(broker) for broker in kept} - {None}
            broker = min(
                (b for b in brokers if b not in kept),
                key=lambda b: (load[b] >= share, racks.get(b) in used, load[b], brokers.index(b)),
            )
            load[broker] += 1
            kept.append(broker)
    return _with_even_leaders(chosen, brokers)


def _with_even_leaders(chosen: Mapping[int, list[int]], brokers: Sequence[int]) -> Assignment:
    """The first of each list is its preferred leader: it stays while its broker has not more than its share of them."""
    share = -(-len(chosen) // len(brokers))
    leads = dict.fromkeys(brokers, 0)
    found: Assignment = {}
    for partition, replicas in chosen.items():
        first = replicas[0]
        if leads[first] >= share:
            first = min(replicas, key=lambda broker: leads[broker])
        leads[first] += 1
        found[partition] = (first, *(broker for broker in replicas if broker != first))
    return found


def parse_replicas(partition: str, text: str | None) -> tuple[int, tuple[int, ...]]:
    """`"3", "1, 2"` as a form has them: partition 3 on brokers 1 and 2."""
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
