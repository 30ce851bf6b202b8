"""Parses schema files into `Message` trees. Errors contain the file and the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Primitive types of fixed size: struct's format character and the size in bytes.
FIXED = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
VARIABLE = ("string", "bytes", "records")
NOT_MODELLED = "not_modelled.txt"
NO_VERSION_LIMIT = 1 << 15


class SchemaError(Exception):
    """A schema file is invalid."""


@dataclass(frozen=True, slots=True)
class Versions:
    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    @classmethod
    def parse(cls, text: str) -> Versions:
        match = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
        if match is None:
            raise SchemaError(f"not a version range: {text}")
        first = int(match[1])
        return cls(first, NO_VERSION_LIMIT if match[2] else int(match[3] or first))


ALL = Versions(0, NO_VERSION_LIMIT)
NONE = Versions(1, 0)


@dataclass(slots=True)
class Field:
    name: str
    type: str  # for an array, the type of its elements
    array: bool
    versions: Versions = ALL
    nullable: Versions = NONE
    tag: int | None = None
    ignorable: bool = False
    default: str | None = None
    struct: Struct | None = None

    def nullable_in(self, version: int) -> bool:
        return version in self.versions and version in self.nullable

    @property
    def ever_nullable(self) -> bool:
        return self.nullable.first <= self.nullable.last or self.default == "null"


@dataclass(slots=True)
class Struct:
    name: str
    fields: list[Field] = field(default_factory=list)

    def at(self, version: int) -> tuple[list[Field], list[Field]]:
        """Return the untagged fields of a version, and the tagged fields ordered by tag."""
        present = [f for f in self.fields if version in f.versions]
        tagged = sorted((f for f in present if f.tag is not None), key=lambda f: f.tag or 0)
        return [f for f in present if f.tag is None], tagged

    def absent(self, version: int) -> list[Field]:
        return [f for f in self.fields if version not in f.versions]


@dataclass(slots=True)
class Message(Struct):
    kind: str = "data"
    api_key: int | None = None
    versions: Versions = ALL
    flexible_from: int | None = None
    flat: bool = False  # inline code for structs: faster, but much longer

    def flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from


@dataclass(slots=True)
class SchemaFile:
    name: str  # the name of the file without suffix, and of the generated module
    messages: list[Message]
    structs: dict[str, Struct]  # ordered so that a struct follows the structs that it uses


def parse_file(path: Path) -> SchemaFile:
    try:
        return parse(path.stem, path.read_text(encoding="utf-8"))
    except SchemaError as error:
        raise SchemaError(f"{path.name}: {error}") from None


def parse(name: str, text: str) -> SchemaFile:
    messages: list[Message] = []
    structs: dict[str, Struct] = {}
    # Structs whose fields are being read, outermost first, with the indent of their fields.
    open_structs: list[tuple[int, Struct | None]] = []
    last_field: Field | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        if not line:
            continue
        try:
            indent = len(line) - len(line.lstrip(" "))
            if indent == 0:
                message = _parse_message(line.split())
                messages.append(message)
                open_structs = [(-1, message)]
                last_field = None
                continue
            if not messages:
                raise SchemaError("a field before any message")
            if open_structs[-1][0] == -1:
                open_structs[-1] = (indent, open_structs[-1][1])
            elif indent > open_structs[-1][0]:
                if last_field is None or last_field.type in FIXED or last_field.type in VARIABLE:
                    raise SchemaError("indented below a field that is not a struct")
                if last_field.type in structs:
                    raise SchemaError(f"{last_field.type} is defined twice")
                open_structs.append((indent, structs.setdefault(last_field.type, Struct(last_field.type))))
            while indent < open_structs[-1][0]:
                open_structs.pop()
            if indent != open_structs[-1][0]:
                raise SchemaError("the indent matches no open struct")
            last_field = _parse_field(line.split())
            owner = open_structs[-1][1]
            assert owner is not None
            if any(f.name == last_field.name for f in owner.fields):
                raise SchemaError(f"{last_field.name} is defined twice")
            owner.fields.append(last_field)
        except SchemaError as error:
            raise SchemaError(f"line {number}: {error}") from None
    return SchemaFile(name, messages, _link(messages, structs))


def _parse_message(words: list[str]) -> Message:
    if len(words) < 4 or words[0] not in ("request", "response", "data"):
        raise SchemaError("expected 'request', 'response' or 'data', a name and its versions")
    message = Message(words[1], kind=words[0])
    options = words[2:]
    while options:
        if options[0] == "flat":
            message.flat = True
            options.pop(0)
            continue
        if len(options) < 2:
            raise SchemaError(f"{options[0]} needs a value")
        option, value, options = options[0], options[1], options[2:]
        if option == "api":
            message.api_key = int(value)
        elif option == "versions":
            message.versions = Versions.parse(value)
        elif option == "flexible":
            message.flexible_from = Versions.parse(value).first
        else:
            raise SchemaError(f"unknown word {option}")
    if message.versions is ALL:
        raise SchemaError("no versions")
    if (message.kind == "data") != (message.api_key is None):
        raise SchemaError("requests and responses have an api number, data has none")
    return message


def _parse_field(words: list[str]) -> Field:
    if len(words) < 2:
        raise SchemaError("a field needs a name and a type")
    name, type_name, options = words[0], words[1], words[2:]
    nullable = type_name.endswith("?")
    type_name = type_name.rstrip("?")
    array = type_name.startswith("[")
    if array:
        if not type_name.endswith("]"):
            raise SchemaError(f"not a type: {type_name}")
        type_name = type_name[1:-1]
    if type_name not in FIXED and type_name not in VARIABLE and not type_name[:1].isupper():
        raise SchemaError(f"not a type: {type_name}")
    result = Field(name, type_name, array, nullable=ALL if nullable else NONE)
    if options and options[0][0].isdigit():
        result.versions = Versions.parse(options.pop(0))
    while options:
        word = options.pop(0)
        if word == "ignorable":
            result.ignorable = True
        elif word in ("nullable", "tag", "=") and options:
            value = options.pop(0)
            if word == "nullable":
                result.nullable = Versions.parse(value)
            elif word == "tag":
                result.tag = int(value)
            else:
                result.default = value
        else:
            raise SchemaError(f"unknown word {word}")
    return result


def _link(messages: list[Message], structs: dict[str, Struct]) -> dict[str, Struct]:
    """Link every field to its struct, and order the structs so that each follows the structs that
    it uses."""
    ordered: dict[str, Struct] = {}

    def visit(struct: Struct, ancestors: tuple[str, ...]) -> None:
        for f in struct.fields:
            if f.type in FIXED or f.type in VARIABLE:
                continue
            if f.type in ancestors:
                raise SchemaError(f"{f.type} contains itself")
            if f.type not in structs:
                raise SchemaError(f"{f.type} is not defined")
            f.struct = structs[f.type]
            visit(f.struct, (*ancestors, f.type))
            ordered.setdefault(f.type, f.struct)

    for message in messages:
        if message.name in structs:
            raise SchemaError(f"{message.name} is both a message and a struct")
        visit(message, ())
    return ordered


def parse_not_modelled(path: Path) -> dict[int, str]:
    lines = (line.split("#", 1)[0].split() for line in path.read_text(encoding="utf-8").splitlines())
    return {int(words[0]): words[1] for words in lines if words}
