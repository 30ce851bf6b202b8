"""The throughput of a producer and of a consumer over TLS 1.3, and the broker's CPU time. The
clients are Apache's. Both brokers have the same certificate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench import consume, produce
from bench.measure import Options, Row
from bench.sides import Side
from kavka.security.local_security import LocalSecurity


def new_security(folder: Path) -> LocalSecurity:
    return LocalSecurity(folder, "SSL")


def run_produce(sides: dict[str, Side], options: Options) -> list[Row]:
    figures = produce.measure(sides, options, "produce over TLS")
    return [
        Row("produce over TLS: 1000-byte records, acks=1, 16 KB batches", "records/s", figures.rates, "≥ 1 ×", 1.0),
        Row("broker CPU time", "s", figures.cpu, "≤ 0.7 ×", at_most=0.7),
        Row("broker memory afterwards (RSS)", "MiB", figures.rss),
    ]


def run_consume(sides: dict[str, Side], options: Options) -> list[Row]:
    rate, cpu = consume.rows(sides, options, "consume over TLS", "≥ 1 ×", 1.0)
    return [rate, replace(cpu, bar="≤ 0.7 ×", at_most=0.7)]
