"""[pure] The topics that the patterns of groups stand for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import KeysView

from kavka.common.regex import BadPattern, Pattern

REMEMBERED = 256


class _Known:
    """A pattern with the names that were tried, and those of them that match; or why it cannot be used."""

    __slots__ = ("error", "matching", "pattern", "tried")

    def __init__(self) -> None:
        self.pattern: Pattern | None = None
        self.error = ""
        self.tried: set[str] = set()
        self.matching: set[str] = set()


class Patterns:
    """Of the patterns in use lately, so that of a thousand topics only the new one has to be looked at."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def resolve(self, text: str, names: KeysView[str]) -> frozenset[str]:
        """BadPattern where it is none, or would cost too much."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = _Known()
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(text)
        if known.error:
            raise BadPattern(known.error)
        try:
            if known.pattern is None:
                known.pattern = Pattern(text)
            known.matching |= known.pattern.select(names - known.tried)
        except BadPattern as error:
            known.error = str(error)
            raise
        known.tried = set(names)
        known.matching &= known.tried
        return frozenset(known.matching)
