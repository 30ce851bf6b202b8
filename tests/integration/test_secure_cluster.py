"""A cluster of Kavka and Apache Kafka 3.9.1 with SASL_SSL between the brokers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kavka import Admin, NewTopic, Producer
from kavka.metadata import paths
from kavka.security.credentials import format_credential, new_credential
from kavka.security.jaas import SCRAM_MODULE
from kavka.security.local_security import LocalSecurity
from tests.support.cluster import Broker, Cluster, MixedCluster
from tests.support.processes import free_port, wait_until
from tests.support.reading import read_values
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.records]

MECHANISM = "SCRAM-SHA-512"
PASSWORD = "broker-secret"
PARTITIONS = 6


class SecureCluster(MixedCluster):
    """Clients use the listener PLAINTEXT, brokers the listener INTERNAL."""

    def _make(self, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> Broker:
        broker = super()._make(number, folder, settings, log_dirs)
        listeners = f"PLAINTEXT://127.0.0.1:{broker.port},INTERNAL://localhost:{free_port()}"
        with broker.config.open("a") as file:
            file.write(f"\nlisteners={listeners}\nadvertised.listeners={listeners}\n")
        return broker


def create_user(zookeeper: ZooKeeper, user: str, password: str) -> None:
    """Create a SCRAM user as `kafka-configs --zookeeper` does, before any broker has started."""
    client = KazooClient(zookeeper.connect)
    client.start(timeout=30)
    try:
        values = {MECHANISM: format_credential(new_credential(MECHANISM, password))}
        client.create(f"{paths.CONFIG}/users/{user}", paths.encode_config(values), makepath=True)
    finally:
        client.stop()
        client.close()


@pytest.fixture(scope="module")
def cluster(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("secure")
    security = LocalSecurity(folder / "security", "SASL_SSL")
    prefix = "listener.name.internal"
    overrides: dict[str, object] = {
        **{f"{prefix}.{name}": value for name, value in security.broker_settings().items() if name.startswith("ssl.")},
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SASL_SSL",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"{prefix}.scram-sha-512.sasl.jaas.config": (
            f'{SCRAM_MODULE} required username="broker" password="{PASSWORD}";'
        ),
        "replica.lag.time.max.ms": 5000,
    }
    zookeeper = ZooKeeper(folder / "zookeeper")
    with contextlib.ExitStack() as stack:
        stack.callback(zookeeper.kill)
        create_user(zookeeper, "broker", PASSWORD)
        yield stack.enter_context(SecureCluster(folder, zookeeper, overrides=overrides))


def test_brokers_replicate_and_elect(cluster: Cluster) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("secure", num_partitions=PARTITIONS, replication_factor=3)])

        def has_all_replicas() -> bool:
            [topic] = admin.describe_topics(["secure"]).values()
            return all(len(partition.isr) == 3 for partition in topic.partitions)

        wait_until(has_all_replicas, timeout=60, what="all replicas in sync")
        values = [b"%d" % number for number in range(300)]
        with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
            for value in values:
                producer.send("secure", value)
            producer.flush(timeout=60)
        cluster.kill(0)

        def has_leaders() -> bool:
            [topic] = admin.describe_topics(["secure"]).values()
            return all(partition.leader is not None and partition.leader.id != 0 for partition in topic.partitions)

        wait_until(has_leaders, timeout=60, what="leaders on the other brokers")
    servers = cluster.brokers[1].bootstrap_servers
    received = [value for partition in range(PARTITIONS) for value in read_values(servers, "secure", partition)]
    assert sorted(filter(None, received)) == sorted(values)
    cluster.start(0)
