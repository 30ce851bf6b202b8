"""Regular expressions that clients send: matched in time that grows with the text, never with what a pattern provokes.

Python's own `re` goes back and forth, and a pattern of a few characters can keep it busy for years; the one event
loop of a broker must not run what a client writes there. RE2 is what Kafka uses too (in its Java form), so the syntax
is the same. A pattern matches a text as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

MAX_LENGTH = 10_000
MAX_MEMORY = 1 << 20


class BadPattern(ValueError):
    """It is not a pattern, or would cost too much. `str()` says in one line what is wrong."""


class Pattern:
    __slots__ = ("_compiled", "size")

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise BadPattern(f"a pattern of {len(text)} characters, more than {MAX_LENGTH} are not taken")
        import re2

        options = re2.Options()
        options.log_errors = False
        options.max_mem = MAX_MEMORY
        try:
            self._compiled: Any = re2.compile(text, options)
            self.size: int = self._compiled.programsize
            """Instructions of the compiled program: the cost of a match per character, at worst."""
        except (re2.error, UnicodeError) as error:
            cause = error.args[0] if error.args else ""
            raise BadPattern(cause.decode(errors="replace") if isinstance(cause, bytes) else str(error)) from None

    def matches(self, text: str) -> bool:
        return self._compiled.fullmatch(text) is not None

    def select(self, texts: Iterable[str]) -> set[str]:
        fullmatch = self._compiled.fullmatch
        return {text for text in texts if fullmatch(text) is not None}


@lru_cache(256)
def compile_pattern(text: str) -> Pattern:
    return Pattern(text)
