"""The same topologies and records as in java/StreamsProbe.java, which runs them with Kafka's
TopologyTestDriver."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from kavka import ProducerRecord, streams
from kavka.pipeline.streams.topology import SinkNode, SourceNode
from kavka.streams import (
    Branched,
    BufferConfig,
    EmitStrategy,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Named,
    PunctuationType,
    Repartitioned,
    Response,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TableJoined,
    TimeWindows,
    Topology,
    TopologyTestDriver,
    Windowed,
    col,
)

StreamRecord = streams.Record
Record = tuple[str, str, str | None, int]


def generate_records(count: int, keys: int = 4, step: int = 7) -> Iterator[Record]:
    """Yield records of the topics a and b. Some are late, and some have no value. From a record to
    the next, the time advances by less than `step`."""
    x, t = 12345, 1000

    def roll() -> int:
        nonlocal x
        x = (x * 1103515245 + 12345) % 2147483648
        return x >> 8

    for _ in range(count):
        first, second, third = roll(), roll(), roll()
        t += first % step
        at = max(0, t - (third % 60 if second % 5 == 0 else 0))
        value = None if third % 11 == 0 else f"v{third % 5}"
        yield ("a" if first % 2 == 0 else "b"), f"k{second % keys}", value, at


RECORDS = list(generate_records(120))


def w(key: Windowed, value: Any) -> str:
    return f"{key.key}@{key.window.start}/{key.window.end}"


def text(value: Any) -> str | None:
    return None if value is None else str(value)


def plus(left: Any, right: Any) -> str:
    return f"{'null' if left is None else left}{'null' if right is None else right}"


def append(key: Any, value: Any, so_far: str) -> str:
    return plus(so_far, value)


def append_slash(key: Any, value: Any, so_far: str) -> str:
    return plus(f"{so_far}/", value)


def foreign(value: str) -> str | None:
    return None if value == "v4" else f"k{value[1]}"


# Prefix of the store names that several cases share when all cases form one topology.
_store_prefix = [""]


def history(store: str) -> Any:
    return Stores.persistent_versioned_key_value_store(_store_prefix[0] + store, 40)


def versioned(b: StreamsBuilder, topic: str, store: str) -> Any:
    return b.table(topic, None, Materialized.as_(history(store)))


def cogrouped(b: StreamsBuilder) -> Any:
    grouped = b.stream("a").group_by_key()
    return grouped.cogroup(append).cogroup(b.stream("b").group_by_key(), append_slash)


def stateless(b: StreamsBuilder) -> None:
    s = b.stream(["a", "b"])
    s.filter(lambda k, v: v is not None).map_values(lambda v: v + "!").to("out1")
    s.filter_not(lambda k, v: v is not None).map(lambda k, v: (k + "x", "null")).to("out2")
    s.flat_map(lambda k, v: [(k, "1"), (k, "2")]).peek(lambda k, v: None).select_key(lambda k, v: v).to("out3")
    s.filter(lambda k, v: v is not None).flat_map_values(lambda v: [v, v]).to(lambda k, v, at: f"out-{k}")
    s.foreach(lambda k, v: None)


def branch(b: StreamsBuilder) -> None:
    branches = (
        b.stream("a")
        .split(Named.as_("p-"))
        .branch(lambda k, v: k == "k1", Branched.as_("one"))
        .branch(lambda k, v: k == "k2")
        .default_branch()
    )
    branches["p-one"].to("out1")
    branches["p-2"].to("out2")
    branches["p-0"].to("out3")


def stored(store: str) -> Any:
    strings = Serdes.String(), Serdes.String()
    return Stores.key_value_store_builder(Stores.in_memory_key_value_store(_store_prefix[0] + store), *strings)


class Appending:
    """Appends every value to the stored text of its key."""

    def __init__(self, name: str) -> None:
        self._name = name

    def init(self, context: Any) -> None:
        self.context = context
        self.store = context.get_state_store(self._name)

    def transform(self, read_only_key: str, value: str | None) -> str | None:
        stored = self.store.get(read_only_key)
        text = plus("" if stored is None or len(stored) > 20 else stored, value)
        self.store.put(read_only_key, text)
        return (
            None if value == "v3" else f"{text}@{self.context.timestamp()}/{self.context.record_metadata().partition}"
        )


class Filling:
    """Replaces missing values by a text."""

    def init(self, context: Any) -> None:
        self.context = context

    def transform(self, read_only_key: str, value: str | None) -> str:
        return f"no-{read_only_key}" if value is None else f"{value}@{self.context.timestamp()}"


class Keeping:
    """Appends the values of a topic to a global store, by key."""

    def __init__(self, name: str) -> None:
        self._name = name

    def init(self, context: Any) -> None:
        self.store = context.get_state_store(self._name)

    def process(self, record: StreamRecord) -> None:
        if record.value is None:
            self.store.delete(record.key)
            return
        stored = self.store.get(record.key)
        replace_text = stored is None or len(stored) > 10
        self.store.put(record.key, record.value if replace_text else stored + record.value)


class Looking:
    """Appends the stored value of the key to every record."""

    def __init__(self, name: str) -> None:
        self._name = name

    def init(self, context: Any) -> None:
        self.context = context
        self.store = context.get_state_store(self._name)

    def process(self, record: StreamRecord) -> None:
        self.context.forward(record.with_value(plus(record.value, self.store.get(record.key))))


class Counting:
    """Counts by key in a store, and forwards a record with another key."""

    def __init__(self, name: str) -> None:
        self._name = name

    def init(self, context: Any) -> None:
        self.context = context
        self.store = context.get_state_store(self._name)

    def process(self, record: StreamRecord) -> None:
        number = str(int(self.store.get(record.key) or 0) + 1)
        self.store.put(record.key, number)
        self.context.forward(record.with_key(f"{record.key}#{number}"))


class Before:
    """Replaces a value by the one before it of the same key, and itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def init(self, context: Any) -> None:
        self.context = context
        self.store = context.get_state_store(self._name)

    def process(self, record: StreamRecord) -> None:
        before = self.store.get(record.key)
        self.store.put(record.key, record.value)
        self.context.forward(record.with_value(plus(f"{'null' if before is None else before}>", record.value)))


