"""Authorization of requests, and the authorizer log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kavka.api import authorization, registry
from kavka.api.authorization import cluster, group
from kavka.api.context import RequestContext
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.metrics import Registry
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.security.acls import Acl, Operation, Permission, ResourcePattern, ResourceType
from kavka.security.authorizer import AclTable, Authorizer

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, DESCRIBE = Operation.READ, Operation.DESCRIBE


def context(authorizer: Authorizer | None, principal: str = "User:alice") -> RequestContext:
    client = None if authorizer is None else authorizer.client(principal, "10.0.0.1")
    broker: Any = None
    return RequestContext(broker, 0, 1, "c", "PLAINTEXT", "10.0.0.1", principal, authorizer=client, api_name="Fetch")


def authorizer(*names: str) -> Authorizer:
    table = AclTable()
    for name in names:
        table.replace(ResourcePattern(TOPIC, name), frozenset({Acl("User:alice", "*", READ, Permission.ALLOW)}))
    return Authorizer(table, ["User:admin"], metrics=Registry())


def test_without_an_authorizer_everything_is_allowed() -> None:
    ctx = context(None)
    assert authorization.denied(ctx, READ, TOPIC, ["a", "b"]) == frozenset()
    assert authorization.may_write_any_topic(ctx)
    authorization.require(ctx, Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")


def test_denied_names_and_errors_by_resource_type() -> None:
    ctx = context(authorizer("a"))
    assert authorization.denied(ctx, READ, TOPIC, ["a", "b", None, "b"]) == {"b"}
    assert authorization.denied(context(authorizer(), "User:admin"), READ, TOPIC, ["b"]) == frozenset()
    codes = {
        TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
    for resource_type, code in codes.items():
        with pytest.raises(KafkaError) as refused:
            authorization.require(ctx, DESCRIBE, resource_type, "x")
        assert refused.value.code is code


def test_required_operations_are_checked_before_the_handler_runs() -> None:
    api = registry.load()[HeartbeatRequest.API_KEY]
    with pytest.raises(KafkaError) as refused:
        api.handle(context(authorizer()), HeartbeatRequest(group_id="g"))
    assert refused.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    required = group(READ)
    name = required.name(HeartbeatRequest(group_id="g"))
    assert (required.operation, required.resource_type, name) == (READ, GROUP, "g")
    assert cluster(READ).name(None) == "kafka-cluster"


def test_denied_operations_are_logged_at_info_and_allowed_operations_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    topic_authorizer = authorizer("a")
    ctx = context(topic_authorizer)
    with caplog.at_level(logging.INFO, authorization.LOGGER_NAME):
        authorization.may(ctx, READ, TOPIC, "a")
        authorization.may(ctx, READ, TOPIC, "hidden", log_denied=False)
        for _ in range(2):
            authorization.may(ctx, Operation.DESCRIBE_CONFIGS, TOPIC, "b")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "INFO",
            "Principal = User:alice is Denied Operation = DescribeConfigs from host = 10.0.0.1 on resource = "
            "Topic:LITERAL:b for request = Fetch with resourceRefCount = 1",
        )
    ] * 2
    assert [(labels, child.value) for labels, child in topic_authorizer.denials.children()] == [
        (("DescribeConfigs", "Topic"), 2)
    ]
    caplog.clear()
    with caplog.at_level(logging.DEBUG, authorization.LOGGER_NAME):
        authorization.may(ctx, READ, TOPIC, "a")
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "is Allowed Operation = Read" in caplog.text


def test_a_resource_name_cannot_forge_a_line_of_the_log_or_flood_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, authorization.LOGGER_NAME):
        authorization.may(context(authorizer()), READ, GROUP, "a\nPrincipal = User:admin is Allowed" + "x" * 60_000)
    (record,) = caplog.records
    assert "\n" not in record.getMessage() and len(record.getMessage()) < 1000
