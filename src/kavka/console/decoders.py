"""What the bytes of a key, a value or a header mean: text, JSON, Avro, hex, numbers, the layouts of internal topics.

Every decoder takes whatever is in a topic: what does not fit is shown as bytes in hex with the reason, never an error.
What was decoded (`data`, for paths and expressions) and what is shown of it (`text`) are plain Python values; nothing
here makes HTML.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from kavka.console import avro
from kavka.protocol.primitives import ProtocolError
from kavka.records import internal_topics

DECODERS = ("auto", "text", "json", "avro", "number", "double", "hex")
INTERNAL = {
    "__consumer_offsets": internal_topics.OFFSET_TOPIC,
    "__transaction_state": internal_topics.TRANSACTION_TOPIC,
}
MOST_HEX = 64 * 1024
CONFLUENT_HEAD = 5
"""A zero byte and the id of a schema, where a registry is used: the record follows."""

_INTEGERS = {1: ">b", 2: ">h", 4: ">i", 8: ">q"}
_FLOATS = {4: ">f", 8: ">d"}


def _no_number(name: str) -> float:
    raise ValueError(f"JSON has no {name}")


# Python's own would take NaN and Infinity, which no other reader of JSON does.
strict_json = json.JSONDecoder(parse_constant=_no_number).decode


class Decoded(NamedTuple):
    """`kind` is what it turned out to be: null, text, json, avro, number, double, hex, internal. `problem` says why
    what was asked for did not fit."""

    kind: str
    text: str
    data: Any
    problem: str = ""


NULL = Decoded("null", "null", None)

Decoder = Callable[[bytes], Decoded]


def make_decoder(name: str, schema: str = "") -> Decoder:
    """By name; `schema` is Avro's, as JSON: without one, only data that brings its own is read."""
    match name:
        case "auto":
            return decode_auto
        case "text":
            return decode_text
        case "json":
            return decode_json
        case "number":
            return lambda data: _number(data, _INTEGERS, "number")
        case "double":
            return lambda data: _number(data, _FLOATS, "double")
        case "hex":
            return decode_hex
        case "avro":
            parsed = parse_schema(schema) if schema.strip() else None
            return lambda data: decode_avro(data, parsed)
    raise ValueError(f"'{name}' is not a way to decode: {', '.join(DECODERS)}")


def decode_hex(data: bytes, problem: str = "") -> Decoded:
    shown = data[:MOST_HEX].hex(" ")
    more = f" … ({len(data)} bytes)" if len(data) > MOST_HEX else ""
    return Decoded("hex", shown + more, shown, problem)


def decode_text(data: bytes) -> Decoded:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = data.decode(errors="replace")
        return Decoded("text", text, text, f"not UTF-8 at byte {error.start}")
    return Decoded("text", text, text)


def decode_json(data: bytes) -> Decoded:
    try:
        text = data.decode()
        return Decoded("json", text, strict_json(text))
    except (ValueError, RecursionError) as error:
        said = str(error) if isinstance(error, ValueError) else "lists in lists in lists, too many of them"
        shown = decode_text(data)
        return Decoded("text", shown.text, shown.data, f"not JSON: {said[:200]}")


def decode_auto(data: bytes) -> Decoded:
    """JSON where it is an object or a list, else text where it is text; Avro that brings its schema; numbers of four or
    eight bytes; else hex."""
    if data[:1] in (b"{", b"["):
        found = decode_json(data)
        if not found.problem:
            return found
    if data.startswith(avro.CONTAINER):
        found = decode_avro(data, None)
        if not found.problem:
            return found
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if (text or not data) and not any(ord(c) < 32 and c not in "\t\n\r" for c in text[:1000]):
        return Decoded("text", text, text)
    if len(data) in (4, 8):
        return _number(data, _INTEGERS, "number")
    return decode_hex(data)


def _number(data: bytes, formats: dict[int, str], kind: str) -> Decoded:
    if len(data) not in formats:
        lengths = ", ".join(map(str, formats))
        return decode_hex(data, f"{len(data)} bytes: a {kind} has {lengths}")
    (found,) = struct.unpack(formats[len(data)], data)
    return Decoded(kind, repr(found), found if math.isfinite(found) else None)


# --- Avro


@lru_cache(64)
def parse_schema(text: str) -> avro.Schema:
    return avro.Schema(text)


def decode_avro(data: bytes, schema: avro.Schema | None) -> Decoded:
    if data.startswith(avro.CONTAINER):
        try:
            found, whole = avro.read_container(data)
        except (avro.BadSchema, avro.BadData) as error:
            return decode_hex(data, f"an Avro file that cannot be read: {error}")
        problem = "" if whole else f"only the first {len(found)} records are shown"
        return _avro(found[0] if len(found) == 1 else found, problem)
    if schema is None:
        return decode_hex(data, "no schema was given, and the data brings none")
    problem = ""
    for skip in (0, CONFLUENT_HEAD) if data[:1] == b"\0" and len(data) > CONFLUENT_HEAD else (0,):
        try:
            return _avro(avro.read_alone(data, schema, skip))
        except avro.BadData as error:
            problem = problem or f"not of this schema: {error}"
    return decode_hex(data, problem)


def _avro(found: Any, problem: str = "") -> Decoded:
    return Decoded("avro", json.dumps(found, ensure_ascii=False), found, problem)


# --- internal topics


def decode_internal(topic: str, key: bytes | None, value: bytes | None) -> tuple[Decoded, Decoded]:
    """Key and value of a record of one of Kafka's own topics: what a value means, its key says."""
    if key is None:
        return NULL, NULL if value is None else decode_auto(value)
    try:
        found = internal_topics.record_to_json(INTERNAL[topic], key, value)
    except (ProtocolError, ValueError) as error:
        problem = f"not a record of {topic} as it is known here: {str(error)[:200]}"
        return decode_hex(key, problem), NULL if value is None else decode_hex(value, problem)
    if found is None:
        problem = f"a kind of record ({internal_topics.version_of(key)}) that is not known here"
        return decode_hex(key, problem), NULL if value is None else decode_hex(value, problem)
    return _internal(found["key"]), NULL if found["value"] is None else _internal(found["value"])


def _internal(part: dict[str, Any]) -> Decoded:
    return Decoded("internal", internal_topics.dumps(part), part)
