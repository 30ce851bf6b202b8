"""Loads classes from settings. The value is the Java name of a Kafka class, a dotted Python name, a
class, an object or a function."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from kavka.common.config import ConfigError

JAVA_PREFIXES = ("org.apache.kafka.", "kafka.producer.", "kafka.serializer.", "io.confluent.kafka.")


def module_of(text: str) -> str | None:
    """Return the module that `load` imports for this text, or None if the text names a Kafka
    class."""
    text = text.strip()
    if (":" not in text and text == _short(text)) or text.startswith(JAVA_PREFIXES):
        return None
    return split_name(text)[0]


def _short(text: str) -> str:
    return text.rpartition(".")[2].rpartition("$")[2]


def split_name(text: str) -> tuple[str, str]:
    """Split `package.module:Class` or `package.module.Class` into (module, attribute)."""
    module, colon, attribute = text.rpartition(":")
    if not colon:
        module, _, attribute = text.rpartition(".")
    return module, attribute


def load(name: str, value: Any, java_names: Mapping[str, str], description: str) -> Any:
    """Return the class or object that the value of a setting names. Raises ConfigError.

    `java_names` maps the last part of a Java name (`StringSerializer`) to a Python class
    (`module:Class`). Text is looked up there first, with or without its Java package. Other text is
    a Python name, `package.module.Class` or `package.module:Class`. A value that is not text is
    returned unchanged.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    short = _short(text)
    is_java = module_of(text) is None
    if is_java and short in java_names:
        text = java_names[short]
    elif is_java:
        names = f"; supported are {', '.join(sorted(java_names))}" if java_names else ""
        raise ConfigError(
            name,
            f"'{value}' is not a supported name of {description}{names}; package.module.Class loads a Python class",
        )
    module, attribute = split_name(text)
    try:
        loaded: Any = import_module(module)
        for name_part in attribute.split("."):
            loaded = getattr(loaded, name_part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(name, f"'{value}' cannot be loaded: {error}") from None
    return loaded


def make(
    name: str, value: Any, java_names: Mapping[str, str], description: str, configs: Mapping[str, Any], *extra: Any
) -> Any:
    """Return the object that a setting names. A class is instantiated without arguments. If the
    object has a method `configure`, `configure(configs, *extra)` is called. Raises ConfigError."""
    instance = load(name, value, java_names, description)
    if isinstance(instance, type):
        try:
            instance = instance()
        except Exception as error:
            raise ConfigError(name, f"{instance.__name__} cannot be instantiated: {error}") from error
    configure = getattr(instance, "configure", None)
    if callable(configure):
        try:
            configure(configs, *extra)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(name, f"{type(instance).__name__} cannot be configured: {error}") from error
    return instance
