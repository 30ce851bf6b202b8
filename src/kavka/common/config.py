"""Configuration tables: one row per setting.

Parsing, validation, `DescribeConfigs`, dynamic updates and the reference in the docs use the same
`ConfigKey`. The rows are in `topic_config.py`, `group_config.py`, `broker_config*.py`, the clients'
`*_config.py` and `security/quotas.py`. Values are text in files, requests and znodes. A parsed
value is an int, float, bool or str, a tuple of str for a list, or None if it is not set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any, Protocol

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
SHORT_MIN, SHORT_MAX = -(2**15), 2**15 - 1
DOUBLE_MAX = 1.7976931348623157e308
MINUTE_MS = 60_000
HOUR_MS = 3_600_000

# The warning about a setting of a feature that is not implemented.
NOT_IMPLEMENTED = "has no effect yet"


class ConfigType(IntEnum):
    """The type of a setting, numbered as `config_type` of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Dynamic(Enum):
    """Whether and for which brokers a setting can change at run time. The values are Kafka's."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


# Short names for the rows of the tables.
BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = ConfigType
HIGH, MEDIUM, LOW = Importance
READ_ONLY, PER_BROKER, CLUSTER_WIDE = Dynamic


class ConfigError(ValueError):
    """An invalid value or an unknown setting. `str()` is one line with the setting's name and the
    reason."""

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        self.reason = message
        super().__init__(f"{name}: {message}")


class Validator(Protocol):
    @property
    def allowed(self) -> str:
        """Return the allowed values, worded to follow 'it must be'."""
        ...

    def accepts(self, value: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A minimum. `source` explains the minimum in errors; usually it is the name of a setting."""

    minimum: float
    source: str = ""

    @property
    def allowed(self) -> str:
        return f"at least {self.minimum}" + (f" ({self.source})" if self.source else "")

    def accepts(self, value: Any) -> bool:
        return bool(value >= self.minimum)


@dataclass(frozen=True, slots=True)
class AtMost:
    """A maximum. `source` explains the maximum in errors; usually it is the name of a setting."""

    maximum: float
    source: str = ""

    @property
    def allowed(self) -> str:
        return f"at most {self.maximum}" + (f" ({self.source})" if self.source else "")

    def accepts(self, value: Any) -> bool:
        return bool(value <= self.maximum)


@dataclass(frozen=True, slots=True)
class Between:
    minimum: float
    maximum: float

    @property
    def allowed(self) -> str:
        return f"between {self.minimum} and {self.maximum}"

    def accepts(self, value: Any) -> bool:
        return bool(self.minimum <= value <= self.maximum)


@dataclass(frozen=True, slots=True)
class OneOf:
    values: tuple[str, ...]
    ignore_case: bool = False

    @property
    def allowed(self) -> str:
        return "one of " + ", ".join(self.values)

    def accepts(self, value: Any) -> bool:
        if self.ignore_case:
            return value.lower() in {v.lower() for v in self.values}
        return value in self.values


@dataclass(frozen=True, slots=True)
class EachOneOf:
    """Every item of a list is one of `values`."""

    values: tuple[str, ...]
    may_be_empty: bool = False

    @property
    def allowed(self) -> str:
        return ("an empty list, or one or more of " if self.may_be_empty else "one or more of ") + ", ".join(
            self.values
        )

    def accepts(self, value: Any) -> bool:
        return (self.may_be_empty or len(value) > 0) and all(item in self.values for item in value)


@dataclass(frozen=True, slots=True)
class NotEmpty:
    @property
    def allowed(self) -> str:
        return "set, and not empty"

    def accepts(self, value: Any) -> bool:
        return len(value) > 0


@dataclass(frozen=True, slots=True)
class Satisfies:
    """Any other rule. `allowed` is worded to follow 'it must be'."""

    allowed: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that provides the default of another setting. `factor` converts the unit."""

    name: str
    factor: int = 1

    def convert(self, value: Any) -> Any:
        if self.factor == 1:
            return value
        return -1 if value < 0 else value * self.factor


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting.

    `synonyms` are the broker settings that provide the default; the first that is set is used. A
    broker setting can also have synonyms, for example log.retention.hours for log.retention.ms.
    `warning` is logged after the name if a user sets the setting, for example 'has no effect yet'.
    An `internal` setting is not in the docs, and DescribeConfigs lists it only if it is set.
    """

    name: str
    type: ConfigType
    default: Any
    help: str
    validator: Validator | None = None
    importance: Importance = Importance.MEDIUM
    dynamic: Dynamic = Dynamic.READ_ONLY
    synonyms: tuple[Synonym, ...] = ()
    warning: str | None = None
    internal: bool = False

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_").replace("-", "_")

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def allowed(self) -> str:
        """Return the allowed values in words, for errors and docs."""
        if self.validator is not None:
            return self.validator.allowed
        return _TYPE_DESCRIPTIONS[self.type]

    def parse(self, text: str) -> Any:
        """Return the parsed value of a text. Raises ConfigError if the value is not allowed."""
        value = self._convert(text.strip() if self.type is not ConfigType.PASSWORD else text)
        self.check(value)
        return value

    def check(self, value: Any, validator: Validator | None = None) -> None:
        """Raise ConfigError if a parsed value is not allowed. `cross_check` passes a `validator`
        that depends on other settings, instead of the key's validator."""
        validator = validator or self.validator
        if value is not None and validator is not None and not validator.accepts(value):
            raise ConfigError(self.name, f"{self._quoted(value)} is not allowed; it must be {validator.allowed}")

    def format(self, value: Any) -> str | None:
        """Return the text of a value, as Kafka writes it in a response."""
        match value:
            case None:
                return None
            case bool():
                return "true" if value else "false"
            case float():
                return _format_double(value)
            case tuple() | list():
                return ",".join(value)
            case _:
                return str(value)

    def _convert(self, text: str) -> Any:
        match self.type:
            case ConfigType.BOOLEAN:
                lower = text.lower()
                if lower in ("true", "false"):
                    return lower == "true"
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                low, high = _INTEGER_BOUNDS[self.type]
                if _INTEGER.fullmatch(text) and low <= int(text) <= high:
                    return int(text)
            case ConfigType.DOUBLE:
                number = _parse_double(text)
                if number is not None:
                    return number
            case ConfigType.LIST:
                return tuple(item.strip() for item in text.split(",")) if text else ()
            case _:
                return text
        raise ConfigError(self.name, f"{self._quoted(text)} is not allowed; it must be {_TYPE_DESCRIPTIONS[self.type]}")

    def _quoted(self, value: Any) -> str:
        if self.is_sensitive:
            return "the value"
        text = self.format(value)
        return f"'{text}'" if not text or isinstance(value, str) else text


