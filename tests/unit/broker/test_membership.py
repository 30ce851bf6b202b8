"""Signing in to the cluster: over what an earlier life of the broker left, and beside another of the same id."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kavka.broker.membership import SESSION_FILE, AlreadySignedIn, Membership
from kavka.metadata import paths
from kavka.metadata.cluster import lay_out, register_broker
from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.features import TRANSACTION_VERSION, Features
from kavka.metadata.paths import BrokerRegistration, EndPoint


def registration(broker_id: int, features: Features | None = None) -> BrokerRegistration:
    point = EndPoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092)
    return BrokerRegistration(broker_id, (point,), 1, None, features={} if features is None else features.registered())


def with_store(folder: Path, body: Any) -> None:
    async def main() -> None:
        store = EmbeddedStore.open(folder / "metadata.db")
        try:
            await lay_out(store)
            await asyncio.wait_for(body(store), 20)
        finally:
            await store.close()

    asyncio.run(main())


def member(store: EmbeddedStore, folder: Path, wait_s: float = 0.0) -> Membership:
    features = Features()
    return Membership(store, 1, lambda: registration(1, features), features, folder, wait_s)


def test_it_is_signed_in_with_the_epoch_of_its_node_and_notes_its_session(tmp_path):
    async def body(store: EmbeddedStore) -> None:
        one = member(store, tmp_path)
        await one.sign_in()
        stat = await store.exists(paths.broker(1))
        assert stat is not None
        assert one.epoch == stat.czxid
        assert (tmp_path / SESSION_FILE).read_text().strip() == str(store.session_id)
        await one.close()

    with_store(tmp_path, body)


def test_another_broker_of_the_same_id_is_not_thrown_out(tmp_path):
    async def body(store: EmbeddedStore) -> None:
        await register_broker(store, registration(1))
        one = member(store, tmp_path, 0.2)
        with pytest.raises(AlreadySignedIn, match=r"broker\.id of its own"):
            await one.sign_in()
        await one.close()

    with_store(tmp_path, body)


def test_the_remains_of_the_process_that_had_these_directories_are_removed_and_the_controllers_with_them(tmp_path):
    async def body(store: EmbeddedStore) -> None:
        await register_broker(store, registration(1))
        await store.create(paths.CONTROLLER, b"{}", ephemeral=True)
        old = await store.exists(paths.broker(1))
        assert old is not None
        (tmp_path / SESSION_FILE).write_text(f"{old.ephemeral_owner}\n")
        one = member(OtherSession(store), tmp_path)  # type: ignore[arg-type]
        await one.sign_in()
        assert one.epoch > old.czxid
        assert await store.exists(paths.CONTROLLER) is None
        await one.close()

    with_store(tmp_path, body)


class OtherSession:
    """The same tree, seen by a process that came later."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.session_id = store.session_id + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_it_waits_for_the_node_of_an_earlier_session_to_go(tmp_path):
    async def body(store: EmbeddedStore) -> None:
        await register_broker(store, registration(1))
        one = member(store, tmp_path, 10.0)
        signing_in = asyncio.ensure_future(one.sign_in())
        await asyncio.sleep(0.05)
        assert not signing_in.done()
        await store.delete(paths.broker(1))
        await signing_in
        assert one.epoch > 0
        await one.close()

    with_store(tmp_path, body)


def test_a_feature_that_a_broker_does_not_know_is_off_while_it_is_there(tmp_path):
    async def body(store: EmbeddedStore) -> None:
        features = Features()
        one = Membership(store, 1, lambda: registration(1, features), features, tmp_path, 0)
        await one.sign_in()
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
        await one.close()

    with_store(tmp_path, body)
