"""JSON, with or without a schema in each record, as in Kafka Connect.

Spark must know the type before it reads the records. With schemas, the converter collects the
schemas of a micro-batch and merges them into the recorded type. Without schemas, the recorded type
is the common type of the JSON texts in the first micro-batch; later ones add fields, and a record
that does not fit fails. The option `schema` (Spark's DDL, like `id BIGINT, name STRING`) fixes the
type and saves this additional pass.
"""

from __future__ import annotations

import json
import operator
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
from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.columns.types import MAX_DEPTH, MAX_TIME_MS, SchemaName, check_width, merge_types
from kavka.pipeline.connect import decimal_columns, schemas
from kavka.pipeline.connect.converters import Converter, Decoded
from kavka.pipeline.connect.decimal_columns import once
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option

_CORRUPT = "_corrupt_record"
_MAX_SCHEMAS = 1000
_NO_JSON = "Converting byte[] to Kafka Connect data failed due to serialization error: "
_NO_ENVELOPE = (
    'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain additional fields. '
    "If you are trying to deserialize plain JSON data, set schemas.enable=false in your converter configuration."
)

_NULL = "Invalid null value for a required payload"

Scales = dict[tuple[str, ...], Column]
"""By the path of a field: the scale of its decimals, if it differs between records."""