def processed(b: StreamsBuilder) -> None:
    store = stored("N")
    b.add_state_store(store).stream("a").process(partial(Counting, store.name), store.name).to("out")


def processed_values(b: StreamsBuilder) -> None:
    store = stored("P")
    b.add_state_store(store).stream("a").process_values(partial(Before, store.name), store.name).to("out")


def by_value(b: StreamsBuilder, topic: str) -> Any:
    return b.stream(topic).filter(lambda k, v: v is not None).select_key(lambda k, v: v)


def global_store(b: StreamsBuilder) -> None:
    store = stored("G").with_logging_disabled()
    b.add_global_store(store, "b", None, partial(Keeping, store.name))
    b.stream("a").process(partial(Looking, store.name)).to("out")


def appending(b: StreamsBuilder, **how: Any) -> Any:
    store = stored("T")
    return b.add_state_store(store).table("a").transform_values(partial(Appending, store.name), store.name, **how)


TUMBLING = TimeWindows.of_size_and_grace(20, 10)
SESSIONS = SessionWindows.of_inactivity_gap_and_grace(8, 20)
SLIDING = SlidingWindows.of_time_difference_and_grace(20, 30)
FINAL = EmitStrategy.on_window_close()
# Without a long retention, Kafka loses windows whose retention ends in the same step as the window.
LONG_RETENTION = Materialized.with_().with_retention(10_000)
LIMITED = Suppressed.until_time_limit(15, BufferConfig.max_records(3))
JOIN = JoinWindows.of_time_difference_and_grace(10, 20)

