"""Quotas in a cluster of Apache Kafka 3.9.1 and Kavka: both read the znodes of the other, and
kafka-configs of both prints the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kavka import Admin, QuotaEntity
from kavka.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from tests.support import wire
from tests.support.apache import LAST_WITH_ZOOKEEPER, ApacheKafka
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import wait_until
from tests.support.tools import ApacheTools, run_kavka
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.usefixtures("java_parts")]

QUOTA_TYPES = ("clients", "users", "ips")

# Both tools run these command lines on both brokers, in this order.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--alter", "--entity-type", "clients", "--entity-name", "c 1/*",
     "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=50.5"),
    ("--alter", "--entity-type", "clients", "--entity-default", "--add-config", "controller_mutation_rate=10000000"),
    ("--alter", "--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-name", "c",
     "--add-config", "producer_byte_rate=1024"),
    ("--alter", "--entity-type", "clients", "--entity-name", "z", "--entity-type", "users", "--entity-default",
     "--add-config", "producer_byte_rate=1026"),
    ("--alter", "--user", "bob", "--client", "c", "--add-config", "producer_byte_rate=7"),
    ("--alter", "--user-defaults", "--client-defaults", "--add-config", "consumer_byte_rate=7"),
    ("--alter", "--user", "carol", "--add-config", "consumer_byte_rate=0"),
    ("--alter", "--user", "carol", "--add-config", "producer_byte_rate=abc"),
    ("--alter", "--client", "carol", "--add-config", "foo=1"),
    ("--alter", "--client", "carol", "--delete-config", "producer_byte_rate"),
    ("--alter", "--ip", "10.0.0.1", "--add-config", "connection_creation_rate=5"),
    ("--alter", "--ip-defaults", "--add-config", "connection_creation_rate=50"),
    ("--alter", "--ip", "10.0.0.1", "--add-config", "producer_byte_rate=5"),
    ("--describe", "--entity-type", "clients"),
    ("--describe", "--entity-type", "users", "--entity-type", "clients"),
    ("--describe", "--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients"),
    ("--describe", "--entity-type", "users", "--entity-default"),
    ("--describe", "--user-defaults", "--client-defaults"),
    ("--describe", "--client", "c 1/*"),
    ("--describe", "--client", "nobody"),
    ("--describe", "--entity-type", "ips"),
    ("--describe", "--ip-defaults"),
    ("--describe", "--entity-type", "users", "--entity-type", "ips"),
    ("--alter", "--entity-type", "users", "--entity-name", "a", "--entity-name", "b",
     "--add-config", "producer_byte_rate=1"),
)  # fmt: skip
CLEANUP: tuple[tuple[str, ...], ...] = (
    ("--alter", "--client", "c 1/*", "--delete-config", "producer_byte_rate,consumer_byte_rate,request_percentage"),
    ("--alter", "--client-defaults", "--delete-config", "controller_mutation_rate"),
    ("--alter", "--user", "alice", "--client", "c", "--delete-config", "producer_byte_rate"),
    ("--alter", "--client", "z", "--user-defaults", "--delete-config", "producer_byte_rate"),
    ("--alter", "--user", "bob", "--client", "c", "--delete-config", "producer_byte_rate"),
    ("--alter", "--user-defaults", "--client-defaults", "--delete-config", "consumer_byte_rate"),
    ("--alter", "--user", "carol", "--delete-config", "consumer_byte_rate"),
    ("--alter", "--ip", "10.0.0.1", "--delete-config", "connection_creation_rate"),
    ("--alter", "--ip-defaults", "--delete-config", "connection_creation_rate"),
)  # fmt: skip


CHROOT = "/alone"


class Mixed:
    """One cluster of an Apache broker and a Kavka broker, and a Kavka broker in its own cluster."""

    def __init__(
        self,
        apache: ApacheKafka,
        kavka: KavkaProcess,
        alone: KavkaProcess,
        zookeeper: KazooClient,
        tools: ApacheTools,
    ) -> None:
        self.apache, self.kavka, self.alone = apache, kavka, alone
        self.zookeeper = zookeeper
        self.tools = tools

    def run_apache(self, servers: str, command: tuple[str, ...]) -> tuple[int, list[str]]:
        return comparable(*self.tools.run("configs", "--bootstrap-server", servers, *command))

    def run_ours(self, servers: str, command: tuple[str, ...]) -> tuple[int, list[str]]:
        return comparable(*run_kavka("configs", "--bootstrap-server", servers, *command))

    def znodes(self, chroot: str) -> dict[str, bytes]:
        nodes: dict[str, bytes] = {}

        def walk(path: str) -> None:
            with contextlib.suppress(NoNodeError):
                nodes[path.removeprefix(chroot)] = self.zookeeper.get(path)[0] or b""
                for name in self.zookeeper.get_children(path):
                    walk(f"{path}/{name}")

        for entity_type in QUOTA_TYPES:
            walk(f"{chroot}/config/{entity_type}")
        return nodes

    def last_notification(self) -> bytes:
        name = max(self.zookeeper.get_children("/config/changes"))
        return bytes(self.zookeeper.get(f"/config/changes/{name}")[0])


def comparable(code: int, out: str, err: str) -> tuple[int, list[str]]:
    """Return the exit code, and the lines in alphabetical order: Apache prints entities in the
    order of a hash table. Of an error, only the last line."""
    for text in ("Error while executing config command : ", "kavka configs: ", " (--help shows the options)"):
        err = err.replace(text, "")
    return code, sorted(out.splitlines()) or err.splitlines()[-1:]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("quotas")
    with contextlib.ExitStack() as closing:
        zookeeper = ZooKeeper(folder / "zookeeper")
        closing.callback(zookeeper.stop)
        apache = ApacheKafka(folder / "apache", version=LAST_WITH_ZOOKEEPER, zookeeper=zookeeper, broker_id=0)
        closing.callback(apache.stop)
        client = KazooClient(zookeeper.connect)
        client.start()
        closing.callback(client.close)
        closing.callback(client.stop)
        client.create(CHROOT)
        overrides = {"zookeeper.connect": zookeeper.connect, "quota.window.num": 2}
        kavka = KavkaProcess(folder / "kavka", broker_id=1, overrides=overrides)
        closing.callback(kavka.stop)
        alone = KavkaProcess(folder / "alone", overrides={"zookeeper.connect": zookeeper.connect + CHROOT})
        closing.callback(alone.stop)
        tools = closing.enter_context(ApacheTools(LAST_WITH_ZOOKEEPER))
        yield Mixed(apache, kavka, alone, client, tools)


def alter(broker: ApacheKafka | KavkaProcess, entity: dict[str, str | None], **bounds: float | None) -> None:
    """Send AlterClientQuotas to this broker. An admin client may choose another one."""
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequestEntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
                ops=[OpData(key=key, value=bound or 0.0, remove=bound is None) for key, bound in bounds.items()],
            )
        ]
    )
    body: list[bytes] = []
    request.encode(body, 0)
    with wire.Wire(broker.address) as connection:
        response = connection.call(49, 0, b"".join(body))
        assert response.int32() == 0  # throttle time
        assert response.int32() == 1  # entries
        assert response.int16() == 0  # error


def test_kavka_describes_what_apache_wrote(mixed: Mixed) -> None:
    """The broker reads the znodes at its start, also with a name that is encoded."""
    alter(mixed.apache, {"user": "a user/*", "client-id": None}, consumer_byte_rate=10.0)
    with Admin(bootstrap_servers=mixed.kavka.bootstrap_servers) as admin:
        assert admin.describe_client_quotas() == {QuotaEntity("a user/*", ""): {"consumer_byte_rate": 10.0}}
    alter(mixed.kavka, {"user": "a user/*", "client-id": None}, consumer_byte_rate=None)
    assert mixed.zookeeper.get_children("/config/users") == []


def test_both_tools_print_and_write_the_same_on_both_brokers(mixed: Mixed) -> None:
    results: dict[str, list[Any]] = {}
    for name, run, broker in (
        ("Apache's tool on Apache's broker", mixed.run_apache, mixed.apache),
        ("Apache's tool on Kavka's broker", mixed.run_apache, mixed.alone),
        ("Kavka's tool on Apache's broker", mixed.run_ours, mixed.apache),
        ("Kavka's tool on Kavka's broker", mixed.run_ours, mixed.alone),
    ):
        servers = broker.bootstrap_servers
        chroot = CHROOT if broker is mixed.alone else ""
        results[name] = [(command, run(servers, command)) for command in COMMANDS]
        results[name].append({path: sorted(data) for path, data in mixed.znodes(chroot).items()})
        results[name] += [(command, run(servers, command)) for command in CLEANUP]
        results[name].append(mixed.znodes(chroot))
    expected, *others = results.items()
    for name, result in others:
        for expected_result, actual_result in zip(expected[1], result, strict=True):
            assert actual_result == expected_result, name


def test_each_broker_follows_the_changes_of_the_other(mixed: Mixed) -> None:
    alter(mixed.kavka, {"user": "alice", "client-id": None}, request_percentage=12.5)
    assert mixed.last_notification() == b'{"version":2,"entity_path":"users/alice/clients/<default>"}'
    describe = ("--describe", "--user", "alice", "--client-defaults")
    line = "Quota configs for user-principal 'alice', the default client-id are request_percentage=12.5"
    assert mixed.run_apache(mixed.apache.bootstrap_servers, describe) == (0, [line])
    log = (mixed.apache.folder / "kafka.out").read_text()
    assert "users/alice/clients/<default>" in log, "Apache processed the notification"

    # A quota that Apache writes throttles clients of Kavka, also on an open connection.
    with wire.Wire(mixed.kavka.address) as connection:
        connection.call(3, 3, wire.array([]), client_id="bounded")
        alter(mixed.apache, {"client-id": "bounded"}, request_percentage=0.0001)
        wait_until(
            lambda: connection.call(3, 3, wire.array([]), client_id="bounded").int32() > 0,
            timeout=1,
            what="a throttled request",
        )


def test_credentials_in_the_node_of_a_user_stay(mixed: Mixed) -> None:
    credential = b"salt=MXl2,stored_key=Kg==,server_key=Kg==,iterations=4096"
    data = b'{"version":1,"config":{"SCRAM-SHA-256":"' + credential + b'"}}'
    mixed.zookeeper.create("/config/users/dave", data)
    alter(mixed.kavka, {"user": "dave"}, consumer_byte_rate=5.0)
    stored = mixed.zookeeper.get("/config/users/dave")[0]
    assert credential in stored
    assert b'"consumer_byte_rate":"5"' in stored
    alter(mixed.kavka, {"user": "dave"}, **{"consumer_byte_rate": None, "SCRAM-SHA-256": None})
    assert mixed.zookeeper.get("/config/users/dave")[0] == data
