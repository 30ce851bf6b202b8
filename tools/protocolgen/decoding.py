"""Generates decoders of a message and its structs for one version.

A precompiled struct reads adjacent fields of fixed size (a "run"). For other fields, the code calls
a reader in kavka.protocol.primitives, so that it stays small. Each struct has a function, and
versions with the same layout share it. `FlatDecoderWriter` is for the few messages on the hot path.
"""

from __future__ import annotations

from protocolgen.code import Code, GeneratedFunctions, ModuleRequirements, default_source, is_struct, quoted, snake_case
from protocolgen.schema import FIXED, Field, Message, SchemaError, Struct

_SIZES = {"B": 1} | {form: size for form, size in FIXED.values()}


def min_size(struct: Struct, version: int, flexible: bool) -> int:
    """Return the minimum size of a struct in bytes, which bounds the count of an array."""
    fields, _tagged = struct.at(version)
    return sum(_min_field_size(f, version, flexible) for f in fields) + flexible


def _min_field_size(f: Field, version: int, flexible: bool) -> int:
    if f.array:
        return 1 if flexible else 4
    if is_struct(f) and f.nullable_in(version):
        return 1
    return min_element_size(f, version, flexible)


def min_element_size(f: Field, version: int, flexible: bool) -> int:
    if f.type in FIXED:
        return FIXED[f.type][1]
    if f.type == "string":
        return 1 if flexible else 2
    if f.struct is None:
        return 1 if flexible else 4
    return min_size(f.struct, version, flexible)


