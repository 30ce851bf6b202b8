"""Configuration providers: a placeholder like `${file:/path/secrets.properties:password}` in a
configuration refers to a value that is stored elsewhere, as in Kafka Connect.

The worker's file configures the providers: `config.providers=file,env`,
`config.providers.file.class=…FileConfigProvider`,
`config.providers.file.param.allowed.paths=/etc/secrets`. Stored and displayed configurations keep
the placeholder. The value is resolved when a configuration is validated and when a task starts, and
only that task receives it. `Secrets` removes the value from all output: states, responses, logs.

As in Kafka Connect, a placeholder that cannot be resolved stays unchanged, with a warning in the
log. A file that cannot be read is an error.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from kavka.common.properties import PropertiesError, parse_properties
from kavka.common.secret_settings import HIDDEN, placeholders, secret_values
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.loading import NO_PLUGINS, PROVIDERS, Declared, items_of, load

logger = logging.getLogger(__name__)

NAMES = "config.providers"


class ProviderError(ConnectError):
    """A provider cannot read its values."""


class ConfigProvider:
    """The base class of providers. A custom provider is a subclass, named by `module.Class`.
    Several threads may call it."""

    def configure(self, params: Mapping[str, str]) -> None:
        """Receives `config.providers.NAME.param.…` of the worker's file. Raises ConnectError if
        they are invalid."""

    def get(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        """Returns the values of the keys that exist. `path` is empty if the placeholder has no
        path. Raises ProviderError if the values cannot be read."""
        raise NotImplementedError


class _PathProvider(ConfigProvider):
    """Restricts reading to the folders and files of `allowed.paths`."""

    def __init__(self) -> None:
        self._allowed: list[Path] | None = None

    def configure(self, params: Mapping[str, str]) -> None:
        paths = params.get("allowed.paths", "")
        if not paths:
            return
        self._allowed = []
        for text in paths.split(","):
            path = Path(text)
            if not path.is_absolute():
                raise ConnectError(f"Path {text} is not absolute")
            if not path.exists():
                raise ConnectError(f"Path {text} does not exist")
            self._allowed.append(Path(os.path.normpath(path)))

    def _allowed_path(self, text: str) -> Path | None:
        """Returns the path, or None if it is empty or not allowed."""
        if not text:
            return None
        if self._allowed is None:
            return Path(text)
        path = Path(os.path.normpath(text))
        if any(path.is_relative_to(allowed) for allowed in self._allowed):
            return path
        logger.warning("The path %s is not in allowed.paths and is not read", text)
        return None


class FileConfigProvider(_PathProvider):
    """`${file:/path/to.properties:key}`: a value of a properties file."""

    def get(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        file = self._allowed_path(path)
        if file is None:
            return {}
        try:
            properties = parse_properties(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, PropertiesError):
            # Omit the parser's message: it may contain a secret.
            raise ProviderError(f"Could not read properties from file {path}") from None
        return {key: properties[key] for key in keys if key in properties}


class DirectoryConfigProvider(_PathProvider):
    """`${dir:/path:name}`: the content of a file in a folder."""

    def get(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        folder = self._allowed_path(path)
        if folder is None or not folder.is_dir():
            return {}
        values = {}
        for key in keys:
            file = folder / key
            # A name must not lead out of the folder.
            if file.name != key or key in ("", ".", "..") or not file.is_file():
                continue
            try:
                values[key] = file.read_text(encoding="utf-8")
            except (OSError, ValueError):
                raise ProviderError(f"Could not read file {file} for property {key}") from None
        return values


class EnvVarConfigProvider(ConfigProvider):
    """`${env:NAME}`: an environment variable of the worker. `allowlist.pattern` restricts the
    names."""

    def __init__(self) -> None:
        self._pattern: re.Pattern[str] | None = None

    def configure(self, params: Mapping[str, str]) -> None:
        pattern = params.get("allowlist.pattern")
        try:
            self._pattern = re.compile(pattern) if pattern else None
        except re.error as error:
            raise ConnectError(f"allowlist.pattern {pattern} is not a regular expression: {error}") from None

    def get(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        if path:
            raise ProviderError(f"Path is not supported for EnvVarConfigProvider, invalid value '{path}'")
        allowed = [key for key in keys if self._pattern is None or self._pattern.fullmatch(key)]
        return {key: os.environ[key] for key in allowed if key in os.environ}


class Secrets(logging.Filter):
    """Replaces the values of providers by their placeholders, and the passwords of configurations
    by `[hidden]`. As a filter of log handlers it does so in every log record. Any thread may call
    it.

    Values of one or two characters and common words are not replaced. Other short values are
    replaced only as separate words, so that a number inside another number stays.
    """

    _MAX_VALUES: ClassVar[int] = 10_000
    _SHORT: ClassVar[int] = 8
    _COMMON_WORDS: ClassVar[frozenset[str]] = frozenset({"true", "false", "null", "none"})

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._placeholders: OrderedDict[str, str] = OrderedDict()
        self._longest_first: tuple[tuple[str, str], ...] | None = ()
        """The items of `_placeholders`, longest value first; None: sort again on the next use."""

    @classmethod
    def of(cls, originals: Mapping[str, Any], secret_names: Collection[str] = ()) -> Secrets:
        """Returns the secrets of one configuration."""
        secrets = cls()
        for value in secret_values(originals, secret_names):
            secrets.add(value, HIDDEN)
        return secrets

    def add(self, value: str, placeholder: str) -> None:
        lines = (line.strip() for line in value.splitlines())
        forms = {value, value.strip(), *(line for line in lines if len(line) >= self._SHORT)}
        forms |= {
            escaped for form in forms for escaped in (quote(form, safe=""), json.dumps(form)[1:-1], repr(form)[1:-1])
        }
        with self._lock:
            for form in forms:
                if (
                    len(form) > 2
                    and form.lower() not in self._COMMON_WORDS
                    and self._placeholders.get(form) != placeholder
                ):
                    self._placeholders[form] = placeholder
                    self._longest_first = None
            while len(self._placeholders) > self._MAX_VALUES:
                self._placeholders.popitem(last=False)

    def _sorted(self) -> tuple[tuple[str, str], ...]:
        with self._lock:
            if self._longest_first is None:
                self._longest_first = tuple(
                    sorted(self._placeholders.items(), key=lambda item: len(item[0]), reverse=True)
                )
            return self._longest_first

    def hide(self, text: str) -> str:
        """Returns the text without secrets. Searches for each value separately: a single regular
        expression takes seconds if there are thousands of values."""
        for form, placeholder in self._sorted():
            if form not in text:
                continue
            if len(form) >= self._SHORT:
                text = text.replace(form, placeholder)
            else:
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", placeholder.replace("\\", r"\\"), text)
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        if self._placeholders:
            if record.exc_info and not record.exc_text:
                record.exc_text = logging.Formatter().formatException(record.exc_info)
            if record.exc_text:
                record.exc_text = self.hide(record.exc_text)
            record.msg, record.args = self.hide(record.getMessage()), ()
        return True


class Providers:
    """Owns the configuration providers of a worker, and the secrets that they returned. Any thread
    may call it."""

    def __init__(self, providers: Mapping[str, ConfigProvider] | None = None) -> None:
        self._providers = dict(providers or {})
        self.secrets = Secrets()

    @classmethod
    def of(cls, worker: Mapping[str, str], declared: Declared = NO_PLUGINS) -> Providers:
        """Returns the providers in the worker's settings. Raises ConfigErrors if the settings are
        invalid."""
        providers: dict[str, ConfigProvider] = {}
        for name in items_of(worker.get(NAMES, "")):
            option, prefix = f"{NAMES}.{name}.class", f"{NAMES}.{name}.param."
            class_name = worker.get(option, "").strip()
            if not class_name:
                raise ConfigErrors({option: [f'Missing required configuration "{option}" which has no default value.']})
            provider = load(option, class_name, PROVIDERS, "configuration provider", declared)[0]()
            try:
                provider.configure({key[len(prefix) :]: worker[key] for key in worker if key.startswith(prefix)})
            except ConnectError as error:
                raise ConfigErrors(
                    {f"{NAMES}.{name}": [f"cannot configure the configuration provider {name}: {error}"]}
                ) from None
            providers[name] = provider
        return cls(providers)

    def resolve(self, originals: Mapping[str, str], owner: str | None = None) -> dict[str, str]:
        """Returns the settings with values in place of placeholders. `owner` names the
        configuration in warnings about unresolved placeholders; None disables the warnings. Raises
        ProviderError if values cannot be read."""
        keys_by_path: dict[tuple[str, str], set[str]] = {}
        for text in originals.values():
            for placeholder in placeholders(text):
                keys_by_path.setdefault((placeholder.provider, placeholder.path), set()).add(placeholder.key)
        if not keys_by_path:
            return dict(originals)
        values = {
            (name, path): self._fetch(name, path, keys)
            for (name, path), keys in keys_by_path.items()
            if name in self._providers
        }

        def replaced(text: str) -> str:
            pieces, position = [], 0
            for placeholder in placeholders(text):
                begin, end, name, path, key = placeholder
                value = values.get((name, path), {}).get(key)
                if value is not None:
                    self.secrets.add(value, text[begin:end])
                elif owner is not None:
                    reason = (
                        f"the provider has no {key}" if name in self._providers else "it is not in config.providers"
                    )
                    logger.warning("%s: %s is not resolved by provider %s: %s", owner, text[begin:end], name, reason)
                pieces += [text[position:begin], text[begin:end] if value is None else value]
                position = end
            return "".join([*pieces, text[position:]])

        return {option: replaced(text) for option, text in originals.items()}

    def _fetch(self, name: str, path: str, keys: Collection[str]) -> Mapping[str, str]:
        try:
            return self._providers[name].get(path, keys)
        except ProviderError:
            raise
        except Exception as error:
            raise ProviderError(f"the configuration provider {name} failed: {type(error).__name__}") from None

    def hide(self, text: str) -> str:
        return self.secrets.hide(text)

    def hidden_errors(
        self, errors: Mapping[str, list[str]], originals: Mapping[str, str | None], resolved: Mapping[str, str]
    ) -> dict[str, list[str]]:
        """Returns the error messages with the original settings in place of the resolved values."""

        def hide(name: str, message: str) -> str:
            original, value = originals.get(name), resolved.get(name)
            if original is not None and value and original != value:
                message = message.replace(value, original, -1 if len(value) > 2 else 1)
            return self.hide(message)

        return {name: [hide(name, message) for message in messages] for name, messages in errors.items()}
