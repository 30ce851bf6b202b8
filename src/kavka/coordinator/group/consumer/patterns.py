"""[pure] Resolution of the regular expressions that groups subscribe to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, KeysView
from dataclasses import dataclass, field

from kavka.common.regex import Pattern, PatternError

MAX_CACHED_PATTERNS = 256

# Returns the topics that a client may describe.
TopicFilter = Callable[[frozenset[str]], frozenset[str]]


@dataclass(slots=True, eq=False, repr=False)
class _CachedPattern:
    """A pattern with the topic names that were tested and those that match, or with the error if
    the pattern is invalid."""

    pattern: Pattern | None = field(init=False, default=None)
    error: str = field(init=False, default="")
    tested: set[str] = field(init=False, default_factory=set)
    matching: set[str] = field(init=False, default_factory=set)


class Patterns:
    """A cache of patterns, so that only new topic names are tested."""

    def __init__(self) -> None:
        self._cache: OrderedDict[str, _CachedPattern] = OrderedDict()

    def resolve(self, text: str, names: KeysView[str]) -> frozenset[str]:
        """Return the names that match. Raises PatternError if the pattern is invalid or too
        expensive."""
        cached = self._cache.get(text)
        if cached is None:
            cached = self._cache[text] = _CachedPattern()
            while len(self._cache) > MAX_CACHED_PATTERNS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(text)
        if cached.error:
            raise PatternError(cached.error)
        try:
            if cached.pattern is None:
                cached.pattern = Pattern(text)
            cached.matching |= cached.pattern.select(names - cached.tested)
        except PatternError as error:
            cached.error = str(error)
            raise
        cached.tested = set(names)
        cached.matching &= cached.tested
        return frozenset(cached.matching)
