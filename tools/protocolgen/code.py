"""Helpers shared by the decoder and encoder generators: indented lines, unique local names, and
source code for default values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from protocolgen.schema import FIXED, VARIABLE, Field, Struct

# Local names of generated functions.
RESERVED = ("buf", "pos", "size", "n", "end", "data", "message", "out", "append", "error", "item", "new")

LINE_LENGTH = 120


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def quoted(text: str) -> str:
    return '"' + text + '"'


class StructWriter(Protocol):
    kind: str

    def write_struct(self, struct: Struct) -> list[str]: ...


STRUCT_ARGUMENTS = {"decode": "buf, pos", "encode": "{}, append"}


class GeneratedFunctions:
    """The generated functions of a module. Versions of a struct with the same code share a
    function."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str, str], str] = {}  # (kind, owner, body) to name
        self._arguments: dict[str, str] = {}
        self._versions: dict[str, list[int]] = {}

    def add(self, writer: StructWriter, struct: Struct, version: int) -> str:
        arguments = STRUCT_ARGUMENTS[writer.kind].format(snake_case(struct.name))
        return self.add_function(writer.kind, struct.name, arguments, writer.write_struct(struct), version)

    def add_function(self, kind: str, owner: str, arguments: str, body: list[str], version: int) -> str:
        """Add a function for a version of `owner`, unless one with the same body exists. Return its
        name."""
        key = kind, owner, "\n".join(body)
        name = self._functions.get(key)
        if name is None:
            name = base = f"{kind}_{snake_case(owner)}_v{version}"
            count = 2
            while name in self._arguments:
                name, count = f"{base}_{count}", count + 1
            self._functions[key] = name
            self._arguments[name] = arguments
        versions = self._versions.setdefault(name, [])
        if version not in versions:
            versions.append(version)
        return name

    def sources(self) -> list[str]:
        """Return the source code of each function."""
        result = []
        for (_kind, owner, body), name in self._functions.items():
            label = quoted(f"{owner} {version_label(sorted(self._versions[name]))}")
            result.append(f"def {name}({self._arguments[name]}):\n{body.replace('@LABEL@', label)}")
        return result


def version_label(versions: list[int]) -> str:
    first, last = versions[0], versions[-1]
    if first == last:
        return f"v{first}"
    if versions == list(range(first, last + 1)):
        return f"v{first}-v{last}"
    return "v" + ", v".join(map(str, versions))


class Code:
    """The lines of a function."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self._depth = depth
        self._names = set(RESERVED)

    def add(self, line: str) -> None:
        self.lines.append("    " * self._depth + line)

    def add_wrapped(self, targets: list[str], end: str) -> None:
        """Add an assignment, with one target per line if it is too long for one line."""
        line = ", ".join(targets)
        if 4 * self._depth + len(line + end) <= LINE_LENGTH:
            self.add(line + end)
        else:
            self.add_list("(", targets, ")" + end)

    def add_call(self, start: str, arguments: list[str], end: str) -> None:
        line = start + ", ".join(arguments) + end
        if 4 * self._depth + len(line) <= LINE_LENGTH:
            self.add(line)
        else:
            self.add_list(start, arguments, end)

    def add_list(self, start: str, items: list[str], end: str) -> None:
        with self.block(start):
            for item in items:
                self.add(item + ",")
        self.add(end)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.add(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, base: str) -> str:
        """Return an unused local name that starts with `base`."""
        name, count = base, 2
        while name in self._names:
            name, count = f"{base}_{count}", count + 1
        self._names.add(name)
        return name


class ModuleRequirements:
    """The imports and definitions that a generated module needs, collected while its code is
    generated."""

    def __init__(self) -> None:
        self.helpers: set[str] = set()
        self.unpackers: set[str] = set()
        self.packers: set[str] = set()
        self.shared_defaults: set[str] = set()

    def helper(self, name: str) -> str:
        self.helpers.add(name)
        return name

    def unpack(self, formats: str) -> str:
        self.unpackers.add(formats)
        return "unpack_" + format_name(formats)

    def pack(self, formats: str) -> str:
        self.packers.add(formats)
        return "pack_" + format_name(formats)

    def shared_default(self, struct_name: str) -> str:
        self.shared_defaults.add(struct_name)
        return "DEFAULT_" + snake_case(struct_name).upper()


def format_name(formats: str) -> str:
    return formats.replace("16s", "u").replace("?", "t")


def is_struct(f: Field) -> bool:
    return f.type not in FIXED and f.type not in VARIABLE


def has_shared_default(struct: Struct) -> bool:
    """Return whether all messages can share a default of this struct, because none of its fields is
    mutable."""
    return all(not f.array and not is_struct(f) for f in struct.fields)


def default_source(f: Field, uses: ModuleRequirements) -> str:
    if f.default == "null" or (f.type == "records" and f.default is None):
        return "None"
    if f.array:
        return "[]"
    if f.struct is not None:
        return uses.shared_default(f.type) if has_shared_default(f.struct) else f"{f.type}()"
    if f.type == "string":
        return f.default or '""'
    if f.type == "bytes":
        return 'b""'
    if f.type == "uuid":
        return uses.helper("ZERO_UUID")
    if f.type == "bool":
        return "True" if f.default == "true" else "False"
    if f.type == "float64":
        return f.default or "0.0"
    return f.default or "0"


def non_default_condition(f: Field, value: str, uses: ModuleRequirements) -> str:
    """Return the source of the condition that `value` is not the field's default."""
    default = default_source(f, uses)
    if default == "None":
        return f"{value} is not None"
    if default in ("[]", '""', 'b""'):
        return f"{value} is None or {value}" if f.ever_nullable else value
    if default == "0" or default == "False":
        return value
    if default == "True":
        return f"not {value}"
    if default.startswith("DEFAULT_"):
        return f"{value} is not {default} and {value} != {default}"
    return f"{value} != {default}"
