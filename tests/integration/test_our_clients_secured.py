"""Kavka's clients with secured listeners of Kavka and of Apache Kafka. `make test` runs a sample in
which every case occurs; `make test-matrix` runs all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kavka.aio
from kavka import Admin, AuthenticationFailed, Consumer, KafkaTimeout, NewTopic, Producer
from tests.support import targets
from tests.support.secured_target import CASES, SecuredTarget

pytestmark = pytest.mark.timeout(240)

TIMEOUT_S = 60.0
# Every case with Kavka, and three cases with Apache Kafka that differ in what the server checks.
SAMPLE = {
    *((targets.KAVKA, case, "blocking" if index % 2 else "asyncio") for index, case in enumerate(CASES)),
    (targets.APACHE, "mTLS", "blocking"),
    (targets.APACHE, "SCRAM-SHA-512", "asyncio"),
    (targets.APACHE, "OAUTHBEARER", "blocking"),
}  # fmt: skip

Targets = Callable[[str], SecuredTarget]


@pytest.fixture(scope="module")
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    """Starts each broker at its first use."""
    started: dict[str, SecuredTarget | None] = {}

    def target(name: str) -> SecuredTarget:
        if name not in started:
            if name != targets.KAVKA:
                request.getfixturevalue("java_parts")
            started[name] = None
            started[name] = SecuredTarget(
                name, tmp_path_factory.mktemp(f"secured-{name}"), {"connections.max.reauth.ms": 3000}
            )
        broker = started[name]
        assert broker is not None, f"{name} did not start"
        return broker

    yield target
    for broker in started.values():
        if broker is not None:
            broker.close()


def blocking(settings: dict[str, str], topic: str) -> None:
    with Admin(settings) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)], timeout=TIMEOUT_S)
    with Producer(settings) as producer:
        producer.send(topic, b"secured").result(TIMEOUT_S)
    with Consumer(settings, group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        assert [record.value for record in poll(consumer)] == [b"secured"]


def poll(consumer: Consumer[bytes | None, bytes | None]) -> list[object]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if records := list(consumer.poll(1.0)):
            return list(records)
    raise AssertionError("no record")


def with_asyncio(settings: dict[str, str], topic: str) -> None:
    async def run() -> None:
        async with kavka.aio.Admin(settings) as admin:
            await admin.create_topics([NewTopic(topic, 1, 1)], timeout=TIMEOUT_S)
        async with kavka.aio.Producer(settings) as producer:
            await (await producer.send(topic, b"secured"))
        async with kavka.aio.Consumer(settings, group_id=topic, auto_offset_reset="earliest") as consumer:
            await consumer.subscribe([topic])
            async for record in consumer:
                assert record.value == b"secured"
                break

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


CLIENTS = {"blocking": blocking, "asyncio": with_asyncio}


def cells() -> list[object]:
    return [
        pytest.param(
            name,
            case,
            client,
            id=f"{name}-{case}-{client}",
            marks=[
                *([] if (name, case, client) in SAMPLE else [pytest.mark.matrix]),
                *([] if name == targets.KAVKA else [pytest.mark.java]),
            ],
        )
        for name in targets.NAMES
        for case in CASES
        for client in CLIENTS
    ]


@pytest.mark.parametrize(("name", "case", "client"), cells())
def test_clients(secured: Targets, name: str, case: str, client: str) -> None:
    CLIENTS[client](secured(name).settings(case), f"{case}-{client}")


@pytest.mark.parametrize(
    "name",
    [targets.KAVKA, *(pytest.param(name, marks=[pytest.mark.java, pytest.mark.matrix]) for name in targets.NAMES[1:])],
)
def test_a_session_is_renewed_under_load(secured: Targets, name: str) -> None:
    settings = secured(name).settings("SCRAM-SHA-256")
    with Producer(settings, linger_ms=0) as producer:
        futures = []
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            futures.append(producer.send("renewed", b"%d" % len(futures), partition=0))
            time.sleep(0.002)
        metadata = [future.result(TIMEOUT_S) for future in futures]
        assert [record.offset for record in metadata] == list(range(len(futures)))
        connections = producer._core.cluster.connections()
        assert max(connection.authentications for connection in connections) >= 3
        assert producer._core.cluster.connections_opened <= 3


@pytest.mark.parametrize(
    "name",
    [targets.KAVKA, *(pytest.param(name, marks=[pytest.mark.java, pytest.mark.matrix]) for name in targets.NAMES[1:])],
)
def test_errors_in_one_line(secured: Targets, name: str, tmp_path: Path) -> None:
    target = secured(name)
    plain = {"bootstrap.servers": target.broker.bootstrap_servers}
    ssl, scram, mutual = (target.settings(case) for case in ("SSL", "SCRAM-SHA-256", "mTLS"))
    wrong_password = {
        **target.settings("PLAIN"),
        "sasl.jaas.config": "",
        "sasl.username": "alice",
        "sasl.password": "no",
    }
    without_trust = {name: value for name, value in ssl.items() if "truststore" not in name}
    without_key = {name: value for name, value in mutual.items() if "keystore" not in name}
    cases = [
        (wrong_password, AuthenticationFailed, "rejected the authentication"),
        ({**wrong_password, "sasl.mechanism": "SCRAM-SHA-512"}, AuthenticationFailed, "rejected the authentication"),
        (without_trust, AuthenticationFailed, "its certificate is not trusted"),
        ({**ssl, "bootstrap.servers": plain["bootstrap.servers"]}, KafkaTimeout, "is it a port without TLS"),
        ({**plain, "bootstrap.servers": ssl["bootstrap.servers"]}, KafkaTimeout, "a TLS port"),
        ({**scram, **plain, "security.protocol": "SASL_PLAINTEXT"}, AuthenticationFailed, "does not use SASL"),
        ({**ssl, "bootstrap.servers": scram["bootstrap.servers"]}, KafkaTimeout, "does it require SASL"),
        (without_key, (AuthenticationFailed, KafkaTimeout), "client certificate"),
    ]
    for settings, error_class, text in cases:
        with Admin(settings, default_api_timeout_ms=3000) as admin, pytest.raises(error_class) as caught:
            admin.list_topics()
        assert text in str(caught.value) and "\n" not in str(caught.value), settings
