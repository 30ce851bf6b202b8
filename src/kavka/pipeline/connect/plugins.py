"""Which connectors there are: by Kafka's class names, by short names, and declared ones by `module.Class`.

The classes are loaded when they are named: some need packages that others do not.
"""

from __future__ import annotations

import logging

from kavka.pipeline.connect.api import Sink, Source
from kavka.pipeline.connect.connectors import PLUGINS, Plugin
from kavka.pipeline.connect.errors import ConfigErrors
from kavka.pipeline.connect.loading import NOTHING, Declared, own_class, shown

log = logging.getLogger(__name__)

CLASS = "connector.class"
FILES_DISABLED = (
    "it opens files that its configuration names; file.connectors.enable=true in the worker's settings allows that"
)


def find(name: str) -> Plugin | None:
    """By a full name, by its last part, and that without `Connector`, as Kafka does."""
    for plugin in PLUGINS:
        names = {plugin.name, f"{plugin.name}Connector", *plugin.java_names}
        names |= {java.rpartition(".")[2] for java in plugin.java_names}
        names |= {known.removesuffix("Connector") for known in names}
        if name in names or name in (plugin.where, plugin.where.replace(":", ".")):
            return plugin
    return None


def load(name: str, declared: Declared = NOTHING) -> type[Source] | type[Sink]:
    """The class; ConfigErrors where there is none, or where the worker does not offer it."""
    plugin = find(name)
    try:
        if plugin is not None:
            found = own_class(plugin.where)
        elif name in declared.names:
            found = declared.load(declared.names[name])
        elif "." in name or ":" in name:
            found = declared.load(name)
        else:
            names = sorted([*(known.name for known in PLUGINS), *declared.names])
            raise ImportError(f"known are {', '.join(names)}; your own is module.Class")
    except Exception as error:
        message = f"Failed to find any class that implements Connector and which name matches {shown(name)}: {error}"
        raise ConfigErrors({CLASS: [message]}) from None
    if not isinstance(found, type) or not issubclass(found, (Source, Sink)):
        wrong = f"{shown(name)} is no connector: it must be a subclass of kavka.connect.Source or Sink"
        raise ConfigErrors({CLASS: [wrong]})
    if found.opens_files({}) and not declared.file_connectors:
        raise ConfigErrors({CLASS: [f"The connector {shown(name)} is not enabled: {FILES_DISABLED}"]})
    return found


def load_all(declared: Declared = NOTHING) -> list[tuple[Plugin, type[Source] | type[Sink]]]:
    """Those that the worker offers and whose packages are installed; a line in the log says which are not."""
    loaded = []
    for plugin in (*PLUGINS, *(Plugin(name, where) for name, where in sorted(declared.names.items()))):
        try:
            loaded.append((plugin, load(plugin.name, declared)))
        except ConfigErrors as error:
            log.debug("%s is not offered: %s", plugin.name, error.errors[CLASS][0])
    return loaded
