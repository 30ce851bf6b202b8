"""JSON: with a schema in each record, as Kafka Connect writes it, or without.

Reading needs Spark's type before the first record. With schemas those of a micro-batch are looked at first, and merged
where there are several; without, the type is what the JSON texts of the micro-batch have in common. `schema`
(Spark's DDL, as `id BIGINT, name STRING`) says it once for all, and saves that look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from kavka.common.config import ConfigType, Importance, OneOf
from kavka.pipeline.connect import decimal_columns, schemas
from kavka.pipeline.connect.converters import Converter, Decoded
from kavka.pipeline.connect.decimal_columns import once
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import SchemaName

_CORRUPT = "_corrupt_record"
_MOST_SCHEMAS = 1000
# Spark counts times in microseconds, in 64 bits.
_LAST_MS = (2**63 - 1) // 1000
_NO_JSON = "Converting byte[] to Kafka Connect data failed due to serialization error: "
_NO_ENVELOPE = (
    'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain additional fields. '
    "If you are trying to deserialize plain JSON data, set schemas.enable=false in your converter configuration."
)

Scales = dict[tuple[str, ...], Column]
"""By the path of a field: the scale of its decimals, where that differs from record to record."""


class JsonConverter(Converter):
    """JSON, each record with its schema (`schemas.enable=true`) or without."""

    java_names = ("org.apache.kafka.connect.json.JsonConverter",)
    options = (
        Option("schemas.enable", ConfigType.BOOLEAN, True, "Whether each record has its schema beside its data.",
               Importance.HIGH),
        Option("schemas.cache.size", ConfigType.INT, 1000, "Has no effect here.", Importance.HIGH),
        Option("decimal.format", default="BASE64", importance=Importance.LOW, recommended=("BASE64", "NUMERIC"),
               validator=OneOf(("BASE64", "NUMERIC"), ignore_case=True),
               doc="How decimals are written: the bytes of the unscaled number, or a number."),
        Option("replace.null.with.default", ConfigType.BOOLEAN, True, "Has no effect here: columns have no defaults.",
               Importance.LOW),
        Option("schema", default=None, importance=Importance.MEDIUM,
               doc="Of what is read, as Spark writes types (`id BIGINT, name STRING`); without it the records are "
                   "looked at."),
    )  # fmt: skip

    @property
    def static(self) -> bool:
        return bool(self.config["schema"])

    @property
    def _with_schemas(self) -> bool:
        return bool(self.config["schemas.enable"])

    @property
    def _numeric(self) -> bool:
        return str(self.config["decimal.format"]).upper() == "NUMERIC"

    # --- reading

    def decode(self, column: Column, batch: DataFrame | None) -> Decoded:
        text = column.cast("string")
        return self._decode_with_schemas(text, batch) if self._with_schemas else self._decode_plain(text, batch)

    def _given(self) -> DataType | None:
        given = self.config["schema"]
        if not given:
            return None
        from pyspark.sql.types import _parse_datatype_string

        try:
            return _parse_datatype_string(given)
        except Exception as error:
            raise ConnectError(f"schema of the JsonConverter cannot be read: {str(error).splitlines()[0]}") from None

    def _decode_plain(self, text: Column, batch: DataFrame | None) -> Decoded:
        kind = self._given()
        whole = F.try_parse_json(text)
        wrong, cause = whole.isNull(), _shown(text)
        if kind is None:
            assert batch is not None
            # Step by step, so that Spark does each once.
            looked = batch.select(whole.alias("v")).select("v", F.schema_of_variant("v").alias("described"))
            looked = looked.select("v", (~schemas.is_shallow(F.col("described"))).alias("deep"))
            common = F.schema_of_variant_agg(F.when(~F.col("deep"), F.col("v")))
            found = looked.agg(common.alias("common"), F.max("deep").alias("deep")).first()
            assert found is not None
            kind = schemas.schema_of_variants(found["common"]) if found["common"] else StringType()
            schemas.check_width(kind)
            if found["deep"]:
                deep = ~schemas.is_shallow(F.schema_of_variant(whole))
                wrong |= deep
                cause = F.when(deep, F.lit(f"nested more than {schemas.MAX_DEPTH} levels deep")).otherwise(cause)
        read, corrupt = self._parsed(F.concat(F.lit('{"payload":'), text, F.lit("}")), kind)
        wrong = text.isNotNull() & (wrong | corrupt)
        return Decoded(read, F.when(wrong, F.lit(_NO_JSON)), F.when(wrong, cause), schemaless=True)

    def _decode_with_schemas(self, text: Column, batch: DataFrame | None) -> Decoded:
        keys = F.json_object_keys(text)
        enveloped = F.coalesce(F.array_sort(keys) == F.array(F.lit("payload"), F.lit("schema")), F.lit(False))
        kind, bad, scales = self._given(), dict[str, str](), Scales()
        schema = F.get_json_object(text, "$.schema")
        if kind is None:
            assert batch is not None
            kind, bad, scales = _looked_at(batch, schema, enveloped)
        no_json = text.isNotNull() & F.try_parse_json(text).isNull()
        error = F.when(no_json, F.lit(_NO_JSON)).when(text.isNotNull() & ~enveloped, F.lit(_NO_ENVELOPE))
        for wrong, why in bad.items():
            error = error.when(schema == wrong, F.lit(why))

        def error_with(wrong: Column) -> Column:
            return error.when(text.isNotNull() & wrong, F.lit("the payload is not what the schema says"))

        def together(read: Column, error: Column) -> Column:
            cause = F.when(error.isNotNull(), _shown(text))
            return F.struct(read["value"].alias("value"), error.alias("error"), cause.alias("cause"))

        if not any(schemas.scales(kind)):
            read, corrupt = self._parsed(text, kind)
            error = error_with(corrupt)
            return Decoded(read, error, F.when(error.isNotNull(), _shown(text)))
        found = once(self._checked(text, kind, scales), lambda read: once(
            error_with(read["wrong"]), lambda error: together(read, error)
        ))  # fmt: skip
        return Decoded(found["value"], found["error"], found["cause"], together=found)

    def _read(self, text: Column, kind: DataType) -> Column:
        shape = StructType([StructField("payload", self._wire(kind)), StructField(_CORRUPT, StringType())])
        return F.from_json(text, shape, {"columnNameOfCorruptRecord": _CORRUPT})

    def _parsed(self, text: Column, kind: DataType) -> tuple[Column, Column]:
        """(the payload, whether it is not of that type)."""
        read = self._read(text, kind)
        value = self._from_wire(read["payload"], kind, {}, ())
        unfit = _unfit(read["payload"], value, kind) if self._with_schemas else None
        wrong = read[_CORRUPT].isNotNull()
        return value, wrong if unfit is None else wrong | F.coalesce(unfit, F.lit(False))

    def _checked(self, text: Column, kind: DataType, scales: Scales) -> Column:
        """The same as a struct of value and wrong, worked out once: decimals cost more than the rest."""

        def of(read: Column) -> Column:
            value = self._from_wire(read["payload"], kind, scales, ())
            return once(value, lambda value: checked(read, value))

        def checked(read: Column, value: Column) -> Column:
            unfit = _unfit(read["payload"], value, kind)
            wrong = read[_CORRUPT].isNotNull()
            wrong = wrong if unfit is None else wrong | F.coalesce(unfit, F.lit(False))
            return F.struct(value.alias("value"), wrong.alias("wrong"))

        return once(self._read(text, kind), of)

    def _wire(self, kind: DataType) -> DataType:
        """What stands in the JSON."""
        match kind:
            case StructType():
                return StructType([StructField(one.name, self._wire(one.dataType)) for one in kind.fields])
            case ArrayType():
                return ArrayType(self._wire(kind.elementType))
            case MapType():
                return MapType(StringType(), self._wire(kind.valueType))
            case TimestampType() | TimestampNTZType() if self._with_schemas:
                return LongType()
            case DateType() if self._with_schemas:
                return IntegerType()
            case DecimalType() if self._with_schemas:
                # A number or base64: a variant tells which.
                return VariantType()
            case NullType():
                return StringType()
        return kind

    def _from_wire(self, column: Column, kind: DataType, scales: Scales, path: tuple[str, ...]) -> Column:
        """`path`: of the fields that lead there. What does not fit is null."""
        if self._wire(kind) == kind:
            return column
        match kind:
            case StructType():
                fields = [
                    self._from_wire(column.getField(one.name), one.dataType, scales, (*path, one.name)).alias(one.name)
                    for one in kind.fields
                ]
                return F.when(column.isNotNull(), F.struct(*fields))
            case ArrayType():
                inside = (*path, schemas.INSIDE)
                return F.transform(column, lambda one: self._from_wire(one, kind.elementType, scales, inside))
            case MapType():
                inside = (*path, schemas.INSIDE)
                values = F.transform_values(column, lambda _, one: self._from_wire(one, kind.valueType, scales, inside))
                return F.transform_keys(values, lambda key, _: key.cast(kind.keyType))
            case TimestampType() | TimestampNTZType():
                return F.timestamp_millis(F.when(column.between(-_LAST_MS, _LAST_MS), column)).cast(kind)
            case DateType():
                return F.date_from_unix_date(column)
            case DecimalType():
                return decimal_columns.from_json(column, scales.get(path, F.lit(kind.scale)), kind)
        return column

    # --- writing

    def encode(self, column: Column, kind: DataType, name: SchemaName) -> Column:
        payload = self._to_json(self._to_wire(column, kind), self._written(kind))
        if self._with_schemas:
            schema = schemas.text(schemas.from_spark(kind, False, name))
            payload = F.concat(F.lit(f'{{"schema":{schema},"payload":'), payload, F.lit("}"))
        return F.when(column.isNotNull(), payload.cast("binary"))

    def _to_json(self, column: Column, kind: DataType) -> Column:
        keep_nulls = {"ignoreNullFields": "false"}
        if isinstance(kind, (StructType, ArrayType, MapType)):
            return F.to_json(column, keep_nulls)
        # Only those have a JSON of their own: what is between `{"p":` and `}`.
        text = F.to_json(F.struct(column.alias("p")), keep_nulls)
        return F.substring(text, F.lit(6), F.length(text) - 6)

    def _written(self, kind: DataType) -> DataType:
        match kind:
            case StructType():
                return StructType([StructField(one.name, self._written(one.dataType)) for one in kind.fields])
            case ArrayType():
                return ArrayType(self._written(kind.elementType))
            case MapType():
                return MapType(kind.keyType, self._written(kind.valueType))
            case TimestampType() | TimestampNTZType():
                return LongType()
            case DateType():
                return IntegerType()
            case DecimalType() if not self._numeric:
                return StringType()
        return kind

    def _to_wire(self, column: Column, kind: DataType) -> Column:
        if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType) and self._with_schemas:
            raise ConnectError(f"a map with keys of the type {kind.keyType.simpleString()} is not written as JSON")
        if self._written(kind) == kind and not isinstance(kind, VariantType):
            return column
        match kind:
            case StructType():
                fields = [self._to_wire(column.getField(one.name), one.dataType).alias(one.name) for one in kind.fields]
                return F.when(column.isNotNull(), F.struct(*fields))
            case ArrayType():
                return F.transform(column, lambda one: self._to_wire(one, kind.elementType))
            case MapType():
                return F.transform_values(column, lambda _, one: self._to_wire(one, kind.valueType))
            case TimestampType() | TimestampNTZType():
                return F.unix_millis(column.cast("timestamp"))
            case DateType():
                return F.unix_date(column)
            case DecimalType():
                return decimal_columns.to_base64(column)
        return column


def _unfit(wire: Column, value: Column, kind: DataType) -> Column | None:
    """Whether something in there is null because it does not fit its type, of what Spark's reader cannot tell; None:
    nothing can be. `wire` is what stood in the JSON, `value` what was made of it."""
    match kind:
        case StructType():
            fields = (_unfit(wire.getField(one.name), value.getField(one.name), one.dataType) for one in kind.fields)
            found = [F.coalesce(one, F.lit(False)) for one in fields if one is not None]
            return reduce(lambda one, two: one | two, found) if found else None
        case ArrayType() | MapType():
            inner = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
            if not _may_be_unfit(inner):
                return None
            if isinstance(kind, MapType):
                wire, value = F.map_values(wire), F.map_values(value)

            def one(wire: Column, value: Column) -> Column:
                found = _unfit(wire, value, inner)
                return F.lit(False) if found is None else F.coalesce(found, F.lit(False))

            return F.exists(F.zip_with(wire, value, one), lambda unfit: unfit)
        case TimestampType() | TimestampNTZType():
            return wire.isNotNull() & value.isNull()
        case DecimalType():
            return wire.isNotNull() & ~F.is_variant_null(wire) & value.isNull()
    return None


def _may_be_unfit(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_may_be_unfit(one.dataType) for one in kind.fields)
        case ArrayType():
            return _may_be_unfit(kind.elementType)
        case MapType():
            return _may_be_unfit(kind.valueType)
    return isinstance(kind, (TimestampType, TimestampNTZType, DecimalType))


def _looked_at(batch: DataFrame, schema: Column, enveloped: Column) -> tuple[DataType, dict[str, str], Scales]:
    """(the type of a micro-batch's payloads, what is wrong with those of its schemas that are none or do not fit with
    the others, scales). The schemas of most records count first, so that a few records that differ fail, and not the
    rest; the same records have the same outcome when they are read again."""
    counted = batch.filter(enveloped).groupBy(schema.alias("s")).count().limit(_MOST_SCHEMAS + 1).collect()
    if len(counted) > _MOST_SCHEMAS:
        raise ConnectError(f"the records of one batch have more than {_MOST_SCHEMAS} schemas")
    kind: DataType = NullType()
    kinds: dict[str, DataType] = {}
    bad: dict[str, str] = {}
    known = [(row["s"], int(row["count"])) for row in counted if row["s"] is not None]
    for text, _ in sorted(known, key=lambda one: (-one[1], one[0])):
        try:
            found = schemas.to_spark(json.loads(text))
            together = schemas.merged(kind, found)
            schemas.check_width(together)
        except (ConnectError, ValueError, RecursionError) as error:
            bad[text] = str(error)
            continue
        kind, kinds[text] = together, found
    return (StringType() if isinstance(kind, NullType) else kind), bad, _scales(kind, kinds, schema)


def _scales(kind: DataType, kinds: Mapping[str, DataType], schema: Column) -> Scales:
    found: Scales = {}
    usual = dict(schemas.scales(kind))
    for text, one in kinds.items():
        for path, scale in schemas.scales(one):
            if scale != usual[path]:
                found[path] = F.when(schema == text, F.lit(scale)).otherwise(found.get(path, F.lit(usual[path])))
    return found


def _shown(text: Column) -> Column:
    return F.substring(text, 1, 1000)