class DecoderWriter:
    kind = "decode"
    arguments = "buf, pos"

    def __init__(self, message: Message, version: int, uses: ModuleRequirements, library: GeneratedFunctions) -> None:
        self.message = message
        self.version = version
        self.flexible = message.flexible(version)
        self.uses = uses
        self.library = library
        self.code = Code(depth=1)
        # Pending fields of fixed size: (format, target, statement after the read).
        self.run: list[tuple[str, str, str | None]] = []

    def write(self) -> list[str]:
        with self.code.block("try:"):
            self.begin()
            self.struct(self.message, "message")
            self.code.add("return message, pos")
        with self.code.block(f"except {self.uses.helper('DECODE_ERRORS')} as error:"):
            self.code.add(f"raise {self.uses.helper('malformed')}(@LABEL@, error) from None")
        return self.code.lines

    def begin(self) -> None:
        pass

    def write_struct(self, struct: Struct) -> list[str]:
        """Write the body of a struct's function. The message's function converts its exceptions to
        ProtocolError."""
        name = self.code.name(snake_case(struct.name))
        self.struct(struct, name)
        self.code.add(f"return {name}, pos")
        return self.code.lines

    # --- runs of fixed size

    def fixed(self, form: str, target: str, after: str | None = None) -> None:
        self.run.append((form, target, after))

    def flush(self) -> None:
        if not self.run:
            return
        targets = [target for _form, target, _after in self.run]
        formats = "".join(form for form, _target, _after in self.run)
        if formats == "B":
            self.code.add(f"{targets[0]} = buf[pos]")
        elif len(targets) == 1:
            self.code.add(f"({targets[0]},) = {self.uses.unpack(formats)}(buf, pos)")
        else:
            self.code.add_wrapped(targets, f" = {self.uses.unpack(formats)}(buf, pos)")
        self.code.add(f"pos += {sum(_SIZES[form] for form, _target, _after in self.run)}")
        for _form, _target, after in self.run:
            if after:
                self.code.add(after)
        self.run.clear()

    # --- structs

    def struct(self, struct: Struct, target: str) -> None:
        """Read a struct into a new object in the local variable `target`."""
        fields, tagged = struct.at(self.version)
        self.code.add(f"{target} = {self.uses.helper('new')}({struct.name})")
        for f in (*struct.absent(self.version), *tagged):
            self.code.add(f"{target}.{f.name} = {default_source(f, self.uses)}")
        for f in fields:
            self.field(f, f"{target}.{f.name}")
        if self.flexible:
            self.tags(tagged, target)
        else:
            self.flush()

    def function_of(self, struct: Struct) -> str:
        writer = DecoderWriter(self.message, self.version, self.uses, self.library)
        return self.library.add(writer, struct, self.version)

    def inner(self, struct: Struct, target: str) -> None:
        """Read a struct that is a field of another struct."""
        self.flush()
        self.code.add(f"{target}, pos = {self.function_of(struct)}(buf, pos)")

    def tags(self, tagged: list[Field], target: str) -> None:
        self.flush()
        if tagged:
            self.code.add(f"n, pos = {self.uses.helper('read_uvarint')}(buf, pos)")
            self.known_tags(tagged, target)
        else:
            self.code.add(f"pos = {self.uses.helper('skip_tags')}(buf, pos)")

    def known_tags(self, tagged: list[Field], target: str) -> None:
        """Read tagged fields. The variable `n` contains their number."""
        code = self.code
        tag, stop = code.name("tag"), code.name("stop")
        if self.message.kind == "request":
            code.add(f"{self.uses.helper('take_elements')}(n)")
        with code.block("for _ in range(n):"):
            code.add(f"{tag}, {stop}, pos = {self.uses.helper('read_tag')}(buf, pos)")
            keyword = "if"
            for f in tagged:
                with code.block(f"{keyword} {tag} == {f.tag}:"):
                    self.field(f, f"{target}.{f.name}")
                    self.flush()
                    with code.block(f"if pos != {stop}:"):
                        code.add(f"raise {self.uses.helper('bad_tag')}({quoted(f.name)})")
                keyword = "elif"
            with code.block("else:"):
                code.add(f"pos = {stop}")

    # --- fields

    def field(self, f: Field, target: str) -> None:
        if f.array:
            self.array(f, target)
        elif f.type in FIXED:
            self.number(f, target)
        elif f.struct is None:
            self.sized(f, target, f.nullable_in(self.version))
        elif f.nullable_in(self.version):
            # A marker precedes a nullable struct: -1 or 1, in a tagged field 0 or 1.
            self.fixed("b", "n")
            self.flush()
            with self.code.block("if n < 0:" if f.tag is None else "if n <= 0:"):
                self.code.add(f"{target} = None")
            with self.code.block("else:"):
                self.inner(f.struct, target)
        else:
            self.inner(f.struct, target)

    def number(self, f: Field, target: str) -> None:
        form = FIXED[f.type][0]
        if f.type == "uuid":
            raw = self.code.name("raw_" + f.name)
            self.fixed(form, raw, f"{target} = {self.uses.helper('to_uuid')}({raw})")
        else:
            self.fixed(form, target)

    def sized(self, f: Field, target: str, nullable: bool) -> None:
        """Read a string, bytes or records."""
        self.flush()
        self.code.add(f"{target}, pos = {self.uses.helper(self.reader(f.type, nullable))}(buf, pos)")

    def reader(self, type_name: str, nullable: bool) -> str:
        return "_".join(["read", *["compact"] * self.flexible, *["nullable"] * nullable, type_name])

    def array(self, f: Field, target: str) -> None:
        self.flush()
        nullable = f.nullable_in(self.version)
        read = self.uses.helper(self.reader("numbers" if f.type in FIXED else "array", nullable))
        if f.type in FIXED:
            element = quoted(self.number_format(f))
        elif f.struct is not None:
            element = self.function_of(f.struct)
        else:
            element = self.uses.helper(self.reader(f.type, nullable=False))
        self.code.add(f"{target}, pos = {read}(buf, pos, {self.min_element_size(f)}, {element})")

    def number_format(self, f: Field) -> str:
        form: str = FIXED[f.type][0]
        if form not in "bhiq":
            raise SchemaError(f"{f.name}: arrays of {f.type} are not supported")
        return form

    def min_element_size(self, f: Field) -> int:
        size = min_element_size(f, self.version, self.flexible)
        if size < 1:
            raise SchemaError(f"version {self.version}: elements of {f.name} have no size, so their count is unbounded")
        return size


