"""Expressions over columns: of Spark's frames, and of Arrow's arrays. Both give what the
operation's Python function gives (`expressions.OPERATIONS`).

An Arrow function may refuse a batch with `NotPlain`: outside ASCII, Arrow and Python differ in
upper and lower case. The Python function is then called for each cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from kavka.pipeline.streams.expressions import (
    BOOLEAN,
    DAY_MS,
    DOUBLE,
    DOUBLE_TEXT,
    FIRST_DAY,
    INTEGER,
    INTEGER_TEXT,
    LAST_DAY,
    OPERATIONS,
    TEXT,
    TEXTS,
    TIME_TEXT,
    Expression,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

ARROW_TYPES: dict[str, pa.DataType] = {
    TEXT: pa.string(),
    INTEGER: pa.int64(),
    DOUBLE: pa.float64(),
    BOOLEAN: pa.bool_(),
    TEXTS: pa.list_(pa.string()),
}


class NotPlain(Exception):
    """Arrow's function would differ from Python's for this batch."""


# --- Arrow


def to_arrow(expression: Expression, columns: Mapping[str, Any], count: int) -> pa.Array:
    """The values of an expression for `count` records. `columns` are arrays or lists by name."""
    if expression.name == "constant":
        return pa.repeat(pa.scalar(expression.inputs[0], ARROW_TYPES[expression.kind]), count)
    if expression.name in columns:
        return columns[expression.name]
    inputs = [to_arrow(each, columns, count) for each in expression.inputs]
    function = _ARROW.get(expression.name)
    if function is not None and all(isinstance(cells, pa.Array) for cells in inputs):
        try:
            return function(expression, *inputs)
        except (NotPlain, pa.ArrowException):
            pass
    operation = OPERATIONS[expression.name]
    rows = zip(*(cells.to_pylist() if isinstance(cells, pa.Array) else cells for cells in inputs), strict=True)
    if operation.of_none:
        results = [operation.python(*row) for row in rows]
    else:
        results = [None if None in row else operation.python(*row) for row in rows]
    return pa.array(results, ARROW_TYPES[expression.kind])


def constant(expression: Expression, index: int) -> Any:
    """A constant input's value; NotPlain if the input is no constant."""
    source = expression.inputs[index]
    if source.name != "constant":
        raise NotPlain
    return source.inputs[0]


def _ascii(array: pa.Array) -> pa.Array:
    """Text in which Arrow's characters are Python's."""
    if not pc.all(pc.string_is_ascii(array)).as_py() and len(array) > array.null_count:
        raise NotPlain
    return array


def _finite(array: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_finite(array), array, None)


