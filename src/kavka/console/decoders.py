"""What the bytes of a key, a value or a header mean: text, JSON, Avro, hex, numbers, the layouts of internal topics.

Every decoder takes whatever is in a topic: what does not fit is shown as bytes in hex with the reason, never an error.
What was decoded (`data`, for paths and expressions) and what is shown of it (`text`) are plain Python values; nothing
here makes HTML.

`decode` is the entry for any bytes. It raises nothing but BadSchema (for the schema of the caller). Its time and memory
are bounded by the budget of the message (`limits.py`) plus a term that is linear in the size of the bytes:
tests/unit/console/test_hostile_messages.py measures both.
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

Decoder = Callable[[bytes, Budget], Decoded]


def decode(data: bytes, name: str = "auto", schema: str = "", budget: Budget | None = None) -> Decoded:
    """Any bytes as a value that can be shown; raises BadSchema for a wrong `schema` and nothing for wrong bytes."""
    return make_decoder(name, schema)(data, Budget() if budget is None else budget)


def make_decoder(name: str, schema: str = "") -> Decoder:
    """By name; `schema` is Avro's, as JSON: without one, only data that brings its own is read."""
    match name:
        case "auto":
            return _shielded(decode_auto)
        case "text":
            return _shielded(lambda data, _: decode_text(data))
        case "json":
            return _shielded(decode_json)
        case "number":
            return _shielded(lambda data, _: _number(data, _INTEGERS, "number"))
        case "double":
            return _shielded(lambda data, _: _number(data, _FLOATS, "double"))
        case "hex":
            return _shielded(lambda data, _: decode_hex(data))
        case "avro":
            parsed = parse_schema(schema) if schema.strip() else None
            return _shielded(lambda data, budget: decode_avro(data, parsed, budget))
    raise ValueError(f"'{name}' is not a way to decode: {', '.join(DECODERS)}")


def _shielded(decoder: Decoder) -> Decoder:
    """The last line of defence: a decoder that fails must not hide the other messages of the topic."""

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
    shown = data[:MOST_HEX].hex(" ")
    more = f" … ({len(data)} bytes)" if len(data) > MOST_HEX else ""
    return Decoded("hex", shown + more, shown, problem[:MAX_PROBLEM])


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
        reason = str(error) if isinstance(error, ValueError) else "lists in lists in lists, too many of them"
        shown = decode_text(data)
        return Decoded("text", shown.text, shown.data, f"not JSON: {reason[:200]}")


def _json(data: bytes, budget: Budget) -> Decoded:
    """The parser has no limit of its own: the number of values is estimated before it runs. Each value but the first
    of a list or object follows a comma, so commas and brackets are an upper bound."""
    if len(data) > MAX_CHARACTERS:
        raise TooLarge(f"{len(data)} bytes, more than {MAX_CHARACTERS}")
    budget.spend_values(1 + data.count(b",") + data.count(b"[") + data.count(b"{"))
    budget.spend_characters(len(data))
    text = data.decode()
    return Decoded("json", text, strict_json(text))


def decode_auto(data: bytes, budget: Budget) -> Decoded:
    """JSON where it is an object or a list, else text where it is text; Avro that brings its schema; numbers of four or
    eight bytes; else hex. A list or object past the limits is text with the reason."""
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
    (found,) = struct.unpack(formats[len(data)], data)
    return Decoded(kind, repr(found), found if math.isfinite(found) else None)


# --- Avro


@lru_cache(16)
def parse_schema(text: str) -> avro.Schema:
    return avro.Schema(text)


def decode_avro(data: bytes, schema: avro.Schema | None, budget: Budget) -> Decoded:
    if data.startswith(avro.CONTAINER):
        try:
            records, whole = avro.read_container(data, budget)
        except (avro.BadSchema, avro.BadData, TooLarge) as error:
            return decode_hex(data, f"an Avro file that cannot be read: {error}")
        problem = "" if whole else f"only the first {len(records)} records are shown"
        return _avro(records[0] if len(records) == 1 else records, problem)
    if schema is None:
        return decode_hex(data, "no schema was given, and the data brings none")
    problem = ""
    values, characters = budget.values, budget.characters
    for skip in (0, CONFLUENT_HEAD) if data[:1] == b"\0" and len(data) > CONFLUENT_HEAD else (0,):
        # The second attempt reads the same bytes: it has what the first had.
        budget.values, budget.characters = values, characters
        try:
            return _avro(avro.read_alone(data, schema, skip, budget))
        except (avro.BadData, TooLarge) as error:
            problem = problem or f"not of this schema: {error}"
    return decode_hex(data, problem)


def _avro(value: Any, problem: str = "") -> Decoded:
    return Decoded("avro", json.dumps(value, ensure_ascii=False), value, problem)


# --- internal topics


def decode_internal(topic: str, key: bytes | None, value: bytes | None, budget: Budget) -> tuple[Decoded, Decoded]:
    """Key and value of a record of one of Kafka's own topics: what a value means, its key says."""
    if key is None:
        return NULL, NULL if value is None else _shielded(decode_auto)(value, budget)
    try:
        shown = internal_topics.record_to_json(INTERNAL[topic], key, value)
        if shown is None:
            problem = f"a kind of record ({internal_topics.version_of(key)}) that is not known here"
            return decode_hex(key, problem), NULL if value is None else decode_hex(value, problem)
        return _internal(shown["key"]), NULL if shown["value"] is None else _internal(shown["value"])
    except Exception as error:
        # Any error: nothing that was written to an internal topic may hide the other records.
        reason = str(error) if isinstance(error, (ProtocolError, ValueError)) else _failure(error)
        problem = f"not a record of {topic} as it is known here: {reason[:200]}"
        return decode_hex(key, problem), NULL if value is None else decode_hex(value, problem)


def _internal(part: dict[str, Any]) -> Decoded:
    return Decoded("internal", internal_topics.dumps(part), part)
