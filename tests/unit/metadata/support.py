from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from kavka.metadata.cluster import create_top_level_paths
from kavka.metadata.embedded import EmbeddedStore


def with_initialized_store(folder: Path, body: Callable[[EmbeddedStore], Awaitable[Any]]) -> Any:
    """Run `body` with a store that is opened, initialized and closed afterwards."""

    async def run() -> Any:
        store = EmbeddedStore.open(folder / "metadata.db")
        await create_top_level_paths(store)
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(asyncio.wait_for(run(), 20))


def to(values: Mapping[str, str]) -> Callable[[dict[str, str]], Mapping[str, str]]:
    """A change that replaces all settings by `values`."""
    return lambda _current: values
