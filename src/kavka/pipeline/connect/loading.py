"""Converters, transformations and predicates by their names in a configuration, with the options under their prefix."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from kavka.pipeline.connect.errors import ConfigErrors
from kavka.pipeline.connect.options import parse

_HERE = "kavka.pipeline.connect"
CONVERTERS = {
    **{
        name: f"{_HERE}.converters:{name}"
        for name in (
            "ByteArrayConverter", "StringConverter", "ShortConverter", "IntegerConverter", "LongConverter",
            "FloatConverter", "DoubleConverter", "BooleanConverter", "AvroConverter",
        )
    },
    "JsonConverter": f"{_HERE}.json_converter:JsonConverter",
}  # fmt: skip
TRANSFORMS = {
    **{
        name: f"{_HERE}.transforms.fields:{name}"
        for name in ("InsertField", "ReplaceField", "MaskField", "ValueToKey", "HoistField", "ExtractField", "Flatten")
    },
    **{name: f"{_HERE}.transforms.values:{name}" for name in ("Cast", "TimestampConverter", "SetSchemaMetadata")},
    **{name: f"{_HERE}.transforms.routing:{name}" for name in ("TimestampRouter", "RegexRouter", "Filter")},
    **{name: f"{_HERE}.transforms.headers:{name}" for name in ("InsertHeader", "DropHeaders", "HeaderFrom")},
}
PREDICATES = {
    name: f"{_HERE}.transforms.predicates:{name}" for name in ("TopicNameMatches", "HasHeaderKey", "RecordIsTombstone")
}
HEADER_CONVERTERS = ("SimpleHeaderConverter", "StringConverter", "ByteArrayConverter")

_JAVA = ("org.apache.kafka.connect.", "io.confluent.connect.")


def load(option: str, name: str, known: Mapping[str, str], what: str) -> tuple[type[Any], str]:
    """(class, what follows a `$` in its name: Key, Value or nothing). ConfigErrors under `option`."""
    base, _, side = name.partition("$")
    short = base.rpartition(".")[2]
    if (base == short or base.startswith(_JAVA)) and short in known:
        module, _, attribute = known[short].partition(":")
        return getattr(import_module(module), attribute), side
    module, colon, attribute = base.rpartition(":")
    if not colon:
        module, _, attribute = base.rpartition(".")
    try:
        if not module or base.startswith(_JAVA):
            raise ImportError(f"known are {', '.join(sorted(known))}, and your own by module.Class")
        found = getattr(import_module(module), attribute)
    except Exception as error:
        message = f"Invalid value {name} for configuration {option}: Class {name} could not be found: {error}"
        raise ConfigErrors({option: [message]}) from None
    if not isinstance(found, type):
        raise ConfigErrors({option: [f"Invalid value {name} for configuration {option}: it is no {what}"]})
    return found, side


def load_converter(name: str, option: str) -> type[Any]:
    return load(option, name, CONVERTERS, "converter")[0]


def options_under(cls: Any, prefix: str, given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """(the class' options parsed, errors by full name) of what is given as `<prefix><option>`."""
    own = {name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix)}
    for old, new in getattr(cls, "old_names", {}).items():
        if old in own and new not in own:
            own[new] = own[old]
    values, errors = parse(cls.options, own)
    if not errors:
        errors = {name: [message] for name, message in cls.check(values).items()}
    return values, {f"{prefix}{name}": messages for name, messages in errors.items()}
