"""What every broker does with the tree before anything else: lay it out, agree on the cluster's id, sign in."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from kavka.metadata import paths
from kavka.metadata.paths import BrokerRegistration, ProducerIdBlock
from kavka.metadata.store import BadVersion, Create, MetadataStore, NodeExists, SetData, StoreUnavailable

log = logging.getLogger(__name__)

PRODUCER_IDS_PER_BLOCK = 1000
MAX_PRODUCER_ID = 2**63 - 1
RETRY_S = 1.0


async def lay_out(store: MetadataStore) -> None:
    """Make the nodes that are always there: in one step when nobody else does it at the same time."""
    wanted = dict.fromkeys(above for path in paths.ALWAYS_THERE for above in _with_parents(path))
    missing = [path for path in wanted if await store.exists(path) is None]
    try:
        if missing:
            await store.multi([Create(path) for path in missing])
    except NodeExists:
        for path in paths.ALWAYS_THERE:
            await store.ensure(path)


def _with_parents(path: str) -> list[str]:
    names = path[1:].split("/")
    return ["/" + "/".join(names[:depth]) for depth in range(1, len(names) + 1)]


async def agree_on_cluster_id(store: MetadataStore, proposed: str | None = None) -> str:
    """The id in the tree; in a new tree, `proposed` (what the log directories say) or a random one is put there."""
    await store.ensure(paths.CLUSTER_ID.rpartition("/")[0])
    with contextlib.suppress(NodeExists):
        await store.create(paths.CLUSTER_ID, paths.encode_cluster_id(proposed or paths.random_cluster_id()))
    return paths.decode_cluster_id((await store.get(paths.CLUSTER_ID))[0])


async def next_broker_id(store: MetadataStore, reserved: int) -> int:
    """An id that nobody has had: above those that people may give (`reserved.broker.max.id`). The number of writes to
    the node is the counter, as in Kafka."""
    await store.ensure(paths.BROKER_SEQUENCE)
    return reserved + (await store.set(paths.BROKER_SEQUENCE, b"")).version


async def register_broker(store: MetadataStore, registration: BrokerRegistration) -> int:
    """Sign in; returns the broker's epoch. `NodeExists` when a broker with this id is signed in already.

    The node is made and filled by two operations, as Kafka does, which is why its version is 1.
    """
    path = paths.broker(registration.id)
    await store.multi([Create(path, None, ephemeral=True), SetData(path, registration.encode())])
    stat = await store.exists(path)
    assert stat is not None
    return stat.czxid


async def update_broker(store: MetadataStore, registration: BrokerRegistration) -> None:
    """Its listeners changed (a free port was asked for, and is known now)."""
    await store.set(paths.broker(registration.id), registration.encode())


async def announce_log_dir_failure(store: MetadataStore, broker_id: int) -> None:
    """Tell the controller that a log directory of this broker is lost; it asks which partitions were in it. Tried until
    it is told: said twice is as good as once."""
    path = f"{paths.LOG_DIR_EVENTS}/{paths.LOG_DIR_EVENT_PREFIX}"
    while True:
        try:
            await store.create(path, paths.encode_log_dir_event(broker_id), sequential=True)
            return
        except StoreUnavailable as error:
            log.error("The failed log directory is announced again: %s", error)
            await asyncio.sleep(RETRY_S)


async def take_producer_ids(store: MetadataStore, broker_id: int) -> ProducerIdBlock:
    """The next block of producer ids, which is this broker's from now on."""
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
    """Gives out producer ids, each once in the life of the cluster.

    A block of a thousand is taken from the tree at a time; what is left of it when the broker stops is lost.
    """

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._next = 0
        self._last = -1
        self._taking = asyncio.Lock()

    async def next(self) -> int:
        while True:
            if self._next <= self._last:
                given = self._next
                self._next += 1
                return given
            async with self._taking:
                if self._next > self._last:
                    await self._take_block()

    async def _take_block(self) -> None:
        block = await take_producer_ids(self._store, self._broker_id)
        self._next, self._last = block.first, block.last
