"""Mirroring copies the ACLs of topics between clusters with an authorizer. The jobs of a flow run
without its query, so no Spark is needed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kavka import AclBinding, Admin, NewTopic
from kavka.pipeline.mirror.housekeeping import Housekeeping
from kavka.pipeline.mirror.settings import flows_of
from kavka.security.acls import Operation, PatternType, Permission, ResourceType
from tests.support.acls import AUTHORIZER, acl
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import wait_until

pytestmark = pytest.mark.timeout(180)

TIMEOUT_S = 60.0
ADMIN = {"super.users": "User:ANONYMOUS"}


def topic_acl(
    operation: Operation, name: str, permission: Permission = Permission.ALLOW, host: str = "*"
) -> AclBinding:
    return acl(operation, ResourceType.TOPIC, name, principal="User:alice", permission=permission, host=host)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, KavkaProcess]]:
    """Two clusters with an authorizer, and an open one."""
    folder = tmp_path_factory.mktemp("mirror-acls")
    overrides = {"A": AUTHORIZER | ADMIN, "B": AUTHORIZER | ADMIN, "open": {}}
    clusters = {name: KavkaProcess(folder / name, overrides=settings) for name, settings in overrides.items()}
    yield clusters
    for cluster in clusters.values():
        cluster.close()


def housekeeping(clusters: dict[str, KavkaProcess], source: str, target: str, **settings: str) -> Housekeeping:
    """Start the jobs of a flow."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    (flow,) = flows_of(
        {
            "clusters": f"{source}, {target}",
            f"{source}.bootstrap.servers": clusters[source].bootstrap_servers,
            f"{target}.bootstrap.servers": clusters[target].bootstrap_servers,
            f"{source}->{target}.enabled": "true",
            "emit.heartbeats.enabled": "false",
            "sync.topic.acls.interval.seconds": "1",
            **names,
        }
    )
    housekeeping = Housekeeping(flow)
    housekeeping.start()
    return housekeeping


def remote_acls(admin: Admin) -> set[AclBinding]:
    return {binding for binding in admin.describe_acls() if binding.pattern.name.startswith("A.")}


def test_acls_are_copied_to_the_names_of_the_target(clusters: dict[str, KavkaProcess]) -> None:
    with (
        Admin(bootstrap_servers=clusters["A"].bootstrap_servers) as source,
        Admin(bootstrap_servers=clusters["B"].bootstrap_servers) as target,
    ):
        source.create_topics([NewTopic("orders", 1, 1)])
        source.create_acls(
            [
                topic_acl(Operation.READ, "orders", host="10.0.0.1"),
                topic_acl(Operation.WRITE, "orders"),
                topic_acl(Operation.WRITE, "orders", Permission.DENY),
                topic_acl(Operation.ALL, "shared"),
                topic_acl(Operation.READ, "*"),
                topic_acl(Operation.READ, "excluded"),
                acl(Operation.READ, ResourceType.TOPIC, "ord", PatternType.PREFIXED),
                acl(Operation.READ, ResourceType.GROUP, "orders"),
            ]
        )
        expected = {
            topic_acl(Operation.READ, "A.orders", host="10.0.0.1"),
            topic_acl(Operation.WRITE, "A.orders", Permission.DENY),
            topic_acl(Operation.READ, "A.shared"),
        }
        jobs = housekeeping(clusters, "A", "B", topics_exclude="excluded")
        try:
            wait_until(lambda: remote_acls(target) == expected, timeout=TIMEOUT_S, what="the ACLs of the target")
            added = topic_acl(Operation.DESCRIBE, "orders")
            source.create_acls(added)
            expected.add(topic_acl(Operation.DESCRIBE, "A.orders"))
            wait_until(lambda: remote_acls(target) == expected, timeout=TIMEOUT_S, what="the new ACL")
            assert {binding.pattern.name for binding in target.describe_acls()} == {"A.orders", "A.shared"}
            assert jobs.error is None
        finally:
            jobs.stop()
            jobs.join(30)


@pytest.mark.parametrize(("source", "target", "level"), [("open", "B", logging.INFO), ("A", "open", logging.WARNING)])
def test_a_cluster_without_an_authorizer(
    clusters: dict[str, KavkaProcess], caplog: pytest.LogCaptureFixture, source: str, target: str, level: int
) -> None:
    with Admin(bootstrap_servers=clusters["A"].bootstrap_servers) as admin:
        admin.create_acls(topic_acl(Operation.READ, "any"))
    logger = "kavka.pipeline.mirror.acls"
    with caplog.at_level(logging.INFO, logger=logger):
        jobs = housekeeping(clusters, source, target)
        try:
            wait_until(
                lambda: any(record.name == logger for record in caplog.records), timeout=TIMEOUT_S, what="a log line"
            )
            assert jobs.ready.wait(TIMEOUT_S)
            assert jobs.error is None
        finally:
            jobs.stop()
            jobs.join(30)
    (record,) = [record for record in caplog.records if record.name == logger]
    assert record.levelno == level
    assert "open has no authorizer" in record.getMessage()
