"""Untrusted schemas of a registry fail with a SerializationError, within the limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kavka import JsonSchemaSerializer, ProtobufSerializer, Schema, SchemaRegistry, SerializationError
from kavka.client.avro_bounds import MAX_DEPTH
from kavka.client.schemas import avro, framing, protobuf
from kavka.client.schemas.protobuf import ProtobufFile

PROTO = 'syntax = "proto3"; message %s { int32 id = 1; }'


def proto(text: str) -> Schema:
    return Schema(text, "PROTOBUF")


@pytest.mark.parametrize("name", ["@{file}", "--version", "-I/", "", ".", "a\0b", "a/" * 3000 + "b"])
def test_the_name_of_a_protobuf_reference_is_no_argument_of_protoc(name: str, tmp_path: Path) -> None:
    (tmp_path / "arguments").write_text("--secret")
    dependency = {name.format(file=tmp_path / "arguments"): proto(PROTO % "A")}
    with pytest.raises(SerializationError, match="invalid") as error:
        ProtobufFile(proto(PROTO % "B"), dependency)
    assert "secret" not in str(error.value)


def test_errors_of_protoc_are_those_of_the_schema() -> None:
    with pytest.raises(SerializationError, match=r"schema: kavka-schema.proto:1:\d+: .*kavka-schema.proto") as error:
        ProtobufFile(proto('syntax = "proto3"; import "missing.proto"; message A { B b = 1; }'), {})
    assert "not found in" not in str(error.value)


def test_a_protobuf_schema_imports_a_reference_of_a_folder() -> None:
    text = 'syntax = "proto3"; import "a/b.proto"; message A { B b = 1; }'
    file = ProtobufFile(proto(text), {"a/b.proto": proto(PROTO % "B")})
    assert file.message_class((0,)).DESCRIPTOR.fields_by_name["b"].message_type.full_name == "B"


def nested(levels: int, name: str, inner: Any) -> Schema:
    for _ in range(levels - 1):
        inner = {"type": "array", "items": inner}
    return Schema(json.dumps({"type": "record", "name": name, "fields": [{"name": "f", "type": inner}]}))


@pytest.mark.parametrize("documents", [2, 50])
def test_the_depths_of_avro_references_are_added(documents: int) -> None:
    levels = MAX_DEPTH // documents
    names = [f"R{index}" for index in range(documents)]
    inner = ["int", *names]
    dependencies = {name: nested(levels, name, inner[index]) for index, name in enumerate(names[:-1])}
    root = nested(levels, names[-1], names[-2])
    parsed = avro.parse(root, dependencies)
    value: Any = 1
    for _ in names:
        for _ in range(levels - 1):
            value = [value]
        value = {"f": value}
    assert avro.reader(parsed)(avro.writer(parsed)(value), 0) == value
    with pytest.raises(SerializationError, match=f"more than {MAX_DEPTH} nested types"):
        avro.parse(nested(levels + 1, names[-1], names[-2]), dependencies)


def test_a_parsed_avro_schema_that_python_cannot_walk_is_refused() -> None:
    deep: Any = "int"
    for _ in range(20_000):
        deep = {"type": "array", "items": deep}
    for create in (avro.reader, avro.writer):
        with pytest.raises(SerializationError, match="invalid Avro schema"):
            create(deep)
    with pytest.raises(SerializationError, match="invalid Avro schema"):
        avro.parse(Schema('{"type":"array","items":' * 20_000 + '"int"' + "}" * 20_000), {})


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> tuple[SchemaRegistry, dict[int, Schema]]:
    """A registry with these schemas by id."""
    schemas: dict[int, Schema] = {}
    registry = SchemaRegistry("http://localhost:1")
    monkeypatch.setattr(registry, "schema", schemas.__getitem__)
    return registry, schemas


def test_json_is_validated_on_read_only_by_a_setting(registry: tuple[SchemaRegistry, dict[int, Schema]]) -> None:
    client, schemas = registry
    schemas[7] = Schema('{"type": "integer"}', "JSON")
    data = framing.header(7) + b'"x"'
    assert JsonSchemaSerializer(registry=client).deserialize("t", data) == "x"
    strict = JsonSchemaSerializer(registry=client, validate_on_read=True)
    configured = JsonSchemaSerializer(registry=client)
    configured.configure({"json.fail.invalid.schema": "true"}, False)
    for serializer in (strict, configured):
        with pytest.raises(SerializationError, match="'x' is not of type 'integer'"):
            serializer.deserialize("t", data)
    with pytest.raises(SerializationError, match="'x' is not of type 'integer'"):
        JsonSchemaSerializer(registry=client, schema_id=7).serialize("t", "x")


def test_an_invalid_schema_is_parsed_once(
    registry: tuple[SchemaRegistry, dict[int, Schema]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, schemas = registry
    schemas[7] = proto("invalid")
    names: list[str] = []

    def compiled(name: str, *arguments: Any) -> Any:
        names.append(name)
        raise SerializationError("invalid Protobuf schema")

    monkeypatch.setattr(protobuf, "_compiled", compiled)
    serializer = ProtobufSerializer(registry=client)
    errors = []
    for _ in range(3):
        with pytest.raises(SerializationError, match="invalid Protobuf schema") as error:
            serializer.deserialize("t", framing.header(7) + b"\0")
        errors.append(error.value)
    assert len(names) == 1
    assert errors[1] is not errors[2]
