from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kavka.metadata import paths
from kavka.metadata.cluster import ProducerIds, agree_on_cluster_id, register_broker
from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.paths import BrokerRegistration, EndPoint, ProducerIdBlock
from kavka.metadata.store import NodeExists
from tests.unit.metadata.support import with_laid_out_store


def test_a_new_tree_has_the_nodes_that_kafka_makes(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> list[str]:
        return sorted(await store.subtree("/"))

    assert with_laid_out_store(tmp_path, body) == [
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


def test_the_cluster_keeps_the_id_that_it_was_first_given(tmp_path: Path) -> None:
    async def with_a_proposal(store: EmbeddedStore) -> str:
        return await agree_on_cluster_id(store, "C_AtECe4SGyv8WgkJB6nmA")

    async def with_another(store: EmbeddedStore) -> str:
        return await agree_on_cluster_id(store, "other")

    assert with_laid_out_store(tmp_path, with_a_proposal) == "C_AtECe4SGyv8WgkJB6nmA"
    assert with_laid_out_store(tmp_path, with_another) == "C_AtECe4SGyv8WgkJB6nmA"


def test_a_broker_signs_in_once_and_with_a_greater_epoch_each_time(tmp_path: Path) -> None:
    registration = BrokerRegistration(0, (EndPoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),), 1)

    async def sign_in(store: EmbeddedStore) -> int:
        epoch = await register_broker(store, registration)
        data, stat = await store.get(paths.broker(0))
        assert BrokerRegistration.decode(0, data) == registration
        assert (stat.version, stat.ephemeral_owner) == (1, store.session_id)
        with pytest.raises(NodeExists):
            await register_broker(store, registration)
        return epoch

    assert with_laid_out_store(tmp_path, sign_in) < with_laid_out_store(tmp_path, sign_in)


def test_producer_ids_are_taken_in_blocks_and_never_given_twice(tmp_path: Path) -> None:
    async def take(store: EmbeddedStore) -> list[int]:
        mine, others = ProducerIds(store, 0), ProducerIds(store, 1)
        first = await asyncio.gather(*(mine.next() for _ in range(3)))
        second = await asyncio.gather(*(others.next() for _ in range(2)))
        return [*first, *second]

    assert with_laid_out_store(tmp_path, take) == [0, 1, 2, 1000, 1001]

    async def after_restart(store: EmbeddedStore) -> int:
        given = await ProducerIds(store, 0).next()
        assert ProducerIdBlock.decode((await store.get(paths.PRODUCER_ID_BLOCK))[0]) == ProducerIdBlock(0, 2000, 2999)
        return given

    assert with_laid_out_store(tmp_path, after_restart) == 2000


def test_a_block_that_is_used_up_is_followed_by_the_next(tmp_path: Path) -> None:
    async def take(store: EmbeddedStore) -> list[int]:
        ids = ProducerIds(store, 0)
        return [await ids.next() for _ in range(1001)]

    assert with_laid_out_store(tmp_path, take) == list(range(1001))
