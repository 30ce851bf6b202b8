"""A broker that logs in to ZooKeeper with DIGEST-MD5, and the ACLs of its znodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from kavka import Admin, NewTopic
from kavka.metadata.store import StoreUnavailable
from kavka.metadata.zookeeper import Credentials, ZooKeeperStore
from tests.support.apache import LAST_WITH_ZOOKEEPER, ApacheKafka
from tests.support.kavka_process import KavkaProcess
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule required"
LOGIN = f'{MODULE} username="kafka" password="secret";'
CREATOR, READERS, EVERYONE = ("sasl", "kafka", 31), ("world", "anyone", 1), ("world", "anyone", 31)


@pytest.fixture(scope="module")
def zookeeper(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    folder = tmp_path_factory.mktemp("zookeeper-sasl")
    jaas = folder / "jaas.conf"
    jaas.write_text(f'Server {{\n {MODULE} user_kafka="secret";\n}};\nClient {{\n {LOGIN}\n}};\n')
    with pytest.MonkeyPatch.context() as patch:
        # For this server, and for the Apache broker.
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={jaas}")
        provider = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
        zookeeper = ZooKeeper(folder / "server", overrides=provider)
        yield zookeeper
        zookeeper.kill()


def settings(zookeeper: ZooKeeper, chroot: str) -> dict[str, Any]:
    return {
        "zookeeper.connect": f"{zookeeper.connect}/{chroot}",
        "zookeeper.set.acl": "true",
        "offsets.topic.replication.factor": 1,
        "delegation.token.secret.key": "shared",
    }


@pytest.fixture(scope="module")
def broker(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KavkaProcess]:
    overrides = settings(zookeeper, "kavka") | {"zookeeper.sasl.jaas.config": LOGIN}
    broker = KavkaProcess(tmp_path_factory.mktemp("broker"), overrides=overrides, broker_id=1)
    prepare(broker)
    yield broker
    broker.close()


def prepare(broker: Any) -> None:
    """Create znodes of topics, settings and users."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("secured", 1, 1, configs={"retention.ms": "1000"})])
        admin.alter_user_scram_credentials({"alice": {"SCRAM-SHA-512": "password"}})


@pytest.fixture
def outsider(zookeeper: ZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper.connect)
    client.start(timeout=30)
    yield client
    client.stop()
    client.close()


def entries(client: KazooClient, path: str) -> set[tuple[str, str, int]]:
    return {(acl.id.scheme, acl.id.id, acl.perms) for acl in client.get_acls(path)[0]}


def tree(client: KazooClient, root: str) -> dict[str, set[tuple[str, str, int]]]:
    """Return the ACLs of all znodes below the root that a client may list, by relative path."""
    acls: dict[str, set[tuple[str, str, int]]] = {}
    paths = [root]
    while paths:
        path = paths.pop()
        try:
            acls[path.removeprefix(root)] = entries(client, path)
            paths += [f"{path}/{name}" for name in client.get_children(path)]
        except (NoAuthError, NoNodeError):
            continue
    return acls


def test_other_clients_may_read_but_not_write(broker: KavkaProcess, outsider: KazooClient) -> None:
    topic = "/kavka/brokers/topics/secured"
    assert b"partitions" in outsider.get(topic)[0]
    assert entries(outsider, topic) == {CREATOR, READERS}
    assert entries(outsider, "/kavka/consumers") == {EVERYONE}
    for operation in (
        lambda: outsider.set(topic, b"{}"),
        lambda: outsider.delete(topic),
        lambda: outsider.create(f"{topic}/child"),
        lambda: outsider.set_acls(topic, outsider.get_acls("/kavka/consumers")[0]),
        lambda: outsider.create("/kavka/admin/delete_topics/secured"),
    ):
        with pytest.raises(NoAuthError):
            operation()


def test_other_clients_may_not_read_credentials(broker: KavkaProcess, outsider: KazooClient) -> None:
    for operation in (
        lambda: outsider.get("/kavka/config/users/alice"),
        lambda: outsider.get_children("/kavka/config/users"),
        lambda: outsider.get_children("/kavka/config/brokers"),
        lambda: outsider.get_children("/kavka/delegation_token/tokens"),
    ):
        with pytest.raises(NoAuthError):
            operation()


def test_the_acls_are_those_of_apache_kafka(broker: KavkaProcess, zookeeper: ZooKeeper, tmp_path: Path) -> None:
    insider = KazooClient(
        zookeeper.connect, sasl_options={"mechanism": "DIGEST-MD5", "username": "kafka", "password": "secret"}
    )
    apache = ApacheKafka(
        tmp_path / "apache",
        version=LAST_WITH_ZOOKEEPER,
        overrides=settings(zookeeper, "apache"),
        zookeeper=zookeeper,
        broker_id=1,
    )
    try:
        prepare(apache)
        insider.start(timeout=30)
        ours, theirs = tree(insider, "/kavka"), tree(insider, "/apache")
        common = ours.keys() & theirs.keys()
        assert {"/config/users/alice", "/consumers", "/brokers/topics/secured", "/brokers/ids/1"} <= common
        assert {path: ours[path] for path in common} == {path: theirs[path] for path in common}
    finally:
        insider.stop()
        insider.close()
        apache.close()


def test_a_lost_connection_logs_in_again(broker: KavkaProcess, zookeeper: ZooKeeper) -> None:
    zookeeper.restart()
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("after-restart", 1, 1)], timeout=60)


async def open_store(zookeeper: ZooKeeper, credentials: Credentials) -> None:
    store = await ZooKeeperStore.open(
        zookeeper.connect, session_timeout_ms=3_000, connection_timeout_ms=60_000, credentials=credentials
    )
    await store.close()


@pytest.mark.parametrize("credentials", [Credentials("kafka", "wrong"), Credentials("nobody", "secret")])
def test_wrong_credentials(zookeeper: ZooKeeper, credentials: Credentials) -> None:
    with pytest.raises(StoreUnavailable, match="did not accept the credentials"):
        asyncio.run(open_store(zookeeper, credentials))


def test_a_server_without_sasl(java_parts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    zookeeper = ZooKeeper(tmp_path)
    try:
        with pytest.raises(StoreUnavailable, match="has no SASL"):
            asyncio.run(open_store(zookeeper, Credentials("kafka", "secret")))
    finally:
        zookeeper.kill()
