"""Conversion of values to JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any
from uuid import UUID

from starlette.responses import Response


def plain(value: Any) -> Any:
    """Convert dataclasses, NamedTuples, sets, enums, UUIDs and bytes to JSON values. Numbers above
    2**53 stay numbers; NaN and infinity become null. Raises TypeError for other types."""
    if value is None or isinstance(value, (str, bool, int)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _field_names(type(value))}
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(item) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return [plain(item) for item in sorted(value, key=str)]
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} cannot be converted to JSON")


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _key(key: Any) -> str:
    return str(key.value) if isinstance(key, Enum) else str(key)


class JsonResponse(Response):
    """A response that contains a value as JSON. Browsers do not cache it."""

    media_type = "application/json"

    def __init__(self, value: Any, status: int = 200) -> None:
        text = json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))
        super().__init__(text.encode("utf-8", "replace"), status, {"Cache-Control": "no-store"})
