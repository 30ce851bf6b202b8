"""Configuration providers: `${file:/path/secrets.properties:password}` in a configuration stands for a value that is
kept elsewhere, as in Kafka Connect.

The worker's file says which there are: `config.providers=file,env`, `config.providers.file.class=…FileConfigProvider`,
`config.providers.file.param.allowed.paths=/etc/secrets`. What is stored and shown keeps the placeholder; the value is
looked up when a configuration is checked and when a task starts, and is known to that task alone. `Secrets` has taken
it out of whatever is told to others: states, answers, logs.

What cannot be found stays as it is, as with Kafka Connect, and a line in the log tells so; a file that cannot be read
is an error.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

from kavka.common.properties import PropertiesError, parse_properties
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.loading import NOTHING, PROVIDERS, Declared, items_of, load

log = logging.getLogger(__name__)

NAMES = "config.providers"


class Placeholder(NamedTuple):
    """`${provider:path:key}` or `${provider:key}`; the key may have colons, the path none."""

    begin: int
    end: int
    provider: str
    path: str
    key: str


def placeholders(text: str) -> Iterator[Placeholder]:
    """In a time that grows with the length of the text: Kafka's regular expression takes cubic time for `${::::…`."""
    after = 0
    while (end := text.find("}", after)) >= 0:
        begin = text.find("${", after, end)
        provider, *rest = text[begin + 2 : end].split(":", 2) if begin >= 0 else [""]
        if rest:
            yield Placeholder(begin, end + 1, provider, "" if len(rest) == 1 else rest[0], rest[-1])
        after = end + 1


def has_placeholder(text: str) -> bool:
    return next(placeholders(text), None) is not None


class ProviderError(ConnectError):
    """Where values are kept cannot be read."""


