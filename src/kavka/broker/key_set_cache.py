"""Keeps the JSON Web Key Set of a listener current: `sasl.oauthbearer.jwks.endpoint.*`.

The set is read in a worker thread: at start, periodically, and when a token has an unknown key, but
not more often than every `MIN_INTERVAL_S`, since anyone can send tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kavka.common.config import ConfigError
from kavka.security.key_sets import KeySetError, load_key_set

logger = logging.getLogger(__name__)

MIN_INTERVAL_S = 5.0
URL = "sasl.oauthbearer.jwks.endpoint.url"


class KeySetCache:
    """Owns the current key set. Only the loop thread uses it."""

    def __init__(self, values: Mapping[str, Any], run_in_worker: Callable[..., Awaitable[Any]]) -> None:
        self._url: str = values[URL]
        self._refresh_s = max(MIN_INTERVAL_S, values["sasl.oauthbearer.jwks.endpoint.refresh.ms"] / 1000)
        self._backoff_s = values["sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"] / 1000
        self._max_backoff_s = values["sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"] / 1000
        self._run_in_worker = run_in_worker
        self._keys: Any = None
        self._refresh = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def keys(self) -> Any:
        return self._keys

    def on_unknown_key(self, key_id: str) -> None:
        self._refresh.set()

    async def start(self) -> None:
        """Read the set once, then keep it current. A file must be valid; another URL may become
        available later. Raises ConfigError."""
        try:
            self._keys = await self._run_in_worker(load_key_set, self._url)
        except KeySetError as error:
            if not self._url.startswith(("http://", "https://")):
                raise ConfigError(URL, str(error)) from None
            logger.warning("Tokens are rejected until the key set is available: %s", error)
        self._task = asyncio.create_task(self._keep_current())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_current(self) -> None:
        failures = 0
        while True:
            delay_s = self._refresh_s
            if failures or self._keys is None:
                delay_s = min(self._max_backoff_s, self._backoff_s * 2 ** min(failures, 20))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._refresh.wait()
            self._refresh.clear()
            try:
                self._keys = await self._run_in_worker(load_key_set, self._url)
                failures = 0
            except KeySetError as error:
                failures += 1
                logger.warning("Keeping the previous key set: %s", error)
            # Requests for a refresh in this time cause one refresh at its end.
            await asyncio.sleep(MIN_INTERVAL_S)
