"""JSON Schema with jsonschema. No I/O: a `$ref` is resolved from the schema's references only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

from kavka.client.errors import SerializationError
from kavka.client.schemas.registry import Schema

TYPE = "JSON"
VALIDATE_ON_READ = "json.fail.invalid.schema"


class JsonValidator:
    """Validates values of one schema. Raises SerializationError if the schema is invalid."""

    def __init__(self, schema: Schema, dependencies: Mapping[str, Schema]) -> None:
        try:
            from jsonschema.validators import Draft7Validator, validator_for
            from referencing import Registry, Resource
            from referencing.jsonschema import DRAFT7
        except ImportError:
            raise SerializationError("JSON Schema needs jsonschema: pip install 'kavka[serializers]'") from None
        try:
            self.document: Any = json.loads(schema.text)
            # A name may be a path that is relative to the URI of the schema.
            base = str(self.document.get("$id", "")) if isinstance(self.document, dict) else ""
            resources = [
                (uri, Resource.from_contents(json.loads(dependency.text), default_specification=DRAFT7))
                for name, dependency in dependencies.items()
                for uri in {name, urljoin(base, name)}
            ]
            kind = validator_for(self.document, default=Draft7Validator)
            kind.check_schema(self.document)
            registry: Any = Registry().with_resources(resources)
            self._validator = kind(self.document, registry=registry)
            resource = Resource.from_contents(self.document, default_specification=DRAFT7)
            self.resolver: Any = registry.with_resource(base, resource).resolver(base)
        except Exception as error:
            reason = getattr(error, "message", None) or str(error)
            raise SerializationError(f"invalid JSON schema: {' '.join(reason.split())[:500]}") from error

    @property
    def record_name(self) -> str | None:
        """The title, as in Confluent's serializers."""
        title = self.document.get("title") if isinstance(self.document, dict) else None
        return None if title is None else str(title)

    def check(self, value: Any) -> None:
        """Raise SerializationError for a value that the schema does not allow."""
        try:
            error = next(self._validator.iter_errors(value), None)
        except Exception as failure:
            raise SerializationError(f"the JSON schema cannot be applied: {' '.join(str(failure).split())}") from None
        if error is not None:
            place = "".join(f"[{part!r}]" for part in error.absolute_path)
            message = " ".join(error.message.split())[:500]
            raise SerializationError(
                f"the value does not match the JSON schema{' at ' + place if place else ''}: {message}"
            )

    def write(self, value: Any) -> bytes:
        self.check(value)
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise SerializationError(f"the value has no JSON form: {error}") from None

    def read(self, data: bytes, position: int) -> Any:
        try:
            return json.loads(data[position:])
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"the data is not JSON: {error}") from None

    def read_valid(self, data: bytes, position: int) -> Any:
        """Like `read`, and check the value. A schema may be written so that this takes long."""
        value = self.read(data, position)
        self.check(value)
        return value