class FlatDecoderWriter(DecoderWriter):
    """Generates inline code: loops for arrays, and calls only in rare cases. A length is read with
    the run before it."""

    def begin(self) -> None:
        if _contains_records(self.message):
            with self.code.block("if type(buf) is not memoryview:"):
                self.code.add("buf = memoryview(buf)")
        self.code.add("size = len(buf)")

    def inner(self, struct: Struct, target: str) -> None:
        self.flush()
        name = self.code.name(snake_case(struct.name))
        self.struct(struct, name)
        self.code.add(f"{target} = {name}")

    def tags(self, tagged: list[Field], target: str) -> None:
        self.fixed("B", "n")
        self.flush()
        with self.code.block("if n:"):
            if tagged:
                with self.code.block("if n > 127:"):
                    self.code.add(f"n, pos = {self.uses.helper('long_uvarint')}(buf, pos, n)")
                self.known_tags(tagged, target)
            else:
                self.code.add(f"pos = {self.uses.helper('skip_tags')}(buf, pos - 1)")

    def length(self, form: str, long: str) -> None:
        """Read a length into `n`. A compact length is one more than the length, and 0 for null."""
        self.fixed("B" if self.flexible else form, "n")
        self.flush()
        if self.flexible:
            with self.code.block("if n > 127:"):
                self.code.add(f"n, pos = {self.uses.helper(long)}(buf, pos, n)")

    def unless_null(self, f: Field, target: str, nullable: bool) -> None:
        """Handle null. The code after it handles other values."""
        with self.code.block("if n == 0:" if self.flexible else "if n < 0:"):
            if nullable:
                self.code.add(f"{target} = None")
            else:
                self.code.add(f"raise {self.uses.helper('null_field')}({quoted(f.name)})")

    def sized(self, f: Field, target: str, nullable: bool) -> None:
        string = f.type == "string"
        self.length("h" if string else "i", "long_string_length" if string else "long_uvarint")
        self.unless_null(f, target, nullable)
        if nullable:
            with self.code.block("else:"):
                self.slice(f, target)
        else:
            self.slice(f, target)

    def slice(self, f: Field, target: str) -> None:
        code, count = self.code, "n - 1" if self.flexible else "n"
        code.add(f"end = pos + {count}")
        with code.block("if end > size:"):
            code.add(f"raise {self.uses.helper('truncated')}({quoted(f.name)}, {count}, size - pos)")
        wrap = {"string": 'str(buf[pos:end], "utf-8")', "bytes": "bytes(buf[pos:end])", "records": "buf[pos:end]"}
        code.add(f"{target} = {wrap[f.type]}")
        code.add("pos = end")

    def array(self, f: Field, target: str) -> None:
        nullable = f.nullable_in(self.version)
        self.length("i", "long_uvarint")
        self.unless_null(f, target, nullable)
        if nullable:
            with self.code.block("else:"):
                self.elements(f, target)
        else:
            self.elements(f, target)

    def elements(self, f: Field, target: str) -> None:
        code = self.code
        if self.flexible:
            code.add("n -= 1")
        size = self.min_element_size(f)
        needed = "n" if size == 1 else f"{size} * n"
        with code.block(f"if {needed} > size - pos:"):
            code.add(f"raise {self.uses.helper('truncated')}({quoted(f.name)}, {needed}, size - pos)")
        if self.message.kind == "request":
            with code.block("if n > 1:"):
                code.add(f"{self.uses.helper('take_elements')}(n)")
        if f.type in FIXED:
            code.add(f"{target} = {self.uses.helper('unpack_numbers')}({quoted(self.number_format(f))}, buf, pos, n)")
            code.add(f"pos += {needed}")
            return
        items = code.name(f.name)
        code.add(f"{items} = {target} = []")
        with code.block("for _ in range(n):"):
            if f.struct is not None:
                name = code.name(snake_case(f.struct.name))
                self.struct(f.struct, name)
                code.add(f"{items}.append({name})")
            else:
                self.sized(f, "item", nullable=False)
                code.add(f"{items}.append(item)")


def _contains_records(struct: Struct) -> bool:
    return any(f.type == "records" or (f.struct is not None and _contains_records(f.struct)) for f in struct.fields)
