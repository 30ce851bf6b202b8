"""Kavka and Apache Kafka 3.9.1 in one cluster share one set of ACLs in ZooKeeper. Each follows the
changes of the other within a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kavka.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from tests.support.acls import ANONYMOUS, AUTHORIZER, acl, create_acls, delete_acls, describe_acls
from tests.support.apache import LAST_WITH_ZOOKEEPER, ApacheKafka
from tests.support.kavka_process import KavkaProcess
from tests.support.messages import Messages
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(180)]

TOPIC, GROUP, TXN = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
# The brokers are on a PLAINTEXT listener, like the clients.
# Generous, because the machine may be busy.
MAX_DELAY_S = 5.0
SETTINGS = AUTHORIZER | {"super.users": f"User:other;{ANONYMOUS}"}


@pytest.fixture(scope="module")
def brokers(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Messages, Messages]]:
    """Connections to Kavka and to Apache Kafka."""
    folder = tmp_path_factory.mktemp("mixed-acls")
    zookeeper = ZooKeeper(folder / "zookeeper")
    apache = ApacheKafka(
        folder / "apache", version=LAST_WITH_ZOOKEEPER, overrides=SETTINGS, zookeeper=zookeeper, broker_id=1
    )
    kavka = KavkaProcess(folder / "kavka", overrides=SETTINGS | {"zookeeper.connect": zookeeper.connect}, broker_id=2)
    with Messages(("127.0.0.1", kavka.port)) as ours, Messages(("127.0.0.1", apache.port)) as theirs:
        yield ours, theirs
    kavka.close()
    apache.close()
    zookeeper.stop()


def _until(condition: Callable[[], bool], limit: float = MAX_DELAY_S) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit
        time.sleep(0.01)
    return time.monotonic() - start


BINDINGS = [
    acl(Operation.READ, TOPIC, "t", principal="User:a"),
    acl(Operation.ALL, TOPIC, "*", principal="User:*", permission=Permission.DENY),
    acl(Operation.DESCRIBE_CONFIGS, GROUP, "g-", PatternType.PREFIXED, principal="User:b", host="10.0.0.1"),
    acl(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, principal="User:c"),
    acl(Operation.WRITE, TXN, "tx é", PatternType.PREFIXED, principal="User:CN=d,O=e"),
    acl(Operation.CREATE_TOKENS, ResourceType.USER, "User:x", principal="User:a"),
    acl(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "token", principal="User:a"),
]


@pytest.mark.parametrize("creator", [0, 1], ids=["Kavka creates", "Apache creates"])
def test_each_broker_follows_the_other(brokers: tuple[Messages, Messages], creator: int) -> None:
    creating, following = brokers[creator], brokers[1 - creator]
    expected = sorted(BINDINGS)
    create_acls(creating, BINDINGS)
    assert describe_acls(creating) == expected
    _until(lambda: describe_acls(following) == expected)
    delete_acls(following, principal_filter="User:a")
    remaining = [binding for binding in expected if binding.acl.principal != "User:a"]
    _until(lambda: describe_acls(creating) == remaining)
    delete_acls(following)
    _until(lambda: describe_acls(creating) == [])


def test_concurrent_changes_of_both_brokers_are_all_kept(brokers: tuple[Messages, Messages]) -> None:
    bindings: list[list[AclBinding]] = [
        [acl(Operation.READ, TOPIC, "shared", principal=f"User:{side}-{n}") for n in range(25)] for side in range(2)
    ]

    def create(side: int) -> None:
        for binding in bindings[side]:
            create_acls(brokers[side], [binding])

    threads = [threading.Thread(target=create, args=(side,)) for side in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sorted(bindings[0] + bindings[1])
    for broker in brokers:
        _until(lambda broker=broker: describe_acls(broker) == expected)  # type: ignore[misc]
    delete_acls(brokers[0])
    for broker in brokers:
        _until(lambda broker=broker: describe_acls(broker) == [])  # type: ignore[misc]
