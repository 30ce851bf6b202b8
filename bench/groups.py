"""A group with many members that join at the same time: the time until the rebalance is
complete."""

from __future__ import annotations

import itertools
import statistics

from bench import light
from bench.measure import Options, Row, in_pairs
from bench.sides import Side

MEMBERS = 50
PARTITIONS = 200
# Groups per run. The result is the median of their rebalance times.
ROUNDS = 30

_group_numbers = itertools.count(1)


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    cpu: dict[tuple[str, int], float] = {}

    def once(side: Side, index: int) -> float:
        start_cpu = side.cpu_seconds()
        times_per_group = light.run(lambda: _rounds(side))
        cpu[side.name, index] = (side.cpu_seconds() - start_cpu) / ROUNDS
        return statistics.median(times_per_group) * 1000

    for side in sides.values():
        side.new_topic("benchmark", PARTITIONS)
        once(side, -1)
    times = in_pairs(sides, options.pairs, once, title=f"{MEMBERS} members, rebalance time, ms")
    cpu_times = [(cpu["kavka", index] * 1000, cpu["apache", index] * 1000) for index in range(options.pairs)]
    what = f"rebalance of {MEMBERS} members over {PARTITIONS} partitions"
    return [
        Row(what, "ms", times, "≤ 1.0 ×", at_most=1.0),
        Row("broker CPU time", "ms", cpu_times),
    ]


async def _rounds(side: Side) -> list[float]:
    """Return the rebalance time of each group, in seconds."""
    connections = [await light.Connection.open(side.broker.address) for _ in range(MEMBERS)]
    times = []
    try:
        for _ in range(ROUNDS):
            name = f"benchmark-{next(_group_numbers)}"
            await light.wait_for_coordinator(connections[0], name)
            group = light.Group(name, "benchmark", PARTITIONS, MEMBERS)
            members = [light.Member(connection, group) for connection in connections]
            times.append(await light.complete_rebalance(members))
            await light.leave(members)
    finally:
        for connection in connections:
            connection.close()
    return times
