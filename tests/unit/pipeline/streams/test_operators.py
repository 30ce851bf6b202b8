"""Behaviour that the comparison with Kafka's driver does not cover: restored state, caches,
handlers, invalid topologies."""

from __future__ import annotations

import pickle
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from kavka.pipeline.streams.engine import Task
from kavka.pipeline.streams.layout import fit, read_layout, write_layout
from kavka.pipeline.streams.local_state import LocalState
from kavka.pipeline.streams.plan import make_plan
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.sources import policies_of
from kavka.streams import (
    Branched,
    BufferConfig,
    Consumed,
    EmitStrategy,
    ErrorHandlerContext,
    Joined,
    KafkaStreams,
    Materialized,
    Named,
    Produced,
    PunctuationType,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    StreamsException,
    Suppressed,
    TimeWindows,
    TopologyException,
    TopologyTestDriver,
    UnlimitedWindows,
    col,
    lit,
    sum_of,
)
from tests.support import streams_cases


class Restarted(TopologyTestDriver):
    """Whose tasks can be restarted on the state that they committed, as Spark's are. A restart also
    runs and discards a micro-batch, which must leave nothing."""

    folder: Path

    def restart(self, topology: Any) -> None:
        self.states: dict[str, LocalState] = getattr(self, "states", {})
        global_stores: dict[str, Any] = {}
        for tasks in (self._globals, self._tasks):
            for index, old in enumerate(tasks):
                sub = next(sub for sub in topology.subtopologies() if f"{sub.id}_0" == old.task_id)
                state = self.states.get(old.task_id)
                if state is None:
                    state = self.states[old.task_id] = LocalState(self.folder / old.task_id)
                    assert state.begin(None)
                    for store in old.stores.values():
                        for name, source in store.open_map.maps.items():  # type: ignore[attr-defined]
                            state.map(name).restore(dict(source.scan()))
                else:
                    state.write()
                token = uuid.uuid4().bytes
                state.commit(token, 0, b"")
                assert state.begin(token)
                for name in list(state._maps):
                    entries = list(state.map(name).scan())
                    for key, _ in entries:
                        state.map(name).put(key, None)
                    state.map(name).put(b"x" * 600, b"y")
                state.write()
                state.commit(b"not committed by Spark", 1, b"")
                assert state.begin(token)
                task = Task(
                    topology, sub, self._settings, self, self.now, global_stores=global_stores, open_map=state.map
                )
                task.start(pickle.loads(pickle.dumps(old.meta())))
                for topic in old.sources:
                    for node in topology.patterns():
                        task.also_reads(node.name, topic)
                if sub.global_:
                    global_stores.update(task.stores)
                tasks[index] = task


@pytest.mark.parametrize("name", streams_cases.CASES)
def test_restarted_tasks_continue_from_their_committed_state(name: str, tmp_path: Path) -> None:
    topology = streams_cases.topology_of(name)
    results = []
    with Restarted(topology, {"cache.max.bytes.buffering": 0}) as driver:
        driver.folder = tmp_path
        for number, (topic, key, value, timestamp) in enumerate(streams_cases.RECORDS):
            if number % 7 == 3:
                driver.restart(topology)
            if name == "pattern" or topic in driver.source_topics():
                driver.create_input_topic(topic).pipe_input(key, value, timestamp)
        for topic in sorted(topic for topic in driver.producer_topics() if topic.startswith("out")):
            for record in driver.create_output_topic(topic).read_records_to_list():
                value = "null" if record.value is None else record.value
                results.append(f"{topic} {record.key} {value} {record.timestamp}")
    assert results == streams_cases.driven(name)


def test_a_foreign_keys_topics_have_the_partitions_of_those_they_are_read_with() -> None:
    builder = StreamsBuilder()
    orders, customers = builder.table("orders"), builder.table("customers")
    orders.join(customers, lambda order: order, lambda order, customer: order, Named.as_("j")).to_stream().to("out")
    plan = make_plan(builder.build(), {"orders": 3, "customers": 2}, 2)
    assert plan.partitions["j-subscription-registration-topic"] == 2
    assert plan.partitions["j-subscription-response-topic"] == 3
    assert [(task.sub, task.partition) for task in plan.tasks] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_a_table_is_joined_with_itself_by_a_foreign_key() -> None:
    builder = StreamsBuilder()
    people = builder.table("people", None, Materialized.as_("people"))
    joined = people.join(people, lambda name, boss: boss, lambda name, boss, bosses: f"{boss} under {bosses}")
    joined.to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("people")
        source.pipe_key_value_list([("ann", "bob"), ("bob", "cat"), ("bob", "dan")])
        results = driver.create_output_topic("out").read_key_values_to_list()
        assert results == [("ann", "bob under cat"), ("ann", "bob under dan"), ("bob", None)]


