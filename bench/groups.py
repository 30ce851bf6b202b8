"""A group of many members that all join at once: from the first join until each has the partitions that it keeps."""

from __future__ import annotations

import itertools
import statistics

from bench import light
from bench.measure import Options, Row, in_pairs
from bench.sides import Side

MEMBERS = 50
PARTITIONS = 200
# Groups per run; its value is their median.
ROUNDS = 30

_numbers = itertools.count(1)


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    cpu: dict[tuple[str, int], float] = {}

    def once(side: Side, index: int) -> float:
        before = side.cpu_seconds()
        taken = light.run(lambda: _rounds(side))
        cpu[side.name, index] = (side.cpu_seconds() - before) / ROUNDS
        return statistics.median(taken) * 1000

    for side in sides.values():
        side.new_topic("benchmark", PARTITIONS)
        once(side, -1)
    times = in_pairs(sides, options.pairs, once, say=f"{MEMBERS} members settle, ms")
    used = [(cpu["kavka", index] * 1000, cpu["apache", index] * 1000) for index in range(options.pairs)]
    what = f"group of {MEMBERS} members over {PARTITIONS} partitions settles"
    return [
        Row(what, "ms", times, "≤ 1.0 ×", at_most=1.0),
        Row("processor time of the broker for it", "ms", used),
    ]


async def _rounds(side: Side) -> list[float]:
    connections = [await light.Connection.open(side.broker.address) for _ in range(MEMBERS)]
    taken = []
    try:
        for _ in range(ROUNDS):
            name = f"benchmark-{next(_numbers)}"
            await light.wait_for_coordinator(connections[0], name)
            group = light.Group(name, "benchmark", PARTITIONS, MEMBERS)
            members = [light.Member(connection, group) for connection in connections]
            taken.append(await light.settle(members))
            await light.leave(members)
    finally:
        for connection in connections:
            connection.close()
    return taken
