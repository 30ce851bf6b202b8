"""A producer and a consumer of the same partition at the same time."""

from __future__ import annotations

from bench import clients
from bench.measure import Options, Row, in_pairs, paired
from bench.sides import Side


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    read_rates: dict[tuple[str, int], float] = {}

    def once(side: Side, index: int) -> float:
        side.new_topic("benchmark")
        consumer = clients.Consumer(side, "benchmark", options.records, "end")
        if not consumer.ready.wait(60):
            raise RuntimeError("the consumer did not become ready")
        produced = clients.produce(side, "benchmark", options.records)
        read_rates[side.name, index] = consumer.result()
        side.drop_topic("benchmark")
        return produced

    for side in sides.values():
        once(side, -1)
    produced = in_pairs(sides, options.pairs, once, title="concurrent produce and consume: produced, records/s")
    consumed = paired(read_rates, options.pairs)
    return [
        Row("concurrent produce and consume: produced", "records/s", produced, "≥ 1.0 ×", 1.0),
        Row("concurrent produce and consume: consumed", "records/s", consumed, "≥ 1.0 ×", 1.0),
    ]
