"""The Processor API, stores, punctuators, serdes and settings, in the test driver."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kavka.pipeline.streams.plan import has_users, make_plan, spark_hash, unused_keys
from kavka.pipeline.streams.windows import BufferConfig, TimeWindow
from kavka.streams import (
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Named,
    Produced,
    PunctuationType,
    Record,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    StreamsException,
    Suppressed,
    TestRecord,
    TimeWindows,
    Topology,
    TopologyException,
    TopologyTestDriver,
    Windowed,
    WindowedSerdes,
)


class Counter:
    """Counts values by key, and forwards all counts every ten seconds of stream time."""

    def __init__(self, kind: str = PunctuationType.STREAM_TIME) -> None:
        self._kind = kind

    def init(self, context: Any) -> None:
        self.context = context
        self.store = context.get_state_store("counts")
        context.schedule(timedelta(seconds=10), self._kind, self.tell)

    def process(self, record: Record) -> None:
        self.store.put(record.key, (self.store.get(record.key) or 0) + 1)

    def tell(self, timestamp: int) -> None:
        for key, count in self.store.all():
            self.context.forward(Record(key, str(count), timestamp))


def counting(kind: str) -> Topology:
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("counts"), Serdes.String(), Serdes.Long())
    return (
        Topology()
        .add_source("source", "in")
        .add_processor("counter", lambda: Counter(kind), "source")
        .add_state_store(store, "counter")
        .add_sink("sink", "out", "counter")
    )


def test_a_processor_is_called_by_stream_time() -> None:
    with TopologyTestDriver(counting(PunctuationType.STREAM_TIME)) as driver:
        source, out = driver.create_input_topic("in"), driver.create_output_topic("out")
        source.pipe_input("a", "x", 1000)
        assert out.read_key_values_to_list() == [("a", "1")]
        source.pipe_input("b", "x", 9000)
        assert out.is_empty()
        source.pipe_input("a", "x", 10_000)
        assert out.read_records_to_list() == [TestRecord("a", "2", 10_000), TestRecord("b", "1", 10_000)]
        assert driver.get_key_value_store("counts").get("a") == 2


def test_a_processor_is_called_by_the_wall_clock() -> None:
    with TopologyTestDriver(counting(PunctuationType.WALL_CLOCK_TIME)) as driver:
        driver.create_input_topic("in").pipe_input("a", "x", 1000)
        out = driver.create_output_topic("out")
        driver.advance_wall_clock_time(timedelta(seconds=9))
        assert out.is_empty()
        driver.advance_wall_clock_time(25_000)
        assert out.read_key_values_to_list() == [("a", "1")]
        driver.advance_wall_clock_time(5_000)
        assert out.is_empty()
        driver.advance_wall_clock_time(1_000)
        assert out.get_queue_size() == 1


def test_a_processor_reaches_only_its_own_stores() -> None:
    topology = Topology().add_source("source", "in").add_processor("counter", Counter, "source")
    topology.add_state_store(Stores.persistent_key_value_store("counts"))
    with pytest.raises(StreamsException, match="Processor counter has no access to StateStore counts"):
        TopologyTestDriver(topology)


def test_a_processor_of_values_may_not_change_keys() -> None:
    class Changes:
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: Record) -> None:
            self.context.forward(record.with_key("other"))

    builder = StreamsBuilder()
    builder.stream("in").process_values(Changes).to("out")
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(StreamsException, match="may not change the key"):
        driver.create_input_topic("in").pipe_input("a", "b")


def test_nodes_must_know_their_parents() -> None:
    with pytest.raises(TopologyException, match="Predecessor nobody is not added yet for p"):
        Topology().add_processor("p", Counter, "nobody")
    with pytest.raises(TopologyException, match="already been registered"):
        Topology().add_source("a", "t").add_source("b", "t")
    with pytest.raises(TopologyException, match="Processor a is already added"):
        Topology().add_source("a", "t").add_source("a", "u")


def test_a_key_value_store_ranges_over_keys() -> None:
    store = Stores.key_value_store_builder(
        Stores.in_memory_key_value_store("s"), Serdes.String(), Serdes.String()
    ).build(Serdes.String(), Serdes.String())
    store.put_all([(key, key.upper()) for key in "bcad"])
    assert [key for key, _ in store.range("b", "c")] == ["b", "c"]
    assert [key for key, _ in store.reverse_all()] == ["d", "c", "b", "a"]
    assert store.put_if_absent("a", "other") == "A"
    assert store.delete("a") == "A"
    assert store.get("a") is None
    assert [key for key, _ in store.prefix_scan("b")] == ["b"]
    assert store.approximate_num_entries() == 3


def test_a_window_store_forgets_what_is_past_its_retention() -> None:
    builder = Stores.window_store_builder(
        Stores.persistent_window_store("w", 100, 10), Serdes.String(), Serdes.String()
    )
    store = builder.build(Serdes.String(), Serdes.String())
    for start in (0, 10, 20):
        store.put("a", str(start), start)
    assert list(store.fetch("a", 0, 10)) == [(0, "0"), (10, "10")]
    assert [start for start, _ in store.backward_fetch("a", 0, 20)] == [20, 10, 0]
    store.put("b", "late", 115)
    assert list(store.fetch("a", 0, 200)) == [(20, "20")]
    assert [key.window.start for key, _ in store.all()] == [20, 115]
    again = builder.build(Serdes.String(), Serdes.String())
    for key, value in store.entries():
        again.put_entry(key, value)
    assert list(again.all()) == list(store.all())


def test_a_session_store_finds_sessions_by_time() -> None:
    builder = Stores.session_store_builder(Stores.persistent_session_store("s", 100), Serdes.String(), Serdes.Long())
    store = builder.build(Serdes.String(), Serdes.String())
    store.put(Windowed("a", TimeWindow(0, 10)), 1)
    store.put(Windowed("a", TimeWindow(30, 40)), 2)
    assert [value for _, value in store.find_sessions("a", 5, 20)] == [1]
    assert store.fetch_session("a", 30, 40) == 2
    store.remove(Windowed("a", TimeWindow(0, 10)))
    assert [value for _, value in store.fetch("a")] == [2]


@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (Serdes.String(), "é", "é".encode()),
        (Serdes.Long(), -2, b"\xff" * 7 + b"\xfe"),
        (Serdes.Integer(), 1, b"\0\0\0\1"),
        (Serdes.Short(), 1, b"\0\1"),
        (Serdes.Double(), 1.0, b"\x3f\xf0" + b"\0" * 6),
        (Serdes.Float(), 1.0, b"\x3f\x80\0\0"),
        (Serdes.Boolean(), True, b"\1"),
        (Serdes.ByteArray(), b"x", b"x"),
        (Serdes.Json(), {"a": [1]}, b'{"a":[1]}'),
        (
            WindowedSerdes.time_windowed_serde_from(Serdes.String(), 10),
            Windowed("k", TimeWindow(5, 15)),
            b"k\0\0\0\0\0\0\0\5",
        ),
    ],
)
def test_serdes_write_kafkas_bytes(serde: Any, value: Any, data: bytes) -> None:
    assert serde.serialize(value) == data
    assert serde.deserialize(data) == value
    assert serde.serialize(None) is None


def test_a_value_of_the_wrong_type_is_reported() -> None:
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: len(value)).to("out")
    failure = pytest.raises(
        StreamsException, match=r"KSTREAM-SINK-0000000002 to out: Serdes.String cannot write .* int"
    )
    with TopologyTestDriver(builder.build()) as driver, failure:
        driver.create_input_topic("in").pipe_input("a", "b")


def test_the_handler_decides_about_records_that_cannot_be_read() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed.with_(Serdes.String(), Serdes.Long())).to("out")
    bad = {"key_serde": Serdes.String(), "value_serde": Serdes.String()}
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(StreamsException, match="in-0 offset 0"):
        driver.create_input_topic("in", **bad).pipe_input("a", "no number")
    lenient = {"default.deserialization.exception.handler": "LogAndContinueExceptionHandler"}
    with TopologyTestDriver(builder.build(), lenient) as driver:
        driver.create_input_topic("in", **bad).pipe_input("a", "no number")
        driver.create_input_topic("in", Serdes.String(), Serdes.Long()).pipe_input("a", 5)
        assert driver.create_output_topic("out", value_serde=Serdes.Long()).read_key_values_to_list() == [("a", 5)]


def test_with_a_cache_the_changes_of_one_record_are_forwarded_once() -> None:
    builder = StreamsBuilder()
    windows = SessionWindows.of_inactivity_gap_with_no_grace(10)
    counts = builder.stream("in").group_by_key().windowed_by(windows).count()
    counts.to_stream(lambda key, value: key.key).to("out", Produced.with_(Serdes.String(), Serdes.Long()))
    values = {}
    for cache in (0, 1000):
        with TopologyTestDriver(builder.build(), {"cache.max.bytes.buffering": cache}) as driver:
            driver.create_input_topic("in").pipe_record_list([TestRecord("a", "x", at) for at in (5, 8, 6)])
            values[cache] = driver.create_output_topic("out", value_serde=Serdes.Long()).read_values_to_list()
    assert values == {0: [1, None, 2, None, 3], 1000: [1, None, 2, 3]}


def test_a_timestamp_can_be_taken_from_the_value() -> None:
    builder = StreamsBuilder()
    how = Consumed.with_(Serdes.String(), Serdes.Json(), lambda record, latest: record.value["at"])
    builder.stream("in", how).map_values(lambda value: value["what"]).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", value_serde=Serdes.Json()).pipe_input("a", {"at": 77, "what": "x"}, 5)
        assert driver.create_output_topic("out").read_record().timestamp == 77


def test_headers_stay_with_their_record() -> None:
    builder = StreamsBuilder()
    builder.stream("in").filter(lambda key, value: True).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("a", "b", 1, (("h", b"1"),))
        assert driver.create_output_topic("out").read_record().headers == (("h", b"1"),)


def test_invalid_operators_are_rejected_when_the_topology_is_built() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("a"), builder.table("b")
    with pytest.raises(TopologyException, match="JoinWindows"):
        stream.join(builder.stream("c"), lambda x, y: x, TimeWindows.of_size_with_no_grace(1))
    with pytest.raises(TopologyException, match="has no windows"):
        table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    with pytest.raises(TopologyException, match="cannot emit early"):
        Suppressed.until_window_closes(BufferConfig.max_records(1))
    with pytest.raises(TopologyException, match="there would be gaps"):
        TimeWindows.of_size_with_no_grace(5).advance_by(6)
    with pytest.raises(TopologyException, match="illegal"):
        stream.filter(lambda key, value: True, Named.as_("a b"))
    with pytest.raises(TopologyException, match="outer join with a stream alone"):
        stream.outer_join(table, lambda x, y: x)
    with pytest.raises(TopologyException, match="negative"):
        JoinWindows.of_time_difference_with_no_grace(5).before(-10)


def test_a_full_buffer_that_may_not_emit_ends_the_stream() -> None:
    builder = StreamsBuilder()
    strict = BufferConfig.unbounded().with_max_records(1)
    builder.table("in").suppress(Suppressed.until_time_limit(1000, strict)).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in")
        source.pipe_input("a", "1", 0)
        with pytest.raises(StreamsException, match="exceeded its max capacity"):
            source.pipe_input("b", "1", 0)


def test_the_plan_shuffles_where_it_can_and_names_topics_where_it_must() -> None:
    builder = StreamsBuilder()
    counts = (
        builder.stream("in").group_by(lambda key, value: value, Grouped.as_("words")).count(Materialized.as_("counts"))
    )
    counts.group_by(lambda key, count: (str(count), key)).count(Materialized.as_("by-count")).to_stream().to(
        "out", Produced.with_(Serdes.String(), Serdes.Long())
    )
    plan = make_plan(builder.build(), {"in": 3}, 2)
    assert dict(plan.shuffled) == {"words-repartition": 1}
    assert plan.internal == ("by-count-repartition",)
    assert [sub.id for sub in plan.feeding] == [0]
    assert [(task.sub, task.partition) for task in plan.tasks] == [(sub, n) for sub in (1, 2) for n in range(3)]
    assert plan.width == 2


def test_tasks_are_spread_evenly_by_sparks_hash() -> None:
    # SELECT hash(0), hash(1), hash(2) in Spark.
    assert [spark_hash(number) for number in range(3)] == [933211791, -559580957, 1765031574]
    for count, width in ((5, 2), (8, 4), (3, 8)):
        keys = unused_keys(count, width, ())
        assert len(set(keys)) == count
        per = [sum(spark_hash(key) % width == slot for key in keys) for slot in range(width)]
        assert max(per) - min(per) <= 1


def test_windowed_keys_and_changes_are_written_with_the_defaults() -> None:
    builder = StreamsBuilder()
    windows = TimeWindows.of_size_with_no_grace(10)
    builder.stream("in").group_by_key().windowed_by(windows).count().to_stream().to("windowed")
    builder.table("table").group_by(lambda key, value: (key % 2, value)).reduce(
        lambda left, right: left + right, lambda left, right: left - right
    ).to_stream().to("sums")
    numbers = {"default.key.serde": "Integer", "default.value.serde": "Long"}
    with TopologyTestDriver(builder.build(), numbers) as driver:
        driver.create_input_topic("in").pipe_input(7, 1, 25)
        serde = WindowedSerdes.time_windowed_serde_from(Serdes.Integer(), 10)
        pair = driver.create_output_topic("windowed", serde).read_key_value()
        assert pair == (Windowed(7, TimeWindow(20, 30)), 1)
        driver.create_input_topic("table").pipe_key_value_list([(1, 10), (3, 5), (1, 20)])
        assert driver.create_output_topic("sums").read_key_values_to_list() == [(1, 10), (1, 15), (1, 25)]


class Doubling:
    """Notes what is done with it."""

    made: list[Doubling] = []

    def __init__(self) -> None:
        self.closed = False
        Doubling.made.append(self)

    def init(self, context: Any) -> None:
        self.context = context

    def transform(self, read_only_key: str, value: str | None) -> str | None:
        if value == "forward":
            self.context.forward(Record(read_only_key, value, 0))
        return None if value is None else value * 2

    def close(self) -> None:
        self.closed = True


def test_transformers_are_closed_also_those_that_only_look_values_up() -> None:
    Doubling.made = []
    builder = StreamsBuilder()
    doubled = builder.table("a").transform_values(Doubling)
    builder.stream("b").join(doubled, lambda left, right: left + right).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("a").pipe_input("k", "x", 5)
        driver.create_input_topic("b").pipe_input("k", "y", 6)
        assert driver.create_output_topic("out").read_key_values_to_list() == [("k", "yxx")]
        assert len(Doubling.made) == 2
    assert all(transformer.closed for transformer in Doubling.made)


def test_a_transformer_cannot_forward_records() -> None:
    builder = StreamsBuilder()
    builder.table("a").transform_values(Doubling, named=Named.as_("double")).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(StreamsException, match="double cannot forward"):
        driver.create_input_topic("a").pipe_input("k", "forward")


def test_a_supplier_without_a_transformer_is_rejected() -> None:
    builder = StreamsBuilder()
    builder.table("a").transform_values(object).to_stream().to("out")
    with pytest.raises(StreamsException, match="does not supply a transformer"):
        TopologyTestDriver(builder.build())
    with pytest.raises(TopologyException, match="StateStore nowhere is not added yet"):
        builder.table("b").transform_values(Doubling, "nowhere")


def test_a_transformer_is_called_by_the_wall_clock_and_brings_its_own_stores() -> None:
    calls: list[tuple[int, list[Any]]] = []

    class Ticking:
        @staticmethod
        def stores() -> list[Any]:
            strings = Serdes.String(), Serdes.String()
            return [Stores.key_value_store_builder(Stores.in_memory_key_value_store("seen"), *strings)]

        def init(self, context: Any) -> None:
            self.store = context.get_state_store("seen")
            context.schedule(1000, PunctuationType.WALL_CLOCK_TIME, self.tell)

        def tell(self, at: int) -> None:
            calls.append((at, list(self.store.all())))

        def transform(self, read_only_key: str, value: str | None) -> str | None:
            self.store.put(read_only_key, value)
            return value

    builder = StreamsBuilder()
    builder.table("a").transform_values(Ticking)
    topology = builder.build()
    plan = make_plan(topology, {"a": 2}, 2)
    assert [sub.stores for sub in plan.stateful] == [("seen",)]
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("a").pipe_input("k", "x")
        driver.advance_wall_clock_time(1000)
    assert calls == [(1000, [("k", "x")])]


def test_with_a_cache_a_materialized_table_forwards_deletions() -> None:
    builder = StreamsBuilder()
    builder.table("a").map_values(lambda value: value * 2, Materialized.as_("mapped")).to_stream().to("out")
    builder.table("b").transform_values(Doubling, materialized=Materialized.as_("double")).to_stream().to("out")
    with TopologyTestDriver(builder.build(), {"cache.max.bytes.buffering": 1000}) as driver:
        for topic in ("a", "b"):
            driver.create_input_topic(topic).pipe_key_value_list([("k", "x"), ("k", None), ("k", None)])
            assert driver.create_output_topic("out").read_values_to_list() == ["xx", None]


def keeping(store: str, kind: Any = None) -> Topology:
    builder = Stores.key_value_store_builder(
        Stores.in_memory_key_value_store("everywhere"), Serdes.String(), Serdes.String()
    )

    class Keeps:
        def init(self, context: Any) -> None:
            self.store = context.get_state_store("everywhere")
            if kind is not None:
                context.schedule(1000, kind, lambda at: None)

        def process(self, record: Record) -> None:
            self.store.put(record.key, record.value)

    class Writes:
        def init(self, context: Any) -> None:
            self.store = context.get_state_store(store)

        def process(self, record: Record) -> None:
            assert self.store.get(record.key) == "v"
            self.store.put(record.key, "other")

    topology = Topology().add_source("source", "in").add_processor("writes", Writes, "source")
    return topology.add_global_store(builder, "global-source", "all", "keeps", Keeps)


def test_a_global_store_is_written_by_its_own_processor_alone() -> None:
    with TopologyTestDriver(keeping("everywhere")) as driver:
        driver.create_input_topic("all").pipe_input("k", "v")
        with pytest.raises(StreamsException, match=r"Global store is read only: everywhere\.put"):
            driver.create_input_topic("in").pipe_input("k", "x")
        assert driver.get_key_value_store("everywhere").get("k") == "v"


def test_the_processor_of_a_global_store_has_no_punctuators() -> None:
    assert not has_users(StreamsBuilder().add_global_store(*_global()).build())
    with pytest.raises(StreamsException, match="keeps fills a global store, and cannot have punctuators"):
        TopologyTestDriver(keeping("everywhere", PunctuationType.STREAM_TIME))


def _global() -> tuple[Any, ...]:
    return Stores.in_memory_key_value_store("s"), "t", None, Counter


def test_a_global_store_is_added_once_and_reads_its_own_topic() -> None:
    with pytest.raises(TopologyException, match="StateStore s is already added"):
        StreamsBuilder().add_global_store(*_global()).add_global_store(*_global())
    builder = StreamsBuilder()
    builder.stream("t")
    with pytest.raises(TopologyException, match="Topic t has already been registered by another source"):
        builder.add_global_store(*_global())
    named = StreamsBuilder().add_global_store(*_global()[:2], Consumed.as_("mine"), Counter).build()
    assert list(named.nodes) == ["mine-source", "mine"]
