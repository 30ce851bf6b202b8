"""Operations of a broker on the metadata tree: the top-level paths, the cluster id, broker
registration, log directory failures, and producer ids."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from kavka.metadata import paths
from kavka.metadata.paths import BrokerRegistration, ProducerIdBlock
from kavka.metadata.store import BadVersion, Create, MetadataStore, NodeExists, SetData, StoreUnavailable

logger = logging.getLogger(__name__)

PRODUCER_IDS_PER_BLOCK = 1000
MAX_PRODUCER_ID = 2**63 - 1
RETRY_INTERVAL_S = 1.0


async def create_top_level_paths(store: MetadataStore) -> None:
    """Create the missing top-level znodes in one transaction. If another broker creates some of
    them at the same time, create the others one by one."""
    required = dict.fromkeys(ancestor for path in paths.PERSISTENT_PATHS for ancestor in _with_parents(path))
    missing = [path for path in required if await store.exists(path) is None]
    try:
        if missing:
            await store.multi([Create(path) for path in missing])
    except NodeExists:
        for path in paths.PERSISTENT_PATHS:
            await store.ensure(path)


def _with_parents(path: str) -> list[str]:
    names = path[1:].split("/")
    return ["/" + "/".join(names[:depth]) for depth in range(1, len(names) + 1)]


async def create_or_get_cluster_id(store: MetadataStore, proposed: str | None = None) -> str:
    """Return the cluster id in the tree. In a new tree, first store `proposed` (the id in the log
    directories) or a random id."""
    await store.ensure(paths.CLUSTER_ID.rpartition("/")[0])
    with contextlib.suppress(NodeExists):
        await store.create(paths.CLUSTER_ID, paths.encode_cluster_id(proposed or paths.random_cluster_id()))
    return paths.decode_cluster_id((await store.get(paths.CLUSTER_ID))[0])


async def next_broker_id(store: MetadataStore, reserved: int) -> int:
    """Return an unused broker id above `reserved`, the setting `reserved.broker.max.id`. As in
    Kafka, the version of the znode is the counter."""
    await store.ensure(paths.BROKER_SEQUENCE)
    return reserved + (await store.set(paths.BROKER_SEQUENCE, b"")).version


async def register_broker(store: MetadataStore, registration: BrokerRegistration) -> int:
    """Register a broker and return its epoch. Raises `NodeExists` if a broker with this id is
    registered.

    As in Kafka, one operation creates the znode and a second operation sets its data. So the
    version of the znode is 1.
    """
    path = paths.broker(registration.id)
    await store.multi([Create(path, None, ephemeral=True), SetData(path, registration.encode())])
    stat = await store.exists(path)
    assert stat is not None
    return stat.czxid


async def announce_log_dir_failure(store: MetadataStore, broker_id: int) -> None:
    """Notify the controller that a log directory of this broker failed. Retries until the
    notification is written; a duplicate has no effect."""
    path = f"{paths.LOG_DIR_EVENTS}/{paths.LOG_DIR_EVENT_PREFIX}"
    while True:
        try:
            await store.create(path, paths.encode_log_dir_event(broker_id), sequential=True)
            return
        except StoreUnavailable as error:
            logger.error("Cannot announce the failed log directory, retrying: %s", error)
            await asyncio.sleep(RETRY_INTERVAL_S)


async def allocate_producer_ids(store: MetadataStore, broker_id: int) -> ProducerIdBlock:
    """Allocate the next block of producer ids to this broker. Raises OverflowError if no ids are
    left."""
    while True:
        data, stat = await store.get(paths.PRODUCER_ID_BLOCK)
        latest = ProducerIdBlock.decode(data)
        first = latest.last + 1 if latest is not None else 0
        if first > MAX_PRODUCER_ID - PRODUCER_IDS_PER_BLOCK:
            raise OverflowError("all producer ids of this cluster are used up")
        block = ProducerIdBlock(broker_id, first, first + PRODUCER_IDS_PER_BLOCK - 1)
        with contextlib.suppress(BadVersion):
            await store.set(paths.PRODUCER_ID_BLOCK, block.encode(), stat.version)
            return block


class ProducerIds:
    """Generates producer ids that are unique in the cluster.

    Owns the current block of ids, allocated from the tree. Unused ids of a block are lost when the
    broker stops.
    """

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._next = 0
        self._last = -1
        self._allocating = asyncio.Lock()

    async def next(self) -> int:
        """Return a new producer id. Raises StoreUnavailable."""
        while True:
            if self._next <= self._last:
                producer_id = self._next
                self._next += 1
                return producer_id
            async with self._allocating:
                if self._next > self._last:
                    await self._allocate_block()

    async def _allocate_block(self) -> None:
        block = await allocate_producer_ids(self._store, self._broker_id)
        self._next, self._last = block.first, block.last
