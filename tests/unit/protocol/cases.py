"""Shared by the protocol tests: all messages with their schemas, golden frames, and objects from
Kafka's JSON form."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from kavka.protocol.primitives import TopMessage

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from generate_protocol import load_schemas  # noqa: E402
from protocolgen.schema import Field, Message, Struct  # noqa: E402

FRAMES = ROOT / "tests/golden/frames"


class Case(NamedTuple):
    module: str
    schema: Message

    @property
    def cls(self) -> type[TopMessage]:
        return getattr(import_module(f"kavka.protocol.messages.{self.module}"), self.schema.name)

    def nested(self, struct: Struct) -> type[Any]:
        return getattr(import_module(f"kavka.protocol.messages.{self.module}"), struct.name)

    def __str__(self) -> str:
        return self.schema.name


class Golden(NamedTuple):
    name: str
    version: int
    variant: str
    data: bytes
    json: dict[str, Any]


CASES = [Case(file.name, message) for file in load_schemas() for message in file.messages]
BY_NAME = {case.schema.name: case for case in CASES}


@cache
def golden_frames(module: str) -> list[Golden]:
    result = []
    for line in gzip.decompress((FRAMES / f"{module}.txt.gz").read_bytes()).decode().splitlines():
        name, version, variant, data, text = line.split("\t")
        result.append(Golden(name, int(version), variant, bytes.fromhex(data), json.loads(text)))
    return result


def golden_of(case: Case) -> list[Golden]:
    return [frame for frame in golden_frames(case.module) if frame.name == case.schema.name]


def from_json(case: Case, struct: Struct, values: dict[str, Any], version: int) -> Any:
    """The object of Kafka's JSON form. Every key must have a field, and only tagged fields may be
    missing."""
    by_name = {key.lower(): value for key, value in values.items()}
    arguments = {}
    for f in struct.fields:
        if version not in f.versions:
            continue
        key = f.name.replace("_", "")
        if f.type == "records" and key + "sizeinbytes" in by_name:
            arguments[f.name] = records_of_size(by_name.pop(key + "sizeinbytes"))
        elif key in by_name:
            arguments[f.name] = _value(case, f, by_name.pop(key), version)
        else:
            assert f.tag is not None, f"{struct.name}.{f.name} is not in the JSON form"
    assert not by_name, f"{struct.name} has no fields for {sorted(by_name)}"
    return (case.cls if struct is case.schema else case.nested(struct))(**arguments)


def _value(case: Case, f: Field, value: Any, version: int) -> Any:
    if value is None:
        return None
    if f.array:
        return [_element(case, f, item, version) for item in value]
    return _element(case, f, value, version)


def _element(case: Case, f: Field, value: Any, version: int) -> Any:
    if f.struct is not None:
        return from_json(case, f.struct, value, version)
    if f.type == "bytes":
        return base64.b64decode(value)
    if f.type == "uuid":
        return UUID(bytes=base64.urlsafe_b64decode(value + "=="))
    return value


def records_of_size(size: int) -> bytes:
    """The records that tests/golden/java/GoldenFrames.java writes."""
    return bytes((31 * i + 7) % 256 for i in range(size))
