"""The znodes under /config of users, clients and IP addresses: their quotas, and the SCRAM
credentials of users.

    /config/users/<user>    /config/users/<user>/clients/<client>
    /config/clients/<client>    /config/ips/<address>

`<default>` is the name of the default entity. A znode contains the settings of several features, so
an update must preserve the settings of other features.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

from kavka.metadata import paths
from kavka.metadata.paths import CLIENT_CONFIGS, CONFIG, IP_CONFIGS, USER_CONFIGS
from kavka.metadata.store import BadVersion, MetadataStore, NoNode, NotEmpty

logger = logging.getLogger(__name__)

ENTITY_TYPES = (USER_CONFIGS, CLIENT_CONFIGS, IP_CONFIGS)
# The number of znodes that `load` reads at the same time.
MAX_CONCURRENT_READS = 100

# Called with an entity path ("users/alice/clients/c") and all its settings by name.
Listener = Callable[[str, dict[str, str]], Any]


class EntityConfigs:
    """Owns the settings of all entities by their path below /config. `DynamicConfig` follows the
    change notifications and calls `apply`. Only the event loop may call the methods."""

    def __init__(self, store: MetadataStore) -> None:
        self.on_change: list[Listener] = []
        self._store = store
        self._values: dict[str, dict[str, str]] = {}

    def items(self) -> list[tuple[str, dict[str, str]]]:
        """All entities with settings."""
        return [(path, dict(values)) for path, values in self._values.items()]

    def __getitem__(self, entity_path: str) -> dict[str, str]:
        """The settings of an entity; empty if it has none."""
        return dict(self._values.get(entity_path, {}))

    async def load(self) -> None:
        """Read all entities. Raises StoreUnavailable."""
        entity_paths = await self._entity_paths()
        for start in range(0, len(entity_paths), MAX_CONCURRENT_READS):
            batch = entity_paths[start : start + MAX_CONCURRENT_READS]
            for entity_path, values in zip(batch, await asyncio.gather(*map(self.read, batch)), strict=True):
                self.apply(entity_path, values)

    async def _entity_paths(self) -> list[str]:
        entity_paths: list[str] = []
        for entity_type in ENTITY_TYPES:
            names = await self._children(entity_type)
            entity_paths += [f"{entity_type}/{name}" for name in names]
            if entity_type == USER_CONFIGS:
                for name in names:
                    parent = f"{entity_type}/{name}/{CLIENT_CONFIGS}"
                    entity_paths += [f"{parent}/{client}" for client in await self._children(parent)]
        return entity_paths

    async def _children(self, entity_path: str) -> Iterable[str]:
        try:
            return await self._store.children(f"{CONFIG}/{entity_path}")
        except NoNode:
            return ()

    async def read(self, entity_path: str) -> dict[str, str]:
        """Return the settings in the znode. A malformed znode has none."""
        try:
            return paths.decode_config((await self._store.get(f"{CONFIG}/{entity_path}"))[0])
        except NoNode:
            return {}
        except (paths.MalformedNode, ValueError) as error:
            logger.error("Ignoring the settings in %s/%s: %s", CONFIG, entity_path, error)
            return {}

    def apply(self, entity_path: str, values: dict[str, str]) -> None:
        if self._values.get(entity_path, {}) == values:
            return
        if values:
            self._values[entity_path] = values
        else:
            del self._values[entity_path]
        for listener in self.on_change:
            try:
                listener(entity_path, dict(values))
            except Exception:
                logger.exception("A listener failed to apply a change of %s", entity_path)

    async def has_children(self, entity_path: str) -> bool:
        return bool(list(await self._children(entity_path)))

    async def remove_empty_parents(self, entity_path: str) -> None:
        """Remove the znodes above a removed pair of user and client that have no settings and no
        children, as Kafka does."""
        user = entity_path.rpartition(f"/{CLIENT_CONFIGS}/")[0]
        if not user:
            return
        with contextlib.suppress(NoNode, NotEmpty, BadVersion):
            await self._store.delete(f"{CONFIG}/{user}/{CLIENT_CONFIGS}")
            data, stat = await self._store.get(f"{CONFIG}/{user}")
            with contextlib.suppress(paths.MalformedNode):
                if not paths.decode_config(data):
                    await self._store.delete(f"{CONFIG}/{user}", stat.version)