CASES: dict[str, Callable[[StreamsBuilder], Any]] = {
    "count": lambda b: b.stream("a").group_by_key().count().to_stream().map_values(text).to("out"),
    "group_by": lambda b: (
        b.stream("a")
        .group_by(lambda k, v: "n" if v is None else v)
        .count(Materialized.as_("Counts"))
        .to_stream()
        .map_values(text)
        .to("out")
    ),
    "reduce": lambda b: b.stream("a").group_by_key().reduce(plus).to_stream().to("out"),
    "aggregate": lambda b: (
        b.stream("a").group_by_key().aggregate(lambda: "", lambda k, v, s: s + v).to_stream().to("out")
    ),
    "stateless": stateless,
    "branch": branch,
    "merge": lambda b: b.stream("a").merge(b.stream("b")).to("out"),
    "repartition": lambda b: (
        b.stream("a").repartition(Repartitioned.with_()).group_by_key().count().to_stream().map_values(text).to("out")
    ),
    "tumbling": lambda b: (
        b.stream("a").group_by_key().windowed_by(TUMBLING).count().to_stream(w).map_values(text).to("out")
    ),
    "hopping": lambda b: (
        b.stream("a")
        .group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(20, 15).advance_by(5))
        .reduce(plus)
        .to_stream(w)
        .to("out")
    ),
    "sliding": lambda b: (
        b.stream("a")
        .group_by_key()
        .windowed_by(SlidingWindows.of_time_difference_and_grace(20, 30))
        .aggregate(lambda: "", lambda k, v, s: s + v)
        .to_stream(w)
        .to("out")
    ),
    "sliding_early": lambda b: (
        b.stream("a")
        .group_by_key()
        .windowed_by(SlidingWindows.of_time_difference_and_grace(5000, 3000))
        .count()
        .to_stream(w)
        .map_values(text)
        .to("out")
    ),
    "session": lambda b: (
        b.stream("a").group_by_key().windowed_by(SESSIONS).count().to_stream(w).map_values(text).to("out")
    ),
    "session_reduce": lambda b: b.stream("a").group_by_key().windowed_by(SESSIONS).reduce(plus).to_stream(w).to("out"),
    "suppress": lambda b: (
        b.stream("a")
        .group_by_key()
        .windowed_by(TUMBLING)
        .count()
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_stream(w)
        .map_values(text)
        .to("out")
    ),
    "suppress_time": lambda b: (
        b.table("a").suppress(Suppressed.until_time_limit(15, BufferConfig.max_records(3))).to_stream().to("out")
    ),
    "stream_join": lambda b: b.stream("a").join(b.stream("b"), plus, JOIN).to("out"),
    "stream_left_join": lambda b: b.stream("a").left_join(b.stream("b"), plus, JOIN).to("out"),
    "stream_outer_join": lambda b: b.stream("a").outer_join(b.stream("b"), plus, JOIN.before(5)).to("out"),
    "table_join_stream": lambda b: b.stream("a").join(b.table("b"), plus).to("out"),
    "table_left_join_stream": lambda b: (
        b.stream("a").select_key(lambda k, v: k).left_join(b.table("b"), plus).to("out")
    ),
    "global_join": lambda b: b.stream("a").join(b.global_table("b"), lambda k, v: k, plus).to("out"),
    "tables_join": lambda b: b.table("a").join(b.table("b"), plus).to_stream().to("out"),
    "tables_left_join": lambda b: b.table("a").left_join(b.table("b"), plus).to_stream().to("out"),
    "tables_outer_join": lambda b: (
        b.table("a").outer_join(b.table("b"), plus, Materialized.as_("J")).to_stream().to("out")
    ),
    "table_filter": lambda b: b.table("a").filter(lambda k, v: v != "v1").to_stream().to("out"),
    "table_filter_store": lambda b: (
        b.table("a")
        .filter(lambda k, v: v != "v1", Materialized.as_("F"))
        .map_values(lambda v: v + "!")
        .to_stream()
        .to("out")
    ),
    "table_group": lambda b: b.table("a").group_by(lambda k, v: (v, k)).count().to_stream().map_values(text).to("out"),
    "table_group_aggregate": lambda b: (
        b.table("a")
        .filter(lambda k, v: v != "v3")
        .group_by(lambda k, v: (v, k))
        .aggregate(lambda: "", lambda k, v, s: f"{s}+{v}", lambda k, v, s: f"{s}-{v}")
        .to_stream()
        .to("out")
    ),
    "table_group_reduce": lambda b: (
        b.table("a")
        .group_by(lambda k, v: (k, v))
        .reduce(lambda x, y: f"{x}+{y}", lambda x, y: f"{x}-{y}")
        .to_stream()
        .to("out")
    ),
    "to_table": lambda b: b.stream("a").to_table().to_stream().to("out"),
    "fk_join": lambda b: b.table("a").join(b.table("b"), foreign, plus).to_stream().to("out"),
    "fk_left_join": lambda b: b.table("a").left_join(b.table("b"), foreign, plus).to_stream().to("out"),
    "fk_join_grouped": lambda b: (
        b.table("a")
        .filter(lambda k, v: v != "v1")
        .join(
            b.table("b").map_values(lambda v: v + "!"), foreign, plus, TableJoined.as_("named"), Materialized.as_("FK")
        )
        .group_by(lambda k, v: (v, k))
        .count()
        .to_stream()
        .map_values(text)
        .to("out")
    ),
    "cogroup": lambda b: (
        b.stream("a")
        .group_by_key()
        .cogroup(append)
        .cogroup(b.stream("b").group_by_key(), append_slash)
        .aggregate(str)
        .to_stream()
        .to("out")
    ),
    "cogroup_regrouped": lambda b: (
        b.stream("a")
        .group_by(lambda k, v: "n" if v is None else v)
        .cogroup(append)
        .cogroup(b.stream("b").group_by_key(), append_slash)
        .aggregate(str, Materialized.as_("C"), Named.as_("both"))
        .to_stream()
        .to("out")
    ),
    "cogroup_tumbling": lambda b: cogrouped(b).windowed_by(TUMBLING).aggregate(str).to_stream(w).to("out"),
    "cogroup_sliding": lambda b: cogrouped(b).windowed_by(SLIDING).aggregate(str).to_stream(w).to("out"),
    "cogroup_session": lambda b: (
        cogrouped(b).windowed_by(SESSIONS).aggregate(str, lambda k, x, y: f"{x}+{y}").to_stream(w).to("out")
    ),
    "final_tumbling": lambda b: (
        b.stream("a")
        .group_by_key()
        .windowed_by(TUMBLING)
        .emit_strategy(FINAL)
        .count(LONG_RETENTION)
        .to_stream(w)
        .map_values(text)
        .to("out")
    ),
    "final_hopping": lambda b: (
        b.stream("a")
        .group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(20, 15).advance_by(5))
        .emit_strategy(FINAL)
        .reduce(plus, LONG_RETENTION)
        .to_stream(w)
        .to("out")
    ),
    "final_sliding": lambda b: (
        b.stream("a")
        .group_by_key()
        .windowed_by(SLIDING)
        .emit_strategy(FINAL)
        .aggregate(str, append, LONG_RETENTION)
        .to_stream(w)
        .to("out")
    ),
    "final_session": lambda b: (
        b.stream("a")
        .group_by_key()
        .windowed_by(SESSIONS)
        .emit_strategy(FINAL)
        .count(LONG_RETENTION)
        .to_stream(w)
        .map_values(text)
        .to("out")
    ),
    "final_grouped": lambda b: (
        b.stream("a")
        .group_by_key()
        .windowed_by(TUMBLING)
        .emit_strategy(FINAL)
        .count(LONG_RETENTION)
        .group_by(lambda k, v: (k.key, str(v)), Grouped.with_(Serdes.String(), Serdes.String()))
        .reduce(lambda x, y: f"{x}+{y}", lambda x, y: f"{x}-{y}")
        .to_stream()
        .to("out")
    ),
    "join_suppressed": lambda b: b.table("a").suppress(LIMITED).join(b.table("b"), plus).to_stream().to("out"),
    "join_suppressed_filter": lambda b: (
        b.table("b")
        .outer_join(b.table("a").filter(lambda k, v: v != "v1").suppress(LIMITED).map_values(lambda v: v + "!"), plus)
        .to_stream()
        .to("out")
    ),
    "stream_join_suppressed": lambda b: b.stream("b").left_join(b.table("a").suppress(LIMITED), plus).to("out"),
    "versioned_join_stream": lambda b: b.stream("a").left_join(versioned(b, "b", "V"), plus).to("out"),
    "versioned_join_grace": lambda b: (
        b.stream("a").join(versioned(b, "b", "V"), plus, Joined.with_(name="late", grace_period=10)).to("out")
    ),
    "versioned_join": lambda b: versioned(b, "a", "V").left_join(versioned(b, "b", "W"), plus).to_stream().to("out"),
    "versioned_join_mapped": lambda b: (
        versioned(b, "a", "V")
        .filter(lambda k, v: v != "v1")
        .map_values(lambda v: v + "!")
        .join(b.table("b"), plus)
        .to_stream()
        .to("out")
    ),
    "versioned_group": lambda b: (
        versioned(b, "a", "V").group_by(lambda k, v: (v, k)).count().to_stream().map_values(text).to("out")
    ),
    "versioned_fk_join": lambda b: (
        versioned(b, "a", "V").left_join(versioned(b, "b", "W"), foreign, plus).to_stream().to("out")
    ),
    "versioned_to_stream": lambda b: versioned(b, "a", "V").filter(lambda k, v: v != "v1").to_stream().to("out"),
    "versioned_aggregate": lambda b: (
        b.stream("a").join(b.stream("b").group_by_key().count(Materialized.as_(history("V"))), plus).to("out")
    ),
    "transform_values": lambda b: appending(b).to_stream().to("out"),
    "transform_values_store": lambda b: (
        appending(b, materialized=Materialized.as_(_store_prefix[0] + "M"), named=Named.as_("appending"))
        .filter(lambda k, v: not v.startswith("v1"))
        .to_stream()
        .to("out")
    ),
    "transform_values_join": lambda b: (
        b.table("a").left_join(b.table("b").transform_values(Filling), plus).to_stream().to("out")
    ),
    "transform_values_group": lambda b: (
        b.table("a")
        .transform_values(Filling, materialized=Materialized.with_(Serdes.String(), Serdes.String()))
        .group_by(lambda k, v: (k, v))
        .reduce(lambda x, y: f"{x}+{y}", lambda x, y: f"{x}-{y}")
        .to_stream()
        .to("out")
    ),
    "table_filter_kept": lambda b: (
        b.table("a", None, Materialized.as_("K")).filter(lambda k, v: v != "v1").to_stream().to("out")
    ),
    "count_filter": lambda b: (
        b.stream("a").group_by_key().count().filter(lambda k, v: v > 3).map_values(text).to_stream().to("out")
    ),
    "global_store": global_store,
    "pattern": lambda b: b.stream(re.compile("[ab]")).group_by_key().count().to_stream().map_values(text).to("out"),
    "expressions": lambda b: (
        b.stream("a")
        .filter(col("value").is_not_null() & ~col("key").startswith("k3"))
        .filter_not((col("value") == "v1") | col("value").is_in("v2", "v2x"))
        .map_values(col("value").upper() + "/" + col("key"))
        .flat_map_values(col("value").split("/"))
        .select_key(col("key") + col("value").lower())
        .to("out")
    ),
    "expressions_of_null": lambda b: (
        b.stream("b").filter_not(col("value") < "v2").map_values(col("value") + "!").to("out")
    ),
    "join_of_count": lambda b: b.stream("a").join(b.stream("b").group_by_key().count(), plus).to("out"),
    "global_left_join": lambda b: (
        b.stream("a").left_join(b.global_table("b"), lambda k, v: "n" if v is None else f"k{v[1]}", plus).to("out")
    ),
    "process": processed,
    "process_values": processed_values,
    "repartition_number": lambda b: (
        b.stream("a")
        .repartition(Repartitioned.as_(_store_prefix[0] + "five").with_number_of_partitions(5))
        .map_values(lambda v: plus(v, "!"))
        .to("out")
    ),
    "group_by_windowed": lambda b: (
        b.stream("a")
        .group_by(lambda k, v: "n" if v is None else v)
        .windowed_by(TimeWindows.of_size_and_grace(50, 100_000))
        .count()
        .to_stream(w)
        .map_values(text)
        .to("out")
    ),
    "stream_join_rekeyed": lambda b: (
        by_value(b, "a")
        .join(
            by_value(b, "b").map_values(lambda v: f"b{v}"), plus, JoinWindows.of_time_difference_and_grace(5, 100_000)
        )
        .to("out")
    ),
    "hopping_aggregate": lambda b: (
        b.stream("a")
        .group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(30, 20).advance_by(10))
        .aggregate(str, append)
        .to_stream(w)
        .to("out")
    ),
}


