"""/api/openapi.json: the OpenAPI description, derived from the list of operations."""

from __future__ import annotations

import dataclasses
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from kavka import __version__
from kavka.console.registry import OPERATIONS, Operation, Parameter

ERROR = {
    "description": "The reason why the request failed, in one line.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def description() -> dict[str, Any]:
    """Return the OpenAPI document of all registered operations."""
    schemas: dict[str, Any] = {
        "Error": {
            "type": "object",
            "properties": {"error": {"type": "string"}, "field": {"type": "string"}},
            "required": ["error"],
        }
    }
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS.values():
        paths.setdefault("/api" + operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Kavka console",
            "version": __version__,
            "description": "All operations of the console's pages. If the console has users, authenticate with HTTP "
            "Basic. Send the body of a POST request as JSON.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"basic": []}, {}],
    }


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    operation_object: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": "\n\n".join(filter(None, [operation.help, f"Requires the role {operation.role.word}."])),
        "tags": [_tag(operation)],
        "parameters": [_parameter(p) for p in operation.parameters if p.place != "body"],
        "responses": {
            "200": {
                "description": "Success.",
                "content": {"application/json": {"schema": _schema(operation.result, schemas)}},
            },
            "default": ERROR,
        },
    }
    if operation.is_of_cluster:
        cluster = {"name": "cluster", "in": "path", "required": True, "schema": {"type": "string"}}
        operation_object["parameters"].insert(0, {**cluster, "description": "The cluster's name in this console."})
    if operation.method == "POST":
        body = [p for p in operation.parameters if p.place == "body"]
        schema = {
            "type": "object",
            "properties": {p.name: _property(p) for p in body},
            "required": [p.name for p in body if p.required],
        }
        operation_object["requestBody"] = {"required": bool(body), "content": {"application/json": {"schema": schema}}}
    return operation_object


def _tag(operation: Operation) -> str:
    names = [name for name in operation.path.split("/") if name and not name.startswith("{")]
    return names[1] if operation.is_of_cluster and len(names) > 1 else names[0]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.help,
        "schema": _type_of(parameter),
    }


def _property(parameter: Parameter) -> dict[str, Any]:
    return {**_type_of(parameter), **({"description": parameter.help} if parameter.help else {})}


def _type_of(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any]
    if parameter.type is list:
        schema = {"type": "array", "items": _simple(parameter.item)}
    elif parameter.type is dict:
        schema = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
    else:
        schema = _simple(parameter.type)
    if parameter.optional and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    if parameter.bounds is not None:
        low, high = ("minimum", "maximum") if parameter.type in (int, float) else ("minLength", "maxLength")
        if parameter.type is list:
            low, high = "minItems", "maxItems"
        if parameter.bounds.low is not None:
            schema[low] = parameter.bounds.low
        if parameter.bounds.high is not None:
            schema[high] = parameter.bounds.high
    if not parameter.required and parameter.default is not None:
        default = parameter.default
        schema["default"] = default.value if isinstance(default, Enum) else default
    return schema


_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _simple(python_type: Any) -> dict[str, Any]:
    if isinstance(python_type, type) and issubclass(python_type, Enum):
        return {"enum": [member.value for member in python_type]}
    return {"type": _NAMES[python_type]}


def _schema(hint: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a result type. The schemas of dataclasses and NamedTuples are added to
    `schemas`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _schema(arguments[0], schemas)
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(argument, schemas) for argument in arguments]}
    if origin in (list, tuple, set, frozenset):
        return {"type": "array", "items": _schema(arguments[0], schemas) if arguments else {}}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], schemas)}
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    if hint is NoneType:
        return {"type": "null"}
    if hint is UUID:
        return {"type": "string", "format": "uuid"}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _simple(hint)
    fields = _fields(hint)
    if fields is None:
        return {}
    if hint.__name__ not in schemas:
        schemas[hint.__name__] = {}
        schemas[hint.__name__] = {
            "type": "object",
            "properties": {name: _schema(field_hint, schemas) for name, field_hint in fields.items()},
            "required": list(fields),
        }
    return {"$ref": f"#/components/schemas/{hint.__name__}"}


def _fields(hint: Any) -> dict[str, Any] | None:
    if not isinstance(hint, type):
        return None
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return {field.name: hints[field.name] for field in dataclasses.fields(hint)}
    if issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return get_type_hints(hint)
    return None
