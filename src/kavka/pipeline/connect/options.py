"""[pure] Tables of options: what a connector, converter, transformation or predicate can be configured with.

One row has everything that Kafka Connect's `PUT …/config/validate` tells of an option, and what docs/connect.md says
of it. Values are text outside (files, requests, the configs topic) and parsed inside, as `kavka.common.config` has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kavka.common.config import ConfigError, ConfigKey, ConfigType, Importance, Validator
from kavka.pipeline.connect.errors import ConfigErrors


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


# Groups whose options are counted with those of another, as Kafka does.
_COUNTED_WITH = {"Transforms": "Common", "Predicates": "Common"}

REQUIRED: Any = _Required()
"""In place of a default: the option has to be given."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `group` and its place in the table say where a user interface shows it; `recommended` are values to
    choose from, where there are some."""

    name: str
    type: ConfigType = ConfigType.STRING
    default: Any = REQUIRED
    doc: str = ""
    importance: Importance = Importance.MEDIUM
    validator: Validator | None = None
    group: str | None = None
    width: str = "NONE"
    """NONE, SHORT, MEDIUM or LONG."""
    display_name: str | None = None
    recommended: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    @property
    def key(self) -> ConfigKey:
        default = None if self.required else self.default
        return ConfigKey(self.name, self.type, default, self.doc, self.validator, self.importance)

    def parse(self, text: str) -> Any:
        """ConfigError with Kafka's words around ours."""
        try:
            return self.key.parse(text)
        except ConfigError as error:
            shown = "[hidden]" if self.type is ConfigType.PASSWORD else text
            message = f"Invalid value {shown} for configuration {self.name}: {error.reason}"
            raise ConfigError(self.name, message) from None

    def default_text(self) -> str | None:
        return None if self.required else self.key.format(self.default)


def parse(options: Iterable[Option], given: Mapping[str, str | None]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """(values of all options, errors by name). An option with an error has the value None."""
    values: dict[str, Any] = {}
    errors: dict[str, list[str]] = {}
    for option in options:
        text = given.get(option.name)
        if text is None:
            values[option.name] = None if option.required else option.default
            if option.required:
                errors[option.name] = [f'Missing required configuration "{option.name}" which has no default value.']
            continue
        try:
            values[option.name] = option.parse(text)
        except ConfigError as error:
            values[option.name] = None
            errors[option.name] = [error.reason]
    return values, errors


def parsed(options: Iterable[Option], given: Mapping[str, str | None]) -> dict[str, Any]:
    """The values; ConfigErrors where one cannot be."""
    values, errors = parse(options, given)
    if errors:
        raise ConfigErrors(errors)
    return values


def describe(options: Sequence[Option]) -> list[dict[str, Any]]:
    """The definitions, as in `GET /connector-plugins/X/config`."""
    orders: dict[str | None, int] = {}
    found = []
    for option in options:
        counted = _COUNTED_WITH.get(option.group or "", option.group)
        if counted is not None:
            orders[counted] = orders.get(counted, 0) + 1
        found.append(
            {
                "name": option.name,
                "type": option.type.name,
                "required": option.required,
                "default_value": option.default_text(),
                "importance": option.importance.name,
                "documentation": option.doc,
                "group": option.group,
                "width": option.width,
                "display_name": option.display_name or option.name,
                "dependents": list(option.dependents),
                "order": orders[counted] if counted is not None else -1,
            }
        )
    return found


def config_infos(
    plugin: str,
    options: Sequence[Option],
    given: Mapping[str, str | None],
    errors: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """The answer of `PUT …/config/validate`. What has an error but is no option is listed with a value alone."""
    configs: list[dict[str, Any]] = []
    for option, definition in zip(options, describe(options), strict=True):
        text = given.get(option.name)
        if option.type is ConfigType.PASSWORD and text is not None:
            text = "[hidden]"
        value = {
            "name": option.name,
            "value": option.default_text() if text is None else text,
            "recommended_values": list(option.recommended),
            "errors": list(errors.get(option.name, ())),
            "visible": True,
        }
        configs.append({"definition": definition, "value": value})
    known = {option.name for option in options}
    for name, messages in errors.items():
        if name not in known:
            value = {
                "name": name,
                "value": given.get(name),
                "recommended_values": [],
                "errors": list(messages),
                "visible": True,
            }
            configs.append({"definition": None, "value": value})
    return {
        "name": plugin,
        "error_count": sum(len(one["value"]["errors"]) for one in configs),
        "groups": list(dict.fromkeys(option.group for option in options if option.group is not None)),
        "configs": configs,
    }
