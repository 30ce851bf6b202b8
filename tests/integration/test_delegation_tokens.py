"""Delegation tokens with Apache's tool and Java client, and after a restart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka.testing import Broker
from tests.support.java_client import JavaClient, JavaError, run_tool
from tests.support.secure_clients import write_properties

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TOOL = "org.apache.kafka.tools.DelegationTokenCommand"
VERSION = "3.9.1"


@pytest.fixture(scope="module")
def broker(java_parts: None) -> Iterator[Broker]:
    options = {"protocol": "SASL_SSL", "users": {"alice": "a", "bob": "b"}}
    with Broker({"delegation.token.secret.key": "shared"}, security=options) as broker:
        yield broker


def tool(broker: Broker, folder: Path, user: str, *arguments: str, check: bool = True) -> str:
    config = write_properties(folder / f"{user}.properties", broker.security.client_settings(user))
    common = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(config))
    result = run_tool(VERSION, TOOL, *common, *arguments, check=check)
    return result.stdout + result.stderr


def token_settings(broker: Broker, token_id: str, code: str) -> dict[str, str]:
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token_id}" password="{code}" tokenauth="true";'
    )
    return {**broker.security.client_settings("alice"), "sasl.jaas.config": jaas}


def test_a_token_from_its_creation_to_its_end(broker: Broker, tmp_path: Path) -> None:
    created = tool(
        broker, tmp_path, "alice", "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"
    )
    match = re.search(r"^(\S+)\s+(\S+)\s+User:alice\s+User:alice\s+\[User:bob\]", created, re.MULTILINE)
    assert match is not None, created
    token_id, code = match[1], match[2]
    assert token_id in tool(broker, tmp_path, "bob", "--describe", "--owner-principal", "User:alice")
    config = token_settings(broker, token_id, code)
    record = {"partition": 0, "value": "with a token"}
    with JavaClient("4.3.0", broker.bootstrap_servers) as client:
        client.call("produce", topic="tokens", records=[record], config=config)
    broker.restart()
    with JavaClient("4.3.0", broker.bootstrap_servers) as client:
        client.call("produce", topic="tokens", records=[record], config=config)
        renewed = tool(broker, tmp_path, "bob", "--renew", "--hmac", code, "--renew-time-period", "100000")
        assert "Completed renew operation" in renewed
        tool(broker, tmp_path, "alice", "--expire", "--hmac", code, "--expiry-time-period", "-1")
        with pytest.raises(JavaError, match="SaslAuthentication"):
            client.call("produce", topic="tokens", records=[record], config=config)
    assert token_id not in tool(broker, tmp_path, "alice", "--describe", "--owner-principal", "User:alice")
