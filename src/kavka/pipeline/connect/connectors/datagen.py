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
"""By name: the key's field, and the fields."""

_TYPES = ("INT", "BIGINT", "DOUBLE", "BOOLEAN", "STRING")


class Field:
    """One field: a name, a type, and a generator of values.

    `id`: the record's number. `A..B`: a number from A to B. `x|y|z`: one of these. `'text_{1..9}'`:
    the text with a number in it. Empty: any number, any boolean, or eight letters."""

    def __init__(self, text: str) -> None:
        parts = text.strip().split(None, 2)
        if len(parts) < 2 or parts[1].upper() not in _TYPES:
            kinds = ", ".join(_TYPES)
            raise ValueError(f"'{text.strip()}' is not a name, one of {kinds}, and optionally a generator")
        self.name, self.kind = parts[0], parts[1].upper()
        self.values = parts[2].strip() if len(parts) > 2 else ""
        self.column("0", 0)

    def column(self, number: str, seed: int) -> str:
        """A SQL expression. It gives the same value for the same number and seed on every
        machine."""
        hash_ = f"xxhash64({number}, {seed}, {_literal(self.name)})"
        if self.values == "id":
            return f"CAST({number} AS {self.kind})"
        if self.values.startswith("'") and self.values.endswith("'"):
            return self._text(hash_)
        if ".." in self.values:
            return f"CAST({_between(self.values, hash_, self.kind == 'DOUBLE')} AS {self.kind})"
        if self.values:
            choices = [choice.strip() for choice in self.values.split("|")]
            array = ", ".join(_literal(choice) for choice in choices)
            return f"CAST(element_at(array({array}), CAST(pmod({hash_}, {len(choices)}) AS INT) + 1) AS {self.kind})"
        plain = {
            "INT": f"CAST(pmod({hash_}, 2147483648) AS INT)",
            "BIGINT": f"abs({hash_} div 2)",
            "DOUBLE": f"pmod({hash_}, 9007199254740992) / 9007199254740992.0D",
            "BOOLEAN": f"pmod({hash_}, 2) = 0",
            "STRING": f"substring(translate(hex({hash_}), '0123456789', 'GHIJKLMNOP'), 1, 8)",
        }
        return plain[self.kind]

    def _text(self, hash_: str) -> str:
        before, brace, rest = self.values[1:-1].partition("{")
        inner, _, after = rest.partition("}")
        if not brace:
            return _literal(before)
        number = f"CAST({_between(inner, hash_, False)} AS STRING)"
        return f"concat({_literal(before)}, {number}, {_literal(after)})"


def _literal(text: str) -> str:
    """A string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _between(text: str, hash_: str, fraction: bool) -> str:
    low, _, high = text.partition("..")
    try:
        lowest, highest = (float(low), float(high)) if fraction else (int(low), int(high))
    except ValueError:
        raise ValueError(f"'{text}' is not a range of numbers like 1..9") from None
    if lowest > highest:
        raise ValueError(f"'{text}' is not a range: it ends before it starts")
    if fraction:
        return f"{lowest}D + pmod({hash_}, 9007199254740992) / 9007199254740992.0D * {highest - lowest}D"
    return f"{lowest} + pmod({hash_}, {int(highest) - int(lowest) + 1})"


def fields(text: str) -> list[Field]:
    """Raises ValueError if the text is not a schema."""
    parsed = [Field(field) for field in _split(text) if field.strip()]
    if not parsed:
        raise ValueError("there is no field")
    names = [field.name for field in parsed]
    if len(set(names)) != len(names):
        raise ValueError("two fields have the same name")
    return parsed


def _split(text: str) -> Iterator[str]:
    """Splits at commas that are not quoted."""
    inside, begin = False, 0
    for index, letter in enumerate(text):
        if letter == "'":
            inside = not inside
        elif letter == "," and not inside:
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
    """Generated records, the same ones for the same seed, at a fixed rate, with an optional limit.

    A schema is a list of fields, each a name, a type (INT, BIGINT, DOUBLE, BOOLEAN, STRING) and a
    generator: `id` (the record's number), `1..9`, `red|green`, `'user_{1..9}'`, or empty for any
    value."""

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
        errors: dict[str, str] = {}
        quickstart, schema = (config["quickstart"] or "").lower(), config["schema"] or ""
        if bool(quickstart) == bool(schema):
            errors["schema"] = "exactly one of schema and quickstart must be set"
            return errors
        names = [field.name for field in fields(schema or SCHEMAS[quickstart][1])]
        key = config["schema.keyfield"]
        if key and key not in names:
            errors["schema.keyfield"] = f"{key} is not one of the fields {', '.join(names)}"
        return errors

    def start(self, context: Context) -> None:
        self._started: tuple[float, int] | None = None

    def next(self, context: Context, start: Offsets) -> Offsets | None:
        count = _count(start)
        now = time.monotonic()
        if self._started is None:
            # Records of the time when the task did not run are not generated later.
            self._started = now, count
        since, at_first = self._started
        end = at_first + int((now - since) * context["rows.per.second"])
        iterations = context["iterations"]
        if context.available_now:
            end = iterations if iterations >= 0 else count + context["rows.per.second"]
            if iterations < 0 and count > at_first:
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
        chosen: list[Column] = [f.col("value"), f.lit(context["kafka.topic"]).alias("topic")]
        if key:
            chosen.append(f.col("value").getField(key).alias("key"))
        return values.select(*chosen)

    @classmethod
    def check_offsets(cls, offsets: Offsets) -> None:
        for offset in offsets.values():
            count = offset.get("count")
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise ConnectError(f"count must be a number of records, not {count!r}")


def _count(offsets: Offsets) -> int:
    return int(offsets.get("datagen", {}).get("count", 0))
