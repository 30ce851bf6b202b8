"""Protobuf: the types of a registered file, and the file of a generated class.

A registry returns a schema as a serialized FileDescriptorProto in base64, or as the text of a
.proto file. `protobuf` has no parser of such files, so protoc from grpcio-tools compiles them, in a
separate process because it prints its errors.
"""

from __future__ import annotations

import base64
import binascii
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from kavka.client.errors import SerializationError
from kavka.client.schemas.registry import Schema

TYPE = "PROTOBUF"
ROOT = "kavka-schema.proto"
COMPILE_TIMEOUT_S = 60.0
_BUILT_IN = ("google/protobuf/", "google/type/")


def is_built_in(name: str) -> bool:
    """Whether every Protobuf library has this file, so that it is not registered."""
    return name.startswith(_BUILT_IN)


def schema_of(file: Any, references: Sequence[Any] = ()) -> Schema:
    """Return the schema of a file descriptor."""
    return Schema(base64.b64encode(file.serialized_pb).decode(), TYPE, tuple(references))


def indexes_of(descriptor: Any) -> list[int]:
    """Return the position of a message type in its file."""
    indexes: list[int] = []
    while (outer := descriptor.containing_type) is not None:
        indexes.insert(0, [nested.full_name for nested in outer.nested_types].index(descriptor.full_name))
        descriptor = outer
    return [list(descriptor.file.message_types_by_name).index(descriptor.name), *indexes]


class ProtobufFile:
    """The message types of a registered schema. Raises SerializationError if it is invalid."""

    def __init__(self, schema: Schema, dependencies: Mapping[str, Schema]) -> None:
        try:
            from google.protobuf import descriptor_pool
        except ImportError:
            raise SerializationError("Protobuf needs protobuf: pip install 'kavka[serializers]'") from None
        files: dict[str, Any] = {}
        for name, dependency in dependencies.items():
            if not is_built_in(name):
                files[name] = _file(name, dependency, files)
        self._file = _file(ROOT, schema, files)
        self._pool = descriptor_pool.DescriptorPool()
        self._added: set[str] = set()
        self._classes: dict[tuple[int, ...], Any] = {}
        try:
            self._add(self._file, files)
        except Exception as error:
            raise SerializationError(f"invalid Protobuf schema: {_one_line(str(error))}") from error

    def _add(self, file: Any, files: Mapping[str, Any]) -> None:
        if file.name in self._added:
            return
        self._added.add(file.name)
        for name in file.dependency:
            self._add(files[name] if name in files else _built_in(name), files)
        self._pool.Add(file)

    def message_class(self, indexes: tuple[int, ...]) -> Any:
        """Return the class of the message type at this position."""
        if indexes not in self._classes:
            from google.protobuf import message_factory

            descriptor = self._pool.FindMessageTypeByName(self._full_name(indexes))
            self._classes[indexes] = message_factory.GetMessageClass(descriptor)
        return self._classes[indexes]

    def _full_name(self, indexes: tuple[int, ...]) -> str:
        names, types = ([self._file.package] if self._file.package else []), self._file.message_type
        for index in indexes:
            if not 0 <= index < len(types):
                raise SerializationError(f"the Protobuf schema has no message type at {list(indexes)}")
            names.append(types[index].name)
            types = types[index].nested_type
        return ".".join(names)

    def indexes_by_name(self, name: str | None) -> tuple[int, ...]:
        """Return the position of a message type: its full name, or None for the first type."""
        if name is None:
            return (0,)
        try:
            return tuple(indexes_of(self._pool.FindMessageTypeByName(name)))
        except KeyError:
            raise SerializationError(f"the Protobuf schema has no message type {name}") from None


def write(message: Any) -> bytes:
    try:
        return bytes(message.SerializeToString())
    except Exception as error:
        raise SerializationError(f"the value is not a Protobuf message that can be serialized: {error}") from error


def read(message_class: Any, data: bytes) -> Any:
    try:
        return message_class.FromString(data)
    except Exception as error:
        raise SerializationError(f"the data is not a {message_class.DESCRIPTOR.full_name}: {error}") from error


def from_mapping(message_class: Any, value: Any) -> Any:
    """Return a message with the values of Protobuf's JSON form."""
    from google.protobuf import json_format

    try:
        return json_format.ParseDict(value, message_class())
    except Exception as error:
        name = message_class.DESCRIPTOR.full_name
        raise SerializationError(f"the value does not match {name}: {_one_line(str(error))}") from error


def to_mapping(message: Any) -> Any:
    """Return Protobuf's JSON form of a message, with the field names of the schema."""
    from google.protobuf import json_format

    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _built_in(name: str) -> Any:
    from google.protobuf import descriptor_pb2

    if not is_built_in(name):
        raise SerializationError(f"the schema imports {name}, which is not among its references")
    try:
        module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    except ImportError:
        raise SerializationError(f"the schema imports {name}: pip install googleapis-common-protos") from None
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


def _file(name: str, schema: Schema, files: Mapping[str, Any]) -> Any:
    """Return the FileDescriptorProto of a schema under this name."""
    from google.protobuf import descriptor_pb2

    if schema.type != TYPE:
        raise SerializationError(f"{name} is a schema of type {schema.type}, not {TYPE}")
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(schema.text, validate=True))
    except (binascii.Error, ValueError):
        file = _compiled(name, schema.text, files)
    except Exception as error:
        raise SerializationError(f"invalid Protobuf schema: {_one_line(str(error))}") from None
    file.name = name
    return file


def _compiled(name: str, text: str, files: Mapping[str, Any]) -> Any:
    from google.protobuf import descriptor_pb2

    path = PurePosixPath(name)
    if not path.name or path.is_absolute() or ".." in path.parts or name.startswith(("@", "-")):
        raise SerializationError(f"invalid name of a Protobuf file: {name}")
    tools = find_spec("grpc_tools")
    if tools is None or tools.origin is None:
        raise SerializationError("a schema as .proto text needs grpcio-tools: pip install 'kavka[serializers]'")
    with tempfile.TemporaryDirectory() as created:
        folder = Path(created)
        source, imports, output = folder / "source" / name, folder / "imports", folder / "output"
        try:
            source.parent.mkdir(parents=True)
            source.write_text(text)
        except (OSError, ValueError) as error:
            raise SerializationError(f"invalid Protobuf schema: {_one_line(str(error))}") from None
        command = [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{folder / 'source'}",
            f"-I{Path(tools.origin).parent / '_proto'}", f"--descriptor_set_out={output}",
        ]  # fmt: skip
        if files:
            imports.write_bytes(descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString())
            command.append(f"--descriptor_set_in={imports}")
        try:
            result = subprocess.run(
                [*command, str(source)], capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise SerializationError(f"protoc did not compile the schema within {COMPILE_TIMEOUT_S:g} s") from None
        if result.returncode != 0:
            # Other lines may have content of other files.
            stderr = result.stderr.replace(f"{source}:", f"{name}:")
            lines = [line for line in stderr.splitlines() if line.startswith(f"{name}:")]
            raise SerializationError(
                f"invalid Protobuf schema: {_one_line(' '.join(lines))[:500] or 'protoc rejects it'}"
            )
        return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file[0]


def _one_line(text: str) -> str:
    return " ".join(text.split())
