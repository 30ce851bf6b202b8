from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kavka.metadata import paths
from kavka.metadata.cluster import ProducerIds, create_or_get_cluster_id, register_broker
from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.paths import BrokerRegistration, EndPoint, ProducerIdBlock
from kavka.metadata.store import NodeExists
from tests.unit.metadata.support import with_initialized_store


def test_new_tree_has_the_top_level_paths_of_kafka(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> list[str]:
        return sorted(await store.subtree("/"))

    assert with_initialized_store(tmp_path, body) == [
        "/",
        "/admin",
        "/admin/delete_topics",
        "/brokers",
        "/brokers/ids",
        "/brokers/seqid",
        "/brokers/topics",
        "/config",
        "/config/brokers",
        "/config/changes",
        "/config/clients",
        "/config/ips",
        "/config/topics",
        "/config/users",
        "/consumers",
        "/isr_change_notification",
        "/latest_producer_id_block",
        "/log_dir_event_notification",
    ]


def test_first_cluster_id_is_kept(tmp_path: Path) -> None:
    async def propose(store: EmbeddedStore) -> str:
        return await create_or_get_cluster_id(store, "C_AtECe4SGyv8WgkJB6nmA")

    async def propose_another(store: EmbeddedStore) -> str:
        return await create_or_get_cluster_id(store, "other")

    assert with_initialized_store(tmp_path, propose) == "C_AtECe4SGyv8WgkJB6nmA"
    assert with_initialized_store(tmp_path, propose_another) == "C_AtECe4SGyv8WgkJB6nmA"


def test_broker_epoch_increases_with_each_registration(tmp_path: Path) -> None:
    registration = BrokerRegistration(0, (EndPoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),), 1)

    async def register(store: EmbeddedStore) -> int:
        epoch = await register_broker(store, registration)
        data, stat = await store.get(paths.broker(0))
        assert BrokerRegistration.decode(0, data) == registration
        assert (stat.version, stat.ephemeral_owner) == (1, store.session_id)
        with pytest.raises(NodeExists):
            await register_broker(store, registration)
        return epoch

    assert with_initialized_store(tmp_path, register) < with_initialized_store(tmp_path, register)


def test_producer_ids_are_allocated_in_blocks_and_unique(tmp_path: Path) -> None:
    async def allocate(store: EmbeddedStore) -> list[int]:
        ids_of_broker_0, ids_of_broker_1 = ProducerIds(store, 0), ProducerIds(store, 1)
        first_ids = await asyncio.gather(*(ids_of_broker_0.next() for _ in range(3)))
        second_ids = await asyncio.gather(*(ids_of_broker_1.next() for _ in range(2)))
        return [*first_ids, *second_ids]

    assert with_initialized_store(tmp_path, allocate) == [0, 1, 2, 1000, 1001]

    async def after_restart(store: EmbeddedStore) -> int:
        producer_id = await ProducerIds(store, 0).next()
        assert ProducerIdBlock.decode((await store.get(paths.PRODUCER_ID_BLOCK))[0]) == ProducerIdBlock(0, 2000, 2999)
        return producer_id

    assert with_initialized_store(tmp_path, after_restart) == 2000


def test_exhausted_block_is_followed_by_the_next_block(tmp_path: Path) -> None:
    async def allocate(store: EmbeddedStore) -> list[int]:
        ids = ProducerIds(store, 0)
        return [await ids.next() for _ in range(1001)]

    assert with_initialized_store(tmp_path, allocate) == list(range(1001))
