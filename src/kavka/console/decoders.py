"""Decodes keys, values and headers: text, JSON, Avro, hex, numbers, records of internal topics.

A decoder accepts any bytes and raises no error. The result for bytes that it cannot decode is their
hex form with the reason. `data`, the decoded value for paths and expressions, and `text` are plain
Python values. This module creates no HTML.

`decode` raises only BadSchema for an invalid schema, and ValueError for an unknown decoder. The
time and memory of a decoder are bounded by the budget of the message (`limits.py`) plus a term
linear in the size of the bytes; tests/unit/console/test_hostile_messages.py measures both.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from kavka.console import avro
from kavka.console.limits import MAX_CHARACTERS, MAX_PROBLEM, Budget, TooLarge
from kavka.protocol.primitives import ProtocolError
from kavka.records import internal_topics

DECODERS = ("auto", "text", "json", "avro", "number", "double", "hex")
INTERNAL = {
    "__consumer_offsets": internal_topics.OFFSET_TOPIC,
    "__transaction_state": internal_topics.TRANSACTION_TOPIC,
}
MAX_HEX_BYTES = 64 * 1024
CONFLUENT_HEADER_LENGTH = 5
"""The length of a zero byte and a schema id, which a schema registry's clients prepend."""

_INTEGERS = {1: ">b", 2: ">h", 4: ">i", 8: ">q"}
_FLOATS = {4: ">f", 8: ">d"}


def _reject_constant(name: str) -> float:
    raise ValueError(f"JSON has no {name}")


# Python's decoder accepts NaN and Infinity, which are not JSON.
strict_json = json.JSONDecoder(parse_constant=_reject_constant).decode


class Decoded(NamedTuple):
    """A decoded value. `kind` is null, text, json, avro, number, double, hex or internal. `problem`
    is the reason why the requested decoder failed."""

    kind: str
    text: str
    data: Any
    problem: str = ""


NULL = Decoded("null", "null", None)

Decoder = Callable[[bytes, Budget], Decoded]


def decode(data: bytes, name: str = "auto", schema: str = "", budget: Budget | None = None) -> Decoded:
    """Decode any bytes. Raises BadSchema for an invalid `schema`, and nothing for invalid bytes."""
    return make_decoder(name, schema)(data, Budget() if budget is None else budget)


def make_decoder(name: str, schema: str = "") -> Decoder:
    """Return the decoder with this name. `schema` is an Avro schema as JSON. Without a schema the
    Avro decoder accepts only containers. Raises ValueError and BadSchema."""
    match name:
        case "auto":
            return _hex_on_error(decode_auto)
        case "text":
            return _hex_on_error(lambda data, _: decode_text(data))
        case "json":
            return _hex_on_error(decode_json)
        case "number":
            return _hex_on_error(lambda data, _: _number(data, _INTEGERS, "number"))
        case "double":
            return _hex_on_error(lambda data, _: _number(data, _FLOATS, "double"))
        case "hex":
            return _hex_on_error(lambda data, _: decode_hex(data))
        case "avro":
            parsed = parse_schema(schema) if schema.strip() else None
            return _hex_on_error(lambda data, budget: decode_avro(data, parsed, budget))
    raise ValueError(f"'{name}' is not a decoder: {', '.join(DECODERS)}")


def _hex_on_error(decoder: Decoder) -> Decoder:
    """Return a decoder that shows the bytes as hex if `decoder` raises: a failing decoder must not
    hide the other messages."""

    def decode_or_show_hex(data: bytes, budget: Budget) -> Decoded:
        try:
            return decoder(data, budget)
        except Exception as error:
            return decode_hex(data, _failure(error))

    return decode_or_show_hex


def _failure(error: Exception) -> str:
    text = "nested too deep" if isinstance(error, RecursionError) else str(error)
    return f"cannot be decoded ({type(error).__name__}): {text}"


def decode_hex(data: bytes, problem: str = "") -> Decoded:
    hex_text = data[:MAX_HEX_BYTES].hex(" ")
    more = f" … ({len(data)} bytes)" if len(data) > MAX_HEX_BYTES else ""
    return Decoded("hex", hex_text + more, hex_text, problem[:MAX_PROBLEM])


def decode_text(data: bytes) -> Decoded:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = data.decode(errors="replace")
        return Decoded("text", text, text, f"not UTF-8 at byte {error.start}")
    return Decoded("text", text, text)


