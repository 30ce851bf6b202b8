"""UpdateFeatures through the codec, with a controller and a broker that follows the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kavka.broker.membership import Membership
from kavka.common.errors import ErrorCode as E
from kavka.metadata import paths
from kavka.metadata.cluster import register_broker
from kavka.metadata.features import GROUP_VERSION, TRANSACTION_VERSION, Features
from kavka.metadata.paths import BrokerRegistration, EndPoint
from kavka.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.unit.api.support import Client, with_client

UPGRADE, SAFE, UNSAFE = 1, 2, 3


def registration(broker_id: int, features: dict[str, dict[str, int]]) -> BrokerRegistration:
    point = EndPoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092)
    return BrokerRegistration(broker_id, (point,), 1, features=features)


def with_features(folder: Path, body: Callable[[Client, Features], Awaitable[Any]]) -> Any:
    """Broker 0 is the controller and supports all features. Its watches update the features."""

    async def run(client: Client) -> None:
        store, controller = client.broker.store, client.broker.controller
        features = client.broker.features = Features()  # type: ignore[attr-defined]
        features.on_change.append(controller.check_waiters)
        await store.set(paths.broker(0), registration(0, features.registration()).encode())
        membership = Membership(store, 0, lambda: registration(0, {}), features, folder, 0)
        await membership._read_features()
        await until(lambda: controller.context.brokers[0].features != {})
        try:
            await body(client, features)
        finally:
            await membership.close()

    return with_client(folder, run)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def update(client: Client, version: int, kind: int, validate_only: bool = False, **levels: int) -> list[int]:
    """The error code of each feature. In v2 the error code of the request."""
    updates = []
    for name, level in levels.items():
        feature_update = FeatureUpdateKey(feature=name.replace("_", "."), max_version_level=level)
        if version == 0:
            feature_update.allow_downgrade = kind != UPGRADE
        else:
            feature_update.upgrade_type = kind
        updates.append(feature_update)
    request = UpdateFeaturesRequest(feature_updates=updates, timeout_ms=10_000)
    if version >= 1:
        request.validate_only = validate_only
    response = await client.send(request, version)
    if version >= 2:
        return [response.error_code]
    assert response.error_code == 0
    return [result.error_code for result in response.results]


async def in_tree(client: Client) -> dict[str, int]:
    data, _ = await client.broker.store.get(paths.FEATURE)
    assert paths.decode_features(data) == ({}, True), "brokers of Apache Kafka need this content"
    return paths.decode_feature_levels(data)


@pytest.mark.parametrize("version", range(3))
def test_a_level_is_lowered_raised_and_stored_in_the_tree(tmp_path: Path, version: int) -> None:
    async def body(client: Client, features: Features) -> None:
        assert (features.level(TRANSACTION_VERSION), features.level(GROUP_VERSION)) == (2, 1)
        epoch = features.epoch
        assert await update(client, version, SAFE, transaction_version=1) == [E.NONE]
        assert features.finalized == {TRANSACTION_VERSION: 1, GROUP_VERSION: 1}, (
            "the response waits until the level is active"
        )
        assert features.epoch > epoch
        assert await update(client, version, SAFE, group_version=0) == [E.NONE]
        assert features.finalized == {TRANSACTION_VERSION: 1}
        assert await in_tree(client) == {TRANSACTION_VERSION: 1, GROUP_VERSION: 0}
        assert await update(client, version, UPGRADE, group_version=1) == [E.NONE]
        assert await update(client, version, UPGRADE, transaction_version=2) == [E.NONE]
        assert features.finalized == {TRANSACTION_VERSION: 2, GROUP_VERSION: 1}

    with_features(tmp_path, body)


def test_invalid_updates_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def body(client: Client, features: Features) -> None:
        previous = dict(features.finalized)
        refused = [E.INVALID_REQUEST]
        assert await update(client, 1, UPGRADE, transaction_version=1) == refused
        assert await update(client, 1, UPGRADE, transaction_version=3) == refused
        assert await update(client, 1, UNSAFE, transaction_version=-1) == refused
        assert await update(client, 1, 0, transaction_version=1) == refused
        assert await update(client, 1, UPGRADE, metadata_version=1) == refused
        assert await update(client, 1, UPGRADE, **{"": 1}) == refused
        assert (await client.send(UpdateFeaturesRequest(), 1)).error_code == E.INVALID_REQUEST
        assert await update(client, 1, SAFE, validate_only=True, transaction_version=1) == [E.NONE]
        assert (features.finalized, await in_tree(client)) == (previous, {})
        assert await update(client, 1, SAFE, transaction_version=0) == [E.NONE]
        assert await update(client, 1, UNSAFE, transaction_version=2) == refused, "no downgrade"

    with_features(tmp_path, body)


def test_before_v2_valid_updates_succeed_beside_invalid_updates(tmp_path: Path) -> None:
    async def body(client: Client, features: Features) -> None:
        assert await update(client, 2, SAFE, transaction_version=1, no_feature=1) == [E.INVALID_REQUEST]
        assert await in_tree(client) == {}
        assert await update(client, 1, SAFE, transaction_version=1, no_feature=1) == [E.NONE, E.INVALID_REQUEST]
        assert await in_tree(client) == {TRANSACTION_VERSION: 1}

    with_features(tmp_path, body)


def test_a_level_that_a_broker_does_not_support_is_refused(tmp_path: Path) -> None:
    async def body(client: Client, features: Features) -> None:
        old = {TRANSACTION_VERSION: {"min_version": 0, "max_version": 1}}
        await register_broker(client.broker.store, registration(1, old))
        await until(lambda: 1 in client.broker.controller.context.brokers)
        assert await update(client, 1, UPGRADE, transaction_version=2) == [E.INVALID_REQUEST]
        assert await update(client, 1, UPGRADE, transaction_version=1) == [E.NONE]
        await client.broker.store.delete(paths.broker(1))
        await until(lambda: GROUP_VERSION in features.finalized)
        assert features.level(TRANSACTION_VERSION) == 1, "the level in the node is kept"

    with_features(tmp_path, body)


def test_a_malformed_node_sets_no_level_and_is_replaced(tmp_path: Path) -> None:
    async def body(client: Client, features: Features) -> None:
        epoch = features.epoch
        await client.broker.store.set(paths.FEATURE, b"nonsense")
        assert await update(client, 1, SAFE, transaction_version=1) == [E.NONE]
        assert features.epoch > epoch
        assert (features.level(TRANSACTION_VERSION), await in_tree(client)) == (1, {TRANSACTION_VERSION: 1})

    with_features(tmp_path, body)
