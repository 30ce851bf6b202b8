from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kavka.pipeline.streams.measures import Totals, of_batches, of_the_last
from kavka.streams import KafkaStreams, StreamsBuilder
from tests.unit.pipeline.streams.test_progress import write


def source(start: str | None, end: str, latest: str | None = None) -> Any:
    return SimpleNamespace(startOffset=start, endOffset=end, latestOffset=latest)


def batch(at: str, durations: dict[str, int], *sources: Any, state: int | None = None) -> Any:
    operators = [] if state is None else [SimpleNamespace(numRowsTotal=state, memoryUsedBytes=100 * state)]
    return SimpleNamespace(timestamp=at, durationMs=durations, sources=sources, stateOperators=operators)


FIRST = batch(
    "2026-01-01T00:00:00.000Z",
    {"triggerExecution": 500, "addBatch": 300, "walCommit": 20, "commitOffsets": 30},
    source(None, '{"a": {"0": 7, "1": 3}, "$initial": {"a": {"0": 2, "1": 3}}}', '{"a": {"0": 7, "1": 3}}'),
    state=4,
)
SECOND = batch(
    "2026-01-01T00:00:01.000Z",
    {"triggerExecution": 300, "addBatch": 100, "walCommit": 10, "commitOffsets": 10},
    source('{"a": {"0": 7, "1": 3}}', '{"a": {"0": 8, "1": 5}}', '{"a": {"0": 18, "1": 6}}'),
    source('{"b": {"0": 1}}', '{"b": {"0": 1}}', '{"b": {"0": 1}}'),
    state=6,
)
RESTING = batch(
    "2026-01-01T00:00:09.900Z",
    {"triggerExecution": 100},
    source('{"a": {"0": 8, "1": 5}}', '{"a": {"0": 8, "1": 5}}', '{"a": {"0": 8, "1": 5}}'),
    state=6,
)


def test_rates_and_latencies_are_those_of_the_batches_that_spark_remembers() -> None:
    assert of_batches([FIRST, SECOND, RESTING]) == {
        "commit-rate": 0.2,
        "process-rate": 0.8,
        "process-records-avg": 4,
        "process-records-max": 5,
        "process-latency-avg": 200,
        "process-latency-max": 300,
        "commit-latency-avg": 35,
        "commit-latency-max": 50,
        "batch-latency-avg": 400,
        "batch-latency-max": 500,
    }
    assert of_batches([RESTING]) == {}
    assert of_batches([]) == {}


def test_lag_is_reported_for_each_partition_and_state_for_all() -> None:
    assert of_the_last([FIRST, SECOND]) == {
        "records-lag:{partition=0, topic=a}": 10,
        "records-lag:{partition=1, topic=a}": 1,
        "records-lag:{partition=0, topic=b}": 0,
        "records-lag-max": 10,
        "state-rows": 6,
        "state-memory-bytes": 600,
    }
    assert of_the_last([]) == {}


def test_totals_of_a_new_application_count_from_where_its_first_batch_began(tmp_path: Path) -> None:
    totals = Totals(tmp_path)
    totals.begin()
    assert not totals.has_begin()
    assert totals.metrics() == {"commit-total": 0, "process-total": 0}
    write(tmp_path, 0, '{"a": {"0": 5}, "$initial": {"a": {"0": 2}}}', '{"b": {"0": 9}, "$initial": {"b": {"0": 9}}}')
    assert totals.has_begin()
    assert totals.metrics() == {"commit-total": 1, "process-total": 3}
    (tmp_path / "offsets" / "0").unlink()
    write(tmp_path, 1, '{"a": {"0": 7, "1": 4}}', '{"b": {"0": 10}}')
    assert totals.metrics() == {"commit-total": 2, "process-total": 10}


def test_totals_of_an_application_that_continues_count_from_its_start(tmp_path: Path) -> None:
    write(tmp_path, 7, '{"a": {"0": 5}}')
    totals = Totals(tmp_path)
    totals.begin()
    assert totals.has_begin()
    assert totals.metrics() == {"commit-total": 0, "process-total": 0}
    write(tmp_path, 8, '{"a": {"0": 9}}')
    write(tmp_path, 9, '{"a": {"0": 99}}', committed=False)
    assert totals.metrics() == {"commit-total": 1, "process-total": 4}


def test_an_application_that_was_not_started_reports_only_its_state() -> None:
    builder = StreamsBuilder()
    builder.stream("a").to("b")
    streams = KafkaStreams(builder.build(), {"application.id": "x", "bootstrap.servers": "nowhere:1"})
    assert streams.metrics() == {"client-state": 0, "alive-stream-threads": 0, "failed-stream-threads": 0}
    streams.close()
    assert streams.metrics()["client-state"] == 4