class JsonConverter(Converter):
    """JSON, with a schema in each record (`schemas.enable=true`) or without schemas."""

    java_names = ("org.apache.kafka.connect.json.JsonConverter",)
    options = (
        Option("schemas.enable", ConfigType.BOOLEAN, True, "Whether each record has its schema beside its data.",
               Importance.HIGH),
        Option("schemas.cache.size", ConfigType.INT, 1000, "Has no effect.", Importance.HIGH),
        Option("decimal.format", default="BASE64", importance=Importance.LOW, recommended=("BASE64", "NUMERIC"),
               validator=OneOf(("BASE64", "NUMERIC"), ignore_case=True),
               doc="The format of decimals: base64 of the unscaled number's bytes, or a number."),
        Option("replace.null.with.default", ConfigType.BOOLEAN, True, "Has no effect: columns have no defaults.",
               Importance.LOW),
        Option("schema", default=None, importance=Importance.MEDIUM,
               doc="The type of records to read, in Spark's DDL (`id BIGINT, name STRING`). Without it the type is "
                   "inferred from the records."),
    )  # fmt: skip

    @property
    def is_static(self) -> bool:
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

    def _configured_type(self) -> DataType | None:
        ddl = self.config["schema"]
        if not ddl:
            return None
        from pyspark.sql.types import _parse_datatype_string

        try:
            return _parse_datatype_string(ddl)
        except Exception as error:
            raise ConnectError(f"the option schema of JsonConverter is invalid: {str(error).splitlines()[0]}") from None

    def _decode_plain(self, text: Column, batch: DataFrame | None) -> Decoded:
        kind = self._configured_type()
        variant, payload = F.try_parse_json(text), F.concat(F.lit('{"payload":'), text, F.lit("}"))
        is_invalid, cause = variant.isNull(), _excerpt(text)
        if kind is None:
            assert batch is not None
            kind, has_deep = self._extended_type(batch, variant, payload)
            if has_deep:
                is_deep = ~schemas.is_shallow(F.schema_of_variant(variant))
                is_invalid |= is_deep
                cause = F.when(is_deep, F.lit(f"nested more than {MAX_DEPTH} levels deep")).otherwise(cause)
        value, is_corrupt = self._parsed(payload, kind)
        is_invalid = text.isNotNull() & (is_invalid | is_corrupt)
        return Decoded(value, F.when(is_invalid, F.lit(_NO_JSON)), F.when(is_invalid, cause), schemaless=True)

    def _extended_type(self, batch: DataFrame, variant: Column, payload: Column) -> tuple[DataType, bool]:
        """Extends the recorded type by the fields of a micro-batch. Returns (the type, whether the
        micro-batch has JSON that is nested too deeply)."""
        inferred, has_deep = _common_type(batch, variant)
        recorded = self.recorded
        if recorded is not None and inferred is not None and schemas.hides_fields(recorded, inferred):
            # Records that do not fit hide the new fields of the others.
            _, is_corrupt = self._parsed(payload, recorded)
            inferred, _ = _common_type(batch.filter(~is_corrupt), variant)
        kind = inferred if recorded is None else schemas.extended(recorded, inferred)
        if kind is None:
            return StringType(), has_deep
        check_width(kind)
        self.recorded = kind
        return kind, has_deep

    def _decode_with_schemas(self, text: Column, batch: DataFrame | None) -> Decoded:
        keys = F.json_object_keys(text)
        has_envelope = F.coalesce(F.array_sort(keys) == F.array(F.lit("payload"), F.lit("schema")), F.lit(False))
        kind, schema_errors, scales = self._configured_type(), dict[str, str](), Scales()
        schema = F.get_json_object(text, "$.schema")
        if kind is None:
            assert batch is not None
            kind, schema_errors, scales = _inspect_schemas(batch, schema, has_envelope, self.recorded)
            self.recorded = None if isinstance(kind, NullType) else kind
            kind = self.recorded or StringType()
        is_no_json = text.isNotNull() & F.try_parse_json(text).isNull()
        error = F.when(is_no_json, F.lit(_NO_JSON)).when(text.isNotNull() & ~has_envelope, F.lit(_NO_ENVELOPE))
        for invalid_schema, message in schema_errors.items():
            error = error.when(schema == invalid_schema, F.lit(message))

        is_null = text.isNotNull() & F.get_json_object(text, "$.payload").isNull()
        is_required = F.coalesce(F.get_json_object(schema, "$.optional"), F.lit("")) != "true"
        error = error.when(is_null & is_required & F.get_json_object(schema, "$.default").isNull(), F.lit(_NULL))

        def error_with(is_invalid: Column) -> Column:
            return error.when(text.isNotNull() & is_invalid, F.lit("the payload does not match the schema"))

        def combined(result: Column, error: Column) -> Column:
            cause = F.when(error.isNotNull(), _excerpt(text))
            return F.struct(result["value"].alias("value"), error.alias("error"), cause.alias("cause"))

        if not any(schemas.scales(kind)):
            value, is_corrupt = self._parsed(text, kind)
            error = error_with(is_corrupt)
            return Decoded(value, error, F.when(error.isNotNull(), _excerpt(text)))
        decoded = once(self._parsed_struct(text, kind, scales), lambda result: once(
            error_with(result["is_invalid"]), lambda error: combined(result, error)
        ))  # fmt: skip
        return Decoded(decoded["value"], decoded["error"], decoded["cause"], combined=decoded)

    def _from_json(self, text: Column, kind: DataType) -> Column:
        """Returns a struct of the payload, in the types of JSON, and the text of a corrupt
        record."""
        envelope = StructType([StructField("payload", self._wire_type(kind)), StructField(_CORRUPT, StringType())])
        return F.from_json(text, envelope, {"columnNameOfCorruptRecord": _CORRUPT})

    def _parsed(self, text: Column, kind: DataType) -> tuple[Column, Column]:
        """Returns (the payload, whether it does not have that type)."""
        parsed = self._from_json(text, kind)
        value = self._from_wire(parsed["payload"], kind, {}, ())
        return value, self._is_invalid(parsed, value, kind)

    def _parsed_struct(self, text: Column, kind: DataType, scales: Scales) -> Column:
        """Returns the result of `_parsed` as a struct of value and is_invalid. Both are evaluated
        once, because decimals are expensive."""

        def checked(parsed: Column, value: Column) -> Column:
            return F.struct(value.alias("value"), self._is_invalid(parsed, value, kind).alias("is_invalid"))

        return once(self._from_json(text, kind), lambda parsed: once(
            self._from_wire(parsed["payload"], kind, scales, ()), lambda value: checked(parsed, value)
        ))  # fmt: skip

    def _is_invalid(self, parsed: Column, value: Column, kind: DataType) -> Column:
        conditions = [_lacks_required(parsed["payload"], kind)]
        if self._with_schemas:
            conditions.append(_is_unfit(parsed["payload"], value, kind))
        is_invalid = parsed[_CORRUPT].isNotNull()
        for condition in conditions:
            if condition is not None:
                is_invalid |= F.coalesce(condition, F.lit(False))
        return is_invalid

    def _wire_type(self, kind: DataType) -> DataType:
        """Returns the type of the JSON value that is read."""
        match kind:
            case StructType():
                return StructType([StructField(field.name, self._wire_type(field.dataType)) for field in kind.fields])
            case ArrayType():
                return ArrayType(self._wire_type(kind.elementType))
            case MapType():
                return MapType(StringType(), self._wire_type(kind.valueType))
            case TimestampType() | TimestampNTZType() if self._with_schemas:
                return LongType()
            case DateType() if self._with_schemas:
                return IntegerType()
            case DecimalType() if self._with_schemas:
                # A number or base64: a variant can represent both.
                return VariantType()
            case NullType():
                return StringType()
        return kind

    def _from_wire(self, column: Column, kind: DataType, scales: Scales, path: tuple[str, ...]) -> Column:
        """Converts a JSON value to its type. `path` is the path of the field. A value that does not
        fit its type becomes null."""
        if self._wire_type(kind) == kind:
            return column
        match kind:
            case StructType():
                fields = [
                    self._from_wire(column.getField(field.name), field.dataType, scales, (*path, field.name)).alias(
                        field.name
                    )
                    for field in kind.fields
                ]
                return F.when(column.isNotNull(), F.struct(*fields))
            case ArrayType():
                element = (*path, schemas.ELEMENT)
                return F.transform(column, lambda item: self._from_wire(item, kind.elementType, scales, element))
            case MapType():
                element = (*path, schemas.ELEMENT)
                values = F.transform_values(
                    column, lambda _, item: self._from_wire(item, kind.valueType, scales, element)
                )
                return F.transform_keys(values, lambda key, _: key.cast(kind.keyType))
            case TimestampType() | TimestampNTZType():
                return F.timestamp_millis(F.when(column.between(-MAX_TIME_MS, MAX_TIME_MS), column)).cast(kind)
            case DateType():
                return F.date_from_unix_date(column)
            case DecimalType():
                return decimal_columns.from_json(column, scales.get(path, F.lit(kind.scale)), kind)
        return column

    # --- writing

    def encode(self, column: Column, kind: DataType, name: SchemaName) -> Column:
        payload = self._to_json(self._to_wire(column, kind), self._written_type(kind))
        if self._with_schemas:
            schema = schemas.text(schemas.from_spark(kind, False, name))
            payload = F.concat(F.lit(f'{{"schema":{schema},"payload":'), payload, F.lit("}"))
        return F.when(column.isNotNull(), payload.cast("binary"))

    def _to_json(self, column: Column, kind: DataType) -> Column:
        keep_nulls = {"ignoreNullFields": "false"}
        if isinstance(kind, (StructType, ArrayType, MapType)):
            return F.to_json(column, keep_nulls)
        # `to_json` accepts only these types. Extract the text between `{"p":` and `}`.
        text = F.to_json(F.struct(column.alias("p")), keep_nulls)
        return F.substring(text, F.lit(6), F.length(text) - 6)

    def _written_type(self, kind: DataType) -> DataType:
        """Returns the type of the JSON value that is written."""
        match kind:
            case StructType():
                return StructType(
                    [StructField(field.name, self._written_type(field.dataType)) for field in kind.fields]
                )
            case ArrayType():
                return ArrayType(self._written_type(kind.elementType))
            case MapType():
                return MapType(kind.keyType, self._written_type(kind.valueType))
            case TimestampType() | TimestampNTZType():
                return LongType()
            case DateType():
                return IntegerType()
            case DecimalType() if not self._numeric:
                return StringType()
        return kind

    def _to_wire(self, column: Column, kind: DataType) -> Column:
        if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType) and self._with_schemas:
            raise ConnectError(f"JSON cannot represent a map with keys of type {kind.keyType.simpleString()}")
        if self._written_type(kind) == kind and not isinstance(kind, VariantType):
            return column
        match kind:
            case StructType():
                fields = [
                    self._to_wire(column.getField(field.name), field.dataType).alias(field.name)
                    for field in kind.fields
                ]
                return F.when(column.isNotNull(), F.struct(*fields))
            case ArrayType():
                return F.transform(column, lambda item: self._to_wire(item, kind.elementType))
            case MapType():
                return F.transform_values(column, lambda _, item: self._to_wire(item, kind.valueType))
            case TimestampType() | TimestampNTZType():
                return F.unix_millis(column.cast("timestamp"))
            case DateType():
                return F.unix_date(column)
            case DecimalType():
                return decimal_columns.to_base64(column)
        return column


