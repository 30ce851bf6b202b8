"""Counting before the shuffle gives what counting after it gives."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from kavka.pipeline.streams import combining, workers
from kavka.pipeline.streams.combining import Counts, together
from kavka.pipeline.streams.plan import make_plan
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.state_map import MemoryMaps
from kavka.streams import (
    Grouped,
    Materialized,
    Produced,
    Serdes,
    StreamsBuilder,
    StreamsException,
    TimeWindows,
    Topology,
)

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
Line = tuple[int, int | None, bytes | None, Any]


def batch(lines: list[Line], first: int = 0, key: bytes | None = None, topic: str = "in") -> pa.RecordBatch:
    """Of (partition, time, value, headers)."""
    rows = [
        {
            "key": key,
            "value": value,
            "topic": topic,
            "partition": partition,
            "offset": first + number,
            "timestamp": None if time is None else time * 1000,
            "timestampType": 0,
            "headers": headers,
        }
        for number, (partition, time, value, headers) in enumerate(lines)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def words(steps: Callable[[Any], Any] = lambda stream: stream, **kept: Any) -> Topology:
    builder = StreamsBuilder()
    stream = steps(builder.stream("in").flat_map_values(lambda line: line.lower().split(" ")))
    counted = stream.group_by(lambda key, word: word).count(Materialized.as_("counts"), **kept)
    counted.to_stream().to("out", Produced.with_(Serdes.String(), Serdes.Long()))
    return builder.build()


def job_of(topology: Topology, caching: bool = True, **settings: Any) -> workers.Job:
    found = settings_of({"application.id": "app", "bootstrap.servers": "nowhere:1", **settings})
    plan = make_plan(topology, {"in": 2}, 2)
    job = workers.Job(topology, found, plan, {"in": 2, "out": 2}, "run", caching, "id", None)
    # As it comes to Spark's workers.
    there: workers.Job = cloudpickle.loads(cloudpickle.dumps(job))
    return there


def run(job: workers.Job, *micro_batches: list[pa.RecordBatch]) -> tuple[list[Any], int]:
    """All that is sent, without its order, and how many records came to the tasks."""
    tasks: dict[int, Any] = {}
    sent: list[Any] = []
    shuffled = 0
    for batches in micro_batches:
        packs: dict[int, list[Any]] = {}
        for found in workers.routing_step(job)(iter(batches)):
            for home, data in zip(*found.to_pydict().values(), strict=True):
                packs.setdefault(home, []).append(marshal.loads(data))
        for home, some in packs.items():
            if home not in tasks:
                tasks[home] = workers._Running(job, home, MemoryMaps())
                tasks[home].start(None)
            tasks[home].run(some)
            tasks[home].task.flush()
            shuffled += sum(len(pack[3]) for pack in some)
            sent += [(home, *one) for one in tasks[home].out.sent]
            tasks[home].out.sent = []
        sent.append("end of a micro-batch")
    return sorted(sent, key=str), shuffled


def both_ways(topology: Callable[[], Topology], *micro_batches: list[pa.RecordBatch]) -> tuple[int, int]:
    """The same result with and without; how many records the tasks got in both cases."""
    combined, one_by_one = job_of(topology()), job_of(topology())
    assert combined.combined
    one_by_one.combined = set()
    few, many = run(combined, *micro_batches), run(one_by_one, *micro_batches)
    assert few[0] == many[0]
    assert len(few[0]) > len(micro_batches)
    return few[1], many[1]


LINES: list[Line] = [
    (0, 1000, b"all streams lead to Kavka", None),
    (0, 2000, b"all  streams", None),
    (0, 1500, b"lead kavka kavka", None),
    (0, 3000, "überall Ströme".encode(), None),
]


def test_what_is_counted_before_is_what_is_counted_after():
    late = batch([(1, 9, b"a a a", [])])
    few, many = both_ways(words, [batch(LINES), batch(LINES[:2], 4)], [batch(LINES[1:], 6)], [late])
    assert few < many / 1.5


def test_words_take_the_lane_for_text():
    job = job_of(words())
    (found, topic), *others = workers._lanes(job, workers._tasks(job, job.plan.feeding, workers._Out(job))).values()
    assert not others
    assert topic in job.combined
    assert found._by_text


def test_records_with_headers_without_time_or_unreadable_go_one_by_one():
    lines: list[Line] = [*LINES, (0, 2500, b"all", [{"key": "h", "value": b"x"}]), (0, None, b"never", None)]
    both_ways(words, [batch(LINES), batch(lines, 4)], [batch([(0, 9000, b"all", [{"key": "i", "value": None}])], 9)])
    job = job_of(words(), **{"default.deserialization.exception.handler": "LogAndContinueExceptionHandler"})
    found, _ = run(job, [batch([(0, 1, b"\xff", None), (0, 2, b"fine", None)])])
    assert [one[2] for one in found if len(one) == 7] == [b"fine"]


def test_records_of_several_partitions_and_topics_in_one_batch_are_told_apart():
    mixed = [(0, 1000, b"a b", None), (0, 1001, b"a", None), (1, 1002, b"b", None), (0, 1003, b"c", None)]
    both_ways(words, [batch(mixed)])


@pytest.mark.parametrize(
    "steps",
    [
        lambda stream: stream.filter(lambda key, word: word != "kavka"),
        lambda stream: stream.map_values(str.upper).flat_map_values(lambda word: word.split("A")),
        lambda stream: stream.map_values(lambda word: word.split("a")).map_values(str),
        lambda stream: stream.filter_not(lambda key, word: word.startswith("s")),
        lambda stream: stream.map_values(lambda word: word[:2]),
        lambda stream: stream.map_values(lambda key, word: f"{key}{word}"),
        lambda stream: stream.select_key(lambda key, word: word[:1] or None),
        lambda stream: stream.flat_map_values(lambda word: (one for one in word)),
        lambda stream: stream.flat_map_values(lambda key, word: [word, str(key)]),
        lambda stream: stream.peek(lambda key, word: None),
    ],
)
@pytest.mark.parametrize("key", [None, b"k"])
def test_every_step_of_a_lane_does_as_it_does_alone(steps, key):
    both_ways(lambda: words(steps), [batch(LINES, key=key)], [batch(LINES[:3], 4, key), batch(LINES[2:], 7, key)])


def test_what_has_no_key_is_left_out_and_what_cannot_be_written_is_told():
    def some(word):
        return None if word == "all" else word

    def topology(choose: Callable[[Any], Any]) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in").flat_map_values(lambda line: line.split(" "))
        counted = stream.group_by(lambda key, word: choose(word)).count()
        counted.to_stream().to("out", Produced.with_(None, Serdes.Long()))
        return builder.build()

    both_ways(lambda: topology(some), [batch(LINES)])
    with pytest.raises(StreamsException, match=r"Serdes.String cannot write a value of type int"):
        run(job_of(topology(len)), [batch(LINES)])


def test_other_serdes_than_text_are_counted_too():
    def topology() -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in").map_values(lambda line: len(line))
        grouped = stream.group_by(lambda key, size: size % 3, Grouped.with_(Serdes.Integer(), Serdes.Integer()))
        grouped.count().to_stream().to("out", Produced.with_(Serdes.Integer(), Serdes.Long()))
        return builder.build()

    both_ways(topology, [batch(LINES)], [batch(LINES, 4)])


def test_it_is_not_done_where_the_order_of_records_can_be_told():
    def windowed() -> Topology:
        builder = StreamsBuilder()
        windows = TimeWindows.of_size_with_no_grace(1000)
        stream = builder.stream("in").group_by(lambda key, word: word).windowed_by(windows).count()
        stream.to_stream(lambda key, value: key.key).to("out", Produced.with_(Serdes.String(), Serdes.Long()))
        return builder.build()

    def reduced() -> Topology:
        builder = StreamsBuilder()
        builder.stream("in").group_by(lambda key, word: word).reduce(lambda one, two: two).to_stream().to("out")
        return builder.build()

    def joined() -> Topology:
        builder = StreamsBuilder()
        table = builder.stream("in").group_by(lambda key, word: word).count()
        other = builder.stream("in2").select_key(lambda key, word: word)
        other.join(table, lambda word, count: f"{word}{count}").to("out")
        return builder.build()

    assert not job_of(windowed()).combined
    assert not job_of(reduced()).combined
    assert not job_of(words(), caching=False).combined
    assert not job_of(words(), **{"processing.exception.handler": "LogAndContinueProcessingExceptionHandler"}).combined
    plan = make_plan(joined(), {"in": 2, "in2": 2}, 2)
    settings = settings_of({"application.id": "app", "bootstrap.servers": "nowhere:1"})
    assert not workers.Job(joined(), settings, plan, {"in": 2, "in2": 2, "out": 2}, "run", True, "id", None).combined
    disabled = StreamsBuilder()
    kept = Materialized.as_("counts").with_caching_disabled()
    disabled.stream("in").group_by(lambda key, word: word).count(kept).to_stream().to("out")
    assert not job_of(disabled.build()).combined


def test_counts_keep_the_highest_time_of_each_key_and_its_headers(monkeypatch):
    monkeypatch.setattr(combining, "_TABLES", 2)
    counts = Counts()
    for keys, times in ((["a", "b", "a"], [5, 6, 7]), (["a", "b"], [3, 9]), (["b", "a", "c"], [8, 2, 1])):
        counts.add_texts(pa.array(keys), np.array(times))
    counts.add(b"c", 4, (("h", b"x"),))
    assert len(counts) == 4
    assert sorted(together(counts.take())) == [(b"a", 4, 7, ()), (b"b", 3, 9, ()), (b"c", 2, 4, (("h", b"x"),))]
    assert counts.take() == []


def test_micro_batches_are_larger_where_tasks_hear_of_counts_alone():
    def with_another_topic() -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in")
        stream.to("copy")
        stream.group_by(lambda key, word: word).count().to_stream().to("out", Produced.with_(None, Serdes.Long()))
        return builder.build()

    assert job_of(words()).counts_only
    assert job_of(with_another_topic()).combined
    assert not job_of(with_another_topic()).counts_only
    assert not job_of(words(), caching=False).counts_only
