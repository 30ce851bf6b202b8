"""The client of a schema registry, for Confluent's REST API.

A registered schema never changes, so schemas and ids are cached as long as the client exists. Only
the latest version of a subject is requested again, after `latest.cache.ttl.sec`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

from kavka.client.errors import SchemaRegistryError, SerializationError
from kavka.client.schemas.http import RegistryHttp, number

T = TypeVar("T")

MAX_CACHED = 10_000
MAX_REFERENCES = 200
LATEST_TTL_S = 60.0
MISSING_TTL_S = 10.0
_NOT_FOUND = 404


@contextmanager
def _complete_response() -> Iterator[None]:
    """Raise SchemaRegistryError for a response of a registry without the expected fields."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise SchemaRegistryError(f"the response of the schema registry is incomplete: {reason}") from None


@dataclass(frozen=True)
class SchemaReference:
    """A name in a schema and the registered schema that defines it. The name is an Avro full name,
    the URI of a `$ref`, or the path of an import."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """The text of a schema. The type is AVRO, JSON or PROTOBUF."""

    text: str
    type: str = "AVRO"
    references: tuple[SchemaReference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"schema": self.text}
        if self.type != "AVRO":
            body["schemaType"] = self.type
        if self.references:
            body["references"] = [
                {"name": reference.name, "subject": reference.subject, "version": reference.version}
                for reference in self.references
            ]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Schema:
        """Return the schema of a response. Raises SchemaRegistryError if the response is
        incomplete."""
        with _complete_response():
            references = tuple(
                SchemaReference(str(reference["name"]), str(reference["subject"]), int(reference["version"]))
                for reference in body.get("references") or ()
            )
            return cls(str(body["schema"]), str(body.get("schemaType") or "AVRO"), references)


@dataclass(frozen=True)
class RegisteredSchema:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema


class SchemaRegistry:
    """A schema registry: `SchemaRegistry("http://localhost:8081")`, or with Confluent's settings
    (`http.py` lists them): `SchemaRegistry(settings={"schema.registry.url": …})`.

    Any thread may use it. Calls block; the lock covers the caches, not the requests. Calls raise
    SchemaRegistryError if the registry rejects a request, and its subclass
    SchemaRegistryUnavailable if it cannot be reached. A pickled registry becomes the shared
    registry of the process that unpickles it.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = {**(settings or {}), **({} if url is None else {"schema.registry.url": url})}
        self._http = RegistryHttp(self._settings)
        self._now_s = now_s
        own_settings = RegistryHttp.own_settings(self._settings)
        self._latest_ttl_s = number(own_settings, "latest.cache.ttl.sec", LATEST_TTL_S)
        self._lock = threading.Lock()
        self._cache: dict[Hashable, Any] = {}
        self._latest: dict[str, tuple[float, RegisteredSchema]] = {}
        self._missing: dict[int, tuple[float, SchemaRegistryError]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return shared_registry, (self._settings,)

    @property
    def url(self) -> str:
        """The URLs, without passwords."""
        return self._http.url

    # --- schemas

    def schema(self, schema_id: int) -> Schema:
        """Return the schema with this id."""
        with self._lock:
            expiry, missing = self._missing.get(schema_id, (0.0, None))
        if missing is not None and self._now_s() < expiry:
            # An exception that is raised again would collect tracebacks.
            raise SchemaRegistryError(missing.message, missing.status, missing.error_code)
        try:
            return self._cached(("id", schema_id), lambda: self._schema(schema_id))
        except SchemaRegistryError as error:
            if error.status == _NOT_FOUND:
                with self._lock:
                    _put(self._missing, schema_id, (self._now_s() + MISSING_TTL_S, error))
            raise

    def _schema(self, schema_id: int) -> Schema:
        # A registry that knows no other format of Protobuf schemas ignores the parameter.
        return Schema.from_json(self._http.request("GET", f"/schemas/ids/{schema_id}?format=serialized"))

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        """Register a schema unless the subject has it, and return its id."""
        query = "?normalize=true" if normalize else ""
        path = f"/subjects/{_quoted(subject)}/versions{query}"

        def request() -> int:
            body = self._http.request("POST", path, schema.to_json())
            with _complete_response():
                return int(body["id"])

        return self._cached(("register", subject, schema), request)

    def lookup(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """Return the version of the subject that has this schema."""
        query = "?normalize=true" if normalize else ""
        path = f"/subjects/{_quoted(subject)}{query}"
        return self._cached(
            ("lookup", subject, schema), lambda: _registered(self._http.request("POST", path, schema.to_json()))
        )

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest version of a subject, as it was up to a minute ago
        (`latest.cache.ttl.sec`)."""
        now_s = self._now_s()
        with self._lock:
            cached = self._latest.get(subject)
        if cached is not None and now_s < cached[0]:
            return cached[1]
        path = f"/subjects/{_quoted(subject)}/versions/latest?format=serialized"
        registered = _registered(self._http.request("GET", path))
        with self._lock:
            _put(self._latest, subject, (now_s + self._latest_ttl_s, registered))
        return registered

    def version(self, subject: str, version: int) -> RegisteredSchema:
        path = f"/subjects/{_quoted(subject)}/versions/{version}?format=serialized"
        return self._cached(("version", subject, version), lambda: _registered(self._http.request("GET", path)))

    def dependencies(self, schema: Schema) -> dict[str, Schema]:
        """Return the schemas that a schema references, directly or not, by name. A schema comes
        after those that it references."""
        schemas: dict[str, Schema] = {}
        self._add_dependencies(schema, schemas, ())
        return schemas

    def _add_dependencies(self, schema: Schema, schemas: dict[str, Schema], path: tuple[str, ...]) -> None:
        for reference in schema.references:
            if reference.name in schemas or reference.name in path:
                continue
            if len(schemas) + len(path) >= MAX_REFERENCES:
                raise SchemaRegistryError(f"a schema with more than {MAX_REFERENCES} references")
            referenced = self.version(reference.subject, reference.version).schema
            self._add_dependencies(referenced, schemas, (*path, reference.name))
            schemas[reference.name] = referenced

    def written_with(self, schema_id: int) -> tuple[Schema, dict[str, Schema]]:
        """Return the schema of data that is read, and its dependencies. Raises SerializationError
        if the registry does not have them: then the data is invalid, not the registry."""
        try:
            schema = self.schema(schema_id)
            return schema, self.dependencies(schema)
        except SchemaRegistryError as error:
            if error.status != _NOT_FOUND:
                raise
            raise SerializationError(str(error)) from error
        except RecursionError:
            raise SerializationError(f"the references of schema {schema_id} are nested too deeply") from None

    # --- subjects

    def subjects(self) -> list[str]:
        subjects = self._http.request("GET", "/subjects")
        with _complete_response():
            return [str(subject) for subject in subjects]

    def versions(self, subject: str) -> list[int]:
        versions = self._http.request("GET", f"/subjects/{_quoted(subject)}/versions")
        with _complete_response():
            return [int(version) for version in versions]

    def is_compatible(self, subject: str, schema: Schema, version: int | str = "latest") -> bool:
        """Whether the subject's compatibility level allows to register the schema."""
        path = f"/compatibility/subjects/{_quoted(subject)}/versions/{version}"
        body = self._http.request("POST", path, schema.to_json())
        with _complete_response():
            return bool(body["is_compatible"])

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility level (BACKWARD, FULL, NONE …) of a subject, or the default."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}"
        self._http.request("PUT", path, {"compatibility": level})

    def _cached(self, key: Hashable, request: Callable[[], T]) -> T:
        with self._lock:
            if key in self._cache:
                cached: T = self._cache[key]
                return cached
        # Other threads do not wait for this request. Two that need the same schema both request it.
        result = request()
        with self._lock:
            _put(self._cache, key, result)
        return result


def _put(cache: dict[Any, Any], key: Hashable, value: Any) -> None:
    if key not in cache and len(cache) >= MAX_CACHED:
        del cache[next(iter(cache))]
    cache[key] = value


def _registered(body: Mapping[str, Any]) -> RegisteredSchema:
    schema = Schema.from_json(body)
    with _complete_response():
        return RegisteredSchema(str(body["subject"]), int(body["version"]), int(body["id"]), schema)


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def shared_registry(settings: Mapping[str, Any]) -> SchemaRegistry:
    """Return the registry of these settings, which this process shares. Other settings are
    ignored."""
    return _shared(json.dumps(RegistryHttp.own_settings(settings), sort_keys=True, default=str))


@lru_cache(maxsize=100)
def _shared(settings: str) -> SchemaRegistry:
    return SchemaRegistry(settings=json.loads(settings))
