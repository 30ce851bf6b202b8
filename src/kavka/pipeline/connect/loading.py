"""Converters, transformations, predicates and configuration providers by their names in a configuration, with the
options under their prefix; and which modules of users such names may lead to."""

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

PROVIDERS = {
    name: f"{_HERE}.providers:{name}"
    for name in ("FileConfigProvider", "DirectoryConfigProvider", "EnvVarConfigProvider")
}

CLIENTS = ("producer", "consumer", "admin")
CLASS_SETTINGS = OBJECT_LISTS | {
    key.name
    for table in (PRODUCER_CONFIGS, CONSUMER_CONFIGS)
    for key in table.keys.values()
    if key.type is ConfigType.CLASS
}
"""Settings of clients that name classes, which a client imports."""

GROUP = "kavka.connect"
"""Of the entry points by which an installed package declares its plugins."""

_JAVA = ("org.apache.kafka.connect.", "org.apache.kafka.common.config.provider.", "io.confluent.connect.")
_BASES = {
    "converter": f"{_HERE}.converters:Converter",
    "transformation": f"{_HERE}.transforms.base:Transform",
    "predicate": f"{_HERE}.transforms.predicates:Predicate",
    "configuration provider": f"{_HERE}.providers:ConfigProvider",
}
_SHOWN = 200


@dataclass(frozen=True)
class Declared:
    """The plugins that the worker's settings, and installed packages, declare.

    Configurations come over REST and name classes by `module.Class`. To import a module is to run its code, so only
    declared modules are imported. They are determined once, when the worker starts: a module that is written to a
    folder of `plugin.path` afterwards is none of them.
    """

    modules: frozenset[str] = frozenset()
    """With a package, all modules in it."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of entry points, with `module:Class`."""
    file_connectors: bool = False
    """Whether connectors may open files that their configuration names."""

    @classmethod
    def of(cls, worker: Mapping[str, str]) -> Declared:
        """`plugin.modules`, `plugin.path` and `file.connectors.enable` of the worker's settings, and entry points."""
        modules = set(items_of(worker.get("plugin.modules", "")))
        modules |= {module.name for module in iter_modules(items_of(worker.get("plugin.path", "")))}
        points = entry_points(group=GROUP)
        modules |= {point.module for point in points}
        enabled = worker.get("file.connectors.enable", "false").strip().lower() == "true"
        return cls(frozenset(modules), {point.name: point.value for point in points}, enabled)

    def allows(self, module: str) -> bool:
        return any(module == declared or module.startswith(f"{declared}.") for declared in self.modules)

    def require(self, module: str) -> None:
        """ImportError, which says what to set, where the module is not declared."""
        if not self.allows(module):
            raise ImportError(
                f"the module {shown(module)} is not declared as a plugin: set plugin.modules={shown(module)} in the "
                "worker's settings, or add the folder that it is in to plugin.path"
            )

    def load(self, name: str) -> Any:
        """What `module.Class` or `module:Class` names. ImportError or AttributeError where it cannot be had."""
        module, attribute = split_name(name)
        self.require(module)
        return getattr(import_module(module), attribute)


NOTHING = Declared()


def items_of(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def own_class(where: str) -> Any:
    """A class of Kavka itself, by `module:Class` of one of the tables."""
    module, attribute = split_name(where)
    return getattr(import_module(module), attribute)


def shown(name: str) -> str:
    """For messages: names come from requests, and may be of any length."""
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"


def load(
    option: str, name: str, known: Mapping[str, str], what: str, declared: Declared = NOTHING
) -> tuple[type[Any], str]:
    """(class, what follows a `$` in its name: Key, Value or nothing). ConfigErrors under `option`."""
    base, _, side = name.partition("$")
    short = base.rpartition(".")[2]
    if (base == short or base.startswith(_JAVA)) and short in known:
        return own_class(known[short]), side
    for where in known.values():
        if base in (where, where.replace(":", ".")):
            return own_class(where), side
    try:
        if base in declared.names:
            found = declared.load(declared.names[base])
        elif base.startswith(_JAVA) or not split_name(base)[0]:
            raise ImportError(f"known are {', '.join(sorted(known))}, and your own by module.Class")
        else:
            found = declared.load(base)
    except Exception as error:
        wrong = f"Class {shown(name)} could not be found: {error}"
    else:
        if isinstance(found, type) and issubclass(found, own_class(_BASES[what])):
            return found, side
        wrong = f"Class {shown(name)} is no {what}"
    raise ConfigErrors({option: [f"Invalid value {shown(name)} for configuration {option}: {wrong}"]})


def load_converter(name: str, option: str, declared: Declared = NOTHING) -> type[Any]:
    return load(option, name, CONVERTERS, "converter", declared)[0]


def check_overrides(given: Mapping[str, str], declared: Declared) -> dict[str, list[str]]:
    """Errors of settings of clients (`producer.override.partitioner.class`) that name classes of other modules."""
    errors: dict[str, list[str]] = {}
    for option, value in given.items():
        # Spark, through which they go to the clients, does not tell upper case from lower case.
        client, override, name = option.partition(".override.")
        name = name.lower()
        if not override or client not in CLIENTS:
            continue
        # Older names of settings (`serializer.class`) are not in the tables.
        if name not in CLASS_SETTINGS and not name.endswith((".class", ".classes")):
            continue
        for item in items_of(value):
            module = module_of(item)
            try:
                if module is not None:
                    declared.require(module)
            except ImportError as error:
                message = f"Invalid value {shown(item)} for configuration {option}: {error}"
                errors.setdefault(option, []).append(message)
    return errors


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
