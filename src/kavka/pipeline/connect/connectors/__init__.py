"""The connectors that come with Kavka, by name. Each is a module here, loaded when it is asked for."""

from __future__ import annotations

from typing import NamedTuple


class Plugin(NamedTuple):
    name: str
    """Short, what a configuration of ours says: `FileStreamSource`."""
    where: str
    """module:Class."""
    java_names: tuple[str, ...] = ()
    """Classes of Kafka and of others that do the same with the same options."""


PLUGINS: tuple[Plugin, ...] = ()
