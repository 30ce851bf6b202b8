"""What Spark adds up by itself is what the tasks would have counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from kavka.pipeline.streams import summing, workers
from kavka.pipeline.streams.plan import make_plan
from kavka.pipeline.streams.settings import settings_of
from kavka.streams import Materialized, Produced, Serdes, StreamsBuilder, Topology
from tests.unit.pipeline.streams.test_combining import LINES, batch, job_of, run, words

Added = dict[tuple[int, bytes], tuple[int, int, bytes]]


def summed(job: workers.Job, *micro_batches: list[pa.RecordBatch]) -> list[list[Any]]:
    """What is written in each micro-batch, with Spark's sum and max of everything so far done
    here."""
    job.plan = replace(job.plan, summed=True)
    state: Added = defaultdict(lambda: (0, -1, b""))
    sent = []
    for index, batches in enumerate(micro_batches):
        changed: dict[tuple[int, bytes], None] = {}
        for found in workers.routing_step(job, index)(iter(batches)):
            assert found.schema.names == [one.split(" ")[0] for one in summing.ROWS.split(", ")]
            for task, key, number, time, last in zip(*found.to_pydict().values(), strict=True):
                held = state[task, key]
                state[task, key] = (held[0] + number, max(held[1], time), max(held[2], last))
                changed[task, key] = None
        rows = [(*at, *state[at]) for at in changed]
        columns = [pa.array(column) for column in zip(*rows, strict=True)] if rows else []
        given = [pa.RecordBatch.from_arrays(columns, summing._ROWS_ARROW.names)] if rows else []
        sent.append([tuple(row.values()) for out in workers.telling_step(job)(iter(given)) for row in out.to_pylist()])
    return sent


def by_tasks(job: workers.Job, *micro_batches: list[pa.RecordBatch]) -> list[Any]:
    """All that the tasks write."""
    sent, _ = run(job, *micro_batches)
    return [
        (topic, key, value, partition, time, [{"key": name, "value": data} for name, data in headers] or None)
        for _, topic, key, value, time, headers, partition in (one for one in sent if isinstance(one, tuple))
    ]


def with_more_steps() -> Topology:
    builder = StreamsBuilder()
    counted = builder.stream("in").group_by(lambda key, line: line[:1]).count(Materialized.as_("counts"))
    often = counted.to_stream().filter(lambda key, number: number > 1)
    often.map_values(lambda number: f"{number} times").to("out")
    often.select_key(lambda key, number: f"{key}!").to("loud", Produced.with_(Serdes.String(), Serdes.Long()))
    return builder.build()


@pytest.mark.parametrize("topology", [words, with_more_steps])
def test_what_spark_adds_up_is_what_the_tasks_count(topology: Callable[[], Topology]) -> None:
    headers = [{"key": "h", "value": b"x"}]
    last: list[Any] = [(1, 9, b"all a a", [{"key": "late", "value": None}]), (0, 2000, b"all", headers)]
    micro_batches = [batch(LINES), batch(LINES[:2], 4)], [batch(LINES[1:], 6)], [batch(last[:1])], [batch(last)]
    found = summed(job_of(topology()), *micro_batches)
    assert sorted([one for some in found for one in some], key=str) == sorted(
        by_tasks(job_of(topology()), *micro_batches), key=str
    )
    assert all(found), "there was something to tell each time"


def test_a_batch_with_nothing_in_it_tells_nothing() -> None:
    assert summed(job_of(words()), [], [batch([])]) == [[], []]


def test_a_batch_longer_than_a_piece_is_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_PIECE", 3)
    (found,) = summed(job_of(words()), [batch(LINES * 5)])
    counts = {row[1].decode(): int.from_bytes(row[2]) for row in found}
    assert (counts["all"], counts["kavka"], counts[""], counts["ströme"]) == (10, 15, 5, 5)


def test_spark_adds_up_where_nothing_is_asked_but_the_counts() -> None:
    def changed() -> Topology:
        builder = StreamsBuilder()
        counted = builder.stream("in").group_by(lambda key, word: word).count()
        again = counted.group_by(lambda key, number: (number, key)).count()
        again.to_stream().to("out", Produced.with_(Serdes.Long(), Serdes.Long()))
        return builder.build()

    def kept_twice() -> Topology:
        builder = StreamsBuilder()
        counted = builder.stream("in").group_by(lambda key, word: word).count()
        counted.filter(lambda key, number: number > 1, Materialized.as_("often"))
        return builder.build()

    def with_a_copy() -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in")
        stream.to("copy")
        stream.group_by(lambda key, word: word).count().to_stream().to("out", Produced.with_(None, Serdes.Long()))
        return builder.build()

    def summable(topology: Topology, **settings: Any) -> bool:
        given = {"application.id": "app", "bootstrap.servers": "nowhere:1", **settings}
        return summing.summable(topology, make_plan(topology, {"in": 2}, 2), settings_of(given))

    assert summable(words())
    assert summable(with_more_steps())
    assert not summable(words(), **{"cache.max.bytes.buffering": 0})
    assert not summable(changed())
    assert not summable(kept_twice())
    assert not summable(with_a_copy())