def test_the_foreign_key_may_be_of_the_key_too_and_of_other_types() -> None:
    builder = StreamsBuilder()
    orders = builder.table("orders", Consumed.with_(Serdes.Integer(), Serdes.Json()))
    customers = builder.table("customers", Consumed.with_(Serdes.Long(), Serdes.String()))
    joined = orders.left_join(
        customers,
        foreign_key_extractor=lambda key, order: order.get("c"),
        joiner=lambda order, name: [order["n"], name],
    )
    joined.to_stream().to("out", Produced.with_(Serdes.Integer(), Serdes.Json()))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("customers", Serdes.Long(), Serdes.String()).pipe_input(5, "ada")
        source = driver.create_input_topic("orders", Serdes.Integer(), Serdes.Json())
        source.pipe_key_value_list([(1, {"c": 5, "n": 1}), (2, {"n": 2}), (1, {"n": 3}), (1, None)])
        results = driver.create_output_topic("out", Serdes.Integer(), Serdes.Json()).read_key_values_to_list()
        assert results == [(1, [1, "ada"]), (2, [2, None]), (1, [3, None]), (1, None)]


def test_cogrouped_streams_forward_a_key_once_with_a_cache() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("a").group_by_key(), builder.stream("b").group_by_key()
    cogrouped = left.cogroup(lambda k, v, total: total + v).cogroup(right, lambda k, v, total: f"{total}/{v}")
    table = cogrouped.aggregate(str)
    table.to_stream().to("out")
    task = Task(builder.topology, builder.topology.subtopologies()[0], settings_of({"application.id": "x"}, False),
                sent := Sent(), lambda: 0, caching=True)  # fmt: skip
    task.start()
    task.process(("a", 0, 0, b"k", b"1", 10, ()))
    task.process(("b", 0, 0, b"k", b"2", 20, ()))
    task.process(("a", 0, 1, b"k", b"3", 30, ()))
    assert sent.values == []
    task.flush()
    assert sent.values == [b"1/23"]


class Sent:
    def __init__(self) -> None:
        self.values: list[bytes | None] = []

    def send(self, topic: str, key: Any, value: bytes | None, *more: Any) -> None:
        self.values.append(value)

    def partitions(self, topic: str) -> int:
        return 1


def test_a_versioned_store_returns_earlier_versions() -> None:
    builder = Stores.versioned_key_value_store_builder(
        Stores.persistent_versioned_key_value_store("v", 100), Serdes.String(), Serdes.String()
    )
    store: Any = builder.build(Serdes.String(), Serdes.String())
    assert store.put("k", "b", 20) == store.LATEST
    assert store.put("k", "a", 10) == 20
    assert store.put("k", "d", 40) == store.LATEST
    assert store.get("k") == ("d", 40, None)
    assert store.get("k", 39) == ("b", 20, 40)
    assert store.get("k", 9) is None
    assert store.delete("k", 30) == ("b", 20, 40)
    assert (store.get("k", 35), store.get("k", 29)) == (None, ("b", 20, 30))
    assert store.put("k", "e", 150) == store.LATEST
    assert store.put("k", "late", 49) == store.NOT_PUT
    # Versions that ended before the history begins are removed, also from the entries.
    assert [key[-1] for key, _ in store.entries()] == [40, 150]
    assert store.get("k", 60) == ("d", 40, 150)
    assert store.get("k", 45) is None
    store.put("k", None, 160)
    store.put("other", "x", 300)
    assert [key for key, _ in store.entries()] == [b"other" + (300).to_bytes(8)]