_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INTEGER_BOUNDS = {
    ConfigType.INT: (INT_MIN, INT_MAX),
    ConfigType.SHORT: (SHORT_MIN, SHORT_MAX),
    ConfigType.LONG: (LONG_MIN, LONG_MAX),
}
_TYPE_DESCRIPTIONS = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "text",
    ConfigType.INT: "a 32-bit integer",
    ConfigType.SHORT: "a 16-bit integer",
    ConfigType.LONG: "a 64-bit integer",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a comma-separated list",
    ConfigType.CLASS: "the name of a class",
    ConfigType.PASSWORD: "text",
}


def _parse_double(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _format_double(number: float) -> str:
    """Return the text of Java's Double.toString: with an exponent from 10^7 on and below 10^-3, and
    always with a decimal point."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    from decimal import Decimal

    digits, exponent = f"{Decimal(repr(number)).normalize():E}".split("E")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


# Returns (setting, validator) pairs. The validators depend on the values of other settings.
CrossCheck = Callable[[Mapping[str, Any]], Iterable[tuple[str, Validator]]]


class ConfigTable:
    """The settings of one scope (a topic, a broker, a producer, ...) by name, in declaration order.
    Immutable.

    `base_name` returns the name in the table for a name with a prefix, for example
    `listener.name.x.ssl.protocol`. `unsupported_prefixes` maps prefixes of names of unsupported
    features to the reason in errors.
    """

    __slots__ = ("_base_name", "_unsupported_prefixes", "checks", "keys", "scope")

    def __init__(
        self,
        scope: str,
        keys: Iterable[ConfigKey],
        checks: tuple[CrossCheck, ...] = (),
        base_name: Callable[[str], str] = lambda name: name,
        unsupported_prefixes: Mapping[str, str] | None = None,
    ) -> None:
        self.scope = scope
        self.keys: dict[str, ConfigKey] = {}
        self.checks = checks
        self._base_name = base_name
        self._unsupported_prefixes = unsupported_prefixes or {}
        for key in keys:
            if key.name in self.keys:
                raise ValueError(f"{key.name} is in the table of {scope} configs twice")
            key.check(key.default)
            self.keys[key.name] = key

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __getitem__(self, name: str) -> ConfigKey:
        key = self.get(name)
        if key is None:
            raise KeyError(name)
        return key

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self.keys.values())

    def __len__(self) -> int:
        return len(self.keys)

    def get(self, name: str) -> ConfigKey | None:
        key = self.keys.get(name)
        if key is None and (base := self.keys.get(self._base_name(name))) is not None:
            return replace(base, name=name)
        return key

    def defaults(self) -> dict[str, Any]:
        return {key.name: key.default for key in self.keys.values()}

    def parse_one(self, name: str, text: str) -> Any:
        """Return the parsed value. Raises ConfigError for an invalid value or an unknown name."""
        key = self.get(name)
        if key is None:
            raise ConfigError(name, f"there is no such {self.scope} config{self.hint(name)}")
        return key.parse(text)

    def parse(
        self,
        values: Mapping[str, str],
        *,
        defaults: bool = True,
        strict: bool = False,
        warnings: list[str] | None = None,
    ) -> dict[str, Any]:
        """Return the parsed `values`. Raises ConfigError for the first invalid value, and if
        `cross_check` fails.

        With `defaults` the result has every name of the table, otherwise only the names in
        `values`. An unknown name is an error if `strict`; otherwise it is left out. `warnings`
        collects a line per unknown name and per setting that has a `warning`.
        """
        parsed = self.defaults() if defaults else {}
        for name, text in values.items():
            key = self.get(name)
            if key is not None or strict:
                parsed[name] = self.parse_one(name, text) if key is None else key.parse(text)
            if warnings is not None:
                if key is None:
                    warnings.append(f"{name} is not a known {self.scope} config and is ignored{self.hint(name)}")
                elif key.warning is not None:
                    warnings.append(f"{name} {key.warning}")
        self.cross_check(parsed if defaults else {**self.defaults(), **parsed})
        return parsed

    def cross_check(self, values: Mapping[str, Any]) -> None:
        """Check the parsed values of all settings against each other. Raises ConfigError."""
        for rules in self.checks:
            for name, validator in rules(values):
                self.keys[name].check(values[name], validator)

    def hint(self, name: str) -> str:
        """Return why an unknown name is not supported, or '; did you mean x?', or an empty
        string."""
        for prefix, reason in self._unsupported_prefixes.items():
            if name.startswith(prefix):
                return f" ({reason})"
        from difflib import get_close_matches

        close_matches = get_close_matches(name, self.keys, n=1, cutoff=0.8)
        return f"; did you mean {close_matches[0]}?" if close_matches else ""