def _is_unfit(wire: Column, value: Column, kind: DataType) -> Column | None:
    """Whether a value is null because it does not fit its type, for types that Spark's reader does
    not check; None if there is no such type. `wire` is the JSON value, `value` the converted
    value."""
    match kind:
        case StructType():
            fields = (
                _is_unfit(wire.getField(field.name), value.getField(field.name), field.dataType)
                for field in kind.fields
            )
            conditions = [F.coalesce(field, F.lit(False)) for field in fields if field is not None]
            return reduce(operator.or_, conditions) if conditions else None
        case ArrayType() | MapType():
            inner = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
            if not _may_be_unfit(inner):
                return None
            if isinstance(kind, MapType):
                wire, value = F.map_values(wire), F.map_values(value)

            def is_element_unfit(wire: Column, value: Column) -> Column:
                is_unfit = _is_unfit(wire, value, inner)
                return F.lit(False) if is_unfit is None else F.coalesce(is_unfit, F.lit(False))

            return F.exists(F.zip_with(wire, value, is_element_unfit), lambda is_unfit: is_unfit)
        case TimestampType() | TimestampNTZType():
            return wire.isNotNull() & value.isNull()
        case DecimalType():
            return wire.isNotNull() & ~F.is_variant_null(wire) & value.isNull()
    return None


