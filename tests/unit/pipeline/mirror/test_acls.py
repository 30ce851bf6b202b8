"""The ACLs of a flow's target."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kavka.client.admin.base import AdminError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.mirror.acls import AclSync, target_bindings
from kavka.pipeline.mirror.flow import Flow
from kavka.security.acls import Acl, AclBinding, Operation, PatternType, Permission, ResourcePattern, ResourceType

FLOW = Flow("A", "B", {}, {}, {}, {}, topics=("orders.*", "B.back"))


def binding(
    operation: Operation = Operation.READ,
    name: str = "orders",
    permission: Permission = Permission.ALLOW,
    pattern_type: PatternType = PatternType.LITERAL,
    resource_type: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    pattern = ResourcePattern(resource_type, name, pattern_type)
    return AclBinding(pattern, Acl("User:alice", "10.0.0.1", operation, permission))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (binding(Operation.READ), binding(Operation.READ, "A.orders")),
        (binding(Operation.DESCRIBE_CONFIGS), binding(Operation.DESCRIBE_CONFIGS, "A.orders")),
        (binding(Operation.ALL), binding(Operation.READ, "A.orders")),
        (binding(Operation.WRITE), None),
        (
            binding(Operation.WRITE, permission=Permission.DENY),
            binding(Operation.WRITE, "A.orders", Permission.DENY),
        ),
        (binding(Operation.ALL, permission=Permission.DENY), binding(Operation.ALL, "A.orders", Permission.DENY)),
        (binding(name="payments"), None),
        (binding(name="*"), None),
        (binding(name="B.back"), None),
        (binding(pattern_type=PatternType.PREFIXED), None),
        (binding(resource_type=ResourceType.GROUP), None),
    ],
)
def test_the_acl_of_the_target(source: AclBinding, target: AclBinding | None) -> None:
    assert target_bindings(FLOW, [source]) == ([] if target is None else [target])


def test_acls_that_become_equal_are_created_once() -> None:
    assert target_bindings(FLOW, [binding(Operation.ALL), binding(Operation.READ)]) == [binding(name="A.orders")]


def test_an_acl_of_all_topics_does_not_reach_topics_with_unchanged_names() -> None:
    flow = Flow("A", "B", {}, {}, {}, {}, policy_class="IdentityReplicationPolicy")
    assert target_bindings(flow, [binding(name="*"), binding()]) == [binding()]


class Admin:
    """A cluster with these ACLs, whose calls fail with `error`."""

    def __init__(self, bindings: list[AclBinding] | None = None, error: ErrorCode | None = None) -> None:
        self.bindings = bindings or []
        self.error = error

    def describe_acls(self, acl_filter: Any) -> list[AclBinding]:
        if self.error is not None:
            raise KafkaError(self.error)
        return self.bindings

    def create_acls(self, bindings: list[AclBinding]) -> None:
        if self.error is not None:
            raise AdminError({binding: KafkaError(self.error) for binding in bindings}, {})
        self.bindings += bindings


def messages(caplog: pytest.LogCaptureFixture, source: Admin, target: Admin, times: int = 2) -> list[tuple[str, str]]:
    sync: Any = AclSync(FLOW, source, target)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO):
        for _ in range(times):
            sync.sync()
    return [(record.levelname, record.getMessage()) for record in caplog.records]


SUFFIX = " (sync.topic.acls.enabled = false disables this)"


def test_a_source_without_an_authorizer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    assert messages(caplog, Admin(error=ErrorCode.SECURITY_DISABLED), Admin()) == [
        ("INFO", f"A->B: the ACLs of topics are not synced: A has no authorizer{SUFFIX}")
    ]


def test_a_target_without_an_authorizer_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    target = Admin(error=ErrorCode.SECURITY_DISABLED)
    assert messages(caplog, Admin(), target) == []
    assert messages(caplog, Admin([binding()]), target) == [
        ("WARNING", f"A->B: the ACLs of topics are not synced: B has no authorizer{SUFFIX}")
    ]


def test_a_missing_right_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    denied = Admin(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert messages(caplog, denied, Admin()) == [
        ("WARNING", f"A->B: the ACLs of topics are not synced: A does not permit it (Describe on the cluster){SUFFIX}")
    ]
    caplog.clear()
    assert messages(caplog, Admin([binding()]), denied) == [
        ("WARNING", f"A->B: the ACLs of topics are not synced: B does not permit it (Alter on the cluster){SUFFIX}")
    ]


def test_an_acl_that_the_target_refuses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    logged = messages(caplog, Admin([binding()]), Admin(error=ErrorCode.INVALID_REQUEST), times=1)
    assert [level for level, _ in logged] == ["ERROR"]
    assert logged[0][1].startswith("cannot sync an ACL of A.orders: ")


def test_other_errors_are_raised_so_that_the_sync_is_retried() -> None:
    for source, target in (
        (Admin(error=ErrorCode.NETWORK_EXCEPTION), Admin()),
        (Admin([binding()]), Admin(error=ErrorCode.NETWORK_EXCEPTION)),
    ):
        with pytest.raises(KafkaError):
            AclSync(FLOW, source, target).sync()  # type: ignore[arg-type]
