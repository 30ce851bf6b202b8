"""Limits on the work per message, independent of its content.

A message has one `Budget` for its key, value and headers. Every decoded value and every character
of the result is charged to the budget, so neither a schema with many fields nor items without bytes
can exceed the limits.
"""

from __future__ import annotations

MAX_VALUES = 200_000
"""Decoded values: fields, items, entries, branches of unions."""
MAX_CHARACTERS = 8 * 1024 * 1024
"""Characters of all decoded values, including the names of fields."""
MAX_UNPACKED_BYTES = 16 * 1024 * 1024
"""Decompressed bytes of all Avro blocks."""
MAX_WORK = 500_000
"""Steps of all filters. A comparison of two short values is one step."""
MAX_PROBLEM = 300
"""Characters of the `problem` of a decoded value."""


class TooLarge(ValueError):
    """A message exceeds a limit; `str()` names the limit."""


class Budget:
    """The remaining budget of one message. The methods raise TooLarge when it is exceeded. Threads
    must not share it."""

    __slots__ = ("characters", "unpacked", "values", "work")

    def __init__(self) -> None:
        self.values = MAX_VALUES
        self.characters = MAX_CHARACTERS
        self.unpacked = MAX_UNPACKED_BYTES
        self.work = MAX_WORK

    def spend_values(self, count: int = 1) -> None:
        self.values -= count
        if self.values < 0:
            raise TooLarge(f"more than {MAX_VALUES} values")

    def spend_characters(self, count: int) -> None:
        self.characters -= count
        if self.characters < 0:
            raise TooLarge(f"more than {MAX_CHARACTERS} characters")

    def spend_unpacked(self, count: int) -> None:
        self.unpacked -= count
        if self.unpacked < 0:
            raise TooLarge(f"more than {MAX_UNPACKED_BYTES} decompressed bytes")

    def spend_work(self, count: int = 1) -> None:
        self.work -= count
        if self.work < 0:
            raise TooLarge(f"the filters need more than {MAX_WORK} steps")