def _lacks_required(wire: Column, kind: DataType) -> Column | None:
    """Whether a field is null that must not be; None if there is no such field."""
    match kind:
        case StructType():
            conditions = []
            for field in kind.fields:
                inner = wire.getField(field.name)
                if not field.nullable:
                    conditions.append(wire.isNotNull() & inner.isNull())
                condition = _lacks_required(inner, field.dataType)
                if condition is not None:
                    conditions.append(F.coalesce(condition, F.lit(False)))
            return reduce(operator.or_, conditions) if conditions else None
        case ArrayType() | MapType():
            is_map = isinstance(kind, MapType)
            element = kind.valueType if isinstance(kind, MapType) else kind.elementType
            if not _has_required(element):
                return None

            def lacks(item: Column) -> Column:
                condition = _lacks_required(item, element)
                return F.lit(False) if condition is None else F.coalesce(condition, F.lit(False))

            return F.exists(F.map_values(wire) if is_map else wire, lacks)
    return None


def _has_required(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(not field.nullable or _has_required(field.dataType) for field in kind.fields)
        case ArrayType():
            return _has_required(kind.elementType)
        case MapType():
            return _has_required(kind.valueType)
    return False


def _may_be_unfit(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_may_be_unfit(field.dataType) for field in kind.fields)
        case ArrayType():
            return _may_be_unfit(kind.elementType)
        case MapType():
            return _may_be_unfit(kind.valueType)
    return isinstance(kind, (TimestampType, TimestampNTZType, DecimalType))


def _common_type(batch: DataFrame, variant: Column) -> tuple[DataType | None, bool]:
    """Returns (the common type of the JSON of a micro-batch, whether any is nested too deeply). If
    some of the values are objects, it is the type of the objects: the other values fail. The type
    is None if no value has one."""
    # Separate selections, so that Spark evaluates each expression once.
    described = batch.select(variant.alias("v")).select("v", F.schema_of_variant("v").alias("described"))
    description = F.col("described")
    described = described.select(
        "v", description.startswith("OBJECT").alias("object"), (~schemas.is_shallow(description)).alias("deep")
    )
    objects, others = (
        F.schema_of_variant_agg(F.when(~F.col("deep") & (F.col("object") == is_object), F.col("v")))
        for is_object in (True, False)
    )
    common = described.agg(objects.alias("objects"), others.alias("others"), F.max("deep").alias("deep")).first()
    assert common is not None
    for text in (common["objects"], common["others"]):
        kind = schemas.schema_of_variants(text) if text else None
        if kind is not None:
            return kind, bool(common["deep"])
    return None, bool(common["deep"])


def _inspect_schemas(
    batch: DataFrame, schema: Column, has_envelope: Column, recorded: DataType | None
) -> tuple[DataType, dict[str, str], Scales]:
    """Returns (the type of the payloads of a micro-batch, errors by schema, scales). A schema has
    an error if it is invalid or incompatible with the recorded type or other schemas. The most
    frequent schemas are merged first, so that in a conflict only the records with the rarer schema
    fail. The result is the same when the same records are read again."""
    counted = batch.filter(has_envelope).groupBy(schema.alias("s")).count().limit(_MAX_SCHEMAS + 1).collect()
    if len(counted) > _MAX_SCHEMAS:
        raise ConnectError(f"the records of one batch have more than {_MAX_SCHEMAS} schemas")
    kind: DataType = recorded or NullType()
    kinds: dict[str, DataType] = {}
    errors: dict[str, str] = {}
    counts = [(row["s"], int(row["count"])) for row in counted if row["s"] is not None]
    for text, _ in sorted(counts, key=lambda item: (-item[1], item[0])):
        try:
            payload_type = schemas.to_spark(json.loads(text))
            merged = merge_types(kind, payload_type)
            check_width(merged)
        except (ColumnError, ValueError, RecursionError) as error:
            errors[text] = str(error)
            continue
        kind, kinds[text] = merged, payload_type
    return kind, errors, _scales(kind, kinds, schema)


def _scales(kind: DataType, kinds: Mapping[str, DataType], schema: Column) -> Scales:
    scales: Scales = {}
    merged_scales = dict(schemas.scales(kind))
    for text, payload_type in kinds.items():
        for path, scale in schemas.scales(payload_type):
            if scale != merged_scales[path]:
                default = scales.get(path, F.lit(merged_scales[path]))
                scales[path] = F.when(schema == text, F.lit(scale)).otherwise(default)
    return scales


def _excerpt(text: Column) -> Column:
    return F.substring(text, 1, 1000)
