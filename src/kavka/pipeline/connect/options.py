"""[pure] Tables of options: the configuration of connectors, converters, transformations and
predicates.

A row has everything that Kafka Connect's `PUT …/config/validate` and docs/connect.md show about an
option. Files, requests and the config topic contain values as text. The code uses parsed values, as
in `kavka.common.config`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kavka.common.config import ConfigError, ConfigKey, ConfigType, Importance, Validator
from kavka.pipeline.connect.errors import ConfigErrors

logger = logging.getLogger(__name__)


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


# Groups whose options share the order numbers of another group, as in Kafka.
_COUNTED_WITH = {"Transforms": "Common", "Predicates": "Common"}

NO_EFFECT = "Has no effect"
"""The first words of the documentation of an option that is accepted and ignored."""

REQUIRED: Any = _Required()
"""The default of an option that must be set."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. A user interface orders options by `group` and position in the table;
    `recommended` lists values to choose from."""

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
        """Returns the value of the text. Raises ConfigError with Kafka's message and the reason."""
        try:
            return self.key.parse(text)
        except ConfigError as error:
            shown_text = "[hidden]" if self.type is ConfigType.PASSWORD else text
            message = f"Invalid value {shown_text} for configuration {self.name}: {error.reason}"
            raise ConfigError(self.name, message) from None

    def default_text(self) -> str | None:
        return None if self.required else self.key.format(self.default)


def parse(
    options: Iterable[Option], originals: Mapping[str, str | None]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Returns (values of all options, errors by name). An option with an error has the value
    None."""
    values: dict[str, Any] = {}
    errors: dict[str, list[str]] = {}
    for option in options:
        text = originals.get(option.name)
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


def parsed(options: Iterable[Option], originals: Mapping[str, str | None]) -> dict[str, Any]:
    """Returns the values of all options. Raises ConfigErrors if a value is invalid."""
    values, errors = parse(options, originals)
    if errors:
        raise ConfigErrors(errors)
    return values


def warn_of_options_without_effect(options: Iterable[Option], originals: Mapping[str, str | None]) -> None:
    for option in options:
        if option.doc.startswith(NO_EFFECT) and originals.get(option.name) is not None:
            logger.warning("%s h%s", option.name, option.doc[1:].rstrip("."))


def describe(options: Sequence[Option]) -> list[dict[str, Any]]:
    """Returns the definitions, as in `GET /connector-plugins/X/config`."""
    orders: dict[str, int] = {}
    definitions = []
    for option in options:
        group = _COUNTED_WITH.get(option.group or "", option.group)
        if group is not None:
            orders[group] = orders.get(group, 0) + 1
        definitions.append(
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
                "order": orders[group] if group is not None else -1,
            }
        )
    return definitions


def config_infos(
    plugin: str,
    options: Sequence[Option],
    originals: Mapping[str, str | None],
    errors: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Returns the response to `PUT …/config/validate`. A name with an error that is not an option
    is listed without a definition."""
    configs: list[dict[str, Any]] = []
    for option, definition in zip(options, describe(options), strict=True):
        text = originals.get(option.name)
        if option.type is ConfigType.PASSWORD and text is not None:
            text = "[hidden]"
        value = option.default_text() if text is None else text
        value_info = _value_info(option.name, value, errors.get(option.name, ()), option.recommended)
        configs.append({"definition": definition, "value": value_info})
    names = {option.name for option in options}
    for name, messages in errors.items():
        if name not in names:
            configs.append({"definition": None, "value": _value_info(name, originals.get(name), messages)})
    return {
        "name": plugin,
        "error_count": sum(len(config["value"]["errors"]) for config in configs),
        "groups": list(dict.fromkeys(option.group for option in options if option.group is not None)),
        "configs": configs,
    }


def _value_info(name: str, value: str | None, errors: Sequence[str], recommended: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "name": name, "value": value, "recommended_values": list(recommended), "errors": list(errors), "visible": True,
    }  # fmt: skip
