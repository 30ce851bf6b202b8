"""The statistics of the perf tests."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.cli import consumer_perf_test
from kavka.cli.options import parse
from kavka.cli.output import Progress
from kavka.cli.perf_stats import ProducerStats, Throttle, metrics_text, now_ms
from kavka.cli.producer_perf_test import PerfTest, RandomLetters


def test_totals_and_percentiles_have_kafka_format() -> None:
    stats = ProducerStats(1000, 5000)
    for latency in range(1000):
        assert not stats.record(latency, 100, now_ms())
    line = stats.total_line()
    assert re.fullmatch(
        r"1000 records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), 499\.50 ms avg latency, 999\.00 ms max latency, "
        r"500 ms 50th, 950 ms 95th, 990 ms 99th, 999 ms 99\.9th\.",
        line.replace("Infinity", "1"),
    )


def test_interval_line_counts_records_of_the_interval() -> None:
    stats = ProducerStats(10, 1000)
    assert not stats.record(4, 10, now_ms())
    assert stats.record(8, 10, now_ms() + 2000)
    assert re.fullmatch(
        r"2 records sent, .* records/sec \(.* MB/sec\), 6\.0 ms avg latency, 8\.0 ms max latency\.",
        stats.window_line(),
    )
    assert stats.window_line().startswith("0 records sent")


def test_totals_without_records() -> None:
    assert "NaN ms avg latency" in ProducerStats(10, 1000).total_line()


def test_latencies_are_sampled() -> None:
    stats = ProducerStats(2_000_000, 1_000_000)
    for _ in range(1000):
        stats.record(1, 1, now_ms())
    assert len(stats._latencies) == 250


class Clock:
    """A fake clock. A sleep takes `slowness` times the requested time, and each read 10 µs."""

    def __init__(self, slowness: float) -> None:
        self.now = 0.0
        self._slowness = slowness

    def monotonic(self) -> float:
        self.now += 1e-5
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds * self._slowness


@pytest.mark.parametrize("slowness", [1.0, 1.5, 10.0])
def test_throttle_limits_the_rate(monkeypatch: pytest.MonkeyPatch, slowness: float) -> None:
    clock = Clock(slowness)
    monkeypatch.setattr("kavka.cli.perf_stats.time", clock)
    throttle = Throttle(500)
    for number in range(1000):
        throttle.wait_after(number)
    assert 1.9 <= clock.now <= 2.2


def test_metrics_have_two_columns() -> None:
    text = metrics_text("producer-metrics", "c", {"b-total": 2, "a": 1.5})
    assert text == (
        "\nMetric Name                              Value\n"
        "producer-metrics:a:{client-id=c}       : 1.500\nproducer-metrics:b-total:{client-id=c} : 2.000"
    )


class FakeProducer:
    """A producer that acknowledges every record immediately."""

    def send(self, topic: str, value: bytes, *arguments: Any) -> None:
        callback = arguments[-1]
        callback(None, None)


def test_only_steady_state_is_reported_after_the_warmup(capsys: pytest.CaptureFixture[str]) -> None:
    args: Any = {
        "topic": "t", "num-records": 10, "warmup-records": 4, "reporting-interval": 0, "throughput": -1.0,
    }  # fmt: skip
    test = PerfTest(FakeProducer(), args, lambda number: b"x" * 10, None, Progress())  # type: ignore[arg-type]
    test.run()
    test.print_totals()
    lines = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "Warmup first 4 records. Steady state results will print after the complete test summary.",
        *["1 records sent"] * 4, "In steady state.", *["1 records sent"] * 6,
        "10 records sent", "6 steady state records sent",
    ]  # fmt: skip


def test_payloads_are_different_random_letters() -> None:
    letters = RandomLetters(1000)
    payloads = [letters.next(number) for number in range(600)]
    assert len(set(payloads)) == 600
    assert {len(payload) for payload in payloads} == {1000}
    assert set(b"".join(payloads)) == set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def test_fetch_time_excludes_rebalances_and_is_never_negative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter((1000, 1100, 1150, 1200))
    monkeypatch.setattr(consumer_perf_test, "now_ms", lambda: next(clock))
    args = parse(consumer_perf_test.COMMAND, ["--bootstrap-server", "h:1", "--topic", "t", "--messages", "5"])
    test = consumer_perf_test.PerfTest(SimpleNamespace(subscribe=lambda *_, **__: None), args, Progress())  # type: ignore[arg-type]
    test._on_assigned(set())
    test._on_assigned({("t", 0)})
    test.records, test.bytes = 5, 5_000_000
    assert test.total_line(1110).split(", ")[6:8] == ["100", "10"]
    test._on_revoked({("t", 0)})
    test._on_assigned({("t", 0)})
    assert test.total_line(1210).split(", ")[6:8] == ["150", "60"]
