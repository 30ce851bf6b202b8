"""Connect tasks on Spark: custom sources and sinks, converters, failing records, retries."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from decimal import Context as Exact
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, ConfigResource, NewTopic, Producer
from kavka.common.types import TopicPartition
from kavka.connect import (
    ConnectError,
    Context,
    Failed,
    IncrementalSource,
    Offsets,
    Option,
    RetriableError,
    Sink,
    Source,
)
from kavka.pipeline.columns.types import MAX_DEPTH, SchemaName
from kavka.pipeline.connect.connectors import batch_files
from kavka.pipeline.connect.connectors.files import FileStreamSource
from kavka.pipeline.connect.flow import Flow
from kavka.pipeline.connect.json_converter import JsonConverter
from kavka.pipeline.connect.loading import Declared
from kavka.pipeline.connect.stores import FileTable, OffsetStore
from kavka.pipeline.connect.tasks import Outcome, Task, Worker
from kavka.pipeline.connect.topic_table import TopicTable
from kavka.pipeline.connect.worker import activate
from tests.support.our_consumer import read_all
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.records]

TIMEOUT_S = 240.0
finished: list[Task] = []
"""The tasks that have ended."""
CAST = {"transforms": "cast", "transforms_cast_type": "Cast$Value"}
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "name", "type": ["null", "string"]},
        {"name": "count", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
    ],
}


class PartitionSink(Sink):
    """Records the Spark partition of each record, and rejects the records with a configured
    value."""

    rows: list[Any] = []
    partitions: list[int] = []

    def write(self, context: Context, records: Any, batch_id: int) -> list[Failed]:
        from pyspark.sql import functions as f

        rows = records.select("topic", "partition", "offset", "value", f.spark_partition_id().alias("task")).collect()
        self.partitions.append(records.rdd.getNumPartitions())
        self.rows.extend(rows)
        rejected = [row for row in rows if row.value == context.given.get("rejected")]
        return [Failed(row.topic, row.partition, row.offset, "bad value") for row in rejected]


class JsonFileSource(Source):
    """A bounded stream: the JSON files of a folder."""

    options = (Option("topic"), Option("folder"))

    def read(self, context: Context) -> Any:
        schema = "key string, value struct<id: bigint, name: string>, timestamp timestamp"
        return context.spark.readStream.schema(schema).json(context["folder"])


class BatchSource(Source):
    """A batch whose records set their topic, partition, headers and timestamp."""

    def read(self, context: Context) -> Any:
        return context.spark.sql(
            "SELECT concat('{0}-', id % 2) AS topic, 0 AS partition, CAST(id AS INT) AS value, 'k' AS key, "
            "array(named_struct('key', 'n', 'value', CAST(CAST(id AS STRING) AS BINARY))) AS headers, "
            "timestamp_millis(1000 + id) AS timestamp FROM range(4)".replace("{0}", context.given["prefix"])
        )


class WideSource(Source):
    """Eight rows of as many Spark partitions: the number of the Spark task that reads the row."""

    options = (Option("topic"),)

    def read(self, context: Context) -> Any:
        def number(batches: Any) -> Any:
            import pyarrow as pa
            from pyspark import TaskContext

            for batch in batches:
                task = str(TaskContext.get().partitionId())  # type: ignore[union-attr]
                yield pa.RecordBatch.from_pydict({"value": [task] * batch.num_rows})

        return context.spark.range(0, 8, 1, 8).mapInArrow(number, "value string")


class GreedySource(WideSource):
    """Has more tasks than it may have."""

    def tasks(self, context: Context) -> int:
        return 9


class CountingSource(IncrementalSource):
    """The numbers below `until` in batches of three."""

    options = (Option("topic"), Option("until"))
    partition_field = "counter"

    def next(self, context: Context, start: Offsets) -> Offsets | None:
        position = start.get("one", {"at": 0})["at"]
        end = min(position + 3, int(context["until"]))
        return {"one": {"at": end}} if end > position else None

    def read_range(self, context: Context, start: Offsets, end: Offsets) -> Any:
        first = start.get("one", {"at": 0})["at"]
        if self.fail_at is not None and first >= self.fail_at:
            raise ConnectError("no more rows")
        return context.spark.range(first, end["one"]["at"]).selectExpr("CAST(id AS STRING) AS value")

    fail_at: int | None = None


class RecordingSink(Sink):
    """Records the rows that it receives and raises the configured failures."""

    rows: list[Any] = []
    types: set[str] = set()
    failures: list[Exception] = []
    exactly_once = True

    def write(self, context: Context, records: Any, batch_id: int) -> None:
        if self.failures:
            raise self.failures.pop(0)
        rows = records.orderBy("offset").collect()
        self.types.add(records.schema["value"].dataType.simpleString())
        self.rows.extend(rows)


@pytest.fixture
def recording_sink() -> Iterator[type[RecordingSink]]:
    RecordingSink.rows, RecordingSink.types, RecordingSink.failures = [], set(), []
    yield RecordingSink


@pytest.fixture
def run(spark: Any, target: Target, tmp_path: Path) -> Callable[..., Outcome]:
    """Return a function that runs a connector with `trigger=available-now` until its task ends."""

    def session() -> Any:
        activate(spark)
        return spark

    def run_connector(cls: Any, name: str, counts: list[int] | None = None, **settings: str) -> Outcome:
        """`counts` receives the published numbers of tasks."""
        ended = threading.Event()
        outcomes: list[Outcome] = []

        def on_end(task: Task, outcome: Outcome) -> None:
            finished.append(task)
            outcomes.append(outcome)
            ended.set()

        properties = {
            "bootstrap.servers": target.bootstrap_servers,
            "key.converter": "StringConverter",
            "value.converter": "StringConverter",
        }
        offsets = OffsetStore(FileTable(tmp_path / "offsets"))
        exactly_once = settings.pop("worker_exactly_once", "") == "true"
        declared = Declared(file_connectors=True)
        checkpoints = str(tmp_path / "points")
        worker = Worker("w:1", properties, session, checkpoints, offsets, exactly_once, declared=declared)
        configuration = {"name": name, "connector.class": cls.__name__, "trigger": "available-now"}
        configuration |= {key.replace("_", "."): value for key, value in settings.items()}
        counts = [] if counts is None else counts
        task = Task(worker, name, cls, configuration, on_end, on_tasks=lambda task: counts.append(task.count))
        task.start()
        assert ended.wait(TIMEOUT_S), f"{name} did not end"
        return outcomes[0]

    return run_connector


@pytest.fixture
def admin(target: Target) -> Iterator[Admin]:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


def test_a_source_transforms_and_produces_records_and_a_sink_reads_them(
    run: Callable[..., Outcome],
    recording_sink: type[RecordingSink],
    target: Target,
    admin: Admin,
    topic: str,
    tmp_path: Path,
) -> None:
    """Each JSON value includes its schema. Keys are derived from values."""
    folder = tmp_path / "rows"
    folder.mkdir()
    rows = [{"key": f"k{n}", "value": {"id": n, "name": f"n{n}" if n else "7"}, "timestamp": "2024-01-02T03:04:05Z"}
            for n in range(3)]  # fmt: skip
    (folder / "a.json").write_text("\n".join(map(json.dumps, rows)))
    json_converter = {"value_converter": "JsonConverter", "key_converter": "IntegerConverter"}
    transforms = {
        "transforms": "key,id,cast,at",
        "transforms_key_type": "ValueToKey",
        "transforms_key_fields": "id",
        "transforms_id_type": "ExtractField$Key",
        "transforms_id_field": "id",
        "transforms_cast_type": "Cast$Value",
        "transforms_cast_spec": "name:string",
        "transforms_at_type": "InsertField$Value",
        "transforms_at_timestamp_field": "at",
    }
    topic_creation = {"topic_creation_default_partitions": "1", "topic_creation_default_replication_factor": "1"}
    settings = {**json_converter, **transforms, **topic_creation}
    outcome = run(JsonFileSource, "rows", topic=topic, folder=str(folder), worker_exactly_once="true", **settings)
    assert outcome.kind == "done", outcome.trace
    records = read_all(target, topic)
    assert sorted(bytes(record.key) for record in records) == [n.to_bytes(4, "big") for n in range(3)]
    first = json.loads(next(record.value for record in records if record.key == bytes(4)))
    assert first["payload"] == {"id": 0, "name": "7", "at": 1704164645000}
    assert [field["type"] for field in first["schema"]["fields"]] == ["int64", "string", "int64"]
    assert first["schema"]["fields"][2]["name"] == "org.apache.kafka.connect.data.Timestamp"
    assert {record.timestamp for record in records} == {1704164645000}

    outcome = run(recording_sink, "back", topics=topic, exactly_once="true", **json_converter)
    assert outcome.kind == "done", outcome.trace
    assert recording_sink.types == {"struct<id:bigint,name:string,at:timestamp>"}
    assert sorted((row.key, row.value.id, row.value.name) for row in recording_sink.rows) == [(0, 0, "7"), (1, 1, "n1"),
                                                                                    (2, 2, "n2")]  # fmt: skip
    assert {row.topic for row in recording_sink.rows} == {topic}
    group = admin.list_consumer_group_offsets("connect-back")
    assert group[TopicPartition(topic, 0)] is not None


def test_an_invalid_record_fails_a_source_or_is_skipped(
    run: Callable[..., Outcome], target: Target, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    rows = [{"key": "a", "value": {"id": 1, "name": "12"}}, {"key": "b", "value": {"id": 2, "name": "no number"}}]
    (folder / "a.json").write_text("\n".join(map(json.dumps, rows)))
    cast = {"transforms": "c", "transforms_c_type": "Cast$Value", "transforms_c_spec": "name:int32"}
    topic_creation = {"topic_creation_default_partitions": "1", "topic_creation_default_replication_factor": "1"}
    settings = {"topic": topic, "folder": str(folder), **cast, **topic_creation}
    outcome = run(JsonFileSource, "strict", **settings)
    assert outcome.kind == "failed"
    assert "TRANSFORMATION" in (outcome.trace or "").splitlines()[0]
    assert "Value (no number) was out of range" in (outcome.trace or "").splitlines()[0]
    assert read_all(target, topic) == []
    assert run(JsonFileSource, "tolerant", errors_tolerance="all", errors_log_enable="true", **settings).kind == "done"
    assert [bytes(record.value) for record in read_all(target, topic)] == [b"Struct{id=1,name=12}"]


def test_a_source_sets_topic_partition_headers_and_time_of_its_records(
    run: Callable[..., Outcome], target: Target, admin: Admin, topic: str
) -> None:
    """Before the first record, topics are created with the settings of their topic creation
    group."""
    topic_creation = {
        "topic_creation_groups": "odd", "topic_creation_odd_include": f"no,{topic}-1",
        "topic_creation_odd_partitions": "3",
        "topic_creation_default_partitions": "2", "topic_creation_default_replication_factor": "1",
        "topic_creation_odd_max_message_bytes": "54321",
    }  # fmt: skip
    outcome = run(BatchSource, "once", prefix=topic, value_converter="LongConverter", **topic_creation)
    assert outcome.kind == "done", outcome.trace
    descriptions = admin.describe_topics([f"{topic}-0", f"{topic}-1"])
    assert [len(description.partitions) for description in descriptions.values()] == [2, 3]
    configs = admin.describe_configs([ConfigResource.topic(f"{topic}-1")])
    assert next(iter(configs.values()))["max.message.bytes"].value == "54321"
    (first, second) = sorted(read_all(target, f"{topic}-1"), key=lambda record: record.timestamp)
    assert (bytes(first.key), bytes(first.value), first.timestamp) == (b"k", (1).to_bytes(8, "big"), 1001)
    assert [(name, bytes(value)) for name, value in second.headers] == [("n", b"3")]


def test_an_incremental_source_resumes_without_duplicates(
    run: Callable[..., Outcome], target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    settings = {"topic": topic, "worker_exactly_once": "true"}
    CountingSource.fail_at = 6
    try:
        outcome = run(CountingSource, "count", until="10", **settings)
        assert outcome.kind == "failed"
        assert "no more rows" in (outcome.trace or "")
    finally:
        CountingSource.fail_at = None
    store = OffsetStore(FileTable(tmp_path / "offsets"))
    assert store.entries("count") == [({"counter": "one"}, {"at": 6})]
    plan = store.plan("count")
    assert plan is not None and not plan.done and (plan.start, plan.end) == ({"one": {"at": 6}}, {"one": {"at": 9}})
    assert run(CountingSource, "count", until="10", **settings).kind == "done"
    # Restore the state of a worker that was killed between a batch and its offsets.
    plan = OffsetStore(FileTable(tmp_path / "offsets")).plan("count")
    assert plan is not None and plan.done
    store = OffsetStore(FileTable(tmp_path / "offsets"))
    store.put("count", "counter", {"one": {"at": 10}}, plan.start)
    store.put_plan("count", plan.number, plan.start, plan.end, done=False, tasks=plan.tasks)
    assert run(CountingSource, "count", until="11", **settings).kind == "done"
    # Several tasks write the rows of a batch concurrently, so their order is not fixed.
    assert sorted(int(bytes(record.value)) for record in read_all(target, topic)) == list(range(11))


def test_lines_of_a_file_are_produced_once_with_and_without_transformations(
    run: Callable[..., Outcome], target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    """Without transformations, lines bypass Spark. A repeated batch produces no duplicates."""
    direct, transformed = f"{topic}-sent", f"{topic}-changed"
    admin.create_topics([NewTopic(name, 1) for name in (direct, transformed)])
    path = tmp_path / "in.log"
    lines = [f"line {number}".encode() for number in range(500)] + ["grün".encode(), b"", b"no UTF-8: \xff", b"end\r"]
    path.write_bytes(b"\n".join(lines) + b"\nincomplete line")
    expected = sorted([*lines[:-2], "no UTF-8: \ufffd".encode(), b"end"])
    insert_header = {"transforms": "h", "transforms_h_type": "InsertHeader", "transforms_h_header": "by",
              "transforms_h_value_literal": "us"}  # fmt: skip
    common = {"file": str(path), "tasks_max": "2", "batch_bytes": "3000", "worker_exactly_once": "true"}
    for name, transforms in ((direct, {}), (transformed, insert_header)):
        outcome = run(FileStreamSource, name, topic=name, **common, **transforms)
        assert outcome.kind == "done", outcome.trace
        # Restore the state of a worker that was killed between the last batch and its offsets.
        store = OffsetStore(FileTable(tmp_path / "offsets"))
        plan = store.plan(name)
        assert plan is not None and plan.done and plan.number == 1
        store.put_plan(name, plan.number, plan.start, plan.end, done=False, tasks=plan.tasks)
        assert run(FileStreamSource, name, topic=name, **common, **transforms).kind == "done"
    records, transformed_records = read_all(target, direct), read_all(target, transformed)
    assert (
        sorted(bytes(record.value) for record in records)
        == sorted(bytes(record.value) for record in transformed_records)
        == expected
    )
    assert {(record.key, tuple(record.headers)) for record in records} == {(None, ())}
    assert {(record.key, tuple(record.headers)) for record in transformed_records} == {(None, (("by", b"us"),))}


def test_the_tasks_of_a_sink_own_topic_partitions(
    run: Callable[..., Outcome], target: Target, admin: Admin, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 3), NewTopic(f"{topic}-dead", 1)])
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for number in range(9):
            # Partition 2 has no records in the first batch.
            producer.send(topic, value=f"{number}", partition=number % 2)
        producer.send(topic, value="text", partition=1)
    counts: list[int] = []
    for tasks, owners in ((1, {0: 0, 1: 0}), (2, {0: 0, 1: 1}), (5, {0: 0, 1: 1})):
        PartitionSink.rows, PartitionSink.partitions = [], []
        outcome = run(PartitionSink, f"parts-{tasks}", counts, topics=topic, tasks_max=str(tasks))
        assert outcome.kind == "done", outcome.trace
        assert PartitionSink.partitions == [min(tasks, 3)]
        assert {row.partition: row.task for row in PartitionSink.rows} == owners
        for partition in owners:
            offsets = [row.offset for row in PartitionSink.rows if row.partition == partition]
            assert offsets == list(range(len(offsets)))
    assert counts == [2, 3]
    outcome = run(PartitionSink, "strict", topics=topic, tasks_max="2", rejected="3")
    assert (outcome.kind, outcome.task) == ("failed", 1)
    assert f"the record at offset 1 of {topic}-1 was rejected: bad value" in (outcome.trace or "")
    outcome = run(PartitionSink, "typed", topics=topic, tasks_max="2", transforms_cast_spec="int32", **CAST)
    assert (outcome.kind, outcome.task) == ("failed", 1), outcome.trace
    assert f"for {topic}-1 at offset 4" in (outcome.trace or "")
    dead = {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": f"{topic}-dead"}
    dead |= {"errors_deadletterqueue_context_headers_enable": "true"}
    assert run(PartitionSink, "dead", topics=topic, tasks_max="2", rejected="3", **dead).kind == "done"
    (letter,) = read_all(target, f"{topic}-dead")
    assert dict(letter.headers)["__connect.errors.task.id"] == b"1"


def test_a_batch_that_runs_again_has_as_many_tasks_as_before(
    run: Callable[..., Outcome], target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic(topic, 4)])
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for number in range(8):
            producer.send(topic, value=f"{number}", partition=number % 4)
    for tasks in (4, 2):
        PartitionSink.rows, PartitionSink.partitions = [], []
        assert run(PartitionSink, "again", topics=topic, tasks_max=str(tasks)).kind == "done"
        assert PartitionSink.partitions == [4]
        # Restore the checkpoint of a worker that was killed in its first batch.
        (tmp_path / "points" / "again" / "query" / "commits" / "0").unlink()
        (tmp_path / "points" / "again" / "query" / "commits" / ".0.crc").unlink(missing_ok=True)


def test_a_source_has_at_most_tasks_max_parts(run: Callable[..., Outcome], target: Target, topic: str) -> None:
    counts: list[int] = []
    assert run(WideSource, "wide", counts, topic=f"{topic}-wide", tasks_max="3").kind == "done"
    assert counts == [3]
    parts = {bytes(record.value) for record in read_all(target, f"{topic}-wide")}
    assert parts == {b"0", b"1", b"2"}
    outcome = run(GreedySource, "greedy", topic=topic, tasks_max="2")
    assert "has generated 9 tasks, which is greater than 2" in (outcome.trace or "")
    outcome = run(GreedySource, "greedy", topic=f"{topic}-wide", tasks_max="2", tasks_max_enforce="false")
    assert outcome.kind == "done", outcome.trace


def test_a_sink_retries_while_the_database_is_unreachable_or_fails_with_the_cause(
    run: Callable[..., Outcome], recording_sink: type[RecordingSink], target: Target, admin: Admin, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        producer.send(topic, value="x")
        producer.send(topic, value=b"no UTF-8: \xff")
    values = ["x", "no UTF-8: \ufffd"]
    recording_sink.failures = [RetriableError("the database is unreachable")] * 2
    patient = {"errors_retry_timeout": "600000", "errors_retry_delay_max_ms": "10"}
    assert run(recording_sink, "patient", topics=topic, **patient).kind == "done"
    assert [row.value for row in recording_sink.rows] == values
    recording_sink.failures = [RetriableError("the database is unreachable")]
    outcome = run(recording_sink, "impatient", topics=topic)
    assert (outcome.kind, "the database is unreachable" in (outcome.trace or "")) == ("failed", True)
    # The next start writes the missing records.
    recording_sink.rows.clear()
    assert run(recording_sink, "impatient", topics=topic).kind == "done"
    assert [row.value for row in recording_sink.rows] == values


def test_avro_and_json_without_schemas_become_columns_and_invalid_records_are_skipped(
    run: Callable[..., Outcome], recording_sink: type[RecordingSink], target: Target, admin: Admin, topic: str
) -> None:
    import io

    from fastavro import schemaless_writer

    admin.create_topics([NewTopic(topic, 1), NewTopic(f"{topic}-json", 1)])
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        buffer = io.BytesIO()
        schemaless_writer(buffer, AVRO, {"id": 5, "name": "five", "count": 1, "price": Decimal("1.25")})
        prefix, id_and_name = b"\0\0\0\0\x07", b"\x02\x0a\x02\x08five"
        encoded = id_and_name + b"\x02" + b"\x02\x7d"
        assert buffer.getvalue() == encoded
        # Invalid records: no Confluent prefix, an int of 36 bits, a decimal of 17 digits, truncated
        # data.
        large_int = id_and_name + b"\x80\x80\x80\x80\x80\x01" + b"\x02\x7d"
        large_decimal = id_and_name + b"\x02" + b"\x0e" + b"\x7f" * 7
        for value in (prefix + encoded, encoded, prefix + large_int, prefix + large_decimal, prefix + id_and_name):
            producer.send(topic, value=value)
        for value in ('{"id": 1, "tags": ["a"]}', '{"id": 2.5, "more": {"x": true}}', None):
            producer.send(f"{topic}-json", value=value)
    avro = {"value_converter": "io.confluent.connect.avro.AvroConverter", "value_converter_schema": json.dumps(AVRO)}
    outcome = run(
        recording_sink, "avro", topics=topic, value_converter_wire_format="confluent", errors_tolerance="all", **avro
    )
    assert outcome.kind == "done", outcome.trace
    assert [tuple(row.value) for row in recording_sink.rows] == [(5, "five", 1, Decimal("1.25"))]
    recording_sink.rows.clear()
    plain = {"value_converter": "JsonConverter", "value_converter_schemas_enable": "false"}
    outcome = run(recording_sink, "json", topics=f"{topic}-json", **plain)
    assert outcome.kind == "done", outcome.trace
    first, second, third = recording_sink.rows
    assert (first.value.id, first.value.tags, first.value.more) == (1.0, ["a"], None)
    assert (second.value.id, second.value.more.x, third.value) == (2.5, True, None)


def test_only_the_record_fails_whose_json_is_nested_too_deep(
    run: Callable[..., Outcome], recording_sink: type[RecordingSink], target: Target, admin: Admin, topic: str
) -> None:
    """JSON with some hundreds of levels would crash the Spark process with all connectors of the
    worker."""
    admin.create_topics([NewTopic(topic, 1), NewTopic(f"{topic}-schemas", 1)])
    deepest = MAX_DEPTH - 1
    plain = [
        b'{"id": 1}',
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"[" * 5000 + b"]" * 5000,
        b'{"deep": ' + b"[" * deepest + b"1" + b"]" * deepest + b"}",
        b'{"text": "' + b"[" * 500 + b'", "all": [' + b'{"<": {"b": [1]}},' * 200 + b"{}]}",
    ]
    array, number = b'{"type": "array", "items": ', b'{"type": "int32", "optional": true}'
    envelope = b'{"schema": %s, "payload": %s}'
    with_schemas = [
        envelope % (number, b"1"),
        envelope % (array * 300 + number + b"}" * 300, b"[" * 300 + b"]" * 300),
        envelope % (b'{"type": []}', b"1"),
        envelope % (number, b"2"),
    ]
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for value in plain:
            producer.send(topic, value=value)
        for value in with_schemas:
            producer.send(f"{topic}-schemas", value=value)
    common = {"value_converter": "JsonConverter", "errors_tolerance": "all"}
    outcome = run(recording_sink, "plain", topics=topic, value_converter_schemas_enable="false", **common)
    assert outcome.kind == "done", outcome.trace
    assert [row.offset for row in recording_sink.rows] == [0, 3, 4]
    assert recording_sink.rows[0].value.id == 1
    assert len(recording_sink.rows[2].value.all) == 201
    recording_sink.rows.clear()
    outcome = run(recording_sink, "schemas", topics=f"{topic}-schemas", **common)
    assert outcome.kind == "done", outcome.trace
    assert [row.value for row in recording_sink.rows] == [1, 2]


def test_the_types_of_json_without_schemas_do_not_depend_on_the_micro_batch(
    run: Callable[..., Outcome], recording_sink: type[RecordingSink], target: Target, admin: Admin, topic: str
) -> None:
    """Every run reads one micro-batch. A record that does not fit the types of the first one fails
    alone."""
    admin.create_topics([NewTopic(topic, 1)])

    def run_with(*values: str | None, tolerance: str = "all") -> Outcome:
        with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
            for value in values:
                producer.send(topic, value=value)
        recording_sink.rows.clear()
        recording_sink.types.clear()
        return run(
            recording_sink, "typed", topics=topic, value_converter="JsonConverter", errors_tolerance=tolerance,
            value_converter_schemas_enable="false", errors_deadletterqueue_topic_name=f"{topic}-dead",
            errors_deadletterqueue_topic_replication_factor="1",
            errors_deadletterqueue_context_headers_enable="true",
        )  # fmt: skip

    outcome = run_with('{"id": 1, "more": {"x": true}, "none": null, "list": []}', '"text"')
    assert outcome.kind == "done", outcome.trace
    assert recording_sink.types == {"struct<id:bigint,more:struct<x:boolean>>"}
    assert [row.offset for row in recording_sink.rows] == [0]
    # The text beside structs does not hide the field y.
    outcome = run_with('{"id": 2.5}', '{"id": 3, "none": 1, "more": {"y": 1}}', '{"id": 4, "more": "text"}', None)
    assert outcome.kind == "done", outcome.trace
    assert recording_sink.types == {"struct<id:bigint,more:struct<x:boolean,y:bigint>,none:bigint>"}
    assert [row.offset for row in recording_sink.rows] == [3, 5]
    measures = finished[-1].measures
    assert (measures.records, measures.bytes, measures.failed) == (4, 11 + 38 + 25, 2)
    assert measures.lag == {TopicPartition(topic, 0): 0} and 0 < measures.last_seconds <= measures.seconds
    assert recording_sink.rows[0].value.asDict(True) == {"id": 3, "more": {"x": None, "y": 1}, "none": 1}
    assert recording_sink.rows[1].value is None
    dead = read_all(target, f"{topic}-dead")
    assert [bytes(record.value) for record in dead] == [b'"text"', b'{"id": 2.5}', b'{"id": 4, "more": "text"}']
    offsets = [dict(record.headers)["__connect.errors.offset"] for record in dead]
    assert [bytes(offset) for offset in offsets] == [b"1", b"2", b"4"]
    # A micro-batch without values has the recorded type.
    outcome = run_with(None)
    assert outcome.kind == "done", outcome.trace
    assert recording_sink.types == {"struct<id:bigint,more:struct<x:boolean,y:bigint>,none:bigint>"}
    outcome = run_with('{"id": "five"}', tolerance="none")
    assert outcome.kind == "failed"
    assert f"{topic}-0 at offset 7" in str(outcome.trace)


def test_the_types_of_schemas_are_merged_into_the_recorded_type(spark: Any) -> None:
    def decoded(converter: Any, *values: tuple[str, Any]) -> tuple[str, list[Any]]:
        rows = [
            (json.dumps({"schema": {"type": "struct", "fields": [{"field": "a", "type": kind}]}, "payload": {"a": a}}),)
            for kind, a in values
        ]
        batch = spark.createDataFrame(rows, "value string")
        result = converter.decode(batch["value"], batch)
        row_values = batch.select(result.value.alias("v"), result.error.alias("e")).collect()
        return converter.recorded.simpleString(), [None if row.e else row.v.a for row in row_values]

    converter = JsonConverter({"schemas.enable": True, "schema": None, "decimal.format": "BASE64"}, False)
    assert decoded(converter, ("int32", 1)) == ("struct<a:int>", [1])
    assert decoded(converter, ("int64", 2**40), ("string", "x")) == ("struct<a:bigint>", [2**40, None])
    # The type stays when a micro-batch has only the earlier schema, or no schema that fits.
    assert decoded(converter, ("int32", 1)) == ("struct<a:bigint>", [1])
    assert decoded(converter, ("string", "x")) == ("struct<a:bigint>", [None])
    # A required field is never null.
    rows = spark.createDataFrame(
        [(text,) for text in (
            '{"schema": {"type": "struct", "optional": true, "fields": []}, "payload": null}',
            '{"schema": {"type": "struct", "fields": []}, "payload": null}',
            '{"schema": {"type": "struct", "fields": [{"field": "a", "type": "int64"}]}, "payload": {}}',
            '{"schema": {"type": "struct", "fields": [{"field": "a", "type": "int64"}]}, "payload": {"a": 0}}',
        )],
        "value string",
    )  # fmt: skip
    required = {"schema": "a BIGINT NOT NULL, b ARRAY<STRUCT<c: INT NOT NULL>>", "decimal.format": "BASE64"}
    result = JsonConverter({"schemas.enable": True, **required}, False).decode(rows["value"], rows)
    errors = [row.e for row in rows.select(result.error.alias("e")).collect()]
    assert errors == [None, "Invalid null value for a required payload", "the payload does not match the schema", None]
    plain = spark.createDataFrame(
        [(text,) for text in ('{"a": 1, "b": [{"c": 1}, null]}', '{"b": []}', '{"a": 1, "b": [{}]}', None)],
        "value string",
    )  # fmt: skip
    result = JsonConverter({"schemas.enable": False, **required}, False).decode(plain["value"], plain)
    assert [row.e is None for row in plain.select(result.error.alias("e")).collect()] == [True, False, False, True]


def test_only_records_with_times_and_numbers_out_of_range_fail_in_transformations(spark: Any) -> None:
    raw = spark.sql(
        "SELECT CAST(NULL AS BINARY) AS key, encode(concat('{\"at\":', at, '}'), 'UTF-8') AS value, 't' AS topic, "
        "0 AS partition, offset, CAST(NULL AS TIMESTAMP) AS timestamp, "
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers "
        "FROM VALUES (1700000000, 0L), (1L, 1L), (9223372036854775807L, 2L) AS t(at, offset)"
    )
    worker = {"key.converter": "StringConverter", "value.converter": "JsonConverter",
              "value.converter.schemas.enable": "false", "value.converter.schema": "at BIGINT"}  # fmt: skip
    originals = {
        "transforms": "time,number", "transforms.time.type": "TimestampConverter$Value",
        "transforms.time.field": "at", "transforms.time.target.type": "Timestamp",
        "transforms.time.unix.precision": "seconds", "transforms.number.type": "Cast$Value",
        "transforms.number.spec": "at:int32",
    }  # fmt: skip
    flow = Flow.of("c", originals, {"errors.tolerance": "all"}, worker, keep_raw=False)
    rows = flow.decode(raw, None).frame.select("offset", "value", "_error").orderBy("offset").collect()
    assert [row.offset for row in rows if row._error is not None] == [0, 2]
    assert "out of range" in rows[0]._error.message and "Could not parse timestamp" in rows[2]._error.message
    assert rows[1].value.at == 1000


def test_the_files_of_a_repeated_batch_replace_those_of_its_first_attempt(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "batch", tmp_path / "out"
    listed: list[str] = []
    files_of = batch_files._files

    def list_files(system: Any, folder: Any) -> list[Any]:
        listed.append(Path(folder.toUri().getPath()).name)
        return files_of(system, folder)

    monkeypatch.setattr(batch_files, "_files", list_files)

    def move(name: str, *files: str) -> list[str]:
        for file in files:
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            (source / file).write_text(file)
        listed.clear()
        batch_files.move_into(spark, str(source), str(target), name)
        return sorted(str(file.relative_to(target)) for file in target.rglob("*.json") if file.is_file())

    # Of a version that wrote no list of moved files.
    target.mkdir()
    (target / "b-0-7.json").write_text("old")
    first = move("b-0", "a.json", "day=1/b.json", "_SUCCESS")
    assert len(first) == 2 and "b-0-7.json" not in first and listed == ["out", "batch"]
    assert sorted((target / file).read_text() for file in first) == ["a.json", "day=1/b.json"]
    assert move("b-0", "c.json") == ["b-0-0.json"] and listed == ["batch"]
    assert move("b-1", "d.json") == ["b-0-0.json", "b-1-0.json"] and listed == ["batch"]


def test_connects_own_topics_must_be_compacted_and_configurations_in_one_partition(
    target: Target, admin: Admin, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 1, configs={"cleanup.policy": "compact,delete"})])
    admin.create_topics([NewTopic(f"{topic}-2", 2, configs={"cleanup.policy": "compact"})])
    client, described_as = {"bootstrap.servers": target.bootstrap_servers}, ("config.storage.topic", "configurations")
    message = rf"'{topic}' supplied via the 'config.storage.topic' .* currently has 'cleanup.policy=compact,delete'"
    with pytest.raises(ConnectError, match=message):
        TopicTable(client, topic, 1, 1, described_as=described_as)
    with pytest.raises(ConnectError, match="required to have a single partition"):
        TopicTable(client, f"{topic}-2", 1, 1, described_as=described_as)
    table = TopicTable(client, f"{topic}-2", 2, 1, described_as=described_as)
    table.put({"a": "1"})
    assert table.get("a") == "1"
    table.close()


def test_only_records_with_invalid_decimals_times_or_schemas_fail(spark: Any) -> None:
    def schema_with_scale(scale: int) -> dict[str, Any]:
        logical = "org.apache.kafka.connect.data."
        decimal = {"type": "bytes", "name": f"{logical}Decimal", "parameters": {"scale": str(scale)}, "optional": True}
        time = {"type": "int64", "name": f"{logical}Timestamp", "optional": True}
        fields = [{"field": "a", **decimal}, {"field": "all", "type": "array", "items": decimal, "optional": True}]
        return {"type": "struct", "fields": [*fields, {"field": "at", **time}]}

    def base64_of(number: int) -> str:
        return base64.b64encode(number.to_bytes(40, "big", signed=True)).decode()

    text = {"type": "string", "optional": True}
    largest = (10**38 - 1) // 100
    values = [
        (schema_with_scale(2), {"a": "MDk=", "all": ["AQ==", None, "/w=="], "at": 0}),
        (schema_with_scale(2), {"a": base64_of(largest), "all": [base64_of(-largest)], "at": None}),
        (schema_with_scale(2), {"a": None, "all": None, "at": 1}),
        (schema_with_scale(2), {"a": 1.5, "all": [], "at": 1}),
        (schema_with_scale(4), {"a": "MDk=", "all": ["MDk="], "at": 1}),
        (schema_with_scale(2), {"a": "!!", "all": [], "at": 1}),
        (schema_with_scale(2), {"a": base64_of(10**38), "all": [], "at": 1}),
        (schema_with_scale(2), {"a": base64_of(-(2**128)), "all": [], "at": 1}),
        (schema_with_scale(2), {"a": "", "all": [], "at": 1}),
        (schema_with_scale(2), {"a": True, "all": [], "at": 1}),
        (schema_with_scale(2), {"a": None, "all": ["MDk=", "MDk"], "at": 1}),
        (schema_with_scale(2), {"a": None, "all": [], "at": 2**63 - 1}),
        (text, "no struct"),
    ]
    rows = [
        (None, json.dumps({"schema": schema, "payload": payload}).encode(), "t", 0, offset, None, None)
        for offset, (schema, payload) in enumerate(values)
    ]
    columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    raw = spark.createDataFrame(rows, f"{columns} headers array<struct<key: string, value: binary>>")
    worker = {"key.converter": "StringConverter", "value.converter": "JsonConverter"}
    flow = Flow.of("c", {}, {"errors.tolerance": "all"}, worker, keep_raw=False)
    records = flow.decode(raw, raw)
    assert records.type_of("value").simpleString() == "struct<a:decimal(38,4),all:array<decimal(38,4)>,at:timestamp>"
    from pyspark.sql import functions as F

    encoded = flow.value.encode(F.col("value"), records.type_of("value"), SchemaName())
    frame = records.frame.select("offset", "value", "_error", encoded.cast("string").alias("w"))
    decoded_rows = frame.orderBy("offset").collect()
    assert [row.offset for row in decoded_rows if row._error is not None] == [5, 6, 7, 8, 9, 10, 11, 12]
    assert {row._error.message for row in decoded_rows[5:12]} == {"the payload does not match the schema"}
    assert "incompatible schemas" in decoded_rows[12]._error.message
    large = Decimal(largest).scaleb(-2, Exact(prec=50))
    assert [(row.value.a, row.value.all) for row in decoded_rows[:5]] == [
        (Decimal("123.45"), [Decimal("0.01"), None, Decimal("-0.01")]), (large, [large.copy_negate()]), (None, None),
        (Decimal("1.5"), []), (Decimal("1.2345"), [Decimal("1.2345")]),
    ]  # fmt: skip
    payloads = [json.loads(row.w)["payload"] for row in decoded_rows[:5]]
    numbers = [
        int.from_bytes(base64.b64decode(payload["a"]), "big", signed=True) for payload in payloads if payload["a"]
    ]
    assert numbers == [1234500, largest * 100, 15000, 12345]
    assert payloads[0]["all"] == ["ZA==", None, "nA=="] and payloads[4]["all"] == ["MDk="]
