"""Secrets in the configurations of connectors: which settings have them, and their display.

A placeholder like `${file:/path:key}` refers to a value that is stored elsewhere, so it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple


class Placeholder(NamedTuple):
    """`${provider:path:key}` or `${provider:key}`; the key may contain colons, the path may not."""

    begin: int
    end: int
    provider: str
    path: str
    key: str


def placeholders(text: str) -> Iterator[Placeholder]:
    """Yields the placeholders in a text, in linear time: Kafka's regular expression takes cubic
    time for `${::::…`."""
    position = 0
    while (end := text.find("}", position)) >= 0:
        begin = text.find("${", position, end)
        provider, *names = text[begin + 2 : end].split(":", 2) if begin >= 0 else [""]
        if names:
            yield Placeholder(begin, end + 1, provider, "" if len(names) == 1 else names[0], names[-1])
        position = end + 1


def has_placeholder(text: str) -> bool:
    return next(placeholders(text), None) is not None


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
    """Whether the name of a setting indicates a secret."""
    return _SECRET_NAME.search(name) is not None


def secret_values(originals: Mapping[str, Any], secret_names: Collection[str] = ()) -> Iterator[str]:
    """Yields the secrets in a configuration that are not placeholders: values of settings in
    `secret_names`, values of settings with names like `password`, and parts of other values."""
    for name, value in originals.items():
        if not isinstance(value, str):
            continue
        if not has_placeholder(value) and (name in secret_names or is_secret(name)):
            yield value
        for match in _SECRET_PART.finditer(value):
            yield from (part for part in match.groups() if part and not has_placeholder(part))


def shown_value(name: str, value: str) -> str:
    """Returns the value of a setting without secrets, for display. Placeholders stay."""
    if is_secret(name):
        return value if has_placeholder(value) else HIDDEN

    def replaced(match: re.Match[str]) -> str:
        part = next(filter(None, match.groups()))
        return match[0] if has_placeholder(part) else match[0].replace(part, HIDDEN)

    return _SECRET_PART.sub(replaced, value)
