"""Keys and values as columns, decoded on the executors with schemas of a registry.

The columns have the type of one schema, the reader's: the latest version of the subject when the
query starts, or the configured version. Records of other versions are resolved to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kavka.client.errors import SerializationError
from kavka.client.schemas.registry import RegisteredSchema, shared_registry
from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.columns.registry import RegistryColumns
from kavka.pipeline.spark.errors import OptionError, PipelineError
from kavka.pipeline.spark.options import ColumnFormat

_ARROW: dict[type[DataType], pa.DataType] = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    DateType: pa.date32(),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    ShortType: pa.int16(),
    StringType: pa.string(),
    TimestampType: pa.timestamp("us", "UTC"),
}


class ColumnDecoder:
    """Decodes one column. Pickled for the tasks: each process has its own cache of schemas."""

    def __init__(self, columns: RegistryColumns, kind: DataType) -> None:
        self._columns = columns
        self.kind = kind

    @property
    def arrow_type(self) -> pa.DataType:
        return _arrow_type(self.kind)

    def decode(self, name: str, column: pa.Array, batch: pa.RecordBatch) -> pa.Array:
        """Decode a column of a batch of the consumer. Raises PipelineError with the place of a
        record that does not fit."""
        array = self._columns.read_array(column, self.arrow_type)
        if array is not None:
            return array
        read = self._columns.read
        values: list[Any] = []
        try:
            for data in column.to_pylist():
                values.append(None if data is None else read(data))
        except SerializationError as error:
            raise _misfit(name, batch, len(values), str(error)) from None
        try:
            return pa.array(values, type=self.arrow_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return pa.concat_arrays([self._single(name, batch, row, value) for row, value in enumerate(values)])

    def _single(self, name: str, batch: pa.RecordBatch, row: int, value: Any) -> pa.Array:
        try:
            return pa.array([value], type=self.arrow_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _misfit(name, batch, row, " ".join(str(error).split())) from None


def _misfit(name: str, batch: pa.RecordBatch, row: int, reason: str) -> PipelineError:
    topic, partition, offset = (batch.column(field)[row].as_py() for field in ("topic", "partition", "offset"))
    return PipelineError(f"the {name} of {topic}-{partition} at offset {offset} cannot be decoded: {reason}")


def make_decoder(column: ColumnFormat, settings: Mapping[str, str], kind: DataType | None = None) -> ColumnDecoder:
    """Return the decoder of a column. With `kind`, the latest version of the subject that has this
    type is the reader's schema. Raises OptionError or SchemaRegistryError."""
    registry = shared_registry(settings)
    columns = RegistryColumns(column.format, settings, message=column.message)
    current = (
        registry.latest(column.subject) if column.version is None else registry.version(column.subject, column.version)
    )
    column_type = _type_of(columns, column, current)
    if kind is not None and column_type != kind and column.version is None:
        # A version was registered since Spark requested the type.
        for version in sorted(registry.versions(column.subject), reverse=True):
            current = registry.version(column.subject, version)
            if (column_type := _type_of(columns, column, current)) == kind:
                break
    if kind is not None and column_type != kind:
        raise OptionError("the source defines the columns: remove .schema(…)")
    return ColumnDecoder(RegistryColumns(column.format, settings, current.schema, column.message), column_type)


def _type_of(columns: RegistryColumns, column: ColumnFormat, registered: RegisteredSchema) -> DataType:
    try:
        return _nullable(columns.type_of(registered.schema))
    except (ColumnError, SerializationError) as error:
        place = f"version {registered.version} of {column.subject}"
        raise OptionError(f"{place} cannot be read as {column.format}: {error}") from None


def _nullable(kind: DataType) -> DataType:
    """Spark makes every column of a source nullable."""
    match kind:
        case StructType():
            return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind.fields])
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(kind.keyType, _nullable(kind.valueType))
    return kind


def _arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a column. The function of PySpark has other parameters in each
    version."""
    match kind:
        case StructType():
            return pa.struct([pa.field(field.name, _arrow_type(field.dataType)) for field in kind.fields])
        case ArrayType():
            return pa.list_(_arrow_type(kind.elementType))
        case MapType():
            return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    return _ARROW[type(kind)]
