"""Regular expressions that clients send, matched with RE2 in time linear in the text.

Python's `re` backtracks: a short pattern can take exponential time and block the event loop. Kafka
uses RE2 as well (RE2/J), so the syntax is the same. A pattern must match the whole text.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

MAX_PATTERN_LENGTH = 10_000
MAX_PATTERN_MEMORY = 1 << 20


class PatternError(ValueError):
    """The pattern is invalid or too expensive. `str()` is one line with the reason."""


class Pattern:
    """A compiled regular expression. `size` is the number of instructions of the RE2 program, which
    bounds the cost of a match per character. The constructor raises PatternError."""

    __slots__ = ("_compiled", "size")

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN_LENGTH:
            raise PatternError(f"the pattern has {len(text)} characters, more than the maximum of {MAX_PATTERN_LENGTH}")
        import re2

        options = re2.Options()
        options.log_errors = False
        options.max_mem = MAX_PATTERN_MEMORY
        try:
            self._compiled: Any = re2.compile(text, options)
            self.size: int = self._compiled.programsize
        except (re2.error, UnicodeError) as error:
            cause = error.args[0] if error.args else ""
            raise PatternError(cause.decode(errors="replace") if isinstance(cause, bytes) else str(error)) from None

    def matches(self, text: str) -> bool:
        return self._compiled.fullmatch(text) is not None

    def select(self, texts: Iterable[str]) -> set[str]:
        fullmatch = self._compiled.fullmatch
        return {text for text in texts if fullmatch(text) is not None}


@lru_cache(256)
def compile_pattern(text: str) -> Pattern:
    return Pattern(text)
