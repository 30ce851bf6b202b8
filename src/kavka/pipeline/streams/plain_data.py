"""Numbers, text, bytes, lists, tuples and dictionaries as bytes, read without running any code.

The bytes are pickled, as earlier versions wrote them; reading refuses every class and function but
bytearray, without which a pickle is data alone.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from kavka.pipeline.streams.errors import StreamsException


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "bytearray"):
            # What serializers may make, and is data too.
            return bytearray
        raise StreamsException(
            f"the state has a {module}.{name} where only plain data may be: an earlier version wrote it, or somebody "
            "else. Forget the state with clean_up()"
        )


def dumps(value: Any) -> bytes:
    return pickle.dumps(value)


def loads(data: bytes) -> Any:
    try:
        return _DataUnpickler(io.BytesIO(data)).load()
    except StreamsException:
        raise
    except Exception as error:
        raise StreamsException(f"the state cannot be read: {error}. Forget it with clean_up()") from None
