"""Streams with serdes whose schemas are in a registry."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from kavka import AvroSerializer, JsonSchemaSerializer
from kavka.client.schemas.subjects import record_name
from kavka.streams import (
    Consumed,
    KafkaStreams,
    Produced,
    SchemaSerdes,
    Serdes,
    StreamsBuilder,
    StreamsException,
    TopologyTestDriver,
)
from tests.support.our_consumer import read_all
from tests.support.processes import wait_until
from tests.support.registry import Registry
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": "string"}],
}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CONTINUE = {"deserialization.exception.handler": "LogAndContinueExceptionHandler"}


def orders_to_people(registry: Any, topic: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    orders = SchemaSerdes.avro(registry=registry, topic=topic)
    people = SchemaSerdes.json_schema(PERSON, registry=registry, topic=f"{topic}-people")
    stream = builder.stream(topic, Consumed.with_(Serdes.String(), orders))
    stream.map_values(lambda order: {"name": order["who"]}).to(
        f"{topic}-people", Produced.with_(Serdes.String(), people)
    )
    return builder


def test_a_topology_reads_avro_and_writes_json_schema(registry: Registry, topic: str) -> None:
    data = AvroSerializer(ORDER, registry=registry.url).serialize(topic, {"id": 1, "who": "a"})
    with TopologyTestDriver(orders_to_people(registry.url, topic).build(), CONTINUE) as driver:
        source = driver.create_input_topic(topic, value_serde=Serdes.ByteArray())
        source.pipe_input("k", data)
        source.pipe_input("k", b"no schema")
        written = driver.create_output_topic(f"{topic}-people", value_serde=Serdes.ByteArray()).read_values_to_list()
    reader = JsonSchemaSerializer(registry=registry.url)
    assert [reader.deserialize(topic, value) for value in written] == [{"name": "a"}]
    assert registry.client().versions(f"{topic}-people-value") == [1]
    with TopologyTestDriver(orders_to_people(registry.url, topic).build()) as driver:
        source = driver.create_input_topic(topic, value_serde=Serdes.ByteArray())
        with pytest.raises(StreamsException, match=rf"{topic}-0 offset 0 cannot be read with .*SchemaSerdes.Avro"):
            source.pipe_input("k", b"no schema")


def test_no_handler_leaves_out_records_while_the_registry_is_away(topic: str) -> None:
    away = {"schema.registry.url": "http://127.0.0.1:1", "max.retries": 0}
    with TopologyTestDriver(orders_to_people(away, topic).build(), CONTINUE) as driver:
        source = driver.create_input_topic(topic, value_serde=Serdes.ByteArray())
        with pytest.raises(StreamsException, match=rf"{topic}-0 offset 0 cannot be read: schema registry .* not avail"):
            source.pipe_input("k", b"\0\0\0\0\1x")


def test_serdes_are_pickled_and_need_a_topic_to_write(registry: Registry, topic: str) -> None:
    serde = pickle.loads(pickle.dumps(SchemaSerdes.avro(ORDER, registry=registry.url, topic=topic)))
    assert serde.deserialize(serde.serialize({"id": 1, "who": "a"})) == {"id": 1, "who": "a"}
    with pytest.raises(StreamsException, match="needs the argument topic"):
        SchemaSerdes.avro(ORDER, registry=registry.url).serialize({"id": 1, "who": "a"})
    by_record = SchemaSerdes.avro(ORDER, registry=registry.url, subject_name=record_name)
    assert by_record.serialize({"id": 1, "who": "a"})


@pytest.mark.matrix
def test_an_application_on_spark(spark: Any, registry: Registry, target: Target, topic: str, tmp_path: Any) -> None:
    from kavka import Admin, NewTopic, Producer

    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 1), NewTopic(f"{topic}-people", 1)])
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        producer.send(topic, AvroSerializer(ORDER, registry=registry.url).serialize(topic, {"id": 1, "who": "a"}))
    settings = {
        "application.id": topic,
        "bootstrap.servers": target.bootstrap_servers,
        "state.dir": str(tmp_path),
        "auto.offset.reset": "earliest",
    }
    streams = KafkaStreams(orders_to_people(registry.url, topic).build(), settings, spark=spark)
    streams.start()
    try:
        wait_until(lambda: len(read_all(target, f"{topic}-people")) == 1, timeout=120, what="the output", interval=0.5)
    finally:
        streams.close()
    (record,) = read_all(target, f"{topic}-people")
    assert JsonSchemaSerializer(registry=registry.url).deserialize(topic, record.value) == {"name": "a"}
