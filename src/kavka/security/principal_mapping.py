"""[pure] Maps the distinguished name of a client certificate to the name of its principal, by
`ssl.principal.mapping.rules`:

    RULE:^CN=(.*?),OU=Users.*$/$1/L, DEFAULT

Rules are tried in order. A rule applies if its pattern matches the whole name. DEFAULT keeps the
whole name. RE2 matches the patterns in time linear in the length of the name, because the client
chooses the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

SETTING = "ssl.principal.mapping.rules"

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<text>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*"
)
_GROUP = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class MappingError(ValueError):
    """An invalid rule, or a name that no rule matches."""


class Rule(NamedTuple):
    """`pattern` None is the rule DEFAULT."""

    pattern: Any
    replacement: str
    change_case: Callable[[str], str]

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        groups = self.pattern.groups

        def substitute(reference: re.Match[str]) -> str:
            if reference[1] is not None:
                return reference[1]
            number = int(reference[2])
            return (match[number] or "") if number <= groups else reference[0]

        return self.change_case(_GROUP.sub(substitute, self.replacement))


class PrincipalMapper:
    """Immutable. The constructor raises MappingError for an invalid rule."""

    def __init__(self, text: str = "DEFAULT") -> None:
        self._text = text
        self._rules = _parse(text)

    def name_of(self, distinguished_name: str) -> str:
        """Return the name of the principal. Raises MappingError if no rule applies."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise MappingError(f"no rule of {SETTING} applies to {distinguished_name}")


def _parse(text: str) -> list[Rule]:
    rules = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None or (match.end() < len(text) and text[match.end()] not in ",\n"):
            raise MappingError(
                f"'{text[position:]}' is not a rule; it must be DEFAULT or RULE:pattern/replacement/[LU]"
            )
        position = match.end() + 1
        rules.append(_rule(match))
    return rules or [Rule(None, "", str)]


def _rule(match: re.Match[str]) -> Rule:
    if match["default"]:
        return Rule(None, "", str)
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(match["pattern"].replace("\\/", "/"), options)
    except re2.error:
        raise MappingError(f"'{match['pattern']}' is not a regular expression of RE2") from None
    change_case: Callable[[str], str] = {"L": str.lower, "U": str.upper}.get(match["case"], str)
    return Rule(pattern, match["text"], change_case)
