"""The form of a connector's configuration, from the response to `config/validate`.

Passwords are never shown: they are HIDDEN in the form, and `restored` replaces HIDDEN by the
current value when the form is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kavka.common.properties import PropertiesError, parse_properties
from kavka.common.secret_settings import HIDDEN, is_secret, shown_value
from kavka.console.connect_client import CLASS, without_secrets
from kavka.console.entries import plain_text
from kavka.console.errors import Refused

NAME = "name"
MAX_SUMMARY = 1000
REQUIRED, OTHER = "Required", "Other"


@dataclass(frozen=True, slots=True)
class Field:
    """A setting in the form. `value` is "" if the configuration does not set it. `choices` are the
    recommended values."""

    name: str
    label: str
    type: str
    required: bool
    default: str
    help: str
    importance: str
    value: str
    secret: bool
    choices: list[str]


@dataclass(frozen=True, slots=True)
class Form:
    """`groups` has the fields by group; the required fields come first. `rest` are the settings of
    the configuration that are in no field, as lines of properties."""

    groups: dict[str, list[Field]]
    rest: str

    def is_set(self, group: str) -> bool:
        return any(field.value for field in self.groups[group])


def _entries(validated: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the definitions and values of a response. A worker has no definition for an unknown
    setting."""
    entries = []
    for entry in validated.get("configs") or ():
        if isinstance(entry, dict):
            definition, value = entry.get("definition"), entry.get("value")
            entries.append(
                (definition if isinstance(definition, dict) else {}, value if isinstance(value, dict) else {})
            )
    return entries


def password_names(validated: Mapping[str, Any]) -> set[str]:
    return {str(d.get(NAME)) for d, _ in _entries(validated) if d.get("type") == "PASSWORD"}


def hidden(config: Mapping[str, str], passwords: set[str]) -> dict[str, str]:
    """Return the configuration without passwords. `passwords` are the settings of this type."""
    return {
        name: HIDDEN if name in passwords and not is_secret(name) else shown_value(name, value)
        for name, value in config.items()
    }


def form_of(validated: Mapping[str, Any], config: Mapping[str, str]) -> Form:
    """Return the form for a configuration, without its class and name."""
    shown = hidden(config, password_names(validated))
    fields: list[tuple[str, int, Field]] = []
    for definition, value in _entries(validated):
        name = str(definition.get(NAME) or "")
        if not name or name in (NAME, CLASS) or (value.get("visible") is False and name not in config):
            continue
        group = str(definition.get("group") or OTHER)
        field = _field(name, definition, value, shown.get(name, ""))
        fields.append((REQUIRED if field.required else group, int(definition.get("order") or 0), field))
    groups: dict[str, list[Field]] = {REQUIRED: []}
    for group in [*(validated.get("groups") or ()), OTHER]:
        groups[str(group)] = []
    for group, _, field in sorted(fields, key=lambda entry: entry[1]):
        groups.setdefault(group, []).append(field)
    names = {field.name for _, _, field in fields} | {NAME, CLASS}
    rest = "\n".join(f"{name}={_escaped(value)}" for name, value in shown.items() if name not in names)
    return Form({group: members for group, members in groups.items() if members}, rest)


def _field(name: str, definition: Mapping[str, Any], value: Mapping[str, Any], shown: str) -> Field:
    type_name = str(definition.get("type") or "STRING").lower()
    default = definition.get("default_value")
    choices = [str(choice) for choice in value.get("recommended_values") or ()]
    if type_name == "boolean":
        choices = ["true", "false"]
    return Field(
        name,
        str(definition.get("display_name") or name),
        type_name,
        definition.get("required") is True,
        HIDDEN if default and type_name == "password" else str(default if default is not None else ""),
        plain_text(str(definition.get("documentation") or "")),
        str(definition.get("importance") or "").lower(),
        shown,
        type_name == "password" or HIDDEN in shown,
        choices,
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def submitted(config: Mapping[str, str | None], more: str) -> dict[str, str]:
    """Return the configuration of a form: an empty field is not set, and `more` has further
    settings as lines `name=value`. Raises Refused if they are invalid."""
    values = {name: value for name, value in config.items() if value not in (None, "")}
    try:
        further = parse_properties(more)
    except PropertiesError as error:
        raise Refused(f"the further settings are invalid: {error}", field="more") from None
    for name in further:
        if name in values:
            raise Refused(f"{name} is set twice", field="more")
    return {name: value for name, value in {**values, **further}.items() if value is not None}


def restored(config: Mapping[str, str], current: Mapping[str, str], passwords: set[str]) -> dict[str, str]:
    """Replace hidden values by the current ones. Raises Refused for a value that contains HIDDEN
    and is not the current value as shown."""
    shown = hidden(current, passwords)
    result = {}
    for name, value in config.items():
        if HIDDEN in value:
            if shown.get(name) != value:
                raise Refused(f"{name}: enter the complete value instead of {HIDDEN}", field=f"config.{name}")
            value = current[name]
        result[name] = value
    return result


def check(validated: Mapping[str, Any], config: Mapping[str, str]) -> None:
    """Raise Refused with the errors of every setting if the configuration is invalid."""
    passwords = password_names(validated)
    errors: dict[str, str] = {}
    for definition, value in _entries(validated):
        name = str(value.get(NAME) or definition.get(NAME) or "")
        messages = [str(message) for message in value.get("errors") or ()]
        if messages:
            errors[name] = without_secrets(" ".join(messages), config, passwords)[:500]
    if errors:
        summary = "; ".join(f"{name}: {text}" for name, text in errors.items())
        raise Refused(
            f"the configuration is invalid: {summary}"[:MAX_SUMMARY],
            fields={f"config.{name}": text for name, text in errors.items()},
        )
