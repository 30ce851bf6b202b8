"""Generated records, for demonstrations, tests and benchmarks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kavka.common.config import HIGH, INT, LONG, AtLeast, NotEmpty, Satisfies
from kavka.pipeline.connect.api import Context, IncrementalSource, Offsets
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SCHEMAS: dict[str, tuple[str, str]] = {
    "users": (
        "userid",
        "userid STRING 'User_{1..9}', registertime BIGINT 1487000000000..1519000000000, "
        "regionid STRING 'Region_{1..9}', gender STRING MALE|FEMALE|OTHER",
    ),
    "orders": (
        "orderid",
        "orderid BIGINT id, ordertime BIGINT 1487000000000..1519000000000, itemid STRING 'Item_{1..999}', "
        "orderunits DOUBLE 0..10, city STRING 'City_{1..99}', zipcode INT 10000..99999",
    ),
    "pageviews": ("viewtime", "viewtime BIGINT id, userid STRING 'User_{1..9}', pageid STRING 'Page_{10..99}'"),
}
"""By name: the field that is also the key, and the fields."""

_TYPES = ("INT", "BIGINT", "DOUBLE", "BOOLEAN", "STRING")


class Field:
    """One field: a name, a type, and a generator of values.

    The generators: `id` is the record's number, `A..B` a number from A to B, `x|y|z` one of these
    values, and `'text_{1..9}'` the text with a number from 1 to 9. Without a generator, an INT is
    from 0 to 2^31-1, a BIGINT from 0 to 2^62, a DOUBLE from 0 to 1, and a STRING has eight letters.
    """

    def __init__(self, text: str) -> None:
        parts = text.strip().split(None, 2)
        if len(parts) < 2 or parts[1].upper() not in _TYPES:
            kinds = ", ".join(_TYPES)
            raise ValueError(f"'{text.strip()}' is not a name, one of {kinds}, and optionally a generator")
        self.name, self.kind = parts[0], parts[1].upper()
        self.generator = parts[2].strip() if len(parts) > 2 else ""
        # Raises ValueError if the generator is invalid.
        self.column("0", 0)

    def column(self, number: str, seed: int) -> str:
        """Returns a SQL expression for the value in a record. `number` is an expression for the
        record's number. The same number and seed give the same value on every machine. Raises
        ValueError if the generator is invalid."""
        hash_ = f"xxhash64({number}, {seed}, {_literal(self.name)})"
        if self.generator == "id":
            return f"CAST({number} AS {self.kind})"
        if self.generator.startswith("'") and self.generator.endswith("'"):
            return self._text(hash_)
        if ".." in self.generator:
            return f"CAST({_between(self.generator, hash_, self.kind == 'DOUBLE')} AS {self.kind})"
        if self.generator:
            choices = [choice.strip() for choice in self.generator.split("|")]
            array = ", ".join(_literal(choice) for choice in choices)
            return f"CAST(element_at(array({array}), CAST(pmod({hash_}, {len(choices)}) AS INT) + 1) AS {self.kind})"
        expressions = {
            "INT": f"CAST(pmod({hash_}, 2147483648) AS INT)",
            "BIGINT": f"abs({hash_} div 2)",
            "DOUBLE": f"pmod({hash_}, 9007199254740992) / 9007199254740992.0D",
            "BOOLEAN": f"pmod({hash_}, 2) = 0",
            "STRING": f"substring(translate(hex({hash_}), '0123456789', 'GHIJKLMNOP'), 1, 8)",
        }
        return expressions[self.kind]

    def _text(self, hash_: str) -> str:
        prefix, brace, remainder = self.generator[1:-1].partition("{")
        if not brace:
            return _literal(prefix)
        range_, _, suffix = remainder.partition("}")
        number = f"CAST({_between(range_, hash_, is_fraction=False)} AS STRING)"
        return f"concat({_literal(prefix)}, {number}, {_literal(suffix)})"


def _literal(text: str) -> str:
    """Returns a string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _between(text: str, hash_: str, is_fraction: bool) -> str:
    """Returns a SQL expression for a number in the range `A..B`. Raises ValueError if the range is
    invalid."""
    low, _, high = text.partition("..")
    try:
        lowest, highest = (float(low), float(high)) if is_fraction else (int(low), int(high))
    except ValueError:
        raise ValueError(f"'{text}' is not a range of numbers like 1..9") from None
    if lowest > highest:
        raise ValueError(f"'{text}' is not a range: it ends before it starts")
    if is_fraction:
        return f"{lowest}D + pmod({hash_}, 9007199254740992) / 9007199254740992.0D * {highest - lowest}D"
    return f"{lowest} + pmod({hash_}, {int(highest) - int(lowest) + 1})"


