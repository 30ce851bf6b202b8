"""Serializes numbers, text, bytes, lists, tuples and dictionaries, and reads them without running
code.

The format is pickle, as in earlier versions. Reading refuses all classes and functions except
bytearray, so that a pickle is only data.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from kavka.pipeline.streams.errors import StreamsException


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "bytearray"):
            # A serializer may return it.
            return bytearray
        raise StreamsException(
            f"the state has a {module}.{name} instead of plain data: an earlier version or another program wrote it. "
            "Delete the state with clean_up()"
        )


def dumps(value: Any) -> bytes:
    return pickle.dumps(value)


def loads(data: bytes) -> Any:
    try:
        return _DataUnpickler(io.BytesIO(data)).load()
    except StreamsException:
        raise
    except Exception as error:
        raise StreamsException(f"the state cannot be read: {error}. Delete it with clean_up()") from None