def topology_of(name: str) -> Any:
    builder = StreamsBuilder()
    CASES[name](builder)
    return builder.build()


def described(name: str) -> list[str]:
    """Return the topology as Kafka prints it, without functions that choose topics, for which Kafka
    prints the class name."""
    return [line.split(" (extractor")[0] for line in str(topology_of(name).describe()).splitlines()]


def driven(name: str, cache: int = 0, records: list[Record] | None = None) -> list[str]:
    """Return the output of the TopologyTestDriver as Kafka's probe prints it."""
    return [
        f"{topic} {key} {'null' if value is None else value} {timestamp}"
        for topic, key, value, timestamp in driven_records(name, cache, records)
    ]


def driven_records(name: str, cache: int = 0, records: list[Record] | None = None) -> list[Record]:
    """Return the output of the TopologyTestDriver: topic, key, value and time of each record.
    Topics are in alphabetical order."""
    output: list[Record] = []
    with TopologyTestDriver(topology_of(name), {"cache.max.bytes.buffering": cache}) as driver:
        for topic, key, value, timestamp in records or RECORDS:
            if name == "pattern" or topic in driver.source_topics():
                driver.create_input_topic(topic).pipe_input(key, value, timestamp)
        for topic in sorted(topic for topic in driver.producer_topics() if topic.startswith("out")):
            for record in driver.create_output_topic(topic).read_records_to_list():
                output.append((topic, record.key, record.value, record.timestamp))
    return output


