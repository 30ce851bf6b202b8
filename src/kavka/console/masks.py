"""Masking of fields in messages. No I/O.

The settings `console.mask.PATTERN` of a cluster name the masked parts of the messages of the topics
that match the pattern (with * and ?):

    console.mask.payments.* = $.card.number, $.customer.email, header:authorization
    console.mask.tokens = key, value

A part is `key`, `value`, `header:NAME`, or a path into the value. A path continues into every item
of a list. No user can see or search a masked part: the text and the data of a decoded value are
replaced before any filter or page uses them. A value is masked as a whole if its fields cannot be
identified, for example because it is no JSON or is decoded with a schema of the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from kavka.console.decoders import NULL, Decoded
from kavka.console.settings import SettingsError

PREFIX = "mask."
MASK = "●●●"
MASKED = Decoded("masked", MASK, MASK)
_PATH = re.compile(r"\$((?:\.[^.\[\]\s,]+|\[\*\])+)")

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Masks:
    """The masked parts of the messages of a topic. `headers` are in lower case."""

    key: bool = False
    value: bool = False
    headers: frozenset[str] = frozenset()
    paths: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return self != NO_MASKS

    @property
    def of_value(self) -> bool:
        return self.value or bool(self.paths)

    def mask_key(self, decoded: Decoded) -> Decoded:
        return MASKED if self.key and decoded is not NULL else decoded

    def mask_value(self, decoded: Decoded, is_self_describing: bool) -> Decoded:
        """Mask the value. `is_self_describing` means that the bytes determine the names of fields,
        not an input of the user."""
        if decoded is NULL or not self.of_value:
            return decoded
        if self.value or not is_self_describing or decoded.kind not in ("json", "avro", "internal"):
            return MASKED
        try:
            data = decoded.data
            for path in self.paths:
                data = _masked(data, path)
            return Decoded(decoded.kind, json.dumps(data, ensure_ascii=False), data, decoded.problem)
        except RecursionError:
            return MASKED

    def mask_header(self, name: str, decoded: Decoded) -> Decoded:
        return MASKED if decoded is not NULL and self.headers and name.lower() in self.headers else decoded


NO_MASKS = Masks()


def _masked(data: Any, path: Path) -> Any:
    """Return a copy of the data with the values at the path replaced. Raises RecursionError."""
    if isinstance(data, list):
        return [_masked(item, path) for item in data]
    if not path:
        return MASK
    if isinstance(data, dict) and path[0] in data:
        return {**data, path[0]: _masked(data[path[0]], path[1:])}
    return data


class MaskTable:
    """The settings `console.mask.…` of a cluster. Raises SettingsError if they are invalid."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._masks = [
            (name.removeprefix(PREFIX), _parse(name, text))
            for name, text in settings.items()
            if name.startswith(PREFIX)
        ]

    def of(self, topic: str) -> Masks:
        """Return the masked parts of all patterns that match the topic."""
        matching = [masks for pattern, masks in self._masks if fnmatchcase(topic, pattern)]
        return Masks(
            any(masks.key for masks in matching),
            any(masks.value for masks in matching),
            frozenset(header for masks in matching for header in masks.headers),
            tuple(path for masks in matching for path in masks.paths),
        )


def _parse(name: str, text: str) -> Masks:
    key = value = False
    headers, paths = set(), []
    for part in filter(None, (part.strip() for part in text.split(","))):
        path = _PATH.fullmatch(part)
        if part == "key":
            key = True
        elif part == "value":
            value = True
        elif part.startswith("header:") and part != "header:":
            headers.add(part.removeprefix("header:").lower())
        elif path is not None:
            paths.append(tuple(step for step in path[1].replace("[*]", "").split(".") if step))
        else:
            raise SettingsError(
                f"console.{name}: '{part}' is not key, value, header:NAME or a path such as $.card.number"
            )
    return Masks(key, value, frozenset(headers), tuple(paths))
