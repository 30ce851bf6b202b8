"""ACLs of authenticated users: the principal of a connection is the user of its SASL exchange."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kavka.testing import Broker
from tests.support.acls import AUTHORIZER

pytestmark = pytest.mark.timeout(90)

ALICES = (ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:alice", "*")


def _client(broker: Broker, user: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": "secret",
        }
    )


def _wait(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(20)


def test_rights_belong_to_the_authenticated_user() -> None:
    security = {"protocol": "SASL_PLAINTEXT", "users": {"admin": "secret", "alice": "secret"}}
    with Broker(AUTHORIZER | {"super.users": "User:admin"}, security=security) as broker:
        admin, alice = _client(broker, "admin"), _client(broker, "alice")
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            _wait(alice.create_topics([NewTopic("t", 1)]))
        _wait(admin.create_acls([AclBinding(*ALICES, AclOperation.CREATE, AclPermissionType.ALLOW)]))
        _wait(alice.create_topics([NewTopic("t", 1)]))
        assert "t" in admin.list_topics(timeout=20).topics
        assert "t" not in alice.list_topics(timeout=20).topics
        _wait(admin.create_acls([AclBinding(*ALICES, AclOperation.DESCRIBE, AclPermissionType.ALLOW)]))
        assert "t" in alice.list_topics(timeout=20).topics
        _wait(admin.delete_acls([AclBindingFilter(*ALICES, AclOperation.ANY, AclPermissionType.ANY)]))
        assert "t" not in alice.list_topics(timeout=20).topics
