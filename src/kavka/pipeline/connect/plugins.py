"""Which connectors there are: by Kafka's class names, by short names, and one's own by `module.Class`.

The classes are loaded when they are asked for: some need packages that others do not.
"""

from __future__ import annotations

import logging
from importlib import import_module

from kavka.pipeline.connect.api import Sink, Source
from kavka.pipeline.connect.connectors import PLUGINS, Plugin
from kavka.pipeline.connect.errors import ConfigErrors

log = logging.getLogger(__name__)

CLASS = "connector.class"


def find(name: str) -> Plugin | None:
    """By a full name, by its last part, and that without `Connector`, as Kafka does."""
    for plugin in PLUGINS:
        names = {plugin.name, f"{plugin.name}Connector", *plugin.java_names}
        names |= {java.rpartition(".")[2] for java in plugin.java_names}
        names |= {one.removesuffix("Connector") for one in names}
        if name in names:
            return plugin
    return None


def load(name: str) -> type[Source] | type[Sink]:
    """The class; ConfigErrors where there is none."""
    plugin = find(name)
    where = plugin.where if plugin is not None else name
    module, colon, attribute = where.rpartition(":")
    if not colon:
        module, _, attribute = where.rpartition(".")
    try:
        if not module:
            raise ImportError(f"known are {', '.join(sorted(one.name for one in PLUGINS))}; your own is module.Class")
        found = getattr(import_module(module), attribute)
    except Exception as error:
        message = f"Failed to find any class that implements Connector and which name matches {name}: {error}"
        raise ConfigErrors({CLASS: [message]}) from None
    if not isinstance(found, type) or not issubclass(found, (Source, Sink)):
        raise ConfigErrors({CLASS: [f"{name} is no connector: it must be a subclass of kavka.connect.Source or Sink"]})
    return found


def load_all() -> list[tuple[Plugin, type[Source] | type[Sink]]]:
    """Those whose packages are installed; a line in the log tells of the others."""
    found = []
    for plugin in PLUGINS:
        try:
            found.append((plugin, load(plugin.where)))
        except ConfigErrors as error:
            log.warning("%s is not there: %s", plugin.name, error.errors[CLASS][0])
    return found
