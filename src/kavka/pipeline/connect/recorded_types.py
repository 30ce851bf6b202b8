"""The types of a sink's keys and values, in the file `types` of the connector's checkpoint folder.

A converter whose types depend on the records extends the recorded types, so that the target has one
type for each column whatever a micro-batch contains. The file is replaced before the first batch
with new types is written: a batch that is repeated after a crash has the same types. It stays when
offsets are set, and is removed when they are reset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructField, StructType

from kavka.pipeline.connect.converters import Converter
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.spark.files import HadoopPath

FILE = "types"


class RecordedTypes:
    """Sets `recorded` of the converters to the types in the file. Called by one thread."""

    def __init__(self, path: HadoopPath, converters: Mapping[str, Converter]) -> None:
        self._path = path
        self._converters = {side: converter for side, converter in converters.items() if not converter.is_static}
        self._stored = self._read()
        for side, converter in self._converters.items():
            entry = self._stored.get(side)
            # Another converter has other types.
            if entry is not None and entry["converter"] == _name(converter):
                converter.recorded = StructType.fromJson(entry["type"]).fields[0].dataType

    def store(self) -> None:
        """Writes the types of the converters if they have changed."""
        entries: dict[str, Any] = {}
        for side, converter in self._converters.items():
            if converter.recorded is not None:
                kind = StructType([StructField(side, converter.recorded)])
                entries[side] = {"converter": _name(converter), "type": kind.jsonValue()}
        if entries and entries != self._stored:
            self._path.write_text(json.dumps(entries))
            self._stored = entries

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._path.read_text()))
        except FileNotFoundError:
            return {}
        except ValueError:
            raise ConnectError(f"{self._path} is corrupt: remove it to infer the types of records again") from None


def _name(converter: Converter) -> str:
    return f"{converter.operator} {converter.config.get('schemas.enable', '')}".strip()
