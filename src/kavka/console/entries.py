"""The settings of topics and brokers as pages show them: value, source, help, allowed values."""

from __future__ import annotations

import html
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from kavka.client.admin.types import AlterConfigOp, ConfigEntry, ConfigSource
from kavka.common.config import ConfigTable, ConfigType, EachOneOf, OneOf
from kavka.console.context import check_seen, fingerprint
from kavka.console.errors import Refused

_TAG = re.compile(r"<[^>]*>")

SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "set for this topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "set for this broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "set for all brokers",
    ConfigSource.STATIC_BROKER_CONFIG: "from the broker's file",
    ConfigSource.DEFAULT_CONFIG: "default",
    ConfigSource.DYNAMIC_GROUP_CONFIG: "set for this group",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a topic or broker."""

    name: str
    value: str | None
    source: str
    is_default: bool
    own: bool
    """Whether the value is set on this resource, so that it can be reset."""
    editable: bool
    sensitive: bool
    type: str
    choices: list[str]
    help: str
    allowed: str


def settings(entries: Iterable[ConfigEntry], table: ConfigTable, own: ConfigSource) -> list[Setting]:
    """Return the settings, sorted by name. The help comes from `table`, or else from the broker.
    `own` is the source of settings that are set on this resource."""
    return [_setting(entry, table, own) for entry in sorted(entries, key=lambda entry: entry.name)]


def _setting(entry: ConfigEntry, table: ConfigTable, own: ConfigSource) -> Setting:
    key = table.get(entry.name)
    choices: list[str] = []
    config_type = entry.type or (key.type if key else ConfigType.STRING)
    if config_type is ConfigType.BOOLEAN:
        choices = ["true", "false"]
    elif key is not None and isinstance(key.validator, OneOf):
        choices = list(key.validator.values)
    elif key is not None and isinstance(key.validator, EachOneOf) and len(key.validator.values) == 2:
        choices = [*key.validator.values, ",".join(key.validator.values)]
    if choices and entry.value is not None and entry.value not in choices:
        choices.append(entry.value)
    return Setting(
        entry.name,
        None if entry.is_sensitive else entry.value,
        SOURCES.get(entry.source, "unknown"),
        entry.source is ConfigSource.DEFAULT_CONFIG,
        entry.source is own,
        not entry.is_read_only,
        entry.is_sensitive,
        config_type.name.lower(),
        choices,
        key.help if key else plain_text(entry.documentation or ""),
        key.allowed if key else "",
    )


async def checked_change(
    read: Callable[[], Awaitable[list[Setting]]], owners: str, name: str, value: str | None, reset: bool, seen: str
) -> tuple[Setting, AlterConfigOp]:
    """Return the current setting and the operation that changes it. `owners` is "brokers" or
    "topics". Raises Refused for invalid inputs, an unknown setting, or a setting that has changed
    since the page was loaded."""
    if not reset and value is None:
        raise Refused("a value is missing", field="value")
    setting = {entry.name: entry for entry in await read()}.get(name)
    if setting is None:
        raise Refused(f"{owners} have no setting {name}", 404, "name")
    check_seen(seen, fingerprint(setting.value))
    return setting, AlterConfigOp.delete(name) if reset else AlterConfigOp(name, value)


def plain_text(documentation: str) -> str:
    """Return Kafka's documentation without HTML tags. Templates escape the text."""
    return " ".join(html.unescape(_TAG.sub("", documentation)).split())
