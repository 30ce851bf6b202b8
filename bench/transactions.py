"""Transactions of Apache's Java producer, one after the other: begin, send 100 records, commit."""

from __future__ import annotations

from bench.clients import RECORD_SIZE, TOOL_JVM, VERSION
from bench.measure import Options, Row, in_pairs
from bench.sides import Side
from tests.support.java_client import JavaClient
from tests.support.transactions import PROBE

RECORDS = 100
TRANSACTIONS = 500


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    cpu: dict[tuple[str, int], float] = {}
    producers: dict[str, JavaClient] = {}

    def once(side: Side, index: int) -> float:
        before = side.cpu_seconds()
        seconds = producers[side.name].call(
            "perf", name="benchmark", topic="benchmark", transactions=TRANSACTIONS, records=RECORDS, size=RECORD_SIZE
        )
        cpu[side.name, index] = (side.cpu_seconds() - before) / TRANSACTIONS * 1000
        return TRANSACTIONS / float(seconds)

    try:
        for name, side in sides.items():
            side.new_topic("benchmark")
            producers[name] = producer = JavaClient(VERSION, side.bootstrap, source=PROBE, jvm=TOOL_JVM)
            producer.call("open", name="benchmark")
            producer.call("init", name="benchmark")
            once(side, -1)
        rates = in_pairs(sides, options.pairs, once, say="transactions/s")
    finally:
        for producer in producers.values():
            producer.close()
    records = [(ours * RECORDS, theirs * RECORDS) for ours, theirs in rates]
    used = [(cpu["kavka", index], cpu["apache", index]) for index in range(options.pairs)]
    return [
        Row(f"transactions of {RECORDS} records of {RECORD_SIZE} bytes, one producer", "/s", rates, "≥ 1.0 ×", 1.0),
        Row("records in them", "records/s", records),
        Row("processor time of the broker for one of them", "ms", used),
    ]