def fields(text: str) -> list[Field]:
    """Returns the fields of a schema. Raises ValueError if the text is not a schema."""
    schema_fields = [Field(field) for field in _split(text) if field.strip()]
    if not schema_fields:
        raise ValueError("there is no field")
    names = [field.name for field in schema_fields]
    if len(set(names)) != len(names):
        raise ValueError("two fields have the same name")
    return schema_fields


def _split(text: str) -> Iterator[str]:
    """Splits at commas that are not quoted."""
    is_quoted, begin = False, 0
    for index, char in enumerate(text):
        if char == "'":
            is_quoted = not is_quoted
        elif char == "," and not is_quoted:
            yield text[begin:index]
            begin = index + 1
    yield text[begin:]


def _is_schema(text: str) -> bool:
    try:
        fields(text)
    except ValueError:
        return False
    return True


class DatagenSource(IncrementalSource):
    """Generates records at a fixed rate, up to an optional limit. The same seed generates the same
    records.

    A schema is a list of fields: a name, a type (INT, BIGINT, DOUBLE, BOOLEAN, STRING) and a
    generator, which is `id` (the record's number), `1..9`, `red|green` or `'user_{1..9}'`. Without
    a generator the values are non-negative integers, doubles from 0 to 1, booleans, or eight
    letters."""

    partition_field = "generator"
    poll_interval = 0.1
    options = (
        Option("kafka.topic", doc="The topic to write to.", importance=HIGH, validator=NotEmpty()),
        Option(
            "quickstart",
            default="",
            doc=f"A predefined schema: {', '.join(SCHEMAS)}.",
            importance=HIGH,
            validator=Satisfies(f"one of {', '.join(SCHEMAS)}", lambda text: not text or text.lower() in SCHEMAS),
            recommended=tuple(SCHEMAS),
        ),
        Option(
            "schema",
            default="",
            doc="The fields: `id BIGINT id, name STRING 'user_{1..9}', amount DOUBLE 0..100, paid BOOLEAN`.",
            importance=HIGH,
            validator=Satisfies("fields like `id BIGINT id, n INT 1..9`", lambda text: not text or _is_schema(text)),
        ),
        Option("schema.keyfield", default="", doc="The field that is also the key."),
        Option("rows.per.second", LONG, 10, "The number of records per second.", validator=AtLeast(1)),
        Option("iterations", LONG, -1, "The total number of records; -1: no limit.", validator=AtLeast(-1)),
        Option("random.seed", LONG, 0, "The seed of the generator. Different seeds give different records."),
        Option("batch.max.rows", INT, 1_000_000, "The maximum number of records of a batch.", validator=AtLeast(1)),
    )

    @classmethod
    def check(cls, config: Mapping[str, Any], originals: Mapping[str, str]) -> dict[str, str]:
        quickstart, schema = (config["quickstart"] or "").lower(), config["schema"] or ""
        if bool(quickstart) == bool(schema):
            return {"schema": "exactly one of schema and quickstart must be set"}
        names = [field.name for field in fields(schema or SCHEMAS[quickstart][1])]
        key = config["schema.keyfield"]
        if key and key not in names:
            return {"schema.keyfield": f"{key} is not one of the fields {', '.join(names)}"}
        return {}

    def start(self, context: Context) -> None:
        self._started: tuple[float, int] | None = None

    def next(self, context: Context, start: Offsets) -> Offsets | None:
        count = _count(start)
        now = time.monotonic()
        if self._started is None:
            # The time in which the task did not run does not count.
            self._started = now, count
        start_time, first_count = self._started
        end = first_count + int((now - start_time) * context["rows.per.second"])
        iterations = context["iterations"]
        if context.available_now:
            end = iterations if iterations >= 0 else count + context["rows.per.second"]
            if iterations < 0 and count > first_count:
                return None
        end = min(end, count + context["batch.max.rows"])
        if iterations >= 0:
            end = min(end, iterations)
        return {"datagen": {"count": end}} if end > count else None

    def read_range(self, context: Context, start: Offsets, end: Offsets) -> DataFrame:
        from pyspark.sql import functions as f

        name = context["quickstart"].lower()
        schema = fields(context["schema"] or SCHEMAS[name][1])
        numbers = context.spark.range(_count(start), _count(end), 1, context["tasks.max"])
        seed = context["random.seed"]
        columns = [f.expr(field.column("id", seed)).alias(field.name) for field in schema]
        key = context["schema.keyfield"] or (SCHEMAS[name][0] if name else "")
        values = numbers.select(f.struct(*columns).alias("value"))
        record_columns: list[Column] = [f.col("value"), f.lit(context["kafka.topic"]).alias("topic")]
        if key:
            record_columns.append(f.col("value").getField(key).alias("key"))
        return values.select(*record_columns)

    @classmethod
    def check_offsets(cls, offsets: Offsets) -> None:
        for offset in offsets.values():
            count = offset.get("count")
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise ConnectError(f"count must be a number of records, not {count!r}")


def _count(offsets: Offsets) -> int:
    return int(offsets.get("datagen", {}).get("count", 0))
