"""Streams on Spark: a topology has the same output as in the plain-Python model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, NewTopic, OffsetSpec, Producer, TopicPartition
from kavka.streams import (
    KafkaStreams,
    Materialized,
    Produced,
    QueryableStoreTypes,
    Serdes,
    StoreQueryParameters,
    Stores,
    StreamsBuilder,
    Topology,
    col,
)
from tests.support import streams_cases
from tests.support.our_consumer import read_all
from tests.support.processes import wait_until
from tests.support.targets import Target
from tests.support.tools import run_kavka

STREAMS_MD = Path(__file__).resolve().parents[2] / "docs" / "streams.md"

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.records]


@pytest.fixture
def admin(target: Target) -> Iterator[Admin]:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


def lasting(topic: str, partitions: int) -> NewTopic:
    """A topic without retention, for records with old timestamps."""
    return NewTopic(topic, partitions, configs={"retention.ms": "-1"})


def fill(target: Target, topic: str, records: Any) -> None:
    """Produces records (key, value, timestamp)."""
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for key, value, timestamp in records:
            producer.send(topic, value=value, key=key, timestamp=timestamp)


def emptied(admin: Admin, topics: list[str]) -> bool:
    """Whether records were written to each topic and all of them are deleted."""
    described = admin.describe_topics(topics) if topics else {}
    partitions = [
        TopicPartition(description.name, p.partition)
        for description in described.values()
        for p in description.partitions
    ]
    first = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))
    last = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))
    written = {tp.topic for tp in partitions if last[tp].offset > 0}
    return all(first[tp].offset == last[tp].offset for tp in partitions) and written == set(topics)


def word_count(source: str, output: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    (
        builder.stream(source)
        .flat_map_values(lambda line: line.lower().split(" "))
        .group_by(lambda key, word: word)
        .count(Materialized.as_("counts"))
        .to_stream()
        .to(output, Produced.with_(Serdes.String(), Serdes.Long()))
    )
    return builder


def config(target: Target, name: str, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": target.bootstrap_servers,
        "application.id": name,
        "state.dir": str(folder),
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def test_the_word_count_counts_words(spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path) -> None:
    output = f"{topic}-out"
    admin.create_topics([lasting(topic, 2), lasting(output, 2)])
    fill(target, topic, [(None, b"all streams lead to kavka", 1000), (None, b"Hello kavka streams", 2000)])
    settings = config(target, f"app-{topic}", tmp_path)
    streams = KafkaStreams(word_count(topic, output).build(), settings, spark)
    seen: list[tuple[str, str]] = []
    streams.set_state_listener(lambda new, old: seen.append((old, new)))
    streams.start()
    try:
        assert streams.state() == "RUNNING"
        streams.process_all_available()
        counts = {record.key.decode(): int.from_bytes(record.value) for record in read_all(target, output)}
        assert counts == {"all": 1, "streams": 2, "lead": 1, "to": 1, "kavka": 2, "hello": 1}
        fill(target, topic, [(None, b"all the rest", 3000)])
        streams.process_all_available()
        records = read_all(target, output)
        assert len(records) == 9
        again = next(record for record in records if record.key == b"all" and record.value == (2).to_bytes(8))
        assert again.timestamp == 3000
        offsets = admin.list_consumer_group_offsets(f"app-{topic}")
        assert sum(offset.offset for offset in offsets.values()) == 3
        counts_of_words(streams)
        measured(streams, topic)
    finally:
        assert streams.close()
    # The listener is called after the state has changed.
    wait_until(lambda: len(seen) == 4, timeout=30, what="the last call of the listener")
    assert [new for _, new in seen] == ["REBALANCING", "RUNNING", "PENDING_SHUTDOWN", "NOT_RUNNING"]
    fill(target, topic, [(None, b"all again", 4000)])
    with KafkaStreams(word_count(topic, output).build(), settings, spark) as more:
        more.process_all_available()
    last = {
        record.key: int.from_bytes(record.value)
        for record in sorted(read_all(target, output), key=lambda r: r.timestamp)
    }
    assert last[b"all"] == 3
    assert last[b"again"] == 1
    uncached = KafkaStreams(word_count(topic, output).build(), {**settings, "cache.max.bytes.buffering": 0}, spark)
    fill(target, topic, [(None, b"all all", 5000)])
    with uncached:
        uncached.process_all_available()
    counts = [int.from_bytes(record.value) for record in read_all(target, output) if record.timestamp == 5000]
    assert counts == [4, 5]


def measured(streams: KafkaStreams, topic: str) -> None:
    """When three lines were read, in at least two micro-batches, and eight words counted."""
    wait_until(lambda: streams.metrics().get("process-total") == 3, timeout=120, what="the last batch's progress")
    metrics = streams.metrics()
    assert (metrics["client-state"], metrics["alive-stream-threads"], metrics["failed-stream-threads"]) == (2, 1, 0)
    assert metrics["process-total"] == 3
    assert metrics["commit-total"] >= 2
    assert 1 <= metrics["process-records-avg"] <= metrics["process-records-max"] <= 3
    for name in ("process-rate", "commit-rate", "process-latency-avg", "commit-latency-max", "state-memory-bytes"):
        assert metrics[name] > 0, name
    assert metrics["state-rows"] > 0
    assert metrics["process-latency-max"] <= metrics["batch-latency-max"]
    assert [metrics[f"records-lag:{{partition={number}, topic={topic}}}"] for number in (0, 1)] == [0, 0]
    assert (metrics["records-lag-max"], metrics["active-tasks"]) == (0, 4)


def counts_of_words(streams: KafkaStreams) -> None:
    """The store, when "all streams lead to kavka", "Hello kavka streams" and "all the rest" were
    counted."""
    parameters = StoreQueryParameters.from_name_and_type("counts", QueryableStoreTypes.key_value_store())
    store = streams.store(parameters)
    assert (store.get("all"), store.get("rest"), store.get("nothing")) == (2, 1, None)
    assert list(store.range("kavka", "rest")) == [("kavka", 2), ("lead", 1), ("rest", 1)]
    assert [key for key, _ in store.reverse_all()] == ["to", "the", "streams", "rest", "lead", "kavka", "hello", "all"]
    assert store.approximate_num_entries() == 8
    by_partition = [dict(streams.store(parameters.with_partition(number)).all()) for number in (0, 1)]
    assert by_partition[0] | by_partition[1] == dict(store.all())
    for word in ("all", "kavka", "rest"):
        assert word in by_partition[streams.query_metadata_for_key("counts", word, Serdes.String()).partition]
    stamped = StoreQueryParameters.from_name_and_type("counts", QueryableStoreTypes.timestamped_key_value_store())
    assert streams.store(stamped).get("all") == (2, 3000)


def test_expressions_and_branches_continue_with_the_state_of_functions(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    output, copy = f"{topic}-out", f"{topic}-copy"
    admin.create_topics([lasting(topic, 1), lasting(output, 1), lasting(copy, 1)])
    fill(target, topic, [(None, b"a a", 1000)])
    settings = config(target, f"app-{topic}", tmp_path)
    with KafkaStreams(word_count(topic, output).build(), settings, spark) as streams:
        streams.process_all_available()
    fill(target, topic, [(None, b"a", 2000)])
    builder = StreamsBuilder()
    lines = builder.stream(topic)
    lines.to(copy)
    words = lines.flat_map_values(col("value").lower().split(" ")).peek(lambda key, word: None)
    counts = words.group_by(col("value")).count(Materialized.as_("counts"))
    counts.to_stream().to(output, Produced.with_(Serdes.String(), Serdes.Long()))
    with KafkaStreams(builder.build(), settings, spark) as streams:
        streams.process_all_available()
    assert [int.from_bytes(record.value) for record in read_all(target, output)] == [2, 3]
    assert [record.value for record in read_all(target, copy)] == [b"a"]


def test_after_a_reset_an_application_starts_at_the_offsets_that_the_tool_set(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    output, application = f"{topic}-out", f"app-{topic}"
    admin.create_topics([lasting(topic, 1), lasting(output, 1)])
    in_2026 = 1_767_225_600_000
    fill(target, topic, [(b"k", b"a", in_2026 - 1), *((b"k", word, in_2026) for word in (b"a", b"b", b"a"))])
    builder = StreamsBuilder()
    by_word = builder.stream(topic).repartition().group_by(lambda key, word: word)
    by_word.count().to_stream().to(output, Produced.with_(Serdes.String(), Serdes.Long()))
    streams = KafkaStreams(builder.build(), config(target, application, tmp_path), spark)
    with streams:
        streams.process_all_available()
    counts = [(record.key, int.from_bytes(record.value)) for record in read_all(target, output)]
    assert dict(counts) == {b"a": 3, b"b": 1}
    own = [name for name in admin.list_topics() if name.startswith(f"{application}-")]
    (documented,) = re.findall("^kavka (streams-application-reset .*)$", STREAMS_MD.read_text(), re.MULTILINE)
    here = {"localhost:9092": target.bootstrap_servers, "wordCountApp": application, "streams-plaintext-input": topic}
    done = run_kavka(*(here.get(word, word) for word in documented.split()))
    assert done.code == 0, done.err
    assert f"Topic: {topic} Partition: 0 Offset: 1\nDone.\nDeleting inferred internal topics [{own[0]}]" in done.out
    assert "KafkaStreams.clean_up()" in done.err
    wait_until(lambda: own[0] not in admin.list_topics(), timeout=60, what="the end of its own topic")
    again = KafkaStreams(builder.build(), config(target, application, tmp_path), spark)
    again.clean_up()
    with again:
        again.process_all_available()
    later = [(record.key, int.from_bytes(record.value)) for record in read_all(target, output)][len(counts) :]
    assert dict(later) == {b"a": 2, b"b": 1}


def as_lines(records: list[Any], topic: str) -> list[str]:
    return [
        f"{topic} {record.key.decode()} {'null' if record.value is None else record.value.decode()} {record.timestamp}"
        for record in records
    ]


# With a global store, or something that may be called by time, all of a topology runs in another
# way.
APART = [case for case in streams_cases.CASES if case.startswith(("global_", "transform_"))]
# Its results come from several partitions, which have no common order.
TOGETHER = [case for case in streams_cases.CASES if case not in (*APART, "repartition_number")]


@pytest.mark.parametrize("names", [TOGETHER, APART])
def test_every_operator_has_the_same_output_on_spark_as_in_the_model(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path, names: list[str]
) -> None:
    outputs = ["out", "out1", "out2", "out3", *(f"out-k{number}" for number in range(4))]
    made = [f"{topic}.{name}.{suffix}" for name in names for suffix in ("a", "b", *outputs)]
    admin.create_topics([lasting(name, 1) for name in made], timeout=60)
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for name in names:
            for source, key, value, timestamp in streams_cases.RECORDS:
                data = None if value is None else value.encode()
                producer.send(f"{topic}.{name}.{source}", value=data, key=key.encode(), timestamp=timestamp)
    topology = streams_cases.topology_of_all(names, topic)
    application = f"app-{topic}"
    more = {"cache.max.bytes.buffering": 0, "repartition.purge.interval.ms": 0}
    with KafkaStreams(topology, config(target, application, tmp_path, **more), spark) as streams:
        streams.process_all_available()
        own = [name for name in admin.list_topics() if name.startswith(f"{application}-")]
        assert own
        wait_until(lambda: emptied(admin, own), timeout=120, what="the application's own topics empty", interval=0.5)
    wrong = {}
    for name in names:
        records = streams_cases.in_time(streams_cases.RECORDS)
        if name.startswith("global_"):
            records.sort(key=lambda record: record[0] != "b")
        expected = streams_cases.driven(name, 0, records)
        output_lines = []
        for case in sorted({line.split(" ")[0] for line in expected}):
            output_lines += as_lines(read_all(target, f"{topic}.{name}.{case}"), case)
        if name in ("stateless", "merge"):
            # Stateless operators run partition by partition: the order is only defined within one.
            output_lines, expected = sorted(output_lines), sorted(expected)
        if "fk_" in name:
            # The two sides meet by topics: intermediate results of a table depend on the order, the
            # final result does not.
            if streams_cases.last_by_key(expected) != streams_cases.last_by_key(output_lines):
                wrong[name] = (len(output_lines), len(expected), [])
            continue
        if output_lines != expected:
            pairs = zip(output_lines, expected, strict=False)
            wrong[name] = (len(output_lines), len(expected), [pair for pair in pairs if pair[0] != pair[1]][:1])
    assert not wrong


def test_a_backlog_is_joined_with_the_table_of_its_time(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    table, output = f"{topic}-table", f"{topic}-out"
    admin.create_topics([lasting(name, 2) for name in (topic, table, output)])
    fill(target, table, [(str(key).encode(), b"old", 1000 + key) for key in range(100)])
    fill(target, topic, [(str(number % 100).encode(), b"value", 5000 + number) for number in range(300)])
    fill(target, table, [(str(key).encode(), b"new", 9000 + key) for key in range(100)])
    builder = StreamsBuilder()
    builder.stream(topic).join(builder.table(table), lambda value, other: other).to(output)
    settings = config(target, f"app-{topic}", tmp_path, max_records_per_batch=120)
    with KafkaStreams(builder.build(), settings, spark) as streams:
        streams.process_all_available()
    assert [record.value for record in read_all(target, output)] == [b"old"] * 300


def test_a_processor_is_called_by_the_wall_clock_without_new_records(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    output = f"{topic}-out"
    admin.create_topics([lasting(topic, 1), lasting(output, 1)])
    fill(target, topic, [(b"a", b"x", 1000), (b"b", b"x", 1000), (b"a", b"x", 1000)])
    counts = Stores.key_value_store_builder(Stores.persistent_key_value_store("counts"), Serdes.String(), Serdes.Long())
    topology = (
        Topology()
        .add_source("source", topic)
        .add_processor("telling", streams_cases.CountReporter, "source")
        .add_state_store(counts, "telling")
        .add_sink("sink", output, "telling")
    )
    with KafkaStreams(topology, config(target, f"app-{topic}", tmp_path), spark) as streams:

        def punctuations() -> int:
            assert streams.state() == "RUNNING", streams.exception()
            return len([record for record in read_all(target, output) if (record.key, record.value) == (b"a", b"2")])

        wait_until(lambda: punctuations() >= 2, timeout=200, what="two punctuations", interval=0.5)
    assert (b"b", b"1") in {(record.key, record.value) for record in read_all(target, output)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cached", [pytest.param(False, marks=pytest.mark.matrix), True])
def test_a_killed_driver_loses_and_duplicates_no_record(
    target: Target, admin: Admin, topic: str, tmp_path: Path, cached: bool
) -> None:
    """Counted one by one by tasks; cached, by Spark itself, with one result for a word and
    micro-batch."""
    output = f"{topic}-out"
    admin.create_topics([lasting(topic, 2), lasting(output, 2)])
    words = [f"w{number % 7} w{number % 3}" for number in range(400)]
    fill(target, topic, [(str(index).encode(), line.encode(), 1000 + index) for index, line in enumerate(words)])
    argv = [sys.executable, "-m", "tests.support.streams_job", target.bootstrap_servers, topic, output, str(tmp_path)]
    argv += ["cache.max.bytes.buffering=1000000", "max.records.per.batch=100"] if cached else []
    expected = Counter(word.encode() for line in words for word in line.split(" "))

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "job.log").open("ab") as log:
            return subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)

    def kill(process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def written() -> dict[bytes, list[int]]:
        counts: dict[bytes, list[int]] = defaultdict(list)
        for record in read_all(target, output):
            counts[record.key].append(int.from_bytes(record.value))
        return counts

    def counted(process: subprocess.Popen[bytes]) -> int:
        assert process.poll() is None, (tmp_path / "job.log").read_text()[-3000:]
        return sum(max(offsets) for offsets in written().values())

    first = start()
    try:
        wait_until(lambda: counted(first) > 0, timeout=400, what="counts", interval=0.5)
    finally:
        kill(first)
    assert sum(map(max, written().values())) < 2 * len(words), "it was done before it was killed: nothing is shown"
    second = start()
    try:
        wait_until(lambda: counted(second) >= 2 * len(words), timeout=400, what="counts", interval=0.5)
    finally:
        kill(second)
    counts = written()
    if cached:
        assert {key: max(count) for key, count in counts.items()} == expected
        assert all(len(set(count)) == len(count) for count in counts.values()), "none twice"
    else:
        assert {key: sorted(count) for key, count in counts.items()} == {
            key: list(range(1, count + 1)) for key, count in expected.items()
        }
