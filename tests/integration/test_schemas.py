"""Serializers with a schema registry: what Confluent's serializers write is read, and the other way
round. The registry is Apicurio's."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaReference as ConfluentReference
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer as ConfluentAvroReader
from confluent_kafka.schema_registry.avro import AvroSerializer as ConfluentAvroWriter
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer as ConfluentProtobufReader
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as ConfluentProtobufWriter
from confluent_kafka.serialization import MessageField, SerializationContext

from kavka import (
    AvroSerializer,
    Consumer,
    JsonSchemaSerializer,
    Producer,
    ProtobufSerializer,
    RecordDeserializationError,
    Schema,
    SchemaReference,
    SchemaRegistryError,
    SchemaRegistryUnavailable,
    SerializationError,
)
from tests.support.java_client import probe_command
from tests.support.protos import FILES, generated
from tests.support.registry import Registry
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": ["null", "string"], "default": None}],
}
SCHEMA_PROBE = Path(__file__).resolve().parents[1] / "support" / "java" / "SchemaProbe.java"
PERSON = {"title": "Person", "type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.fixture
def confluent(registry: Registry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield generated(tmp_path_factory.mktemp("protos"))


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def test_avro_is_exchanged_with_confluents_serializers(
    registry: Registry, confluent: SchemaRegistryClient, topic: str
) -> None:
    ours, order = AvroSerializer(ORDER, registry=registry.url), {"id": 7, "who": "Ö"}
    written = ours.serialize(topic, order)
    assert ConfluentAvroReader(confluent)(written, value_of(topic)) == order
    theirs = ConfluentAvroWriter(confluent, json.dumps(ORDER))(order, value_of(topic))
    assert theirs == written
    assert AvroSerializer(registry=registry.url).deserialize(topic, theirs) == order


def test_json_schema_is_exchanged_with_confluents_serializers(
    registry: Registry, confluent: SchemaRegistryClient, topic: str
) -> None:
    written = JsonSchemaSerializer(PERSON, registry=registry.url).serialize(topic, {"age": 3})
    assert JSONDeserializer(None, schema_registry_client=confluent)(written, value_of(topic)) == {"age": 3}
    theirs = JSONSerializer(json.dumps(PERSON), confluent)({"age": 4}, value_of(topic))
    assert theirs is not None
    assert JsonSchemaSerializer(registry=registry.url).deserialize(topic, theirs) == {"age": 4}
    reader = JsonSchemaSerializer(registry=registry.url, validate_on_read=True)
    assert reader.deserialize(topic, theirs) == {"age": 4}
    with pytest.raises(SerializationError, match=r"at \['age'\]: 'x' is not of type 'integer'"):
        reader.deserialize(topic, theirs[:5] + b'{"age":"x"}')


def test_protobuf_is_exchanged_with_confluents_serializers(
    registry: Registry, confluent: SchemaRegistryClient, shop: Any, topic: str
) -> None:
    money, order = shop
    ours = ProtobufSerializer(registry=registry.url)
    for index, message in enumerate(
        (
            order.Order(id=3, price=money.Money(cents=5), lines=[order.Order.Line(item="i")]),
            order.Order.Line(item="nested"),
            order.Customer(name="first in its file"),
            money.Money(cents=1, currency="EUR"),
        )
    ):
        name = f"{topic}-{index}"
        written = ours.serialize(name, message)
        read = ConfluentProtobufReader(type(message), {"use.deprecated.format": False}, confluent)
        assert read(written, value_of(name)) == message
        write = ConfluentProtobufWriter(type(message), confluent, {"use.deprecated.format": False})
        theirs = write(message, value_of(name))
        assert theirs == written
        assert ProtobufSerializer(type(message), registry=registry.url).deserialize(name, theirs) == message
        dynamic = ProtobufSerializer(registry=registry.url).deserialize(name, theirs)
        assert dynamic.DESCRIPTOR.full_name == message.DESCRIPTOR.full_name
        assert dynamic.SerializeToString() == message.SerializeToString()
    with pytest.raises(SerializationError, match=r"the data is a kavka.shop.Money, not a kavka.shop.Order"):
        ProtobufSerializer(order.Order, registry=registry.url).deserialize(topic, theirs)


def test_protobuf_schemas_as_text_are_compiled_with_their_imports(registry: Registry, shop: Any, topic: str) -> None:
    client = registry.client()
    money = f"{topic}-money"
    client.register(money, Schema(FILES["kavka_shop_money.proto"], "PROTOBUF"))
    reference = SchemaReference("kavka_shop_money.proto", money, 1)
    schema_id = client.register(f"{topic}-value", Schema(FILES["kavka_shop_order.proto"], "PROTOBUF", (reference,)))
    settings = {"registry": client, "schema_id": schema_id}
    mapping = {"id": 3, "price": {"cents": 5}, "at": "2024-01-02T03:04:05Z"}
    data = ProtobufSerializer("kavka.shop.Order", **settings).serialize(topic, mapping)
    message = ProtobufSerializer(shop[1].Order, registry=client).deserialize(topic, data)
    assert (message.id, message.price.cents, message.at.seconds) == (3, 5, 1704164645)


def test_a_message_is_written_with_the_types_of_the_latest_schema(registry: Registry, shop: Any, topic: str) -> None:
    client = registry.client()
    text = 'syntax = "proto3"; package kavka.shop; message First {} message Money { int64 cents = 1; }'
    client.register(f"{topic}-value", Schema(text, "PROTOBUF"))
    serializer = ProtobufSerializer(registry=client, use_latest=True)
    data = serializer.serialize(topic, shop[0].Money(cents=5))
    assert data is not None and data[5:7] == b"\x02\x02"
    read = ProtobufSerializer(registry=client).deserialize(topic, data)
    assert (read.DESCRIPTOR.full_name, read.cents) == ("kavka.shop.Money", 5)
    with pytest.raises(SerializationError, match=r"no message type kavka.shop.Order"):
        serializer.serialize(topic, shop[1].Order())


def test_references_of_avro_and_json_are_resolved(
    registry: Registry, confluent: SchemaRegistryClient, topic: str
) -> None:
    client = registry.client()
    customer = {"type": "record", "name": "shop.Customer", "fields": [{"name": "name", "type": "string"}]}
    client.register(f"{topic}-customer", Schema(json.dumps(customer)))
    sale = {
        "type": "record",
        "name": "shop.Sale",
        "fields": [{"name": "buyer", "type": "shop.Customer"}, {"name": "seller", "type": "shop.Customer"}],
    }
    schema = Schema(json.dumps(sale), references=(SchemaReference("shop.Customer", f"{topic}-customer", 1),))
    value = {"buyer": {"name": "a"}, "seller": {"name": "b"}}
    written = AvroSerializer(schema, registry=client).serialize(topic, value)
    theirs = ConfluentSchema(json.dumps(sale), "AVRO", [ConfluentReference("shop.Customer", f"{topic}-customer", 1)])
    assert ConfluentAvroWriter(confluent, theirs)(value, value_of(topic)) == written
    assert AvroSerializer(registry=registry.client()).deserialize(topic, written) == value

    client.register(f"{topic}-person", Schema(json.dumps(PERSON), "JSON"))
    team = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "http://kavka.test/team.json",
        "type": "array",
        "items": {"$ref": "person.json"},
    }
    people = Schema(json.dumps(team), "JSON", (SchemaReference("person.json", f"{topic}-person", 1),))
    serializer = JsonSchemaSerializer(people, registry=client)
    data = serializer.serialize(f"{topic}-team", [{"age": 1}])
    assert JsonSchemaSerializer(registry=registry.client()).deserialize(f"{topic}-team", data) == [{"age": 1}]
    with pytest.raises(SerializationError, match="'age' is a required property"):
        serializer.serialize(f"{topic}-team", [{}])


@pytest.mark.parametrize(
    ("strategy", "confluents", "subject"),
    [
        ("TopicNameStrategy", None, "{topic}-value"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", record_subject_name_strategy, "{record}"),
        ("TopicRecordNameStrategy", topic_record_subject_name_strategy, "{topic}-{record}"),
    ],
)
def test_subjects_are_those_of_confluents_strategies(
    registry: Registry, confluent: SchemaRegistryClient, topic: str, strategy: str, confluents: Any, subject: str
) -> None:
    record = f"shop.R{topic.replace('-', '')}"
    schema = {"type": "record", "name": record, "fields": []}
    serializer = AvroSerializer()
    settings = {"schema.registry.url": registry.url, "avro.schema": schema, "value.subject.name.strategy": strategy}
    serializer.configure(settings, False)
    data = serializer.serialize(topic, {})
    assert [name for name in registry.client().subjects() if record in name or topic in name] == [
        subject.format(topic=topic, record=record)
    ]
    options = {"auto.register.schemas": False}
    if confluents is not None:
        options["subject.name.strategy"] = confluents
    assert ConfluentAvroWriter(confluent, json.dumps(schema), conf=options)({}, value_of(topic)) == data


def test_records_of_older_and_newer_schemas_are_read_with_the_readers_schema(registry: Registry, topic: str) -> None:
    later = {**ORDER, "fields": [*ORDER["fields"], {"name": "total", "type": "double", "default": 0.5}]}
    old = AvroSerializer(ORDER, registry=registry.url).serialize(topic, {"id": 1, "who": "a"})
    new = AvroSerializer(later, registry=registry.url).serialize(topic, {"id": 2, "who": "b", "total": 9.0})
    reader = AvroSerializer(later, registry=registry.url)
    assert reader.deserialize(topic, old) == {"id": 1, "who": "a", "total": 0.5}
    assert AvroSerializer(ORDER, registry=registry.url).deserialize(topic, new) == {"id": 2, "who": "b"}
    assert AvroSerializer(registry=registry.url).deserialize(topic, new) == {"id": 2, "who": "b", "total": 9.0}
    # The writer uses the latest version without a configured schema.
    latest = AvroSerializer(registry=registry.url, use_latest=True)
    assert latest.serialize(topic, {"id": 2, "who": "b", "total": 9.0}) == new
    assert registry.client().versions(f"{topic}-value") == [1, 2]


def test_incompatible_and_unregistered_schemas_are_refused(registry: Registry, topic: str) -> None:
    client = registry.client()
    AvroSerializer(ORDER, registry=client).serialize(topic, {"id": 1})
    client.set_compatibility("BACKWARD", f"{topic}-value")
    text = {**ORDER, "fields": [{"name": "id", "type": "string"}]}
    assert not client.is_compatible(f"{topic}-value", Schema(json.dumps(text)))
    with pytest.raises(SchemaRegistryError, match=rf"POST /subjects/{topic}-value/versions: .*409") as error:
        AvroSerializer(text, registry=client).serialize(topic, {"id": "x"})
    assert (error.value.status, "\n" in str(error.value)) == (409, False)
    with pytest.raises(SerializationError, match=f"not registered in subject {topic}-value"):
        AvroSerializer(text, registry=client, auto_register=False).serialize(topic, {"id": "x"})
    with pytest.raises(SerializationError, match=r"GET /schemas/ids/123456: .*40403"):
        AvroSerializer(registry=client).deserialize(topic, b"\0\0\1\xe2\x40")


def test_a_consumer_names_the_record_that_does_not_fit_and_waits_for_the_registry(
    registry: Registry, target: Target, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {"bootstrap.servers": target.bootstrap_servers, "schema.registry.url": registry.url}
    written = {"value.serializer": "io.confluent.kafka.serializers.KafkaAvroSerializer", "avro.schema": ORDER}
    with Producer(settings | written) as producer:
        producer.send(topic, {"id": 1, "who": "x"}).get(30)
        with pytest.raises(SerializationError, match="the value does not match the Avro schema"):
            producer.send(topic, {"id": "text"})
        producer.send(topic, None).get(30)
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        header = registry.client().latest(f"{topic}-value").id.to_bytes(5, "big")
        for data in (header + b"\x02", header + b"\x02\x00extra", b"no schema"):
            producer.send(topic, data).get(30)
    read = {"value.deserializer": "KafkaAvroDeserializer", "auto.offset.reset": "earliest"}
    with Consumer(settings | read) as consumer:
        consumer.assign([(topic, 0)])
        values, errors = [], []
        while len(values) + len(errors) < 5:
            try:
                values += [record.value for record in consumer.poll(30)]
            except RecordDeserializationError as error:
                errors.append((error.offset, str(error)))
                consumer.seek(error.topic_partition, error.offset + 1)
    assert values == [{"id": 1, "who": "x"}, None]
    assert [offset for offset, _ in errors] == [2, 3, 4]
    assert all(f"the value of {topic}-0 at offset {offset}" in message for offset, message in errors)

    # A registry that is away fails the poll, not the record.
    with Registry(tmp_path_factory.mktemp("away")) as other:
        client = other.client()
        data = AvroSerializer(ORDER, registry=client).serialize(f"{topic}-2", {"id": 5, "who": None})
        with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
            producer.send(f"{topic}-2", data).get(30)
        other.kill()
        fast = {"schema.registry.url": other.url, "max.retries": "0"}
        with Consumer(settings | read | fast) as consumer:
            consumer.assign([(f"{topic}-2", 0)])
            with pytest.raises(SchemaRegistryUnavailable, match="is not available: Connection refused"):
                consumer.poll(30)
            other.start()
            assert AvroSerializer(ORDER, registry=other.client()).serialize(f"{topic}-2", {"id": 5}) == data
            assert [record.value for record in consumer.poll(30)] == [{"id": 5, "who": None}]


@pytest.mark.matrix
def test_avro_is_exchanged_with_apicurios_java_serdes(registry: Registry, topic: str) -> None:
    def java(action: str, *args: str) -> str:
        url = registry.url.replace("/apis/ccompat/v7", "/apis/registry/v3")
        command = probe_command("3.1.7", url, action, topic, *args, source=SCHEMA_PROBE, kind="apicurio-serdes")
        result = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip().splitlines()[-1]

    serializer = AvroSerializer(ORDER, registry=registry.url)
    written = serializer.serialize(topic, {"id": 7, "who": "x"})
    assert written is not None
    assert json.loads(java("read", b64encode(written).decode())) == {"id": 7, "who": "x"}
    theirs = b64decode(java("write", json.dumps(ORDER), '{"id": 8, "who": null}'))
    assert AvroSerializer(registry=registry.url).deserialize(topic, theirs) == {"id": 8, "who": None}


def test_threads_share_a_serializer(registry: Registry, topic: str) -> None:
    serializer = AvroSerializer(ORDER, registry=registry.url)
    results: list[bytes | None] = []

    def write() -> None:
        results.append(serializer.serialize(topic, {"id": 1, "who": None}))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 8
    assert len(set(results)) == 1


def test_the_examples_of_the_document_run(registry: Registry, target: Target) -> None:
    document = Path(__file__).resolve().parents[2] / "docs" / "schemas.md"
    blocks = re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        block = block.replace("localhost:9092", target.bootstrap_servers)
        block = block.replace("http://localhost:8081/apis/ccompat/v7", registry.url)
        exec(compile(block, "schemas.md", "exec"), {"__name__": "example"})
