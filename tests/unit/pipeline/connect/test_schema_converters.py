"""The functions of converters that run in Spark's Python workers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import LongType, StringType

from kavka import Schema, SchemaRegistryError, SchemaRegistryUnavailable, SerializationError
from kavka.client.schemas import framing, protobuf
from kavka.client.schemas.registry import SchemaRegistry
from kavka.pipeline.columns import registry as column_registry
from kavka.pipeline.columns.registry import RegistryColumns
from kavka.pipeline.connect.errors import ConnectError, RetriableError
from kavka.pipeline.connect.schema_converters import _reader, _writer


class Failing:
    """Columns and a serializer whose registry fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read_as(self, *arguments: Any) -> Any:
        raise self._error

    serialize = read_as


@pytest.mark.parametrize(
    ("error", "expected"),
    [(SchemaRegistryUnavailable("away"), RetriableError), (SchemaRegistryError("denied", 403), ConnectError)],
)
def test_errors_of_the_registry_fail_the_task(error: Exception, expected: type[Exception]) -> None:
    failing: Any = Failing(error)
    with pytest.raises(expected, match=r"away|denied") as raised:
        _reader(failing, StringType())(b"data")
    assert type(raised.value) is expected
    with pytest.raises(expected, match=r"away|denied") as raised:
        _writer(failing, str)("value", "topic")
    assert type(raised.value) is expected


@pytest.fixture
def schemas(monkeypatch: pytest.MonkeyPatch) -> dict[int, Schema]:
    """The schemas of the registry, by id."""
    schemas: dict[int, Schema] = {}
    registry = SchemaRegistry("http://localhost:1")
    monkeypatch.setattr(registry, "schema", schemas.__getitem__)
    monkeypatch.setattr(column_registry, "shared_registry", lambda settings: registry)
    return schemas


def test_an_invalid_schema_is_parsed_once(schemas: dict[int, Schema], monkeypatch: pytest.MonkeyPatch) -> None:
    schemas[7] = Schema("invalid", "PROTOBUF")
    names: list[str] = []

    def compiled(name: str, *arguments: Any) -> Any:
        names.append(name)
        raise SerializationError("invalid Protobuf schema")

    monkeypatch.setattr(protobuf, "_compiled", compiled)
    columns = RegistryColumns("protobuf", {})
    for _ in range(3):
        with pytest.raises(SerializationError, match="invalid Protobuf schema"):
            columns.read(framing.header(7) + b"\0")
    assert len(names) == 1


def test_a_message_type_without_a_column_type_is_examined_once(
    schemas: dict[int, Schema], monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas[7] = Schema('syntax = "proto3"; message A { A next = 1; }', "PROTOBUF")
    columns = RegistryColumns("protobuf", {})
    with pytest.raises(SerializationError, match="contains itself"):
        columns.read(framing.header(7) + b"\0")
    monkeypatch.setattr(column_registry.protobuf, "converter", None)
    with pytest.raises(SerializationError, match="contains itself"):
        columns.read(framing.header(7) + b"\0")


def test_json_is_validated_by_a_setting(schemas: dict[int, Schema]) -> None:
    schemas[7] = Schema('{"type": "integer", "maximum": 5}', "JSON")
    data = framing.header(7) + b"6"
    assert RegistryColumns("json-schema", {}).read_as(data, LongType()) == 6
    with pytest.raises(SerializationError, match="6 is greater than the maximum of 5"):
        RegistryColumns("json-schema", {"json.fail.invalid.schema": True}).read(data)
