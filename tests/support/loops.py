"""Runs coroutine functions as tests."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any


def run_in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let pytest run a coroutine function, with its fixtures, in a new event loop."""

    @functools.wraps(test)
    def run(*args: Any, **keywords: Any) -> None:
        asyncio.run(test(*args, **keywords))

    return run
