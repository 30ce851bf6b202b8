"""[pure] Parses JAAS strings, the values of `sasl.jaas.config`:

org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="x";
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

FLAGS = ("required", "requisite", "sufficient", "optional")

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<comment>//[^\n]*|/\*.*?\*/)
      | "(?P<double>(?:\\.|[^"\\\n])*)"
      | '(?P<single>(?:\\.|[^'\\\n])*)'
      | (?P<mark>[=;])
      | (?P<word>[^\s=;"']+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class JaasError(ValueError):
    """The text is not a JAAS configuration. `str()` never contains the text: it has passwords."""


@dataclass(frozen=True)
class JaasEntry:
    """One login module and its options."""

    module: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def module_name(self) -> str:
        """The name of the module's class without its package."""
        return self.module.rpartition(".")[2]


def parse_jaas(text: str) -> tuple[JaasEntry, ...]:
    """Return the login modules of a JAAS string. Raises JaasError."""
    tokens = _tokens(text)
    entries = []
    position = 0
    while position < len(tokens):
        end = _index_of_end(tokens, position)
        entries.append(_entry(tokens[position:end]))
        position = end + 1
    if not entries:
        raise JaasError("there is no login module")
    return tuple(entries)


def parse_client_jaas(text: str) -> JaasEntry:
    """Return the only login module of a JAAS string. Raises JaasError."""
    entries = parse_jaas(text)
    if len(entries) != 1:
        raise JaasError(f"there are {len(entries)} login modules, but exactly one is allowed")
    return entries[0]


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.end() == position:
            raise JaasError(f"a quote at character {position + 1} is not closed")
        position = match.end()
        kind = match.lastgroup
        if kind in ("double", "single"):
            tokens.append(("word", _ESCAPE.sub(_unescape, match[kind])))
        elif kind in ("mark", "word"):
            tokens.append((kind, match[kind]))
    return tokens


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    if escape[0] in "01234567":
        return chr(int(escape, 8) & 0xFF)
    return _ESCAPED.get(escape, escape)


def _index_of_end(tokens: list[tuple[str, str]], start: int) -> int:
    for index in range(start, len(tokens)):
        if tokens[index] == ("mark", ";"):
            return index
    raise JaasError("the login module does not end with ';'")


def _entry(tokens: list[tuple[str, str]]) -> JaasEntry:
    if len(tokens) < 2 or tokens[0][0] != "word":
        raise JaasError("expected the class of a login module and 'required'")
    if tokens[1][1].lower() not in FLAGS:
        raise JaasError(f"expected one of {', '.join(FLAGS)} after the class of the login module")
    options: dict[str, str] = {}
    rest = tokens[2:]
    if len(rest) % 3:
        raise JaasError("expected options as name=value")
    for index in range(0, len(rest), 3):
        name, equals, value = rest[index : index + 3]
        if name[0] != "word" or equals != ("mark", "=") or value[0] != "word":
            raise JaasError("expected options as name=value")
        options[name[1]] = value[1]
    return JaasEntry(tokens[0][1], options)
