"""Registration in the cluster, with znodes of an earlier process and of another broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kavka.broker.membership import SESSION_FILE, AlreadyRegistered, Membership
from kavka.metadata import paths
from kavka.metadata.cluster import create_top_level_paths, register_broker
from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.features import TRANSACTION_VERSION, Features
from kavka.metadata.paths import BrokerRegistration, EndPoint


def registration(broker_id: int, features: Features | None = None) -> BrokerRegistration:
    point = EndPoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092)
    return BrokerRegistration(
        broker_id, (point,), 1, None, features={} if features is None else features.registration()
    )


def with_store(folder: Path, body: Any) -> None:
    async def main() -> None:
        store = EmbeddedStore.open(folder / "metadata.db")
        try:
            await create_top_level_paths(store)
            await asyncio.wait_for(body(store), 20)
        finally:
            await store.close()

    asyncio.run(main())


def member(store: EmbeddedStore, folder: Path, wait_s: float = 0.0) -> Membership:
    features = Features()
    return Membership(store, 1, lambda: registration(1, features), features, folder, wait_s)


def test_registration_has_epoch_of_znode_and_records_session(tmp_path):
    async def body(store: EmbeddedStore) -> None:
        membership = member(store, tmp_path)
        await membership.register()
        stat = await store.exists(paths.broker(1))
        assert stat is not None
        assert membership.epoch == stat.czxid
        assert (tmp_path / SESSION_FILE).read_text().strip() == str(store.session_id)
        await membership.close()

    with_store(tmp_path, body)


def test_registration_of_another_broker_with_same_id_is_kept(tmp_path):
    async def body(store: EmbeddedStore) -> None:
        await register_broker(store, registration(1))
        membership = member(store, tmp_path, 0.2)
        with pytest.raises(AlreadyRegistered, match=r"unique broker\.id"):
            await membership.register()
        await membership.close()

    with_store(tmp_path, body)


def test_znodes_of_last_process_on_same_directories_are_removed(tmp_path):
    async def body(store: EmbeddedStore) -> None:
        await register_broker(store, registration(1))
        await store.create(paths.CONTROLLER, b"{}", ephemeral=True)
        previous = await store.exists(paths.broker(1))
        assert previous is not None
        (tmp_path / SESSION_FILE).write_text(f"{previous.ephemeral_owner}\n")
        membership = member(OtherSession(store), tmp_path)  # type: ignore[arg-type]
        await membership.register()
        assert membership.epoch > previous.czxid
        assert await store.exists(paths.CONTROLLER) is None
        await membership.close()

    with_store(tmp_path, body)


class OtherSession:
    """The same tree in another session."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.session_id = store.session_id + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_registration_waits_for_znode_of_earlier_session(tmp_path):
    async def body(store: EmbeddedStore) -> None:
        await register_broker(store, registration(1))
        membership = member(store, tmp_path, 10.0)
        registering = asyncio.ensure_future(membership.register())
        await asyncio.sleep(0.05)
        assert not registering.done()
        await store.delete(paths.broker(1))
        await registering
        assert membership.epoch > 0
        await membership.close()

    with_store(tmp_path, body)


def test_feature_is_off_while_a_broker_does_not_support_it(tmp_path):
    async def body(store: EmbeddedStore) -> None:
        features = Features()
        membership = Membership(store, 1, lambda: registration(1, features), features, tmp_path, 0)
        await membership.register()
        assert features.level(TRANSACTION_VERSION) == 2
        first = features.epoch
        await register_broker(store, registration(2))
        while features.level(TRANSACTION_VERSION):
            await asyncio.sleep(0.01)
        second = features.epoch
        assert second > first
        await store.delete(paths.broker(2))
        while not features.level(TRANSACTION_VERSION):
            await asyncio.sleep(0.01)
        assert features.epoch > second
        await membership.close()

    with_store(tmp_path, body)