def test_a_production_handler_is_called_for_records_that_cannot_be_written() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    large = {"max.request.size": 1000}
    with TopologyTestDriver(builder.build(), large) as driver, pytest.raises(StreamsException, match="larger than max"):
        driver.create_input_topic("in").pipe_input("a", "x" * 1000)
    calls: list[Any] = []

    def handler(context: ErrorHandlerContext, record: Any, error: Exception) -> str:
        calls.append((context.topic, record.topic, record.key, str(error)))
        return "CONTINUE"

    with TopologyTestDriver(builder.build(), {**large, "production.exception.handler": handler}) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("a", "x" * 1000), ("b", "x")])
        assert driver.create_output_topic("out").read_key_values_to_list() == [("b", "x")]
    assert calls == [("in", "out", b"a", "the record is larger than max.request.size (1000 bytes)")]


def test_a_processing_handler_is_called_for_errors_and_other_records_are_processed() -> None:
    builder = StreamsBuilder()
    source = builder.stream("in")
    source.map_values(int).map_values(str).to("numbers")
    source.to("all")
    calls: list[Any] = []

    def handler(where: ErrorHandlerContext, record: Any, error: Exception) -> str:
        calls.append((where.processor_node_id, where.task_id, where.offset, record.value))
        return "FAIL" if record.value == "fatal" else "CONTINUE"

    with TopologyTestDriver(builder.build(), {"processing.exception.handler": handler}) as driver:
        source_topic = driver.create_input_topic("in")
        source_topic.pipe_key_value_list([("a", "1"), ("b", "no number"), ("c", "3")])
        assert driver.create_output_topic("numbers").read_values_to_list() == ["1", "3"]
        assert driver.create_output_topic("all").read_values_to_list() == ["1", "no number", "3"]
        with pytest.raises(StreamsException, match="KSTREAM-MAPVALUES-0000000001: ValueError: invalid literal"):
            source_topic.pipe_input("d", "fatal")
    node = "KSTREAM-MAPVALUES-0000000001"
    assert calls == [(node, "0_0", 1, "no number"), (node, "0_0", 3, "fatal")]


def test_a_processing_handler_is_called_for_errors_of_punctuators() -> None:
    class Failing:
        def init(self, context: Any) -> None:
            context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self.fail)

        def process(self, record: Any) -> None: ...

        def fail(self, timestamp: int) -> None:
            raise ValueError("no")

    builder = StreamsBuilder()
    builder.stream("in").process(Failing)
    calls: list[Any] = []

    def handler(where: ErrorHandlerContext, record: Any, error: Exception) -> str:
        calls.append((where.processor_node_id, where.topic, record, str(error)))
        return "CONTINUE"

    with TopologyTestDriver(builder.build(), {"processing.exception.handler": handler}) as driver:
        driver.advance_wall_clock_time(10)
    assert calls == [("KSTREAM-PROCESSOR-0000000001", None, None, "no")]
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(ValueError, match="no"):
        driver.advance_wall_clock_time(10)


def test_a_pattern_reads_the_topics_that_match_it_as_a_whole() -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile("in-[0-9]+")).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in-1").pipe_input("a", "1")
        driver.create_input_topic("in-22").pipe_input("a", "22")
        assert driver.create_output_topic("out").read_values_to_list() == ["1", "22"]
        with pytest.raises(StreamsException, match="Unknown topic: in-1-and-more"):
            driver.create_input_topic("in-1-and-more").pipe_input("a", "1")


def test_a_pattern_and_a_name_may_not_mean_the_same_topic() -> None:
    builder = StreamsBuilder()
    builder.stream("in-1")
    with pytest.raises(TopologyException, match=r"Pattern in-\.\* will match a topic .* in-1"):
        builder.stream(re.compile("in-.*"))
    builder.stream(re.compile("other-.*"))
    with pytest.raises(TopologyException, match="has already been registered"):
        builder.stream(re.compile("other-.*"))


def test_new_topics_of_a_pattern_do_not_change_the_layout() -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile("in-.*")).group_by(lambda key, value: value).count()
    before, now = (builder.topology.with_topics(there) for there in (["in-1", "else"], ["in-1", "in-2", "else"]))
    _, layout = fit(before, make_plan(before, {"in-1": 2}), None)
    assert fit(now, make_plan(now, {"in-1": 2, "in-2": 2}), layout)[1] == layout
    assert layout["patterns"] == {"KSTREAM-SOURCE-0000000000": 2}