def decode_json(data: bytes, budget: Budget) -> Decoded:
    try:
        return _json(data, budget)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deep"
        text = decode_text(data).text
        return Decoded("text", text, text, f"not JSON: {reason[:200]}")


def _json(data: bytes, budget: Budget) -> Decoded:
    """Decode JSON. The parser has no limits, so an upper bound of the number of values is charged
    first: one, plus one for every comma and opening bracket."""
    if len(data) > MAX_CHARACTERS:
        raise TooLarge(f"{len(data)} bytes, more than {MAX_CHARACTERS}")
    budget.spend_values(1 + data.count(b",") + data.count(b"[") + data.count(b"{"))
    budget.spend_characters(len(data))
    text = data.decode()
    return Decoded("json", text, strict_json(text))


def decode_auto(data: bytes, budget: Budget) -> Decoded:
    """Try, in this order: a JSON object or list, an Avro container, text, a number of four or eight
    bytes, hex. JSON above the limits is decoded as text, with the reason."""
    problem = ""
    if data[:1] in (b"{", b"["):
        try:
            return _json(data, budget)
        except TooLarge as error:
            problem = f"not read as JSON: {error}"
        except (ValueError, RecursionError):
            pass
    if data.startswith(avro.CONTAINER):
        return decode_avro(data, None, budget)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if (text or not data) and not any(ord(c) < 32 and c not in "\t\n\r" for c in text[:1000]):
        return Decoded("text", text, text, problem)
    if len(data) in (4, 8):
        return _number(data, _INTEGERS, "number")
    return decode_hex(data)


def _number(data: bytes, formats: dict[int, str], kind: str) -> Decoded:
    if len(data) not in formats:
        lengths = ", ".join(map(str, formats))
        return decode_hex(data, f"{len(data)} bytes: a {kind} has {lengths}")
    (number,) = struct.unpack(formats[len(data)], data)
    return Decoded(kind, repr(number), number if math.isfinite(number) else None)


# --- Avro


@lru_cache(16)
def parse_schema(text: str) -> avro.Schema:
    return avro.Schema(text)


def decode_avro(data: bytes, schema: avro.Schema | None, budget: Budget) -> Decoded:
    if data.startswith(avro.CONTAINER):
        try:
            records, is_complete = avro.read_container(data, budget)
        except (avro.BadSchema, avro.BadData, TooLarge) as error:
            return decode_hex(data, f"the Avro container cannot be decoded: {error}")
        problem = "" if is_complete else f"only the first {len(records)} records are shown"
        return _avro(records[0] if len(records) == 1 else records, problem)
    if schema is None:
        return decode_hex(data, "no schema: neither the request nor the data has one")
    problem = ""
    values, characters = budget.values, budget.characters
    for skip in (0, CONFLUENT_HEADER_LENGTH) if data[:1] == b"\0" and len(data) > CONFLUENT_HEADER_LENGTH else (0,):
        # The second attempt decodes the same bytes, so it gets the same budget.
        budget.values, budget.characters = values, characters
        try:
            return _avro(avro.read_value(data, schema, skip, budget))
        except (avro.BadData, TooLarge) as error:
            problem = problem or f"the data does not match the schema: {error}"
    return decode_hex(data, problem)


def _avro(value: Any, problem: str = "") -> Decoded:
    return Decoded("avro", json.dumps(value, ensure_ascii=False), value, problem)


# --- internal topics


def decode_internal(topic: str, key: bytes | None, value: bytes | None, budget: Budget) -> tuple[Decoded, Decoded]:
    """Decode the key and the value of a record of an internal topic. The key determines the type of
    the value."""
    if key is None:
        return NULL, NULL if value is None else _hex_on_error(decode_auto)(value, budget)
    try:
        record = internal_topics.record_to_json(INTERNAL[topic], key, value)
        if record is None:
            problem = f"unknown record version {internal_topics.version_of(key)}"
            return decode_hex(key, problem), NULL if value is None else decode_hex(value, problem)
        return _internal(record["key"]), NULL if record["value"] is None else _internal(record["value"])
    except Exception as error:
        # Catch any error: a malformed record must not hide the others.
        reason = str(error) if isinstance(error, (ProtocolError, ValueError)) else _failure(error)
        problem = f"not a valid record of {topic}: {reason[:200]}"
        return decode_hex(key, problem), NULL if value is None else decode_hex(value, problem)


def _internal(part: dict[str, Any]) -> Decoded:
    return Decoded("internal", internal_topics.dumps(part), part)