class ConfigProvider:
    """One of one's own is a subclass, named by `module.Class`. It is asked by several threads."""

    def configure(self, params: Mapping[str, str]) -> None:
        """`config.providers.NAME.param.…` of the worker's file. ConnectError: they cannot be."""

    def get(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        """Those of the keys that are there. `path` is empty where the placeholder has none. ProviderError: it cannot be
        said."""
        raise NotImplementedError


class _Paths(ConfigProvider):
    """`allowed.paths`: folders and files outside of which nothing is read."""

    def __init__(self) -> None:
        self._allowed: list[Path] | None = None

    def configure(self, params: Mapping[str, str]) -> None:
        given = params.get("allowed.paths", "")
        if not given:
            return
        self._allowed = []
        for text in given.split(","):
            path = Path(text)
            if not path.is_absolute():
                raise ConnectError(f"Path {text} is not absolute")
            if not path.exists():
                raise ConnectError(f"Path {text} does not exist")
            self._allowed.append(Path(os.path.normpath(path)))

    def _path(self, text: str) -> Path | None:
        """None: it is not allowed."""
        if self._allowed is None:
            return Path(text)
        path = Path(os.path.normpath(text))
        if any(path.is_relative_to(one) for one in self._allowed):
            return path
        log.warning("The path %s is not among allowed.paths, and is not read", text)
        return None


class FileConfigProvider(_Paths):
    """`${file:/path/to.properties:key}`: what a file of properties says."""

    def get(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        where = self._path(path) if path else None
        if where is None:
            return {}
        try:
            # What a line says is not for messages, so neither is why it cannot be read.
            found = parse_properties(where.read_text(encoding="utf-8"))
        except (OSError, ValueError, PropertiesError):
            raise ProviderError(f"Could not read properties from file {path}") from None
        return {key: found[key] for key in keys if key in found}


class DirectoryConfigProvider(_Paths):
    """`${dir:/path:name}`: the whole of the file of that name in that folder."""

    def get(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        where = self._path(path) if path else None
        if where is None or not where.is_dir():
            return {}
        found = {}
        for key in keys:
            file = where / key
            # Of the folder itself: no name leads out of it.
            if file.name != key or key in ("", ".", "..") or not file.is_file():
                continue
            try:
                found[key] = file.read_text(encoding="utf-8")
            except (OSError, ValueError):
                raise ProviderError(f"Could not read file {file} for property {key}") from None
        return found


class EnvVarConfigProvider(ConfigProvider):
    """`${env:NAME}`: a variable of the worker's environment, with `allowlist.pattern` only of names that match."""

    def __init__(self) -> None:
        self._pattern: re.Pattern[str] | None = None

    def configure(self, params: Mapping[str, str]) -> None:
        given = params.get("allowlist.pattern")
        try:
            self._pattern = re.compile(given) if given else None
        except re.error as error:
            raise ConnectError(f"allowlist.pattern {given} is no regular expression: {error}") from None

    def get(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        if path:
            raise ProviderError(f"Path is not supported for EnvVarConfigProvider, invalid value '{path}'")
        allowed = [key for key in keys if self._pattern is None or self._pattern.fullmatch(key)]
        return {key: os.environ[key] for key in allowed if key in os.environ}


HIDDEN = "[hidden]"
_SECRET_NAME = re.compile(
    r"passw(or)?d|secret|token|credential|jaas|api[._-]?key|keystore\.key|user\.info", re.IGNORECASE
)
# In addresses (`?password=…`, `//user:…@host`) and headers.
_SECRET_PART = re.compile(
    r"(?:password|passwd|pwd|secret|token|api[_-]?key)=(\{[^}]+\}|[^&;\s]+)|://[^/@:\s]*:([^/\s]+)@"
    r"|:thin:[^/@\s]*/([^@\s]+)@"
    r"|authorization[:\s]\s*(?:\w+\s+)?([^\s|]+)|api-?key:\s*([^\s|]+)",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """By the name of a setting."""
    return _SECRET_NAME.search(name) is not None


def secret_values(given: Mapping[str, Any], secret_names: Collection[str] = ()) -> Iterator[str]:
    """Secrets that a configuration has itself, not by placeholders: values of settings of these names, or with names
    like `password`, and parts of other values."""
    for name, value in given.items():
        if not isinstance(value, str):
            continue
        if not has_placeholder(value) and (name in secret_names or is_secret(name)):
            yield value
        for match in _SECRET_PART.finditer(value):
            yield from (part for part in match.groups() if part and not has_placeholder(part))


def shown_value(name: str, value: str) -> str:
    """Of a setting, for others than its owner: without secrets. Placeholders stay."""
    if is_secret(name):
        return value if has_placeholder(value) else HIDDEN

    def shown(match: re.Match[str]) -> str:
        part = next(filter(None, match.groups()))
        return match[0] if has_placeholder(part) else match[0].replace(part, HIDDEN)

    return _SECRET_PART.sub(shown, value)


class Secrets(logging.Filter):
    """Values that providers have given, and passwords in configurations, taken out of texts: the placeholders, or
    `[hidden]`, stand there instead. As a filter of a log's handlers it does so with whatever is logged.

    Values of one or two characters, and words that are in any text, are no secrets and stay. Short ones are found as
    words of their own, so that a number in the middle of another is not one of them.
    """

    _MOST: ClassVar[int] = 10_000
    _SHORT: ClassVar[int] = 8
    _PLAIN: ClassVar[frozenset[str]] = frozenset({"true", "false", "null", "none"})

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._known: OrderedDict[str, str] = OrderedDict()
        self._longest_first: tuple[tuple[str, str], ...] | None = ()
        """Of `_known`; None: to be sorted when it is needed next, as many may be added in a row."""

    @classmethod
    def of(cls, given: Mapping[str, Any], secret_names: Collection[str] = ()) -> Secrets:
        """Those of one configuration."""
        secrets = cls()
        for value in secret_values(given, secret_names):
            secrets.add(value, HIDDEN)
        return secrets

    def add(self, value: str, placeholder: str) -> None:
        lines = (line.strip() for line in value.splitlines())
        forms = {value, value.strip(), *(line for line in lines if len(line) >= self._SHORT)}
        forms |= {other for one in forms for other in (quote(one, safe=""), json.dumps(one)[1:-1], repr(one)[1:-1])}
        with self._lock:
            for form in forms:
                if len(form) > 2 and form.lower() not in self._PLAIN and self._known.get(form) != placeholder:
                    self._known[form] = placeholder
                    self._longest_first = None
            while len(self._known) > self._MOST:
                self._known.popitem(last=False)

    def _sorted(self) -> tuple[tuple[str, str], ...]:
        with self._lock:
            if self._longest_first is None:
                self._longest_first = tuple(sorted(self._known.items(), key=lambda item: len(item[0]), reverse=True))
            return self._longest_first

    def hidden(self, text: str) -> str:
        """Without a regular expression of all values, which takes seconds where a request has thousands of them."""
        for form, placeholder in self._sorted():
            if form not in text:
                continue
            if len(form) >= self._SHORT:
                text = text.replace(form, placeholder)
            else:
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", placeholder.replace("\\", r"\\"), text)
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        if self._known:
            if record.exc_info and not record.exc_text:
                record.exc_text = logging.Formatter().formatException(record.exc_info)
            if record.exc_text:
                record.exc_text = self.hidden(record.exc_text)
            record.msg, record.args = self.hidden(record.getMessage()), ()
        return True


class Providers:
    """Those of a worker."""

    def __init__(self, providers: Mapping[str, ConfigProvider] | None = None) -> None:
        self._providers = dict(providers or {})
        self.secrets = Secrets()

    @classmethod
    def of(cls, worker: Mapping[str, str], declared: Declared = NOTHING) -> Providers:
        """As the worker's file says; ConfigErrors where it cannot be."""
        found: dict[str, ConfigProvider] = {}
        for name in items_of(worker.get(NAMES, "")):
            option, prefix = f"{NAMES}.{name}.class", f"{NAMES}.{name}.param."
            given = worker.get(option, "").strip()
            if not given:
                raise ConfigErrors({option: [f'Missing required configuration "{option}" which has no default value.']})
            provider = load(option, given, PROVIDERS, "configuration provider", declared)[0]()
            try:
                provider.configure({key[len(prefix) :]: worker[key] for key in worker if key.startswith(prefix)})
            except ConnectError as error:
                raise ConfigErrors({f"{NAMES}.{name}": [f"the configuration provider {name}: {error}"]}) from None
            found[name] = provider
        return cls(found)

    def resolved(self, given: Mapping[str, str], whose: str | None = None) -> dict[str, str]:
        """With values in place of placeholders. `whose`: for lines in the log that tell of those that have none.
        ProviderError where values cannot be read."""
        keys_by_path: dict[tuple[str, str], set[str]] = {}
        for text in given.values():
            for found in placeholders(text):
                keys_by_path.setdefault((found.provider, found.path), set()).add(found.key)
        if not keys_by_path:
            return dict(given)
        values = {at: self._asked(*at, keys) for at, keys in keys_by_path.items() if at[0] in self._providers}

        def replaced(text: str) -> str:
            parts, after = [], 0
            for found in placeholders(text):
                placeholder, name, key = text[found.begin : found.end], found.provider, found.key
                value = values.get((name, found.path), {}).get(key)
                if value is not None:
                    self.secrets.add(value, placeholder)
                elif whose is not None:
                    why = f"it has no {key}" if name in self._providers else "it is not among config.providers"
                    log.warning("%s: %s is left as it is: the provider %s: %s", whose, placeholder, name, why)
                parts += [text[after : found.begin], placeholder if value is None else value]
                after = found.end
            return "".join([*parts, text[after:]])

        return {option: replaced(text) for option, text in given.items()}

    def _asked(self, name: str, path: str, keys: Collection[str]) -> Mapping[str, str]:
        try:
            return self._providers[name].get(path, keys)
        except ProviderError:
            raise
        except Exception as error:
            raise ProviderError(f"the configuration provider {name} failed: {type(error).__name__}") from None

    def hidden(self, text: str) -> str:
        return self.secrets.hidden(text)

    def hidden_errors(
        self, errors: Mapping[str, list[str]], given: Mapping[str, str | None], resolved: Mapping[str, str]
    ) -> dict[str, list[str]]:
        """Messages of a check, which show the values that they are about: as they were given."""

        def shown(name: str, message: str) -> str:
            raw, value = given.get(name), resolved.get(name)
            if raw is not None and value and raw != value:
                message = message.replace(value, raw, -1 if len(value) > 2 else 1)
            return self.hidden(message)

        return {name: [shown(name, message) for message in messages] for name, messages in errors.items()}
