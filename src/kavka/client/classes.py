"""Settings that name a class: Java's names of Kafka's own, Python's dotted names, classes, objects, functions."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from kavka.common.config import ConfigError

JAVA = ("org.apache.kafka.", "kafka.producer.", "kafka.serializer.", "io.confluent.kafka.")


def module_of(text: str) -> str | None:
    """The module that `load` imports for this text; None: it looks among Kafka's own names only."""
    text = text.strip()
    if text == _short(text) or text.startswith(JAVA):
        return None
    return split_name(text)[0]


def _short(text: str) -> str:
    return text.rpartition(".")[2].rpartition("$")[2]


def split_name(text: str) -> tuple[str, str]:
    """(module, attribute) of `package.module:Class` or `package.module.Class`."""
    module, colon, attribute = text.rpartition(":")
    if not colon:
        module, _, attribute = text.rpartition(".")
    return module, attribute


def load(name: str, value: Any, known: Mapping[str, str], what: str) -> Any:
    """The class or object behind a setting's value.

    `known` has, by the last part of Java's name (`StringSerializer`), where ours is (`module:Class`). Text is looked up
    there first, with or without its Java package; else it is a Python name, `package.module.Class` or
    `package.module:Class`. Anything that is not text is returned as it is.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    short = _short(text)
    java = module_of(text) is None
    if java and short in known:
        text = known[short]
    elif java:
        names = f"; known are {', '.join(sorted(known))}" if known else ""
        raise ConfigError(name, f"'{value}' is not {what} that is known here{names} (package.module.Class loads one)")
    module, attribute = split_name(text)
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(name, f"'{value}' cannot be loaded: {error}") from None
    return found


def make(name: str, value: Any, known: Mapping[str, str], what: str, configs: Mapping[str, Any], *extra: Any) -> Any:
    """An object: a class is called without arguments; then `configure(configs, *extra)` is, where there is one."""
    found = load(name, value, known, what)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise ConfigError(name, f"{found.__name__} cannot be made: {error}") from error
    configure = getattr(found, "configure", None)
    if callable(configure):
        try:
            configure(configs, *extra)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(name, f"{type(found).__name__} cannot be configured: {error}") from error
    return found