def test_an_application_without_state_skips_old_records_of_repartition_topics() -> None:
    builder = StreamsBuilder()
    builder.table("in").group_by(lambda key, value: (value, key)).count(Materialized.as_("c"))
    policies = policies_of(builder.build(), settings_of({"application.id": "x"}, need_servers=False))
    assert policies == {"in": "earliest", "x-c-repartition": "latest"}


def test_clean_up_forgets_the_state_and_nothing_beside_it(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    config = {"application.id": "mine", "bootstrap.servers": "nowhere:1", "state.dir": str(tmp_path)}
    for name in ("mine", "other"):
        (tmp_path / name / "checkpoint").mkdir(parents=True)
    KafkaStreams(builder.build(), config).clean_up()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_an_invalid_topology_is_refused_when_it_is_built() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("a"), builder.table("b")
    history = Stores.persistent_versioned_key_value_store("v", 100)
    with pytest.raises(TopologyException, match="only supported for non-versioned"):
        builder.table("c", None, Materialized.as_(history)).suppress(
            Suppressed.until_time_limit(10, BufferConfig.unbounded())
        )
    with pytest.raises(TopologyException, match="must be versioned to use a grace period"):
        stream.join(table, lambda x, y: x, Joined.with_(grace_period=10))
    with pytest.raises(TopologyException, match="unlimited windows never close"):
        stream.group_by_key().windowed_by(UnlimitedWindows.of()).emit_strategy(EmitStrategy.on_window_close())
    with pytest.raises(TopologyException, match="the store w is a window store"):
        stream.group_by_key().count(Materialized.as_(Stores.persistent_window_store("w", 100, 10)))
    with pytest.raises(TopologyException, match="the store v is a versioned store"):
        builder.global_table("d", None, Materialized.as_(history))
    with pytest.raises(TopologyException, match="cannot be grouped together with a KTable"):
        stream.group_by_key().cogroup(lambda k, v, a: a).cogroup(table, lambda k, v, a: a)
    with pytest.raises(TopologyException, match="historyRetention cannot be negative"):
        Stores.persistent_versioned_key_value_store("v", -1)
    with pytest.raises(TopologyException, match="by their names, or by one pattern alone"):
        builder.stream(["x", re.compile("y")])


def test_an_expression_says_what_it_cannot_do_when_it_is_made() -> None:
    key, value = col("key"), col("value")
    for make, message in (
        (lambda: col("offset"), "the columns key, value and timestamp, not 'offset'"),
        (lambda: value + 1, "concat takes text and text, not text and an integer"),
        (lambda: value == 1, "eq cannot combine text and an integer"),
        (lambda: value and key, "write & for and"),
        (lambda: value & key, "and takes a boolean"),
        (lambda: lit(float("nan")), "lit takes text"),
        (lambda: value.to_integer() + 1.5, "convert one with to_double"),
        (lambda: value.field("a", list), "one of the types str, int, float and bool"),
        (lambda: sum_of(value), "sum_of takes an expression that gives a number"),
        (lambda: sum_of(col("timestamp")), "put it into the value"),
        (lambda: StreamsBuilder().stream("in").filter(value.lower()), "gives text, and a boolean is needed"),
        (lambda: value.split(""), "separator of split is empty"),
        (lambda: StreamsBuilder().stream("in").flat_map_values(value.lower()), "flat_map_values needs a list"),
    ):
        with pytest.raises(TopologyException, match=message):
            make()
    with pytest.raises(TypeError, match=r"col\('value'\) must be text, not int"):
        value.lower()("k", 5)
    assert (value.is_in("a", "b")("k", "b"), value.is_in("a")("k", None), (key == "k")("k", None)) == (True, None, True)


def test_expressions_of_branches_and_lists_read_the_timestamp() -> None:
    builder = StreamsBuilder()
    value, timestamp = col("value"), col("timestamp")
    lines = builder.stream("in")
    lines.flat_map_values((value + " " + timestamp.to_text()).split(" ")).to("words")
    lines.split().branch(timestamp > 5, Branched.with_consumer(lambda late: late.to("late")))
    with TopologyTestDriver(builder.build()) as driver:
        for time in (3, 7):
            driver.create_input_topic("in").pipe_input("k", "a", time)
        words, late = (driver.create_output_topic(topic).read_values_to_list() for topic in ("words", "late"))
    assert (words, late) == (["a", "3", "a", "7"], ["a"])
    with pytest.raises(TopologyException, match="gives text, and a boolean is needed"):
        StreamsBuilder().stream("in").split().branch(value)


def test_a_topology_is_drawn_as_a_graph() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count(Materialized.as_("counts")).to_stream().to("out")
    assert (
        builder.build().describe().picture()
        == """graph TD
  subgraph s0 [Sub-topology 0]
    KSTREAM_SOURCE_0000000000["KSTREAM-SOURCE-0000000000"]
    KSTREAM_AGGREGATE_0000000001["KSTREAM-AGGREGATE-0000000001<br/>counts"]
    KTABLE_TOSTREAM_0000000002["KTABLE-TOSTREAM-0000000002"]
    KSTREAM_SINK_0000000003["KSTREAM-SINK-0000000003"]
  end
  KSTREAM_SOURCE_0000000000 --> KSTREAM_AGGREGATE_0000000001
  t_in(["in"]) --> KSTREAM_SOURCE_0000000000
  KSTREAM_AGGREGATE_0000000001 --> KTABLE_TOSTREAM_0000000002
  KTABLE_TOSTREAM_0000000002 --> KSTREAM_SINK_0000000003
  KSTREAM_SINK_0000000003 --> t_out(["out"])
"""
    )


def test_the_drivers_stores_show_values_with_their_times_or_without() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by_key()
    grouped.count(Materialized.as_("counts"))
    grouped.windowed_by(TimeWindows.of_size_with_no_grace(10)).count(Materialized.as_("windows"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("a", "x", 25)
        assert driver.get_key_value_store("counts").get("a") == 1
        assert list(driver.get_key_value_store("counts").all()) == [("a", 1)]
        assert driver.get_key_value_store("counts").approximate_num_entries() == 1
        assert driver.get_timestamped_key_value_store("counts").get("a") == (1, 25)
        assert driver.get_window_store("windows").fetch("a", 20) == 1
        assert driver.get_timestamped_window_store("windows").fetch("a", 20) == (1, 25)
        assert driver.get_key_value_store("nothing") is None
        with pytest.raises(AttributeError, match="ReadOnlyKeyValueStore has no method put"):
            driver.get_key_value_store("counts").put("a", 2)


def test_window_and_session_stores_are_read_backwards_and_by_keys() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by_key()
    grouped.windowed_by(TimeWindows.of_size_and_grace(10, 100)).count(Materialized.as_("windows"))
    grouped.windowed_by(SessionWindows.of_inactivity_gap_and_grace(5, 100)).count(Materialized.as_("sessions"))
    with TopologyTestDriver(builder.build()) as driver:
        for key, timestamp in (("a", 1), ("b", 11), ("a", 12), ("c", 13)):
            driver.create_input_topic("in").pipe_input(key, "x", timestamp)
        windows, sessions = driver.get_window_store("windows"), driver.get_session_store("sessions")

        def keys(entries: Any) -> list[tuple[str, int]]:
            return [(windowed.key, windowed.window.start) for windowed, _ in entries]

        entries = [("a", 0), ("a", 10), ("b", 10), ("c", 10)]
        assert (keys(windows.all()), keys(windows.backward_all())) == (entries, entries[::-1])
        assert keys(windows.backward_fetch_all(5, 20)) == [("c", 10), ("b", 10), ("a", 10)]
        assert keys(windows.backward_fetch_range("a", "b", 0, 20)) == [("b", 10), ("a", 10), ("a", 0)]
        assert keys(sessions.fetch_range("b", None)) == [("b", 11), ("c", 13)]
        assert keys(sessions.backward_fetch("a")) == [("a", 12), ("a", 1)]


def test_a_table_is_joined_with_itself_by_its_key() -> None:
    builder = StreamsBuilder()
    table = builder.table("in")
    table.left_join(table, lambda left, right: f"{left}-{right}").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("k", "1"), ("k", "2"), ("k", None)])
        results = driver.create_output_topic("out").read_values_to_list()
        assert results == ["1-1", "1-1", "2-2", "2-2", None]


def test_a_topology_that_the_state_does_not_fit_is_refused(tmp_path: Path) -> None:
    def start(name: str, partitions: int = 2) -> None:
        builder = StreamsBuilder()
        builder.stream("in").group_by_key().count(Materialized.as_(name))
        topology = builder.build()
        plan = make_plan(topology, {"in": partitions})
        write_layout(folder, fit(topology, plan, read_layout(folder))[1])

    folder = tmp_path / "mine"
    assert read_layout(folder) is None
    start("counts")
    start("counts")
    with pytest.raises(StreamsException, match="state: the store counts was removed; set a new"):
        start("others")
    message = "the state of counts has 2 tasks, but the topics in now have 3 partitions"
    with pytest.raises(StreamsException, match=message):
        start("counts", 3)
    (folder / "topology.json").write_text("{")
    with pytest.raises(StreamsException, match="cannot be read"):
        read_layout(folder)
    (folder / "topology.json").write_text('{"digest": "x", "width": 2}')
    with pytest.raises(StreamsException, match=r"another version.*kafka-streams-application-reset"):
        read_layout(folder)


def planned(name: str) -> str:
    topology = streams_cases.topology_of(name)
    topology = topology.with_topics(["a", "b"]) if topology.patterns() else topology
    plan = make_plan(topology, {"a": 2, "b": 2})
    lines = [f"=== {name}: {plan.width} wide"]
    for kind, subs in (("plain", plan.stateless), ("before the shuffle", plan.feeding), ("global", plan.globals)):
        lines += [f"  {sub.id} {kind}" for sub in subs]
    for sub in plan.stateful:
        tasks = [f"{task.partition}@{task.key}" for task in plan.tasks if task.sub == sub.id]
        lines.append(f"  {sub.id} in tasks {' '.join(tasks)}")
    lines += [f"  shuffled to {sub}: {topic}" for topic, sub in plan.shuffled.items()]
    lines += [f"  a topic of {plan.partitions[topic]}: {topic}" for topic in plan.internal]
    lines += topology.explain({"a": 2, "b": 2}).splitlines()
    return "\n".join(lines)


def test_plans_are_as_they_were() -> None:
    """State in checkpoints depends on the tasks in golden/streams-plans.txt: a change of those
    must be announced to users. How nodes run may change."""
    plans = "\n".join(planned(name) for name in streams_cases.CASES) + "\n"
    assert plans == (Path(__file__).resolve().parents[3] / "golden" / "streams-plans.txt").read_text()


def test_final_results_are_forwarded_also_when_time_jumps_past_the_retention() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by_key()
    windows = grouped.windowed_by(TimeWindows.of_size_with_no_grace(10)).emit_strategy(EmitStrategy.on_window_close())
    sessions = grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(10))
    windows.count().to_stream(lambda key, count: key.key).to("windows", Produced.with_(Serdes.String(), Serdes.Long()))
    sessions.emit_strategy(EmitStrategy.on_window_close()).count().to_stream(lambda key, count: key.key).to(
        "sessions", Produced.with_(Serdes.String(), Serdes.Long())
    )
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in")
        for key, timestamp in (("a", 1), ("a", 2), ("b", 3), ("c", 1000)):
            source.pipe_input(key, "x", timestamp)
        for name in ("windows", "sessions"):
            out = driver.create_output_topic(name, value_serde=Serdes.Long())
            assert out.read_key_values_to_list() == [("a", 2), ("b", 1)]


@pytest.mark.parametrize("kind", ["left_join", "outer_join"])
def test_a_join_of_tables_forwards_no_deletion_of_a_key_that_neither_has(kind: str) -> None:
    builder = StreamsBuilder()
    getattr(builder.table("a"), kind)(builder.table("b"), streams_cases.plus).to_stream().to("out")
    with TopologyTestDriver(builder.build(), {"cache.max.bytes.buffering": 0}) as driver:
        table = driver.create_input_topic("a")
        table.pipe_key_value_list([("k", None), ("k", "v"), ("k", None), ("k", None)])
        assert driver.create_output_topic("out").read_values_to_list() == ["vnull", None]
