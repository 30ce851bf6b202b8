"""Every way to run a topology gives the same results."""

from __future__ import annotations

import copy
import marshal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from kavka.pipeline.streams import parts, routing, workers
from kavka.pipeline.streams.batches import to_bytes
from kavka.pipeline.streams.expression_columns import to_arrow
from kavka.pipeline.streams.lowering import Way
from kavka.pipeline.streams.plan import make_plan, source_topics
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.state_map import MemoryMaps
from kavka.streams import (
    Expression,
    Grouped,
    Materialized,
    Produced,
    Serdes,
    StreamsBuilder,
    StreamsException,
    TimeWindows,
    Topology,
    WindowedSerdes,
    coalesce,
    col,
    lit,
    max_of,
    min_of,
    sum_of,
    when,
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
# Partition, time, value, headers.
Line = tuple[int, int | None, bytes | None, Any]
key, value, timestamp = col("key"), col("value"), col("timestamp")


def batch(lines: list[Line], first: int = 0, key: bytes | None = None, topic: str = "in") -> pa.RecordBatch:
    rows = [
        {
            "key": key,
            "value": text,
            "topic": topic,
            "partition": partition,
            "offset": first + number,
            "timestamp": None if time is None else time * 1000,
            "timestampType": 0,
            "headers": headers,
        }
        for number, (partition, time, text, headers) in enumerate(lines)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def words(steps: Callable[[Any], Any] = lambda stream: stream) -> Topology:
    builder = StreamsBuilder()
    stream = steps(builder.stream("in").flat_map_values(lambda line: line.lower().split(" ")))
    counts = stream.group_by(lambda key, word: word).count(Materialized.as_("counts"))
    counts.to_stream().to("out", Produced.with_(Serdes.String(), Serdes.Long()))
    return builder.build()


def job_of(topology: Topology, **config: Any) -> workers.Job:
    """The job as Spark's workers get it."""
    application = settings_of({"application.id": "app", "bootstrap.servers": "nowhere:1", **config})
    plan = make_plan(topology, dict.fromkeys(source_topics(topology), 2), 2)
    caching = application.cache_bytes > 0
    job = workers.Job(topology, application, plan, {"in": 2, "out": 2}, "run", caching, "id", None)
    received: workers.Job = cloudpickle.loads(cloudpickle.dumps(job))
    return copy.copy(received)


def run(job: workers.Job, *micro_batches: list[pa.RecordBatch]) -> tuple[list[Any], int]:
    """All records that are sent, sorted, and how many records and parts came to the tasks."""
    if job.plan.stateless:
        made = [batch for batches in micro_batches for batch in routing.stateless_step(job)(iter(batches))]
        return sorted((row for each in made for row in map(str, each.to_pylist())), key=str), 0
    tasks: dict[int, Any] = {}
    sent: list[Any] = []
    shuffled = 0
    for batches in micro_batches:
        packs: dict[int, list[Any]] = {}
        for packed in routing.routing_step(job)(iter(batches)):
            for task, data in zip(*packed.to_pydict().values(), strict=True):
                packs.setdefault(task, []).append(marshal.loads(data))
        for task, some in packs.items():
            if task not in tasks:
                tasks[task] = workers._Running(job, task, MemoryMaps())
                tasks[task].start(None)
            tasks[task].run(some)
            tasks[task].task.flush()
            shuffled += sum(len(pack[3]) for pack in some)
            sent += [(task, *record) for record in tasks[task].out.take()]
        sent.append("end of a micro-batch")
    return sorted(sent, key=str), shuffled


def both_ways(topology: Callable[[], Topology], *micro_batches: list[pa.RecordBatch]) -> tuple[int, int]:
    """Check that lanes and records give the same; return how many records the tasks got."""
    by_batch, by_record = job_of(topology()), job_of(topology())
    assert by_batch.lowered.lanes
    by_record.lowered = replace(by_record.lowered, lanes={}, frame=None)
    few, many = run(by_batch, *micro_batches), run(by_record, *micro_batches)
    assert few[0] == many[0]
    assert len(few[0]) > len(micro_batches)
    return few[1], many[1]


LINES: list[Line] = [
    (0, 1000, b"all streams lead to Kavka", None),
    (0, 2000, b"all  streams", None),
    (0, 1500, b"lead kavka kavka", None),
    (0, 3000, "überall Ströme".encode(), None),
]
HEADERS = [{"key": "h", "value": b"x"}]


def test_counting_parts_gives_what_counting_records_gives() -> None:
    late = batch([(1, 9, b"a a a", [])])
    few, many = both_ways(words, [batch(LINES), batch(LINES[:2], 4)], [batch(LINES[1:], 6)], [late])
    assert few < many / 1.5


def test_headers_missing_times_and_unreadable_records_are_handled_in_lanes() -> None:
    lines: list[Line] = [*LINES, (0, 2500, b"all", HEADERS), (0, 2500, b"all", None)]
    both_ways(words, [batch(LINES), batch(lines, 4)], [batch([(0, 9000, b"all", [{"key": "i", "value": None}])], 9)])
    job = job_of(words(), **{"default.deserialization.exception.handler": "LogAndContinueExceptionHandler"})
    sent, _ = run(job, [batch([(0, 1, b"\xff", None), (0, 2, b"fine", None)])])
    assert [record[2] for record in sent if len(record) == 7] == [b"fine"]
    with pytest.raises(StreamsException, match="in-0 offset 0 has the timestamp -1"):
        run(job_of(words()), [batch([(0, None, b"never", None)])])
    with pytest.raises(StreamsException, match=r"in-0 offset 0 cannot be read"):
        run(job_of(words()), [batch([(0, 1, b"\xff", None), (0, 2, b"fine", None)])])


def test_records_without_a_value_are_not_counted() -> None:
    def topology() -> Topology:
        builder = StreamsBuilder()
        counts = builder.stream("in").group_by(lambda key, word: "all").count()
        counts.to_stream().to("out", Produced.with_(None, Serdes.Long()))
        return builder.build()

    lines: list[Line] = [(0, 1, b"x", None), (0, 2, None, None), (0, 3, b"y", None)]
    both_ways(topology, [batch(lines)])
    sent, _ = run(job_of(topology()), [batch(lines)])
    assert [int.from_bytes(record[3], "big") for record in sent if len(record) == 7] == [2]


def test_a_batch_of_several_partitions_is_divided() -> None:
    mixed: list[Line] = [(0, 1000, b"a b", None), (0, 1001, b"a", None), (1, 1002, b"b", None), (0, 1003, b"c", None)]
    both_ways(words, [batch(mixed)])


@pytest.mark.parametrize(
    "steps",
    [
        lambda stream: stream.filter(lambda key, word: word != "kavka"),
        lambda stream: stream.filter(value != "kavka"),
        lambda stream: stream.filter_not(value.startswith("s") | (key == "x")),
        lambda stream: stream.map_values(str.upper).flat_map_values(lambda word: word.split("A")),
        lambda stream: stream.map_values(value.upper()).flat_map_values(value.split("A")),
        lambda stream: stream.map_values(lambda word: word.split("a")).map_values(str),
        lambda stream: stream.filter_not(lambda key, word: word.startswith("s")),
        lambda stream: stream.map_values(lambda word: word[:2]),
        lambda stream: stream.map_values(value.substring(0, 2) + "-" + timestamp.to_text()),
        lambda stream: stream.map_values(lambda key, word: f"{key}{word}"),
        lambda stream: stream.map_values(coalesce(key, "none") + value),
        lambda stream: stream.select_key(lambda key, word: word[:1] or None),
        lambda stream: stream.select_key(when(value.length() > 3, value, key)),
        lambda stream: stream.map(lambda key, word: (word, word[::-1])),
        lambda stream: stream.flat_map(lambda key, word: [(word, each) for each in word]),
        lambda stream: stream.flat_map_values(lambda word: (each for each in word)),
        lambda stream: stream.flat_map_values(lambda key, word: [word, str(key)]),
        lambda stream: stream.peek(lambda key, word: None),
    ],
)
@pytest.mark.parametrize("record_key", [None, b"k"])
def test_every_operator_gives_in_batches_what_it_gives_by_record(steps: Any, record_key: bytes | None) -> None:
    def stateless() -> Topology:
        builder = StreamsBuilder()
        steps(builder.stream("in").flat_map_values(value.split(" "))).to("out")
        return builder.build()

    first, second = batch(LINES, key=record_key), batch([*LINES[2:], (0, 5000, b"last", HEADERS)], 4, record_key)
    both_ways(lambda: words(steps), [first], [second])
    job = job_of(stateless())
    job.lowered = replace(job.lowered, frame=None)
    by_record = replace(job.lowered, lanes={})
    batches = run(job, [first, second])[0]
    job.lowered = by_record
    assert batches == run(job, [first, second])[0]


def test_records_without_a_key_are_dropped_and_a_wrong_type_is_an_error() -> None:
    def topology(choose: Callable[[Any], Any]) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in").flat_map_values(lambda line: line.split(" "))
        counts = stream.group_by(lambda key, word: choose(word)).count()
        counts.to_stream().to("out", Produced.with_(None, Serdes.Long()))
        return builder.build()

    both_ways(lambda: topology(lambda word: None if word == "all" else word), [batch(LINES)])
    with pytest.raises(StreamsException, match=r"Serdes.String cannot write a value of type int"):
        run(job_of(topology(len)), [batch(LINES)])


def test_keys_of_other_serdes_are_counted() -> None:
    def topology() -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in").map_values(lambda line: len(line))
        grouped = stream.group_by(lambda key, size: size % 3, Grouped.with_(Serdes.Integer(), Serdes.Integer()))
        grouped.count().to_stream().to("out", Produced.with_(Serdes.Integer(), Serdes.Long()))
        return builder.build()

    both_ways(topology, [batch(LINES)], [batch(LINES, 4)])


@pytest.mark.parametrize("cells", [["a", b"b"], ["a", 1], ["a", "\ud800"]])
def test_a_value_that_is_no_text_is_refused_in_batches_as_well(cells: list[Any]) -> None:
    assert to_bytes(Serdes.String(), ["a", None, "ü"]).to_pylist() == [b"a", None, "ü".encode()]
    with pytest.raises(StreamsException, match="cannot write a value of type"):
        to_bytes(Serdes.String(), cells)


def totals(total: Any, windows: TimeWindows | None, direct: bool, serde: Any) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    grouped = stream.group_by_key() if direct else stream.group_by(value.field("user"))
    groups: Any = grouped if windows is None else grouped.windowed_by(windows)
    table = groups.count() if total is None else groups.aggregate(total)
    keys = Serdes.String()
    if windows is not None:
        keys = WindowedSerdes.time_windowed_serde_from(keys, window_size=windows.size)
    table.to_stream().to("out", Produced.with_(keys, serde))
    return builder.build()


AMOUNT = value.field("amount", int)
records = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 60),
        st.one_of(
            st.none(),
            st.builds(
                lambda user, amount: f'{{"user":"u{user}","amount":{amount}}}'.encode(),
                st.integers(0, 3),
                st.one_of(st.integers(-(1 << 61), 1 << 61), st.just('"none"')),
            ),
            st.just(b"no JSON"),
        ),
        st.sampled_from([None, HEADERS]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(records, min_size=1, max_size=3),
    total=st.sampled_from([None, sum_of(AMOUNT % 1000), min_of(AMOUNT), max_of(AMOUNT / 3)]),
    windows=st.sampled_from(
        [
            None,
            TimeWindows.of_size_with_no_grace(10),
            TimeWindows.of_size_and_grace(10, 5),
            TimeWindows.of_size_and_grace(10, 20).advance_by(4),
        ]
    ),
    direct=st.booleans(),
)
def test_parts_merge_to_what_records_aggregate_to(lines: Any, total: Any, windows: Any, direct: bool) -> None:
    """One partition, whose order all ways keep."""
    serde = Serdes.Double() if total is not None and total.name == "max" else Serdes.Long()
    by_batch, by_record = (job_of(totals(total, windows, direct, serde)) for _ in range(2))
    assert {lane.aggregate is not None for lane in by_batch.lowered.lanes.values()} == {True}
    by_record.lowered = replace(by_record.lowered, lanes={})
    micro_batches = [
        [batch([(0, *line[1:]) for line in some], 100 * number, b"k")] for number, some in enumerate(lines)
    ]
    assert run(by_batch, *micro_batches)[0] == run(by_record, *micro_batches)[0]


def test_sums_beyond_64_bits_are_refused_and_not_wrapped() -> None:
    line = b'{"amount": 9223372036854775807}'
    job = job_of(totals(sum_of(AMOUNT), None, True, Serdes.Long()))
    with pytest.raises(StreamsException, match=r"Serdes.Long cannot write"):
        run(job, [batch([(0, 1, line, None), (0, 2, line, None)], key=b"k")])


def test_parts_are_merged_while_records_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_MAX_BATCHES", 2)
    monkeypatch.setattr(routing, "_PIECE", 2)
    both_ways(words, [batch([*LINES, (0, 7, b"all", HEADERS)])], [batch(LINES)])
    monkeypatch.setattr(routing, "_MAX_PARTS", 3)
    both_ways(words, [batch(LINES)])


def test_packed_rows_are_limited_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(routing, "_PIECE_BYTES", 500)
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().reduce(lambda old, new: new).to_stream().to("out")
    job = job_of(builder.build())
    lines: list[Line] = [(0, number, b"x" * 400, None) for number in range(20)]
    rows = [data for packed in routing.routing_step(job)(iter([batch(lines, key=b"k")])) for data in packed.column(1)]
    assert len(rows) > 5
    assert max(len(data.as_py()) for data in rows) < 3000
    sent: list[Any] = [("out", b"k", b"v" * 400, 1, (), None)] * 10
    assert [len(chunk) for chunk in routing.chunks_of(sent)] == [3, 3, 3, 1]
    sent = [("out", b"k", b"v", 1, (("name", b"h" * 400),), None)] * 10
    assert [len(chunk) for chunk in routing.chunks_of(sent)] == [3, 3, 3, 1]
    values = [(0, number, chr(97 + number).encode() * 400, None) for number in range(20)]
    parts_of = routing.routing_step(job_of(words()))
    rows = [data for packed in parts_of(iter([batch(values)])) for data in packed.column(1)]
    assert max(len(data.as_py()) for data in rows) < 3000


def ways(topology: Topology, **config: Any) -> set[Way]:
    lowered = job_of(topology, **config).lowered
    return {lowered.way(node) for node in topology.nodes}


def test_a_query_of_expressions_runs_in_spark() -> None:
    def topology(step: Callable[[Any], Any]) -> Topology:
        builder = StreamsBuilder()
        step(builder.stream("in")).to("out")
        return builder.build()

    def plain(stream: Any) -> Any:
        return stream.filter(value.is_not_null()).flat_map_values(value.lower().split(" "))

    assert ways(topology(plain)) == {Way.SPARK}
    handler = {"default.deserialization.exception.handler": "LogAndContinueExceptionHandler"}
    assert ways(topology(plain), **handler) == {Way.ARROW}
    assert ways(topology(plain), **{"default.value.serde": "Long"}) == {Way.ARROW}
    assert ways(topology(lambda stream: plain(stream).map_values(lambda text: text))) == {Way.ARROW}
    assert ways(topology(lambda stream: stream.map_values(value.length()))) == {Way.ARROW}


def test_parts_are_not_made_where_the_order_of_records_shows() -> None:
    def has_parts(topology: Topology, **config: Any) -> bool:
        return any(lane.aggregate is not None for lane in job_of(topology, **config).lowered.lanes.values())

    def build(step: Callable[[StreamsBuilder], Any]) -> Topology:
        builder = StreamsBuilder()
        step(builder)
        return builder.build()

    def by_word(builder: StreamsBuilder) -> Any:
        return builder.stream("in").group_by(lambda key, word: word)

    def join(builder: StreamsBuilder) -> None:
        other = builder.stream("in2").select_key(lambda key, word: word)
        other.join(by_word(builder).count(), lambda word, count: f"{word}{count}").to("out")

    assert has_parts(words())
    assert not has_parts(words(), **{"statestore.cache.max.bytes": 0})
    handler = {"processing.exception.handler": "LogAndContinueProcessingExceptionHandler"}
    assert not has_parts(words(), **handler)
    assert not has_parts(words(), **{"production.exception.handler": lambda *_: "CONTINUE"})
    assert not has_parts(words(), **{"default.timestamp.extractor": lambda record, latest: 1})
    assert not has_parts(build(lambda builder: by_word(builder).reduce(lambda old, new: new).to_stream().to("out")))
    assert not has_parts(build(join))
    disabled = Materialized.as_("counts").with_caching_disabled()
    assert not has_parts(build(lambda builder: by_word(builder).count(disabled).to_stream().to("out")))


def test_micro_batches_are_larger_where_tasks_get_parts_alone() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.to("copy")
    stream.group_by(lambda key, word: word).count().to_stream().to("out", Produced.with_(None, Serdes.Long()))
    assert job_of(words()).merges_parts
    assert not job_of(builder.build()).merges_parts


SAMPLES = [
    *(None, "", " ", "12", "-7", "+5", "9223372036854775807", "9223372036854775808", "1.5", "1e400", ".5", "nan"),
    *("  a b ", "ÄÖßſ", "İi", "a\nb", '{"a":1}', '{"a":"x","b":{"c":2.5,"d":true}}', '{"a":1.0}', '{"a":null}', "[1]"),
    *('{"a":9223372036854775808}', '{"a":1,"a":2}', '{"a":NaN}', '{"a":"\\ud800"}', "{", '{"b":{"c":1e400}}'),
    *("2026-11-18T10:00:00Z", "2026-02-30T10:00:00Z", "0001-01-01T00:00:00Z"),
]
NUMBER, OTHER = value.to_integer(), key.to_integer()
EXPRESSIONS: list[Expression] = [
    *(value.lower(), value.upper(), value.trim(), value.split(" "), value.replace("a", "bb"), value.substring(1, 2)),
    *(value.length(), value.contains("a"), value.contains(key), value.startswith("a"), value.endswith("b")),
    *(NUMBER, NUMBER + OTHER, NUMBER - OTHER, NUMBER * OTHER, NUMBER / OTHER, NUMBER % OTHER, NUMBER.to_text()),
    *(value.to_double() + key.to_double(), value.to_double() / key.to_double(), NUMBER.to_double()),
    *(value == key, NUMBER < OTHER, value <= key, value.is_in("", "12"), value.is_null() & (key == "12")),
    *(value.to_time(), value.to_time().date(), value.to_time().year(), value.to_time().hour()),
    *(value.field("a"), value.field("a", int), value.field("a", float), value.field("b.c", float)),
    *(value.field("b.d", bool), when(NUMBER > 3, key, "z"), coalesce(NUMBER, OTHER, 0), value + lit("-") + key),
]


@settings(max_examples=200, deadline=None)
@given(
    cells=st.lists(st.tuples(*[st.one_of(st.sampled_from(SAMPLES), st.text(max_size=6))] * 2), min_size=1, max_size=6),
    index=st.integers(0, len(EXPRESSIONS) - 1),
)
def test_expressions_give_in_arrow_what_they_give_in_python(cells: Any, index: int) -> None:
    expression = EXPRESSIONS[index]
    columns = {
        "key": pa.array([each[0] for each in cells], pa.string()),
        "value": pa.array([each[1] for each in cells], pa.string()),
    }
    assert to_arrow(expression, columns, len(cells)).to_pylist() == [expression(*each) for each in cells]
