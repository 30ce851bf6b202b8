"""Loads connectors by Kafka's class names, by short names, and declared ones by `module.Class`.

Classes are loaded on first use: some need optional packages.
"""

from __future__ import annotations

import logging

from kavka.pipeline.connect.api import Sink, Source
from kavka.pipeline.connect.connectors import PLUGINS, Plugin
from kavka.pipeline.connect.errors import ConfigErrors
from kavka.pipeline.connect.loading import NO_PLUGINS, Declared, own_class, shortened

logger = logging.getLogger(__name__)

CLASS = "connector.class"
FILES_DISABLED = (
    "it opens files that its configuration names; file.connectors.enable=true in the worker's settings enables it"
)


def find(name: str) -> Plugin | None:
    """Returns the built-in connector with this name, or None. The name is the full name, its last
    part, or its last part without `Connector`, as in Kafka."""
    for plugin in PLUGINS:
        names = {plugin.name, f"{plugin.name}Connector", *plugin.java_names}
        names |= {java.rpartition(".")[2] for java in plugin.java_names}
        names |= {alias.removesuffix("Connector") for alias in names}
        if name in names or name in (plugin.where, plugin.where.replace(":", ".")):
            return plugin
    return None


def load(name: str, declared: Declared = NO_PLUGINS) -> type[Source] | type[Sink]:
    """Returns the connector's class. Raises ConfigErrors if it cannot be loaded or is not
    enabled."""
    plugin = find(name)
    try:
        if plugin is not None:
            cls = own_class(plugin.where)
        elif name in declared.names:
            cls = declared.load(declared.names[name])
        elif "." in name or ":" in name:
            cls = declared.load(name)
        else:
            names = sorted([*(plugin.name for plugin in PLUGINS), *declared.names])
            raise ImportError(f"available are {', '.join(names)}; a custom connector is named by module.Class")
    except Exception as error:
        message = (
            f"Failed to find any class that implements Connector and which name matches {shortened(name)}: {error}"
        )
        raise ConfigErrors({CLASS: [message]}) from None
    if not isinstance(cls, type) or not issubclass(cls, (Source, Sink)):
        message = f"{shortened(name)} is not a connector: it must be a subclass of kavka.connect.Source or Sink"
        raise ConfigErrors({CLASS: [message]})
    if cls.opens_files({}) and not declared.file_connectors:
        raise ConfigErrors({CLASS: [f"The connector {shortened(name)} is not enabled: {FILES_DISABLED}"]})
    return cls


def load_all(declared: Declared = NO_PLUGINS) -> list[tuple[Plugin, type[Source] | type[Sink]]]:
    """Returns the connectors that are enabled and whose packages are installed. The debug log has
    the reasons for all others."""
    loaded = []
    for plugin in (*PLUGINS, *(Plugin(name, where) for name, where in sorted(declared.names.items()))):
        try:
            loaded.append((plugin, load(plugin.name, declared)))
        except ConfigErrors as error:
            logger.debug("%s is not available: %s", plugin.name, error.errors[CLASS][0])
    return loaded
