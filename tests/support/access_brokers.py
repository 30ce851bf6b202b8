"""Kavka and Apache Kafka with an authorizer, for tests that send both the same requests.

Requests come from 127.0.0.1 as `User:ANONYMOUS`. Administrative requests of the tests use a SASL
listener of Apache Kafka as the super user `User:admin`, as its brokers do. They are sent to Kavka
from 127.0.0.2, which may perform all operations.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kavka.metadata.acls import StoredAcls
from kavka.metadata.zookeeper import ZooKeeperStore
from kavka.protocol.messages.api_versions import ApiVersionsRequest
from kavka.security.acls import WILDCARD, AclBinding, Operation, ResourceType
from tests.support.acls import AUTHORIZER, acl, create_acls, delete_acls, describe_acls
from tests.support.apache import LAST_WITH_ZOOKEEPER, NEWEST, ApacheKafka
from tests.support.kavka_process import KavkaProcess
from tests.support.messages import Messages
from tests.support.processes import free_port
from tests.support.zookeeper import ZooKeeper

CLIENT_HOST, ADMIN_HOST = "127.0.0.1", "127.0.0.2"
_JAAS_CONFIG = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="secret" user_admin="secret";'
)


class SecuredBroker:
    """A broker, a client that has only the granted rights, and an administrator."""

    def __init__(self, broker: Any, admin: Messages) -> None:
        self.broker = broker
        self.admin = admin
        self.client = Messages(("127.0.0.1", broker.port))
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        self.versions = {
            api.api_key: (api.min_version, api.max_version) for api in self.client.call(request, 3).api_keys
        }

    def grant(self, bindings: Iterable[AclBinding], count: int | None = None) -> None:
        """Add ACLs, and wait until the broker applies `count` ACLs of the client, by default all of
        them."""
        granted = list(bindings)
        create_acls(self.admin, granted)
        self._wait_for(len(granted) if count is None else count)

    def revoke_all(self) -> None:
        """Remove all ACLs of the client."""
        delete_acls(self.admin, host_filter=CLIENT_HOST)
        self._wait_for(0)

    def _wait_for(self, count: int) -> None:
        """Wait until the broker applies this number of ACLs of the client. A KRaft broker applies
        changes after the response."""
        deadline = time.monotonic() + 20
        while sum(binding.acl.host == CLIENT_HOST for binding in describe_acls(self.admin)) != count:
            assert time.monotonic() < deadline, "the broker did not apply the ACLs in time"
            time.sleep(0.005)

    def send(self, request: Any, version: int) -> Any:
        """Return the response, or "closed" if the broker closed the connection."""
        try:
            return self.client.call(request, version)
        except ConnectionError:
            self.client.close()
            self.client = Messages(("127.0.0.1", self.broker.port))
            return "closed"


def _internal_topic_settings() -> dict[str, object]:
    return {
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }


@contextmanager
def secured_kavka(
    folder: Path, zookeeper: ZooKeeper, *, chroot: str = "kavka", **overrides: object
) -> Iterator[SecuredBroker]:
    """A Kavka broker in a cluster, so that it serves inter-broker requests."""
    connect = f"{zookeeper.connect}/{chroot}"

    async def allow_admin() -> None:
        store = await ZooKeeperStore.open(connect, session_timeout_ms=30_000, connection_timeout_ms=30_000)
        acls = StoredAcls(store)
        await acls.start()
        types = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        bindings = [acl(Operation.ALL, resource_type, WILDCARD, host=ADMIN_HOST) for resource_type in types]
        await acls.create([*bindings, acl(Operation.ALL, ResourceType.CLUSTER, host=ADMIN_HOST)])
        await acls.stop()
        await store.close()

    asyncio.run(allow_admin())
    settings = AUTHORIZER | _internal_topic_settings() | {"zookeeper.connect": connect} | overrides
    broker = KavkaProcess(folder, overrides=settings, broker_id=1)
    try:
        yield SecuredBroker(broker, Messages(("127.0.0.1", broker.port), source=ADMIN_HOST))
        assert broker.process.running(), broker.process.log_tail()
    finally:
        broker.close()


def sasl_settings(zookeeper: ZooKeeper | None) -> dict[str, object]:
    """Settings with a PLAINTEXT listener for clients, and a SASL listener for brokers."""
    settings: dict[str, object] = {
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.internal.plain.sasl.jaas.config": _JAAS_CONFIG,
        "listener.name.controller.plain.sasl.jaas.config": _JAAS_CONFIG,
        "super.users": "User:admin",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    if zookeeper is not None:
        settings |= AUTHORIZER | {"zookeeper.connect": f"{zookeeper.connect}/apache"}
        del settings["sasl.mechanism.controller.protocol"]
    return settings


class _SaslKafka(ApacheKafka):
    """An Apache broker with the listeners of `sasl_settings`."""

    def _settings(self) -> dict[str, object]:
        settings = super()._settings()
        self.internal_port = free_port()
        internal = f"INTERNAL://127.0.0.1:{self.internal_port}"
        settings["listeners"] = f"{settings['listeners']},{internal}"
        if "advertised.listeners" in settings:
            settings["advertised.listeners"] = f"{settings['advertised.listeners']},{internal}"
        return settings


@contextmanager
def secured_apache(folder: Path, zookeeper: ZooKeeper | None, **overrides: object) -> Iterator[SecuredBroker]:
    """Apache Kafka 3.9 with ZooKeeper, 4.3 without."""
    version = NEWEST if zookeeper is None else LAST_WITH_ZOOKEEPER
    settings = sasl_settings(zookeeper) | _internal_topic_settings() | overrides
    broker = _SaslKafka(folder, version=version, overrides=settings, zookeeper=zookeeper, broker_id=1)
    try:
        admin = Messages(("127.0.0.1", broker.internal_port))
        admin.log_in("admin", "secret")
        yield SecuredBroker(broker, admin)
    finally:
        broker.close()