def _arithmetic(checked: Callable[..., pa.Array], plain: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    """Integers that overflow raise an ArrowException, so that Python computes the batch."""

    def compute(expression: Expression, left: pa.Array, right: pa.Array) -> pa.Array:
        if expression.kind == INTEGER:
            return checked(left, right)
        return _finite(plain(left, right))

    return compute


def _arrow_divide(_: Expression, left: pa.Array, right: pa.Array) -> pa.Array:
    left, right = left.cast(pa.float64(), safe=False), right.cast(pa.float64(), safe=False)
    return _finite(pc.divide(left, pc.if_else(pc.equal(right, 0.0), None, right)))


def _arrow_modulo(_: Expression, left: pa.Array, right: pa.Array) -> pa.Array:
    if left.null_count or right.null_count or not np.all(right.to_numpy() > 0):
        raise NotPlain
    return pa.array(np.mod(left.to_numpy(), right.to_numpy()))


def _arrow_cast(pattern: str, kind: pa.DataType) -> Callable[..., pa.Array]:
    def cast(expression: Expression, texts: pa.Array) -> pa.Array:
        if expression.inputs[0].kind == INTEGER:
            return texts.cast(kind, safe=False)
        if expression.inputs[0].kind != TEXT:
            raise NotPlain
        matches = pc.match_substring_regex(texts, rf"\A(?:{pattern})\z")
        # Arrow refuses a plus sign.
        plain = pc.replace_substring_regex(pc.if_else(matches, texts, None), r"\A\+", "")
        numbers = plain.cast(kind)
        return _finite(numbers) if kind == pa.float64() else numbers

    return cast


def _arrow_days(times: pa.Array) -> pa.Array:
    if times.null_count:
        raise NotPlain
    days = times.to_numpy() // DAY_MS
    if len(days) and (days.min() < FIRST_DAY or days.max() > LAST_DAY):
        raise NotPlain
    return pa.array(days.astype(np.int32), pa.date32())


def _day_part(function: Callable[[pa.Array], pa.Array]) -> Callable[..., pa.Array]:
    return lambda _, times: function(_arrow_days(times)).cast(pa.int64())


def _time_part(outer: int, inner: int) -> Callable[..., pa.Array]:
    def part(_: Expression, times: pa.Array) -> pa.Array:
        if times.null_count:
            raise NotPlain
        return pa.array(times.to_numpy() % outer // inner)

    return part


def _arrow_field(expression: Expression, documents: pa.Array, _: pa.Array) -> pa.Array:
    """All documents are parsed at once, one per line. Arrow fails for the whole batch if one of
    them is no object or has another type in the field."""
    if documents.null_count or expression.inputs[0].kind != TEXT or not len(documents):
        raise NotPlain
    if pc.any(pc.match_substring_regex(documents, r"[\r\n]|\A\s*\z")).as_py():
        raise NotPlain
    *parents, name = constant(expression, 1).split(".")
    kind = ARROW_TYPES[expression.kind]
    schema = pa.field(name, kind)
    for parent in reversed(parents):
        schema = pa.field(parent, pa.struct([schema]))
    lines = pc.binary_join(pa.array([documents.to_pylist()], pa.list_(pa.string())), "\n")[0].as_py()
    options = arrow_json.ParseOptions(explicit_schema=pa.schema([schema]), unexpected_field_behavior="ignore")
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(lines.encode()) + 1)
    table = arrow_json.read_json(pa.BufferReader(lines.encode()), read_options=read, parse_options=options)
    if table.num_rows != len(documents):
        raise NotPlain
    column = table.column(0).combine_chunks()
    for parent in [*parents[1:], name] if parents else []:
        column = pc.struct_field(column, parent)
    return _finite(column) if expression.kind == DOUBLE else column


_ARROW: dict[str, Callable[..., pa.Array]] = {
    "lower": lambda _, text: pc.ascii_lower(_ascii(text)),
    "upper": lambda _, text: pc.ascii_upper(_ascii(text)),
    "trim": lambda _, text: pc.ascii_trim(text, " "),
    "length": lambda _, text: pc.utf8_length(text).cast(pa.int64()),
    "concat": lambda _, left, right: pc.binary_join_element_wise(left, right, ""),
    "split": lambda expression, text, _: pc.split_pattern(text, constant(expression, 1)),
    "replace": lambda expression, text, *_: pc.replace_substring(
        text, constant(expression, 1), constant(expression, 2)
    ),
    "substring": lambda expression, text, *_: pc.utf8_slice_codeunits(
        text, constant(expression, 1), constant(expression, 1) + constant(expression, 2)
    ),
    "contains": lambda expression, text, _: pc.match_substring(text, constant(expression, 1)),
    "startswith": lambda expression, text, _: pc.starts_with(text, constant(expression, 1)),
    "endswith": lambda expression, text, _: pc.ends_with(text, constant(expression, 1)),
    "eq": lambda _, left, right: pc.equal(left, right),
    "lt": lambda _, left, right: pc.less(left, right),
    "le": lambda _, left, right: pc.less_equal(left, right),
    "not": lambda _, value: pc.invert(value),
    "and": lambda _, left, right: pc.and_kleene(left, right),
    "or": lambda _, left, right: pc.or_kleene(left, right),
    "is_null": lambda _, value: pc.is_null(value),
    "coalesce": lambda _, value, other: pc.coalesce(value, other),
    "if": lambda _, test, value, other: pc.if_else(pc.fill_null(test, False), value, other),
    "add": _arithmetic(pc.add_checked, pc.add),
    "subtract": _arithmetic(pc.subtract_checked, pc.subtract),
    "multiply": _arithmetic(pc.multiply_checked, pc.multiply),
    "divide": _arrow_divide,
    "modulo": _arrow_modulo,
    "to_integer": _arrow_cast(INTEGER_TEXT, pa.int64()),
    "to_double": _arrow_cast(DOUBLE_TEXT, pa.float64()),
    "to_text": lambda _, number: number.cast(pa.string()),
    "date": lambda _, times: pc.strftime(_arrow_days(times), "%Y-%m-%d"),
    "year": _day_part(pc.year),
    "month": _day_part(pc.month),
    "day": _day_part(pc.day),
    "hour": _time_part(DAY_MS, 3_600_000),
    "minute": _time_part(3_600_000, 60_000),
    "field_text": _arrow_field,
    "field_integer": _arrow_field,
    "field_double": _arrow_field,
    "field_boolean": _arrow_field,
}


# --- Spark

# The last of several fields of one name counts, as in Python.
SPARK_SETTINGS = {"spark.sql.variant.allowDuplicateKeys": "true"}


def to_column(expression: Expression) -> Column:
    """The expression over columns `key` and `value` of text, and `timestamp` in milliseconds."""
    from pyspark.sql import functions as f

    if expression.name == "constant":
        value = expression.inputs[0]
        return f.lit(value).cast("bigint") if expression.kind == INTEGER else f.lit(value)
    if not expression.inputs:
        return f.col(expression.name)
    return _spark_functions()[expression.name](expression, *map(to_column, expression.inputs))


def _pattern(text: str) -> str:
    """A regular expression of Java's that matches this text alone: after a backslash, what is
    neither letter nor digit means itself."""
    return "".join(f"\\{char}" if char.isascii() and not char.isalnum() else char for char in text)


def _spark_functions() -> dict[str, Callable[..., Column]]:
    """Return the translation of each operation to a Spark column. A translation gets the expression
    and the columns of its inputs. The table is in a function, because it needs pyspark."""
    from pyspark.sql import functions as f

    def finite(expression: Expression, column: Column) -> Column:
        if expression.kind != DOUBLE:
            return column
        return f.when(~(f.isnan(column) | (f.abs(column) == float("inf"))), column)

    def day(time: Column) -> Column:
        number = f.floor(time / f.lit(DAY_MS))
        return f.when(number.between(FIRST_DAY, LAST_DAY), f.date_from_unix_date(number.cast("int")))

    def time_part(outer: int, inner: int) -> Callable[..., Column]:
        return lambda _, time: f.floor(f.pmod(time, f.lit(outer)) / f.lit(inner)).cast("bigint")

    def cast(pattern: str, kind: str) -> Callable[..., Column]:
        def convert(expression: Expression, value: Column) -> Column:
            if expression.inputs[0].kind == TEXT:
                value = f.when(value.rlike(rf"\A(?:{pattern})\z"), value)
            return finite(expression, value.try_cast(kind))

        return convert

    def field(kind: str, *types: str) -> Callable[..., Column]:
        def get(expression: Expression, document: Column, _: Column) -> Column:
            path = "".join(f"['{name}']" for name in constant(expression, 1).split("."))
            value = f.try_variant_get(f.try_parse_json(document), f"${path}", "variant")
            is_kind = f.schema_of_variant(value).rlike(rf"\A(?:{'|'.join(types)})")
            return finite(expression, f.when(is_kind, f.try_variant_get(value, "$", kind)))

        return get

    def date_text(_: Expression, time: Column) -> Column:
        date = day(time)
        year = f.lpad(f.year(date).cast("string"), 4, "0")
        return f.when(date.isNotNull(), f.concat_ws("-", year, f.date_format(date, "MM-dd")))

    return {
        "lower": lambda _, text: f.lower(text),
        "upper": lambda _, text: f.upper(text),
        "trim": lambda _, text: f.trim(text),
        "length": lambda _, text: f.length(text).cast("bigint"),
        "concat": lambda _, left, right: f.concat(left, right),
        "split": lambda expression, text, _: f.split(text, _pattern(constant(expression, 1)), -1),
        "replace": lambda _, text, old, new: f.replace(text, old, new),
        "substring": lambda _, text, start, size: f.substring(text, (start + 1).cast("int"), size.cast("int")),
        "contains": lambda _, text, part: f.contains(text, part),
        "startswith": lambda _, text, part: f.startswith(text, part),
        "endswith": lambda _, text, part: f.endswith(text, part),
        "eq": lambda _, left, right: left == right,
        "lt": lambda _, left, right: left < right,
        "le": lambda _, left, right: left <= right,
        "not": lambda _, value: ~value,
        "and": lambda _, left, right: left & right,
        "or": lambda _, left, right: left | right,
        "is_null": lambda _, value: f.isnull(value),
        "coalesce": lambda _, value, other: f.coalesce(value, other),
        "if": lambda _, test, value, other: f.when(test, value).otherwise(other),
        "add": lambda expression, left, right: finite(expression, f.try_add(left, right)),
        "subtract": lambda expression, left, right: finite(expression, f.try_subtract(left, right)),
        "multiply": lambda expression, left, right: finite(expression, f.try_multiply(left, right)),
        "divide": lambda expression, left, right: finite(
            expression, f.try_divide(left.cast("double"), right.cast("double"))
        ),
        "modulo": lambda _, left, right: f.when(right != 0, f.pmod(left, f.abs(right))),
        "to_integer": cast(INTEGER_TEXT, "bigint"),
        "to_double": cast(DOUBLE_TEXT, "double"),
        "to_text": lambda _, number: number.cast("string"),
        "to_time": lambda _, text: f.when(
            text.rlike(rf"\A(?:{TIME_TEXT})\z"),
            f.unix_millis(f.try_to_timestamp(text, f.lit("yyyy-MM-dd'T'HH:mm:ss[.SSS]X"))),
        ),
        "date": date_text,
        "year": lambda _, time: f.year(day(time)).cast("bigint"),
        "month": lambda _, time: f.month(day(time)).cast("bigint"),
        "day": lambda _, time: f.day(day(time)).cast("bigint"),
        "hour": time_part(DAY_MS, 3_600_000),
        "minute": time_part(3_600_000, 60_000),
        "field_text": field("string", "STRING"),
        "field_integer": field("bigint", "BIGINT"),
        "field_double": field("double", "BIGINT", "DECIMAL", "DOUBLE", "FLOAT"),
        "field_boolean": field("boolean", "BOOLEAN"),
    }
