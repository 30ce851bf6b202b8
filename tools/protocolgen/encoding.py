"""Generates encoders of a message and its structs for one version. An encoder appends bytes to a
list.

A precompiled struct packs adjacent values of fixed size (a "run"). Packers in
kavka.protocol.primitives encode all other values. A field that the version lacks must have its
default, unless it is ignorable. `FlatEncoderWriter` is for the few messages on the hot path.
"""

from __future__ import annotations

from protocolgen.code import Code, GeneratedFunctions, ModuleRequirements, non_default_condition, quoted, snake_case
from protocolgen.schema import FIXED, Field, Message, Struct


def is_error_message(f: Field) -> bool:
    """Return whether a field is an error message, which is shortened, since it may quote client
    data."""
    return f.type == "string" and f.name.endswith("error_message")


class EncoderWriter:
    kind = "encode"
    arguments = "message, out"

    def __init__(self, message: Message, version: int, uses: ModuleRequirements, library: GeneratedFunctions) -> None:
        self.message = message
        self.version = version
        self.flexible = message.flexible(version)
        self.uses = uses
        self.library = library
        self.code = Code(depth=1)
        self.append = "append"  # source of the append method of the output list
        self.run: list[tuple[str, str]] = []  # pending values: (format, source); "x" is a zero byte

    def write(self) -> list[str]:
        with self.code.block("try:"):
            self.code.add("append = out.append")
            self.struct(self.message, "message")
            self.flush()
        with self.code.block(f"except {self.uses.helper('ENCODE_ERRORS')} as error:"):
            self.code.add(f"raise {self.uses.helper('not_encodable')}(@LABEL@, error) from None")
        return self.code.lines

    def write_struct(self, struct: Struct) -> list[str]:
        self.struct(struct, self.code.name(snake_case(struct.name)))
        self.flush()
        return self.code.lines

    # --- output

    def put(self, source: str) -> None:
        self.flush()
        self.code.add(f"{self.append}({source})")

    def fixed(self, form: str, source: str = "") -> None:
        self.run.append((form, source))

    def flush(self) -> None:
        if not self.run:
            return
        formats = "".join(form for form, _source in self.run)
        sources = [source for _form, source in self.run if source]
        self.run.clear()
        if sources:
            self.code.add_call(f"{self.append}({self.uses.pack(formats)}(", sources, "))")
        else:
            self.put('b"' + r"\x00" * len(formats) + '"')

    # --- structs

    def struct(self, struct: Struct, source: str) -> None:
        for f in struct.absent(self.version):
            if not f.ignorable:
                with self.code.block(f"if {non_default_condition(f, f'{source}.{f.name}', self.uses)}:"):
                    self.code.add(f"raise {self.uses.helper('not_in_version')}({quoted(f.name)})")
        fields, tagged = struct.at(self.version)
        for f in fields:
            self.field(f, f"{source}.{f.name}")
        if not self.flexible:
            return
        if tagged:
            self.tags(tagged, source)
        else:
            self.fixed("x")

    def inner(self, struct: Struct, value: str) -> None:
        """Write a struct that is a field of another struct."""
        self.flush()
        writer = EncoderWriter(self.message, self.version, self.uses, self.library)
        self.code.add(f"{self.library.add(writer, struct, self.version)}({value}, {self.append})")

    def tags(self, tagged: list[Field], source: str) -> None:
        """Write the tagged fields that are set, each with its tag and size, ordered by tag."""
        code = self.code
        self.flush()
        fields = code.name("tagged_fields")
        code.add(f"{fields} = []")
        outer_append = self.append
        for f in tagged:
            value = f"{source}.{f.name}"
            pieces = code.name("pieces")
            with code.block(f"if {non_default_condition(f, value, self.uses)}:"):
                code.add(f"{pieces} = []")
                self.append = f"{pieces}.append"
                self.field(f, value)
                self.flush()
                code.add(f"{fields}.append({self.uses.helper('tagged_field')}({f.tag}, {pieces}))")
            self.append = outer_append
        self.put(f'{self.uses.helper("join_tagged_fields")}({fields}) if {fields} else b"\\x00"')

    # --- fields

    def field(self, f: Field, value: str) -> None:
        nullable = f.nullable_in(self.version)
        if f.array:
            self.array(f, value, nullable)
        elif f.type in FIXED:
            self.fixed(FIXED[f.type][0], f"{value}.bytes" if f.type == "uuid" else value)
        elif f.struct is None:
            self.sized(f, value, nullable)
        elif nullable:
            self.flush()
            with self.code.block(f"if {value} is None:"):
                self.put(r'b"\xff"' if f.tag is None else r'b"\x00"')
            with self.code.block("else:"):
                self.fixed("b", "1")
                self.inner(f.struct, value)
                self.flush()
        else:
            self.inner(f.struct, value)

    def packer(self, type_name: str, nullable: bool) -> str:
        return self.uses.helper("_".join(["pack", *["compact"] * self.flexible, *["nullable"] * nullable, type_name]))

    def sized(self, f: Field, value: str, nullable: bool) -> None:
        if is_error_message(f):
            value = f"{self.uses.helper('shortened')}({value})"
        self.put(f"{self.packer(f.type, nullable)}({value})")

    def array(self, f: Field, value: str, nullable: bool) -> None:
        if f.type in FIXED:
            self.put(f"{self.packer('numbers', nullable)}({quoted(FIXED[f.type][0])}, {value})")
            return
        self.put(f"{self.packer('count', nullable)}({value})")
        if f.struct is not None:
            item = self.code.name(snake_case(f.struct.name))
            with self.code.block(f"for {item} in {value}{' or ()' if nullable else ''}:"):
                self.inner(f.struct, item)
                self.flush()
        else:
            with self.code.block(f"for item in {value}{' or ()' if nullable else ''}:"):
                self.sized(f, "item", nullable=False)


