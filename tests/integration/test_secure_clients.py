"""Clients on secured listeners. Each case is a client with a protocol, a mechanism, and whether the
client has a certificate. `make test` runs a sample in which every client and every case occurs;
`make test-matrix` runs all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kavka.testing import Broker
from tests.support.foreign_clients import FOREIGN_CLIENTS
from tests.support.secure_clients import CLIENTS as PYTHON_CLIENTS

CLIENTS = {**PYTHON_CLIENTS, **FOREIGN_CLIENTS}
USER = "alice"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# The protocol, the mechanism, and ssl.client.auth.
CASES = {
    "SSL": ("SSL", None, "none"),
    "mTLS": ("SSL", None, "required"),
    **{mechanism: ("SASL_SSL", mechanism, "none") for mechanism in MECHANISMS},
}
SAMPLE = {
    ("confluent", "SSL"), ("confluent", "SCRAM-SHA-512"), ("confluent", "OAUTHBEARER"),
    ("kafka_python", "mTLS"), ("kafka_python", "SCRAM-SHA-256"),
    ("aiokafka", "PLAIN"), ("aiokafka", "SCRAM-SHA-256"), ("java", "SCRAM-SHA-512"), ("java", "mTLS"),
    ("franz_go", "SCRAM-SHA-512"), ("kafkajs", "PLAIN"),
}  # fmt: skip


@pytest.fixture(scope="module")
def brokers() -> Iterator[dict[tuple[str, str], Broker]]:
    """A broker per protocol and ssl.client.auth, started at its first use."""
    started: dict[tuple[str, str], Broker] = {}
    yield started
    for broker in started.values():
        broker.close()


def broker_for(brokers: dict[tuple[str, str], Broker], protocol: str, client_auth: str) -> Broker:
    key = protocol, client_auth
    if key not in brokers:
        options = {
            "protocol": protocol,
            "client_auth": client_auth,
            "mechanisms": MECHANISMS,
            "users": {USER: 'se,c"re=t'},
        }
        brokers[key] = Broker(security=options).start()
    return brokers[key]


def marks(client: str, case: str) -> list[pytest.MarkDecorator]:
    return [
        *([] if (client, case) in SAMPLE else [pytest.mark.matrix]),
        *([pytest.mark.java] if client == "java" else []),
    ]


def cases() -> list[object]:
    return [
        pytest.param(client, case, id=f"{client}-{case}", marks=marks(client, case))
        for client in CLIENTS
        for case in CASES
    ]


@pytest.mark.parametrize(("client", "case"), cases())
def test_client(request: pytest.FixtureRequest, brokers: dict[tuple[str, str], Broker], client: str, case: str) -> None:
    if client == "java":
        request.getfixturevalue("java_parts")
    protocol, mechanism, client_auth = CASES[case]
    broker = broker_for(brokers, protocol, client_auth)
    topic = f"{client}-{case}"
    CLIENTS[client](broker.security, broker.bootstrap_servers, USER, mechanism, topic)
