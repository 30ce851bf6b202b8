from __future__ import annotations

import socket
import urllib.request

import pytest

from kavka.cli.metrics_page import MetricsPage, merge, serving_metrics
from kavka.cli.supervisor import Process, State
from kavka.common.config import ConfigError
from kavka.common.metrics import Registry
from kavka.web.listener import Listener


def registry(value: float) -> Registry:
    metrics = Registry()
    metrics.counter("kavka_bytes_in", "Bytes", ("topic",)).labels('a "b} c').value = value
    metrics.gauge("kavka_partitions", "Partitions").labels().value = value
    metrics.histogram("kavka_lag_seconds", "Lag", buckets=(1.0,)).labels().observe(0.5)
    return metrics


def test_samples_of_all_brokers_are_grouped_by_family_with_a_label() -> None:
    pages = {name: registry(value).render().decode() for name, value in (("0", 1.0), ("1", 2.0))}
    assert merge(pages).splitlines() == [
        "# HELP kavka_bytes_in_total Bytes",
        "# TYPE kavka_bytes_in_total counter",
        'kavka_bytes_in_total{broker="0",topic="a \\"b} c"} 1.0',
        'kavka_bytes_in_total{broker="1",topic="a \\"b} c"} 2.0',
        "# HELP kavka_partitions Partitions",
        "# TYPE kavka_partitions gauge",
        'kavka_partitions{broker="0"} 1.0',
        'kavka_partitions{broker="1"} 2.0',
        "# HELP kavka_lag_seconds Lag",
        "# TYPE kavka_lag_seconds histogram",
        'kavka_lag_seconds_bucket{broker="0",le="1.0"} 1.0',
        'kavka_lag_seconds_bucket{broker="0",le="+Inf"} 1.0',
        'kavka_lag_seconds_count{broker="0"} 1.0',
        'kavka_lag_seconds_sum{broker="0"} 0.5',
        'kavka_lag_seconds_bucket{broker="1",le="1.0"} 1.0',
        'kavka_lag_seconds_bucket{broker="1",le="+Inf"} 1.0',
        'kavka_lag_seconds_count{broker="1"} 1.0',
        'kavka_lag_seconds_sum{broker="1"} 0.5',
    ]


def process(state: State, restarts: int = 0) -> Process:
    result = Process("broker", lambda: pytest.fail("not started"))
    result.state, result.restarts = state, restarts
    return result


def test_page_has_the_brokers_that_respond_and_the_state_of_all() -> None:
    broker = Listener("127.0.0.1", 0, {"/metrics": lambda: ("text/plain", registry(7.0).render())})
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        sources = {
            "0": (process(State.READY), ("127.0.0.1", broker.port)),
            "1": (process(State.READY), closed.getsockname()),
            "2": (process(State.WAITING, restarts=3), ("127.0.0.1", broker.port)),
        }
        page = MetricsPage("127.0.0.1", 0, sources)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=30) as response:
                lines = response.read().decode().splitlines()
        finally:
            page.close()
            broker.close()
    assert [line for line in lines if line.startswith("kavka_partitions")] == ['kavka_partitions{broker="0"} 7.0']
    assert [line for line in lines if line.startswith("kavka_broker_ready{")] == [
        f'kavka_broker_ready{{broker="{id}"}} {value}' for id, value in (("0", 1.0), ("1", 1.0), ("2", 0.0))
    ]
    assert 'kavka_broker_restarts_total{broker="2"} 3.0' in lines


def test_address_in_use_is_an_error_of_the_setting() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as busy,
        pytest.raises(ConfigError, match=r"metrics\.listener"),
        serving_metrics(busy.getsockname(), {}),
    ):
        pass
    with serving_metrics(None, {}):
        pass
