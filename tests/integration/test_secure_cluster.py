"""A cluster of Kavka and Apache Kafka 3.9.1 with SASL_SSL between the brokers and for clients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kavka import (
    Acl,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Admin,
    AuthenticationFailed,
    NewTopic,
    OffsetSpec,
    PatternFilter,
    Producer,
    ResourcePattern,
    TopicPartition,
)
from kavka.metadata import paths
from kavka.security.credentials import format_credential, new_credential
from kavka.security.jaas import SCRAM_MODULE
from kavka.security.local_security import LocalSecurity
from tests.support.cluster import Broker, Cluster, MixedCluster
from tests.support.processes import free_port, wait_until
from tests.support.reading import read_values
from tests.support.secured_load import DENIED, OurSender
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.records]

MECHANISM = "SCRAM-SHA-512"
PASSWORD = "broker-secret"
USER, USER_PASSWORD = "alice", "first-secret"
PARTITIONS = 6
# A change must take effect on every broker of Kavka within this time.
MAX_DELAY_S = 1.0


class SecureCluster(MixedCluster):
    """Brokers use the listener INTERNAL, users the listener CLIENTS, and the test PLAINTEXT."""

    security: LocalSecurity

    def _make(self, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> Broker:
        broker = super()._make(number, folder, settings, log_dirs)
        self._client_ports = {**getattr(self, "_client_ports", {}), number: free_port()}
        listeners = f"PLAINTEXT://127.0.0.1:{broker.port},INTERNAL://localhost:{free_port()}"
        listeners += f",CLIENTS://localhost:{self._client_ports[number]}"
        with broker.config.open("a") as file:
            file.write(f"\nlisteners={listeners}\nadvertised.listeners={listeners}\n")
        return broker

    def client_settings(self, number: int, password: str = USER_PASSWORD) -> dict[str, str]:
        """The settings of a client that first connects to this broker."""
        return {
            "bootstrap.servers": f"localhost:{self._client_ports[number]}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.security.ca_file),
            "sasl.mechanism": MECHANISM,
            "sasl.username": USER,
            "sasl.password": password,
        }


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
def cluster(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    folder = tmp_path_factory.mktemp("secure")
    security = LocalSecurity(folder / "security", "SASL_SSL")
    prefix = "listener.name.internal"
    overrides: dict[str, object] = {
        **{name: value for name, value in security.broker_settings().items() if name.startswith("ssl.")},
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SASL_SSL,CLIENTS:SASL_SSL",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"{prefix}.scram-sha-512.sasl.jaas.config": (
            f'{SCRAM_MODULE} required username="broker" password="{PASSWORD}";'
        ),
        "listener.name.clients.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS;User:broker",
        "replica.lag.time.max.ms": 5000,
    }
    zookeeper = ZooKeeper(folder / "zookeeper")
    with contextlib.ExitStack() as stack:
        stack.callback(zookeeper.kill)
        create_user(zookeeper, "broker", PASSWORD)
        create_user(zookeeper, USER, USER_PASSWORD)
        cluster = SecureCluster(folder, zookeeper, overrides=overrides)
        cluster.security = security
        yield stack.enter_context(cluster)


def can_connect(cluster: SecureCluster, number: int, password: str) -> bool:
    with Admin(cluster.client_settings(number, password)) as admin:
        try:
            admin.describe_cluster()
        except AuthenticationFailed:
            return False
    return True


def binding(topic: str, operation: AclOperation) -> AclBinding:
    acl = Acl(f"User:{USER}", "*", operation, AclPermission.ALLOW)
    return AclBinding(ResourcePattern(AclResourceType.TOPIC, topic), acl)


def test_a_password_changes_on_every_broker(cluster: SecureCluster) -> None:
    """The change is sent to one broker. The other broker of Kavka applies it within a second."""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        for password, previous in (("second-secret", USER_PASSWORD), (USER_PASSWORD, "second-secret")):
            admin.alter_user_scram_credentials({USER: {MECHANISM: password}})
            time.sleep(MAX_DELAY_S)
            for number in (0, 1):
                assert can_connect(cluster, number, password)
                assert not can_connect(cluster, number, previous)
            wait_until(lambda word=password: can_connect(cluster, 2, word), timeout=30, what="the change on Apache")


def test_a_right_changes_on_every_broker_under_load(cluster: SecureCluster) -> None:
    """The producer of each partition is connected to another leader. After a second no broker
    accepts a record, and none accepts a record before the right is granted again."""
    topics = [f"rights-{number}" for number in cluster.brokers]
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin, contextlib.ExitStack() as stack:
        admin.create_topics([NewTopic(topic, replica_assignments={0: [number]}) for number, topic in enumerate(topics)])
        rights = [binding(topic, AclOperation.WRITE) for topic in topics]
        admin.create_acls([*rights, *(binding(topic, AclOperation.DESCRIBE) for topic in topics)])
        time.sleep(MAX_DELAY_S)
        senders = [stack.enter_context(OurSender(cluster.client_settings(0), topic)) for topic in topics]
        wait_until(lambda: all(len(s.accepted()) > 20 for s in senders), timeout=30, what="accepted records")
        admin.delete_acls([AclFilter(PatternFilter(AclResourceType.TOPIC, topic), operation=AclOperation.WRITE)
                           for topic in topics])  # fmt: skip
        removed_at = time.monotonic()
        time.sleep(2 * MAX_DELAY_S)
        restored_at = time.monotonic()
        admin.create_acls(rights)
        granted_at = time.monotonic()
        time.sleep(2 * MAX_DELAY_S)
        end = time.monotonic()
        for sender in senders:
            sender.stop()
        for sender in senders:
            assert sender.failures == []
            assert sender.codes_between(removed_at + MAX_DELAY_S, restored_at) == {DENIED}, sender.topic
            assert sender.codes_between(granted_at + MAX_DELAY_S, end) == {0}, sender.topic
            partition = TopicPartition(sender.topic, 0)
            log_end = admin.list_offsets({partition: OffsetSpec.latest()})[partition].offset
            assert log_end == len(sender.accepted())


def test_certificates_of_all_brokers_rotate_under_load(cluster: SecureCluster) -> None:
    """Replication and clients continue without one failed request, with open and new connections.
    Apache's broker reads its key store again only after a change of its dynamic settings."""
    topic = "rotated"
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, replica_assignments={0: [0, 1], 1: [1, 0]})])
        admin.create_acls([binding(topic, AclOperation.WRITE)])
        time.sleep(MAX_DELAY_S)
        settings = {**cluster.client_settings(0), "acks": "all", "retries": "0", "enable.idempotence": "false"}
        count = 0
        with Producer(settings) as steady:
            for _ in range(2):
                cluster.security.write_server_certificate(cluster.security.new_server_certificate())
                deadline = time.monotonic() + 2.5
                while time.monotonic() < deadline:
                    with Producer(settings) as fresh:
                        for producer in (steady, fresh):
                            for partition in (0, 1):
                                producer.send(topic, b"%d" % count, partition=partition).result(30)
                        count += 1
        [description] = admin.describe_topics([topic]).values()
        assert all(len(partition.isr) == 2 for partition in description.partitions)
        partitions = [TopicPartition(topic, number) for number in (0, 1)]
        offsets = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))
        assert [offsets[partition].offset for partition in partitions] == [2 * count, 2 * count]
    for number in (0, 1):
        text = cluster.log_file(number).read_text()
        assert text.count("Listener INTERNAL uses the changed certificates") >= 2


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
