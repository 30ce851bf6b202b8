"""Limits the number of running searches."""

from __future__ import annotations

from kavka.console.errors import Refused

MAX_RUNNING_SEARCHES = 8
"""The maximum number of searches that run in this console at a time."""


class RunningSearches:
    """Counts the running searches of this console. A search runs inside `async with`, which raises
    Refused (429) above MAX_RUNNING_SEARCHES."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> None:
        if self.count >= MAX_RUNNING_SEARCHES:
            raise Refused(f"this console already runs {MAX_RUNNING_SEARCHES} searches: stop one or wait", 429)
        self.count += 1

    async def __aexit__(self, *exc: object) -> None:
        self.count -= 1


running_searches = RunningSearches()