class FlatEncoderWriter(EncoderWriter):
    """Generates inline code. A length of fixed size is packed with the run before it."""

    def inner(self, struct: Struct, value: str) -> None:
        if "." in value:
            self.flush()
            name = self.code.name(snake_case(struct.name))
            self.code.add(f"{name} = {value}")
            value = name
        self.struct(struct, value)

    def length(self, source: str, form: str, long: str) -> None:
        if any(source == "n" for _form, source in self.run):
            self.flush()
        if self.flexible:
            self.code.add(f"n = {source} + 1")
            self.put(f"{self.uses.helper('UVARINTS')}[n] if n < 128 else {self.uses.helper(long)}(n)")
        else:
            self.code.add(f"n = {source}")
            self.fixed(form, "n")

    def unless_null(self, value: str, form: str) -> None:
        self.flush()
        with self.code.block(f"if {value} is None:"):
            if self.flexible:
                self.fixed("x")
            else:
                self.fixed(form, "-1")
            self.flush()

    def sized(self, f: Field, value: str, nullable: bool) -> None:
        if nullable:
            self.unless_null(value, "h" if f.type == "string" else "i")
            with self.code.block("else:"):
                self.sized(f, value, nullable=False)
        elif f.type == "string":
            if is_error_message(f):
                value = f"{self.uses.helper('shortened')}({value})"
            self.code.add(f"data = {value}.encode()")
            self.length("len(data)", "h", "long_string_prefix")
            self.put("data")
        else:
            self.length(f"len({value})", "i", "uvarint")
            self.put(value)

    def array(self, f: Field, value: str, nullable: bool) -> None:
        if nullable:
            self.unless_null(value, "i")
            with self.code.block("else:"):
                self.array(f, value, nullable=False)
            return
        if f.type in FIXED:
            super().array(f, value, nullable=False)
            return
        self.length(f"len({value})", "i", "uvarint")
        self.flush()
        item = self.code.name(snake_case(f.struct.name)) if f.struct is not None else "item"
        with self.code.block(f"for {item} in {value}:"):
            if f.struct is not None:
                self.inner(f.struct, item)
            else:
                self.sized(f, item, nullable=False)
            self.flush()
