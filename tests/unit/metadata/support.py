from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from kavka.metadata.cluster import lay_out
from kavka.metadata.embedded import EmbeddedStore


def with_laid_out_store(folder: Path, body: Callable[[EmbeddedStore], Awaitable[Any]]) -> Any:
    """One life of a broker's tree: opened, laid out, closed."""

    async def run() -> Any:
        store = EmbeddedStore.open(folder / "metadata.db")
        await lay_out(store)
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(asyncio.wait_for(run(), 20))


def to(values: Mapping[str, str]) -> Callable[[dict[str, str]], Mapping[str, str]]:
    """A change of settings to these, whatever is set."""
    return lambda _before: values
