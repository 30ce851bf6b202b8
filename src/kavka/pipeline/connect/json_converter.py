"""JSON: with a schema in each record, as Kafka Connect writes it, or without.

Reading needs Spark's type before the first record. With schemas those of a micro-batch are looked at first, and merged
where there are several; without, the type is what the JSON texts of the micro-batch have in common. `schema`
(Spark's DDL, as `id BIGINT, name STRING`) says it once for all, and saves that look.
"""

from __future__ import annotations

import base64
import json
from typing import Any

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
from kavka.pipeline.connect import decimals, schemas
from kavka.pipeline.connect.converters import Converter, Decoded
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import SchemaName

_CORRUPT = "_corrupt_record"
_MOST_SCHEMAS = 1000
_NO_JSON = "Converting byte[] to Kafka Connect data failed due to serialization error: "
_NO_ENVELOPE = (
    'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain additional fields. '
    "If you are trying to deserialize plain JSON data, set schemas.enable=false in your converter configuration."
)


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
        kind, bad = self._given(), dict[str, str]()
        schema = F.get_json_object(text, "$.schema")
        if kind is None:
            assert batch is not None
            kind, bad = _looked_at(batch, schema, enveloped)
        read, corrupt = self._parsed(text, kind)
        no_json = text.isNotNull() & F.try_parse_json(text).isNull()
        error = F.when(no_json, F.lit(_NO_JSON)).when(text.isNotNull() & ~enveloped, F.lit(_NO_ENVELOPE))
        for wrong, why in bad.items():
            error = error.when(schema == wrong, F.lit(why))
        error = error.when(text.isNotNull() & corrupt, F.lit("the payload is not what the schema says"))
        return Decoded(read, error, F.when(error.isNotNull(), _shown(text)))

    def _parsed(self, text: Column, kind: DataType) -> tuple[Column, Column]:
        """(the payload, whether it is not of that type)."""
        shape = StructType([StructField("payload", self._wire(kind)), StructField(_CORRUPT, StringType())])
        read = F.from_json(text, shape, {"columnNameOfCorruptRecord": _CORRUPT})
        return self._from_wire(read["payload"], kind), read[_CORRUPT].isNotNull()

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

    def _from_wire(self, column: Column, kind: DataType) -> Column:
        if self._wire(kind) == kind:
            return column
        match kind:
            case StructType():
                fields = [
                    self._from_wire(column.getField(one.name), one.dataType).alias(one.name) for one in kind.fields
                ]
                return F.when(column.isNotNull(), F.struct(*fields))
            case ArrayType():
                return F.transform(column, lambda one: self._from_wire(one, kind.elementType))
            case MapType():
                values = F.transform_values(column, lambda _, one: self._from_wire(one, kind.valueType))
                return F.transform_keys(values, lambda key, _: key.cast(kind.keyType))
            case TimestampType() | TimestampNTZType():
                return F.timestamp_millis(column).cast(kind)
            case DateType():
                return F.date_from_unix_date(column)
            case DecimalType():
                text = F.try_variant_get(column, "$", "string")
                number = F.try_variant_get(column, "$", kind.simpleString())
                is_text = F.schema_of_variant(column) == "STRING"
                return F.when(is_text, F.udf(_decimal_reader(kind), kind, useArrow=False)(text)).otherwise(number)
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
                return F.udf(_decimal_writer(kind.scale), "string", useArrow=False)(column)
        return column


def _looked_at(batch: DataFrame, schema: Column, enveloped: Column) -> tuple[DataType, dict[str, str]]:
    """The type of a micro-batch's payloads, and what is wrong with those of its schemas that are none."""
    rows = batch.filter(enveloped).select(schema.alias("s")).distinct().limit(_MOST_SCHEMAS + 1).collect()
    if len(rows) > _MOST_SCHEMAS:
        raise ConnectError(f"the records of one batch have more than {_MOST_SCHEMAS} schemas")
    kind: DataType = NullType()
    bad: dict[str, str] = {}
    for text in sorted(row[0] for row in rows if row[0] is not None):
        try:
            found = schemas.to_spark(json.loads(text))
            schemas.check_width(found)
        except (ConnectError, ValueError, RecursionError) as error:
            bad[text] = str(error)
            continue
        kind = schemas.merged(kind, found)
    return (StringType() if isinstance(kind, NullType) else kind), bad


def _shown(text: Column) -> Column:
    return F.substring(text, 1, 1000)


def _decimal_reader(kind: DecimalType) -> Any:
    def read(text: Any) -> Any:
        if text is None:
            return None
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError:
            return None
        return decimals.decoded(data, kind.precision, kind.scale)

    return read


def _decimal_writer(scale: int) -> Any:
    def write(value: Any) -> Any:
        if value is None:
            return None
        return base64.b64encode(decimals.encoded(value, scale)).decode()

    return write


