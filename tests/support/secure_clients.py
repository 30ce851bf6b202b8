"""Third-party clients with the settings of a secured broker: each produces one record and consumes
it again."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kavka.security.json_web_tokens import unsecured_token
from kavka.security.local_security import LocalSecurity

TIMEOUT_S = 30.0
VALUE = b"over a secured connection"
# Returns a token of a user, for OAUTHBEARER.
NewToken = Callable[[str], str]


def tls_files(security: LocalSecurity, user: str) -> tuple[str, str, str]:
    """The files of the authority, of the client's chain and of its key. The client's certificate
    and key are in one file, which PEM readers accept for both."""
    certificate = str(security.client_certificate(user)) if security.client_auth != "none" else ""
    return str(security.ca_file), certificate, certificate


def token_of(user: str, lifetime_s: float = 300.0) -> str:
    now = time.time()
    return unsecured_token({"sub": user, "iat": now, "exp": now + lifetime_s})


def confluent_settings(
    security: LocalSecurity, servers: str, user: str, mechanism: str | None, new_token: NewToken = token_of
) -> dict[str, Any]:
    ca, certificate, key = tls_files(security, user)
    settings: dict[str, Any] = {"bootstrap.servers": servers, "security.protocol": security.protocol.value}
    if security.protocol.has_tls:
        settings["ssl.ca.location"] = ca
        if certificate:
            settings |= {"ssl.certificate.location": certificate, "ssl.key.location": key}
    if mechanism == "OAUTHBEARER":
        settings |= {
            "sasl.mechanism": mechanism,
            "oauth_cb": lambda config: (new_token(user), time.time() + 300),
        }
    elif mechanism:
        settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": security.users[user]}
    return settings


def confluent(
    security: LocalSecurity,
    servers: str,
    user: str,
    mechanism: str | None,
    topic: str,
    new_token: NewToken = token_of,
) -> None:
    from confluent_kafka import Consumer, Producer

    settings = confluent_settings(security, servers, user, mechanism, new_token)
    producer = Producer(settings)
    errors: list[Any] = []
    producer.produce(topic, VALUE, on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == [None]
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None and message.error() is None and message.value() == VALUE
    finally:
        consumer.close()


def kafka_python_settings(
    security: LocalSecurity, servers: str, user: str, mechanism: str | None, new_token: NewToken = token_of
) -> dict[str, Any]:
    ca, certificate, key = tls_files(security, user)
    settings: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": security.protocol.value}
    if security.protocol.has_tls:
        settings["ssl_cafile"] = ca
        if certificate:
            settings |= {"ssl_certfile": certificate, "ssl_keyfile": key}
    if mechanism == "OAUTHBEARER":
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            def token(self) -> str:
                return new_token(user)

        settings |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": Provider()}
    elif mechanism:
        settings |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": security.users[user],
        }
    return settings


def kafka_python(
    security: LocalSecurity,
    servers: str,
    user: str,
    mechanism: str | None,
    topic: str,
    new_token: NewToken = token_of,
) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    settings = kafka_python_settings(security, servers, user, mechanism, new_token)
    producer = KafkaProducer(**settings)
    try:
        producer.send(topic, VALUE).get(timeout=TIMEOUT_S)
    finally:
        producer.close()
    consumer = KafkaConsumer(topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000)
    try:
        assert next(iter(consumer)).value == VALUE
    finally:
        consumer.close()


def aiokafka(
    security: LocalSecurity,
    servers: str,
    user: str,
    mechanism: str | None,
    topic: str,
    new_token: NewToken = token_of,
) -> None:
    asyncio.run(asyncio.wait_for(_aiokafka(security, servers, user, mechanism, topic, new_token), 2 * TIMEOUT_S))


def aiokafka_settings(
    security: LocalSecurity, servers: str, user: str, mechanism: str | None, new_token: NewToken = token_of
) -> dict[str, Any]:
    ca, certificate, key = tls_files(security, user)
    settings: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": security.protocol.value}
    if security.protocol.has_tls:
        context = ssl.create_default_context(cafile=ca)
        if certificate:
            context.load_cert_chain(certificate, key)
        settings["ssl_context"] = context
    if mechanism == "OAUTHBEARER":
        from aiokafka.abc import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            async def token(self) -> str:
                return new_token(user)

        settings |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": Provider()}
    elif mechanism:
        settings |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": security.users[user],
        }
    return settings


async def _aiokafka(
    security: LocalSecurity,
    servers: str,
    user: str,
    mechanism: str | None,
    topic: str,
    new_token: NewToken = token_of,
) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    settings = aiokafka_settings(security, servers, user, mechanism, new_token)
    producer = AIOKafkaProducer(**settings)
    await producer.start()
    try:
        await producer.send_and_wait(topic, VALUE)
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest")
    await consumer.start()
    try:
        assert (await consumer.getone()).value == VALUE
    finally:
        await consumer.stop()


CLIENTS = {"confluent": confluent, "kafka_python": kafka_python, "aiokafka": aiokafka}


def write_properties(path: Path, settings: dict[str, str]) -> Path:
    """Write the settings of a Java client."""
    path.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in settings.items()))
    return path


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
