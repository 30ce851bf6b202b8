"""Connect with converters that find their schemas in a registry."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, AvroSerializer, JsonSchemaSerializer, NewTopic, Producer, ProtobufSerializer
from kavka.client.schemas.serializers import FORMATS
from kavka.connect import Context, Sink, Source
from kavka.pipeline.connect.loading import Declared
from kavka.pipeline.connect.stores import FileTable, OffsetStore
from kavka.pipeline.connect.tasks import Outcome, Task, Worker
from kavka.pipeline.connect.worker import activate
from tests.support.our_consumer import read_all
from tests.support.protos import generated
from tests.support.registry import Registry
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.records]

TIMEOUT_S = 240.0
CONVERTERS = {
    "avro": "io.confluent.connect.avro.AvroConverter",
    "json-schema": "io.confluent.connect.json.JsonSchemaConverter",
    "protobuf": "io.confluent.connect.protobuf.ProtobufConverter",
}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": ["null", "string"], "default": None}],
}
LATER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "double"}, {"name": "total", "type": "long", "default": 0}],
}


class Rows(Source):
    def read(self, context: Context) -> Any:
        return context.spark.sql(
            f"SELECT '{context.given['to']}' AS topic, named_struct('id', CAST(id AS INT), 'name', IF(id = 0, NULL, "
            "concat('n', id)), 'at', timestamp_millis(1000 + id), 'tags', array('a', 'b'), 'data', X'00FF', "
            "'more', named_struct('x', CAST(id AS DOUBLE)), 'counts', map('k', id)) AS value FROM range(0, 2, 1, 1)"
        )


class Recorder(Sink):
    rows: list[Any] = []
    types: set[str] = set()

    def write(self, context: Context, records: Any, batch_id: int) -> None:
        self.rows.extend(records.orderBy("offset").collect())
        self.types.add(records.schema["value"].dataType.simpleString())


@pytest.fixture
def recorder() -> Iterator[type[Recorder]]:
    Recorder.rows, Recorder.types = [], set()
    yield Recorder


@pytest.fixture
def run(spark: Any, target: Target, registry: Registry, tmp_path: Path) -> Callable[..., Outcome]:
    """Return a function that runs a connector until its task ends."""

    def session() -> Any:
        activate(spark)
        return spark

    def run_connector(cls: Any, name: str, format: str, **settings: str) -> Outcome:
        ended = threading.Event()
        outcomes: list[Outcome] = []

        def on_end(task: Task, outcome: Outcome) -> None:
            outcomes.append(outcome)
            ended.set()

        properties = {
            "bootstrap.servers": target.bootstrap_servers,
            "key.converter": "StringConverter",
            "value.converter": CONVERTERS[format],
            "value.converter.schema.registry.url": registry.url,
        }
        offsets = OffsetStore(FileTable(tmp_path / "offsets"))
        worker = Worker("w:1", properties, session, str(tmp_path / "points"), offsets, declared=Declared())
        configuration = {"name": name, "connector.class": cls.__name__, "trigger": "available-now"}
        configuration |= {key.replace("_", "."): value for key, value in settings.items()}
        task = Task(worker, name, cls, configuration, on_end)
        task.start()
        assert ended.wait(TIMEOUT_S), f"{name} did not end"
        return outcomes[0]

    return run_connector


@pytest.mark.parametrize(
    "format",
    ["avro", pytest.param("json-schema", marks=pytest.mark.matrix), pytest.param("protobuf", marks=pytest.mark.matrix)],
)
def test_a_source_registers_its_schema_and_a_sink_reads_the_records(
    run: Callable[..., Outcome], recorder: type[Recorder], target: Target, registry: Registry, topic: str, format: str
) -> None:
    creation = {"topic_creation_default_partitions": "1", "topic_creation_default_replication_factor": "1"}
    outcome = run(Rows, "rows", format, to=topic, **creation)
    assert outcome.kind == "done", outcome.trace
    values = [record.value for record in read_all(target, topic)]
    assert registry.client().versions(f"{topic}-value") == [1]
    read = [FORMATS[format](registry=registry.url).deserialize(topic, value) for value in values]
    assert len(read) == 2
    assert [value.id if format == "protobuf" else value["id"] for value in read] == [0, 1]

    outcome = run(recorder, "back", format, topics=topic)
    assert outcome.kind == "done", outcome.trace
    assert recorder.types == {
        "struct<id:int,name:string,at:timestamp,tags:array<string>,data:binary,more:struct<x:double>,"
        "counts:map<string,bigint>>"
    }
    rows = [row.value for row in recorder.rows]
    assert [(row.id, row.name, row.tags, bytes(row.data), row.more.x, row.counts) for row in rows] == [
        (0, None, ["a", "b"], b"\0\xff", 0.0, {"k": 0}),
        (1, "n1", ["a", "b"], b"\0\xff", 1.0, {"k": 1}),
    ]
    assert [round(row.at.timestamp() * 1000) for row in rows] == [1000, 1001]


def test_schema_evolution_is_followed_and_misfits_become_dead_letters(
    run: Callable[..., Outcome], recorder: type[Recorder], target: Target, registry: Registry, topic: str
) -> None:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 1), NewTopic(f"{topic}-dead", 1)])
    header = AvroSerializer(ORDER, registry=registry.url).serialize(topic, {"id": 0})
    assert header is not None
    text = JsonSchemaSerializer({"type": "object", "properties": {}}, registry=registry.url)
    misfits = [header[:5] + b"\x80", b"no schema", b"\0\0\1\xe2\x40x", text.serialize(f"{topic}-x", {})]
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        producer.send(topic, AvroSerializer(ORDER, registry=registry.url).serialize(topic, {"id": 1, "who": "a"}))
        for misfit in misfits:
            producer.send(topic, misfit)
        later = AvroSerializer(LATER, registry=registry.url)
        producer.send(topic, later.serialize(topic, {"id": 2.5, "total": 7}))
        producer.send(topic, None)
    outcome = run(recorder, "strict", "avro", topics=topic)
    assert outcome.kind == "failed"
    first_line = (outcome.trace or "").splitlines()[0]
    assert f"VALUE_CONVERTER for {topic}-0 at offset " in first_line, outcome.trace
    assert recorder.rows == []

    dead = {
        "errors_tolerance": "all",
        "errors_deadletterqueue_topic_name": f"{topic}-dead",
        "errors_deadletterqueue_topic_replication_factor": "1",
        "errors_deadletterqueue_context_headers_enable": "true",
    }
    outcome = run(recorder, "tolerant", "avro", topics=topic, **dead)
    assert outcome.kind == "done", outcome.trace
    assert recorder.types == {"struct<id:double,who:string,total:bigint>"}
    assert [None if row.value is None else tuple(row.value) for row in recorder.rows] == [
        (1.0, "a", None), (2.5, None, 7), None,
    ]  # fmt: skip
    letters = read_all(target, f"{topic}-dead")
    assert [bytes(letter.value) for letter in letters] == misfits
    offsets = [dict(letter.headers)["__connect.errors.offset"] for letter in letters]
    assert [int(bytes(offset or b"")) for offset in offsets] == [1, 2, 3, 4]


@pytest.mark.matrix
def test_protobuf_of_generated_classes_becomes_columns(
    run: Callable[..., Outcome],
    recorder: type[Recorder],
    target: Target,
    registry: Registry,
    topic: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    money, order = generated(tmp_path_factory.mktemp("protos"))
    message = order.Order(id=3, price=money.Money(cents=5), lines=[order.Order.Line(item="i", count=2)], tags={"t": 1})
    message.at.FromSeconds(7)
    with Producer(
        {"bootstrap.servers": target.bootstrap_servers, "value.serializer": ProtobufSerializer(registry=registry.url)}
    ) as producer:
        producer.send(topic, message)
    outcome = run(recorder, "orders", "protobuf", topics=topic)
    assert outcome.kind == "done", outcome.trace
    (row,) = recorder.rows
    assert row.value.asDict(recursive=True) | {"at": None} == {
        "id": 3, "price": {"cents": 5, "currency": ""}, "at": None, "lines": [{"item": "i", "count": 2}], "note": None,
        "tags": {"t": 1},
    }  # fmt: skip
    assert row.value.at.timestamp() == 7


def test_options_of_the_registry_are_validated() -> None:
    from kavka.pipeline.connect.loading import load_converter, options_under

    for format, name in CONVERTERS.items():
        cls = load_converter(name, "value.converter")
        errors = options_under(cls, "value.converter.", {"value.converter.schema.registry.url": "localhost:8081"})[1]
        assert list(errors) == ["value.converter.schema.registry.url"]
        missing = options_under(cls, "value.converter.", {})[1]
        assert bool(missing) == (format != "avro")
        for strategy in ("Nobody", "os.getcwd"):
            settings = {"schema.registry.url": "http://x", "value.subject.name.strategy": strategy}
            errors = options_under(cls, "", settings)[1]
            assert json.dumps(errors).count(strategy) == 1


def test_the_most_frequent_schemas_of_a_batch_define_its_columns(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.types import DataType, StringType, StructField, StructType

    from kavka.pipeline.connect import schema_converters

    requested = []

    class Columns:
        has_message_types = False

        def type_of_header(self, header: bytes) -> DataType:
            requested.append(header[-1])
            return StructType([StructField(f"c{header[-1]}", StringType())])

    monkeypatch.setattr(schema_converters, "MAX_SCHEMAS", 2)
    ids = [1, 2, 2, 3, 3, 3]
    batch = spark.createDataFrame(
        [(b"\0\0\0\0" + bytes([each]) + b"data",) for each in ids] + [(b"x",)], "value binary"
    )
    columns: Any = Columns()
    kind = schema_converters._merged_type(columns, batch, F.col("value"), None)
    assert requested == [3, 2]
    assert kind.simpleString() == "struct<c3:string,c2:string>"
