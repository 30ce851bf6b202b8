"""Kavka's producer and consumer over TLS, compared with confluent-kafka (C) over TLS.

    python -m bench --only python-tls-producers --only python-tls-consumers [--pairs 5]

The runs are those of `python-producers` and `python-consumers`, with a Kavka broker whose listener
is SSL.
"""

from __future__ import annotations

from bench import python_consumers, python_producers
from bench.measure import Options, Row
from bench.python_clients import SIZES, Figures, compared_with_best, in_process, in_rounds

PRODUCERS = ("kavka", "confluent")
CONSUMERS = ("kavka", "confluent-tuned", "confluent")


def run_producers(options: Options) -> list[Row]:
    from kavka.testing import Broker

    rows: list[Row] = []
    for size in SIZES:
        count = min(options.records, python_producers.RECORDS[size])

        def send(client: str, size: int = size, count: int = count) -> Figures:
            with Broker(security="SSL") as broker:
                ca_file = broker.security.ca_file
                return in_process("bench.python_producers", client, broker.bootstrap_servers, size, count, "", ca_file)

        figures = in_rounds(f"TLS, {size} B", PRODUCERS, options.pairs, send)
        what = f"produce over TLS, {size} B"
        rows.append(compared_with_best(what, "records/s", "rate", figures, "kavka", ["confluent"], 0.7))
        what = f"client CPU time per record over TLS, {size} B"
        rows.append(compared_with_best(what, "µs", "cpu", figures, "kavka", ["confluent"]))
    return rows


def run_consumers(options: Options) -> list[Row]:
    from kavka.testing import Broker

    rows: list[Row] = []
    with Broker(security="SSL") as broker:
        ca_file = str(broker.security.ca_file)
        for size in SIZES:
            count = min(options.records, python_consumers.RECORDS[size])
            python_consumers.fill(broker.bootstrap_servers, size, count, ca_file)

            def read(client: str, size: int = size, count: int = count) -> Figures:
                return in_process("bench.python_consumers", client, broker.bootstrap_servers, size, count, ca_file)

            figures = in_rounds(f"TLS, {size} B", CONSUMERS, options.pairs, read)
            what = f"consume over TLS, {size} B"
            rows.append(compared_with_best(what, "records/s", "rate", figures, "kavka", CONSUMERS[1:], 0.8))
            for other in CONSUMERS[1:]:
                rows.append(compared_with_best(what, "records/s", "rate", figures, "kavka", [other]))
    return rows
