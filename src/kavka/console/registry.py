"""The list of all operations, and the conversion of request inputs to function arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote

from kavka.common.broker_config import BROKER_CONFIGS, base_name
from kavka.console.auth import Role
from kavka.console.errors import Refused

if TYPE_CHECKING:
    from kavka.console.context import Context

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

Topics = tuple[str, ...] | None

CLUSTER = "/clusters/{cluster}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a number, or of the length of a text or list."""

    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        if self.low is not None and self.high is not None:
            return f"between {self.low:g} and {self.high:g}"
        return f"at least {self.low:g}" if self.low is not None else f"at most {self.high:g}"


class _Secret:
    """Marks an argument that is not written to the audit log: `Annotated[str, SECRET]`. Of an
    object, only the names are written."""


SECRET = _Secret()
HIDDEN_ARGUMENT = "(hidden)"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation."""

    name: str
    type: Any
    """str, int, float, bool, an Enum, `list` or `dict`."""
    item: Any
    """The item type of a list."""
    optional: bool
    """Whether the value may be None. An empty field of a form is then None."""
    required: bool
    default: Any
    help: str
    bounds: Bounds | None
    secret: bool
    place: str
    """path, query or body."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action: a line of text, and the path of the next page."""

    message: str
    location: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time. `times` are in seconds since the epoch. A line has a value or None for every
    time."""

    times: list[float]
    lines: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A function that is served under /api, with its parameters and the required role."""

    name: str
    method: str
    path: str
    """The path below /api."""
    summary: str
    role: Role
    function: Callable[..., Awaitable[Any]]
    parameters: tuple[Parameter, ...]
    result: Any
    topics: tuple[str, ...] | None
    """The parameters that are topics on which the user needs the role. None: the user needs the
    role in the whole cluster. (): any right in the cluster is enough, and `context.cluster` has
    only the topics that the user may view."""

    @property
    def is_of_cluster(self) -> bool:
        return self.path.startswith(CLUSTER)

    @property
    def help(self) -> str:
        return inspect.getdoc(self.function) or ""

    def arguments(self, path: Mapping[str, str], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Convert and validate the inputs, which are texts or lists of texts (form, query string)
        or JSON values. Raises Refused for an unknown, missing or invalid input."""
        names = {p.name for p in self.parameters} | {"csrf"}
        for parameter in self.parameters:
            if parameter.type is dict and parameter.name not in inputs:
                # A form has no objects: its field `configs.retention.ms` is an entry of `configs`.
                prefix = parameter.name + "."
                entries = {name.removeprefix(prefix): inputs[name] for name in inputs if name.startswith(prefix)}
                if entries:
                    inputs = {name: value for name, value in inputs.items() if not name.startswith(prefix)}
                    inputs[parameter.name] = {k: v[0] if isinstance(v, list) else v for k, v in entries.items()}
        for name in inputs:
            if name not in names:
                raise Refused(f"{name}: unknown input", field=name)
        arguments = {}
        for parameter in self.parameters:
            source: Mapping[str, Any] = path if parameter.place == "path" else inputs
            if parameter.name in source:
                arguments[parameter.name] = convert(parameter, source[parameter.name])
            elif parameter.required:
                raise Refused(f"{parameter.name} is missing", field=parameter.name)
            else:
                arguments[parameter.name] = parameter.default
        return arguments


OPERATIONS: dict[str, Operation] = {}


def query(
    path: str, summary: str, *, role: Role = Role.VIEW, everywhere: bool = False, topics: Topics = None
) -> Callable[[F], F]:
    """Register a read-only function, served by GET. With `everywhere` it does not belong to a
    cluster. `topics`: see `Operation`."""
    return _operation("GET", path if everywhere else CLUSTER + path, summary, role, () if everywhere else topics)


def action(path: str, summary: str, *, role: Role = Role.OPERATE, topics: Topics = None) -> Callable[[F], F]:
    """Register a function that changes something, served by POST and written to the audit log."""
    return _operation("POST", CLUSTER + path, summary, role, topics)


def _operation(method: str, path: str, summary: str, role: Role, topics: Topics) -> Callable[[F], F]:
    """Return a decorator. The registered function checks the rights of the user at every call, by a
    page or by the API."""

    def register(function: F) -> F:
        name = function.__name__
        if name in OPERATIONS:
            raise ValueError(f"there are two operations with the name {name}")
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
        parameters = tuple(
            _parameter(p, hints[p.name], "path" if f"{{{p.name}}}" in path else "query" if method == "GET" else "body")
            for p in list(signature.parameters.values())[1:]
        )
        if not {p.name for p in parameters} >= set(topics or ()):
            raise ValueError(f"{name} has no parameters {topics}")

        @wraps(function)
        async def checked(context: Context, *values: Any, **named_values: Any) -> Any:
            arguments = signature.bind(context, *values, **named_values).arguments
            named_topics = {topic: str(arguments.get(topic, "")).strip() for topic in topics or ()}
            for parameter, topic in named_topics.items():
                if not topic:
                    raise Refused(f"{parameter} is missing", field=parameter)
            context.require(role, None if topics is None else named_topics.values())
            return await function(context, *values, **named_values)

        result = hints.get("return")
        OPERATIONS[name] = Operation(name, method, path, summary, role, checked, parameters, result, topics)
        return cast(F, checked)

    return register


def path_of(name: str, **values: str) -> str:
    """Return the URL of an operation. Raises KeyError for an unknown name, so that a wrong name in
    a template is an error."""
    operation = OPERATIONS[name]
    return "/api" + operation.path.format_map({key: quote(str(value), safe="") for key, value in values.items()})


def _parameter(parameter: inspect.Parameter, hint: Any, place: str) -> Parameter:
    help, bounds, secret, optional = "", None, False, False
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        for note in notes:
            if isinstance(note, str):
                help = note
            elif isinstance(note, Bounds):
                bounds = note
            elif note is SECRET:
                secret = True
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        optional, hint = len(kinds) < len(get_args(hint)), kinds[0]
    item = None
    if get_origin(hint) is list:
        (item,) = get_args(hint)
        hint = list
    elif get_origin(hint) is dict:
        hint = dict
    if hint not in (str, int, float, bool, list, dict) and not (isinstance(hint, type) and issubclass(hint, Enum)):
        raise TypeError(f"{parameter.name}: a request cannot contain {hint}")
    required = parameter.default is inspect.Parameter.empty
    default = None if required else parameter.default
    return Parameter(parameter.name, hint, item, optional, required, default, help, bounds, secret, place)


# --- conversion


def convert(parameter: Parameter, value: Any) -> Any:
    """Convert an input to the type of the parameter. Raises Refused if the input is invalid."""
    name = parameter.name
    if parameter.type is list:
        items = value if isinstance(value, (list, tuple)) else [value]
        if all(isinstance(item, str) for item in items) and parameter.item is not str:
            # A field of a form may have several values: "1, 2, 3".
            items = [text for item in items for text in item.replace(",", " ").split()]
        result: Any = [_scalar(name, parameter.item, item) for item in items]
    elif parameter.type is dict:
        result = {str(key): None if item is None else _text(name, item) for key, item in _object(name, value).items()}
    else:
        if isinstance(value, (list, tuple)):
            if len(value) != 1:
                raise Refused(f"{name} has {len(value)} values", field=name)
            value = value[0]
        if value is None or (parameter.optional and value == ""):
            if parameter.optional:
                return None
            raise Refused(f"{name} is missing", field=name)
        if parameter.secret and not isinstance(value, str):
            # Without the value, which would be in the response and in the audit log.
            raise Refused(f"{name} must be text", field=name)
        result = _scalar(name, parameter.type, value)
        if parameter.required and parameter.type is str and not result.strip():
            raise Refused(f"{name} is missing", field=name)
    _check(parameter, result)
    return result


def _object(name: str, value: Any) -> Mapping[str, Any]:
    """Return the object. In a form it may be a field with JSON."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, ValueError) else "it is too deep"
            raise Refused(f"{name} must be an object in JSON: {reason}", field=name) from None
    if not isinstance(value, Mapping):
        raise Refused(f"{name} must be an object", field=name)
    return value


def _text(name: str, item: Any) -> str:
    if isinstance(item, (Mapping, list)):
        raise Refused(f"{name}: the values must be texts, numbers, true, false or null", field=name)
    return item if isinstance(item, str) else json.dumps(item)


def _scalar(name: str, kind: Any, value: Any) -> Any:
    try:
        if kind is bool:
            return _boolean(value)
        if kind is str:
            if not isinstance(value, str):
                raise ValueError
            return value
        if isinstance(kind, type) and issubclass(kind, Enum):
            return kind(value)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError
        if kind is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        number = kind(value.strip() if isinstance(value, str) else value)
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError
        return number
    except (ValueError, OverflowError):
        raise Refused(f"{name} must be {_kind_text(kind)}, not '{_short(value)}'", field=name) from None


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "on", "1", "yes"):
        return True
    if str(value).lower() in ("false", "off", "0", "no", ""):
        return False
    raise ValueError


