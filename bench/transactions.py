"""Transactions of 100 records by one Java producer, and by several concurrent ones."""

from __future__ import annotations

from bench.clients import RECORD_SIZE, TOOL_JVM, VERSION
from bench.measure import Options, Row, in_pairs, paired
from bench.sides import Side
from tests.support.java_client import JavaClient
from tests.support.transactions import PROBE

RECORDS = 100
TRANSACTIONS = 500
PRODUCERS = 8


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    clients: dict[str, JavaClient] = {}
    try:
        for name, side in sides.items():
            side.new_topic("benchmark")
            clients[name] = client = JavaClient(VERSION, side.bootstrap, source=PROBE, jvm=TOOL_JVM)
            for producer in _names(PRODUCERS):
                client.call("open", name=producer)
                client.call("init", name=producer)
        return _rows(sides, clients, options, 1) + _rows(sides, clients, options, PRODUCERS)
    finally:
        for client in clients.values():
            client.close()


def _names(producers: int) -> list[str]:
    return [f"benchmark-{number}" for number in range(producers)]


def _rows(sides: dict[str, Side], clients: dict[str, JavaClient], options: Options, producers: int) -> list[Row]:
    cpu: dict[tuple[str, int], float] = {}
    transactions = TRANSACTIONS // producers

    def once(side: Side, index: int) -> float:
        start_cpu = side.cpu_seconds()
        seconds = clients[side.name].call(
            "perf",
            names=_names(producers),
            topic="benchmark",
            transactions=transactions,
            records=RECORDS,
            size=RECORD_SIZE,
        )
        cpu[side.name, index] = (side.cpu_seconds() - start_cpu) / (transactions * producers) * 1000
        return transactions * producers / float(seconds)

    for side in sides.values():
        once(side, -1)
    producers_text = "one producer" if producers == 1 else f"{producers} concurrent producers"
    rates = in_pairs(sides, options.pairs, once, title=f"transactions of {producers_text}, per s")
    records = [(kavka * RECORDS, apache * RECORDS) for kavka, apache in rates]
    cpu_times = paired(cpu, options.pairs)
    what = f"transactions of {RECORDS} records of {RECORD_SIZE} bytes, {producers_text}"
    return [
        Row(what, "/s", rates, "≥ 1.0 ×", 1.0),
        Row("records in these transactions", "records/s", records),
        Row("broker CPU time per transaction", "ms", cpu_times),
    ]
