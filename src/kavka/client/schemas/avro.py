"""Avro with fastavro. No I/O."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kavka.client import avro_bounds
from kavka.client.errors import SerializationError
from kavka.client.schemas.registry import Schema

TYPE = "AVRO"
_ROOT = "the schema"


def parse(schema: Schema, dependencies: Mapping[str, Schema]) -> Any:
    """Return the schema in fastavro's form, with the types that it references. Raises
    SerializationError."""
    try:
        from fastavro.repository.base import AbstractSchemaRepository, SchemaRepositoryError
        from fastavro.schema import load_schema, parse_schema
    except ImportError:
        raise SerializationError("Avro needs fastavro: pip install 'kavka[serializers]'") from None

    class Repository(AbstractSchemaRepository):
        def load(self, name: str) -> Any:
            if name == _ROOT:
                return document(schema)
            if name not in dependencies:
                raise SchemaRepositoryError(f"unknown type {name}")
            return document(dependencies[name])

    try:
        if not dependencies:
            return parse_schema(document(schema))
        _check_total_depth((schema, *dependencies.values()))
        return load_schema(_ROOT, repo=Repository())
    except Exception as error:
        raise SerializationError(f"invalid Avro schema: {str(error) or type(error).__name__}") from error


def document(schema: Schema) -> Any:
    """Return the JSON of a schema. The name of a primitive type may be without quotes."""
    return _document(schema)[0]


def _document(schema: Schema) -> tuple[Any, int]:
    """Return the JSON of a schema and its depth."""
    text = schema.text.strip()
    parsed = json.loads(text) if text[:1] in '{["' else text
    return parsed, avro_bounds.check_schema(parsed, avro_bounds.MAX_DEPTH)


def _check_total_depth(schemas: Iterable[Schema]) -> None:
    """Check the depth of documents that fastavro puts into one another."""
    if sum(max(1, _document(schema)[1]) for schema in schemas) > avro_bounds.MAX_DEPTH:
        raise avro_bounds.OutOfBounds(
            f"the Avro schema and its references have more than {avro_bounds.MAX_DEPTH} nested types"
        )


def record_name(parsed: Any) -> str | None:
    """Return the full name of a record, enum or fixed type."""
    return parsed.get("name") if isinstance(parsed, dict) else None


def writer(parsed: Any, max_depth: int = avro_bounds.MAX_DEPTH) -> Callable[[Any], bytes]:
    from fastavro import schemaless_writer

    can_nest = _bounds(parsed, max_depth).contains_itself

    def write(value: Any) -> bytes:
        out = io.BytesIO()
        try:
            if can_nest:
                avro_bounds.check_value(value, max_depth)
            schemaless_writer(out, parsed, value)
        except Exception as error:
            raise SerializationError(f"the value does not match the Avro schema: {_reason(error)}") from error
        return out.getvalue()

    return write


def reader(
    parsed: Any, reader_schema: Any = None, max_depth: int = avro_bounds.MAX_DEPTH
) -> Callable[[bytes, int], Any]:
    """Return a function of (data, position of the datum) that reads data of the schema `parsed`,
    resolved to the reader's schema if there is one."""
    from fastavro import schemaless_reader

    bounds = _bounds(parsed, max_depth)

    def read(data: bytes, position: int) -> Any:
        payload = data[position:]
        source = io.BytesIO(payload)
        try:
            bounds.check(payload)
            value = schemaless_reader(source, parsed, reader_schema)
        except Exception as error:
            raise SerializationError(f"the data does not match the Avro schema: {_reason(error)}") from error
        if source.tell() != len(payload):
            raise SerializationError("the data does not match the Avro schema: there are bytes after the datum")
        return value

    return read


def to_json(parsed: Any, value: Any) -> str:
    """Return Avro's JSON encoding of a value, in which a value of a union names its type."""
    from fastavro import json_writer

    out = io.StringIO()
    try:
        json_writer(out, parsed, [value])
    except Exception as error:
        raise SerializationError(f"the value has no JSON form: {_reason(error)}") from error
    return json.dumps(json.loads(out.getvalue()), separators=(",", ":"), ensure_ascii=False)


def from_json(parsed: Any, text: str) -> Any:
    """Return the value of Avro's JSON encoding."""
    from fastavro import json_reader

    try:
        (value,) = json_reader(io.StringIO(text), parsed)
    except Exception as error:
        raise SerializationError(f"the text is not JSON of the Avro schema: {_reason(error)}") from error
    return value


def _bounds(parsed: Any, max_depth: int) -> avro_bounds.DataBounds:
    try:
        return avro_bounds.DataBounds(parsed, max_depth)
    except Exception as error:
        raise SerializationError(f"invalid Avro schema: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())
