"""Loads converters, transformations, predicates and configuration providers by their configured
names, and decides which user modules such names may refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any

from kavka.client.classes import module_of, split_name
from kavka.client.config import OBJECT_LISTS
from kavka.client.consumer_config import CONSUMER_CONFIGS
from kavka.client.producer_config import PRODUCER_CONFIGS
from kavka.common.config import ConfigType
from kavka.pipeline.connect.errors import ConfigErrors
from kavka.pipeline.connect.options import parse

_HERE = "kavka.pipeline.connect"
CONVERTERS = {
    **{
        name: f"{_HERE}.converters:{name}"
        for name in (
            "ByteArrayConverter", "StringConverter", "ShortConverter", "IntegerConverter", "LongConverter",
            "FloatConverter", "DoubleConverter", "BooleanConverter",
        )
    },
    **{
        name: f"{_HERE}.schema_converters:{name}"
        for name in ("AvroConverter", "JsonSchemaConverter", "ProtobufConverter")
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

PROVIDERS = {
    name: f"{_HERE}.providers:{name}"
    for name in ("FileConfigProvider", "DirectoryConfigProvider", "EnvVarConfigProvider")
}

CLIENTS = ("producer", "consumer", "admin")
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLASS_SETTINGS = OBJECT_LISTS | {
    key.name
    for table in (PRODUCER_CONFIGS, CONSUMER_CONFIGS)
    for key in table.keys.values()
    if key.type is ConfigType.CLASS
}
"""Client settings that name classes, which the client imports."""

GROUP = "kavka.connect"
"""The group of entry points with which an installed package declares its plugins."""

_JAVA = ("org.apache.kafka.connect.", "org.apache.kafka.common.config.provider.", "io.confluent.connect.")
_BASES = {
    "converter": f"{_HERE}.converters:Converter",
    "transformation": f"{_HERE}.transforms.base:Transform",
    "predicate": f"{_HERE}.transforms.predicates:Predicate",
    "configuration provider": f"{_HERE}.providers:ConfigProvider",
}
_MAX_SHOWN = 200


@dataclass(frozen=True)
class Declared:
    """The plugins that the worker's settings, and installed packages, declare.

    Configurations arrive over REST and name classes by `module.Class`. Importing a module runs its
    code, so only declared modules are imported. The set is determined when the worker starts: it
    excludes modules that are written to a folder of `plugin.path` later.
    """

    modules: frozenset[str] = frozenset()
    """Modules and packages. A package includes all its modules."""
    names: Mapping[str, str] = field(default_factory=dict)
    """`module:Class` by the name of the entry point."""
    file_connectors: bool = False
    """Whether connectors may open files that their configuration names."""

    @classmethod
    def of(cls, worker: Mapping[str, str]) -> Declared:
        """Reads `plugin.modules`, `plugin.path` and `file.connectors.enable` of the worker's
        settings, and the entry points of installed packages."""
        modules = set(items_of(worker.get("plugin.modules", "")))
        modules |= {module.name for module in iter_modules(items_of(worker.get("plugin.path", "")))}
        points = entry_points(group=GROUP)
        modules |= {point.module for point in points}
        enabled = worker.get("file.connectors.enable", "false").strip().lower() == "true"
        return cls(frozenset(modules), {point.name: point.value for point in points}, enabled)

    def allows(self, module: str) -> bool:
        return any(module == declared or module.startswith(f"{declared}.") for declared in self.modules)

    def require(self, module: str) -> None:
        """Raises ImportError if the module is not declared. The message names the settings to
        change."""
        if not self.allows(module):
            name = shortened(module)
            raise ImportError(
                f"the module {name} is not declared as a plugin: set plugin.modules={name} in the worker's settings, "
                "or add the folder that it is in to plugin.path"
            )

    def load(self, name: str) -> Any:
        """Returns the class with the name `module.Class` or `module:Class`. Raises ImportError or
        AttributeError if it cannot be loaded."""
        module, attribute = split_name(name)
        self.require(module)
        return getattr(import_module(module), attribute)


NO_PLUGINS = Declared()


def items_of(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def own_class(where: str) -> Any:
    """Loads a class of Kavka by its `module:Class` in one of the tables."""
    module, attribute = split_name(where)
    return getattr(import_module(module), attribute)


def shortened(name: str) -> str:
    """Returns the name, shortened for messages: names in requests may have any length."""
    return name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}…"


def load(
    option: str, name: str, classes: Mapping[str, str], noun: str, declared: Declared = NO_PLUGINS
) -> tuple[type[Any], str]:
    """Returns (class, suffix of its name after a `$`: Key, Value or empty). Raises ConfigErrors for
    `option`."""
    base, _, side = name.partition("$")
    short = base.rpartition(".")[2]
    if (base == short or base.startswith(_JAVA)) and short in classes:
        return own_class(classes[short]), side
    for where in classes.values():
        if base in (where, where.replace(":", ".")):
            return own_class(where), side
    try:
        if base in declared.names:
            cls = declared.load(declared.names[base])
        elif base.startswith(_JAVA) or not split_name(base)[0]:
            raise ImportError(f"available are {', '.join(sorted(classes))}; a custom class is named by module.Class")
        else:
            cls = declared.load(base)
    except Exception as error:
        reason = f"Class {shortened(name)} could not be found: {error}"
    else:
        if isinstance(cls, type) and issubclass(cls, own_class(_BASES[noun])):
            return cls, side
        reason = f"Class {shortened(name)} is not a {noun}"
    raise ConfigErrors({option: [f"Invalid value {shortened(name)} for configuration {option}: {reason}"]})


def load_converter(name: str, option: str, declared: Declared = NO_PLUGINS) -> type[Any]:
    return load(option, name, CONVERTERS, "converter", declared)[0]


def check_overrides(originals: Mapping[str, str], declared: Declared) -> dict[str, list[str]]:
    """Returns the errors of client settings (`producer.override.partitioner.class`) that name
    classes of undeclared modules, or a token endpoint."""
    errors: dict[str, list[str]] = {}
    for option, value in originals.items():
        # The settings pass through Spark options, which ignore case.
        client, override, name = option.partition(".override.")
        name = name.lower()
        if not override or client not in CLIENTS:
            continue
        if name == TOKEN_URL:
            # The worker would send the content of a file, or the response of an internal server, to
            # the brokers of the connector.
            errors[option] = [
                f"Invalid value for configuration {option}: only the worker's settings may name a token endpoint"
            ]
            continue
        # Deprecated names (`serializer.class`) are not in the tables.
        if name not in CLASS_SETTINGS and not name.endswith((".class", ".classes")):
            continue
        for item in items_of(value):
            module = module_of(item)
            try:
                if module is not None:
                    declared.require(module)
            except ImportError as error:
                message = f"Invalid value {shortened(item)} for configuration {option}: {error}"
                errors.setdefault(option, []).append(message)
    return errors


def options_under(cls: Any, prefix: str, originals: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Returns (the parsed options of the class, errors by full name) of the settings
    `<prefix><option>`."""
    settings = {name[len(prefix) :]: value for name, value in originals.items() if name.startswith(prefix)}
    for old_name, new_name in getattr(cls, "old_names", {}).items():
        if old_name in settings:
            settings.setdefault(new_name, settings[old_name])
    values, errors = parse(cls.options, settings)
    if not errors:
        errors = {name: [message] for name, message in cls.check(values).items()}
    return values, {f"{prefix}{name}": messages for name, messages in errors.items()}
