"""The Spark source with values that are decoded with schemas of a registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, AvroSerializer, JsonSchemaSerializer, NewTopic, Producer, ProtobufSerializer, Schema
from tests.support.protos import generated
from tests.support.registry import Registry
from tests.support.spark import start as start_query
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.records]

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "who", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "tags", "type": {"type": "map", "values": "int"}},
]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
LATER = {"type": "record", "name": "Order", "fields": [*FIELDS, {"name": "total", "type": "double", "default": 0.5}]}
ROW = {"id": 1, "who": "a", "at": 1000, "tags": {"x": 1}}


@pytest.fixture
def send(target: Target, topic: str) -> Any:
    """A function that produces serialized values to the topic."""
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:

        def send(*values: bytes | None) -> None:
            for value in values:
                producer.send(topic, value)
            producer.flush(30)

        yield send


@pytest.fixture
def read(spark: Any, target: Target, registry: Registry, topic: str) -> Any:
    def load(format: str, stream: bool = False, **options: str) -> Any:
        options = {"schema.registry.url": registry.url, **options}
        reader = (spark.readStream if stream else spark.read).format("kavka").options(**options)
        reader = reader.option("kafka.bootstrap.servers", target.bootstrap_servers).option("subscribe", topic)
        return reader.option("startingOffsets", "earliest").option("valueFormat", format).load()

    return load


def test_avro_values_become_columns_and_schema_evolution_is_followed(
    spark: Any, read: Any, send: Any, registry: Registry, topic: str, tmp_path: Path
) -> None:
    old, new = (AvroSerializer(schema, registry=registry.url) for schema in (ORDER, LATER))
    send(old.serialize(topic, ROW), None)

    def rows_of_stream() -> Any:
        name = f"q{len(list(tmp_path.iterdir()))}_{topic.replace('-', '_')}"
        writer = read("avro", stream=True).select("offset", "value").writeStream.format("json")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", str(tmp_path / "out"))
        query = start_query(writer.queryName(name).trigger(availableNow=True))
        assert query.awaitTermination(120)
        return sorted((row.offset, row.value) for row in spark.read.json(str(tmp_path / "out")).collect())

    frame = read("avro")
    assert (
        frame.schema["value"].dataType.simpleString()
        == "struct<id:bigint,who:string,at:timestamp,tags:map<string,int>>"
    )
    first, second = frame.orderBy("offset").collect()
    assert (first.value.id, first.value.who, first.value.tags, second.value) == (1, "a", {"x": 1}, None)
    assert first.value.at.timestamp() == 1.0
    assert frame.filter("value.id = 1").count() == 1
    assert len(rows_of_stream()) == 2

    # A newer version: a query with the columns of the old one reads these, a new query all columns.
    send(new.serialize(topic, {**ROW, "id": 2, "total": 9.0}))
    pinned = read("avro", valueSchemaVersion="1")
    assert [row.value.id for row in pinned.filter("value IS NOT NULL").orderBy("offset").collect()] == [1, 2]
    assert pinned.schema == frame.schema
    later = read("avro", **{"schema.registry.latest.cache.ttl.sec": "0"})
    rows = later.filter("value IS NOT NULL").orderBy("offset").collect()
    assert [(row.value.id, row.value.total) for row in rows] == [(1, 0.5), (2, 9.0)]
    assert [offset for offset, _ in rows_of_stream()] == [0, 1, 2]


def test_a_value_that_does_not_fit_fails_the_query_with_its_place(
    read: Any, send: Any, registry: Registry, topic: str
) -> None:
    data = AvroSerializer(ORDER, registry=registry.url).serialize(topic, ROW)
    send(data, data[:-1])
    with pytest.raises(Exception, match=rf"the value of {topic}-0 at offset 1 cannot be decoded: "):
        read("avro").collect()
    with pytest.raises(Exception, match=rf"version 1 of {topic}-value cannot be read as protobuf: "):
        read("protobuf").collect()


def test_options_are_checked(read: Any, topic: str) -> None:
    with pytest.raises(Exception, match=rf"/subjects/{topic}-value/versions/latest: .*40401"):
        read("avro").collect()
    with pytest.raises(Exception, match="valueFormat must be avro or json-schema or protobuf, not 'xml'"):
        read("xml")
    with pytest.raises(Exception, match="keySubject requires keyFormat"):
        read("avro", keySubject="x")
    with pytest.raises(Exception, match=r"schema registry http://127.0.0.1:1 is not available: Connection refused"):
        read("avro", **{"valueSubject": "x", "schema.registry.url": "http://127.0.0.1:1"})


@pytest.mark.matrix
def test_json_schema_and_protobuf_values_become_columns(
    read: Any, send: Any, registry: Registry, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    person = {
        "type": "object",
        "properties": {"age": {"type": "integer"}, "names": {"type": "array", "items": {"type": "string"}}},
        "required": ["age"],
    }
    send(JsonSchemaSerializer(person, registry=registry.url).serialize(topic, {"age": 3, "names": ["x"]}))
    frame = read("json-schema")
    assert frame.schema["value"].dataType.simpleString() == "struct<age:bigint,names:array<string>>"
    assert [tuple(row.value) for row in frame.collect()] == [(3, ["x"])]
    client = registry.client()
    later = {**person, "properties": {**person["properties"], "age": {"type": "string"}}}
    client.register(f"{topic}-value", Schema(json.dumps(later), "JSON"))
    with pytest.raises(Exception, match=rf"{topic}-0 at offset 0 cannot be decoded: .*3 is not text"):
        read("json-schema", valueSchemaVersion="2").collect()

    money, order = generated(tmp_path_factory.mktemp("protos"))
    message = order.Order(id=3, price=money.Money(cents=5), tags={"t": 1})
    serializer = ProtobufSerializer(registry=registry.url, subject_name=lambda topic, is_key, name: f"{topic}-proto")
    send(serializer.serialize(topic, message))
    options = {"valueSubject": f"{topic}-proto", "valueMessage": "kavka.shop.Order", "startingOffsets": "earliest"}
    frame = read("protobuf", **options)
    with pytest.raises(Exception, match=rf"{topic}-0 at offset 0 cannot be decoded: .*type JSON, not PROTOBUF"):
        frame.collect()