def _kind_text(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _check(parameter: Parameter, value: Any) -> None:
    bounds = parameter.bounds
    if bounds is None:
        return
    number = len(value) if isinstance(value, (str, list, dict)) else value
    if (bounds.low is not None and number < bounds.low) or (bounds.high is not None and number > bounds.high):
        prefix = (
            "the length of " if isinstance(value, str) else "the number of " if isinstance(value, (list, dict)) else ""
        )
        raise Refused(f"{prefix}{parameter.name} must be {bounds.text}, not {number:g}", field=parameter.name)


def audited_arguments(operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for the audit log. Arguments with the default value are omitted, secrets
    are hidden, and texts are truncated."""
    audited = {}
    for parameter in operation.parameters:
        value = arguments.get(parameter.name)
        if value == parameter.default or parameter.name in ("confirm", "seen"):
            continue
        is_secret = parameter.secret or (parameter.name == "value" and _is_password(arguments.get("name")))
        audited[parameter.name] = _truncate(_hidden(value) if is_secret else value)
    return audited


def _hidden(value: Any) -> Any:
    """Of an object, the names are shown."""
    return dict.fromkeys(value, HIDDEN_ARGUMENT) if isinstance(value, Mapping) else HIDDEN_ARGUMENT


def _is_password(setting: Any) -> bool:
    """Whether the name is that of a sensitive broker setting, possibly with a listener's prefix."""
    key = BROKER_CONFIGS.get(base_name(setting)) if isinstance(setting, str) else None
    return key is not None and key.is_sensitive


def _truncate(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= 500 else value[:500] + "…"
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _truncate(item) for key, item in list(value.items())[:100]}
    if isinstance(value, Sequence):
        return [_truncate(item) for item in value[:100]]
    return value