class CaseTopology(Topology):
    """A topology of many cases. The topics of a case have its name as a prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.case = ""
        self.output = ""

    def add_node(self, node: Any) -> None:
        if isinstance(node, SourceNode):
            pattern = None
            if node.pattern is not None:
                pattern = re.compile(re.escape(f"{self.case}.") + node.pattern.pattern)
            topics = tuple(self._prefixed(topic, self.case) for topic in node.topics)
            node = replace(node, topics=topics, pattern=pattern)
        elif isinstance(node, SinkNode):
            node = replace(node, topic=self._prefixed(node.topic, self.output))
        super().add_node(node)

    def _prefixed(self, topic: Any, prefix: str) -> Any:
        if topic in self.internal_topics:
            return topic
        return f"{prefix}.{topic}" if isinstance(topic, str) else lambda *arguments: f"{prefix}.{topic(*arguments)}"


def topology_of_all(names: list[str], prefix: str, outputs: str | None = None) -> Topology:
    """Return a topology of these cases, whose topics have `prefix` and the name of the case before
    their own names; those that it writes have `outputs` instead of `prefix`."""
    builder = StreamsBuilder()
    builder.topology = topology = CaseTopology()
    for name in names:
        topology.case, topology.output = f"{prefix}.{name}", f"{outputs or prefix}.{name}"
        _store_prefix[0] = f"{name}-"
        CASES[name](builder)
    _store_prefix[0] = ""
    return topology


def last_by_key(lines: list[str]) -> dict[str, str]:
    """Return the final state of a table. A count of 0 equals no entry."""
    last = {}
    for line in lines:
        _, key, value, _ = line.split(" ")
        last[key] = value
    return {key: value for key, value in last.items() if value not in ("null", "0")}


def in_time(records: list[Record]) -> list[Record]:
    """Order records as a task of Kafka does: the next record is from the topic with the oldest
    record."""
    queues = {topic: [record for record in records if record[0] == topic] for topic in ("a", "b")}
    ordered = []
    while any(queues.values()):
        topic = min((t for t in queues if queues[t]), key=lambda t: (queues[t][0][3], t))
        ordered.append(queues[topic].pop(0))
    return ordered


class Parking:
    """A production exception handler that writes to the dead letter queue what was not written."""

    def configure(self, config: Any) -> None:
        self.topic = config["errors.dead.letter.queue.topic.name"]

    def handle_error(self, context: Any, record: Any, error: Exception) -> Response:
        return Response.resume([ProducerRecord(self.topic, b"parked", record.key)])


class Passing:
    """A processor without punctuators."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        self.context.forward(record)


class CountReporter:
    """Counts by key in a store and forwards all counts every second of the wall clock."""

    def init(self, context: Any) -> None:
        self.context = context
        self.store = context.get_state_store("counts")
        context.schedule(1000, PunctuationType.WALL_CLOCK_TIME, self.report)

    def process(self, record: StreamRecord) -> None:
        self.store.put(record.key, (self.store.get(record.key) or 0) + 1)

    def report(self, timestamp: int) -> None:
        for key, count in self.store.all():
            self.context.forward(StreamRecord(key, str(count), timestamp))
