"""OAUTHBEARER with signed tokens of an identity provider. `make test` runs the clients that request
their tokens themselves; `make test-matrix` also runs those that get them from the application."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError
from confluent_kafka import Producer as ConfluentProducer
from joserfc.jwk import RSAKey

from kavka import Admin, AuthenticationFailed, Consumer, Producer
from kavka.common.errors import ErrorCode
from kavka.protocol.messages.metadata import MetadataRequest
from kavka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kavka.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kavka.security.jaas import OAUTH_MODULE
from kavka.security.json_web_tokens import unsecured_token
from kavka.security.sasl.oauth_bearer import OAuthBearerClient
from kavka.testing import Broker
from tests.support.foreign_clients import JAVA_VERSION, franz_go, kafkajs
from tests.support.identity_provider import SECRET, IdentityProvider
from tests.support.java_client import JavaClient
from tests.support.messages import Messages
from tests.support.processes import wait_until
from tests.support.secure_clients import aiokafka, kafka_python

pytestmark = pytest.mark.timeout(180)

TIMEOUT_S = 60.0
MECHANISM = "OAUTHBEARER"
USER = "alice"
SHORT_S = 4.0


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    with IdentityProvider(tmp_path_factory.mktemp("provider")) as provider:
        yield provider


@pytest.fixture(scope="module")
def broker(provider: IdentityProvider) -> Iterator[Broker]:
    security = {"protocol": "SASL_SSL", "mechanisms": (MECHANISM,), "users": {USER: ""}}
    with Broker(provider.broker_settings(), security=security) as broker:
        yield broker


def settings(broker: Broker, provider: IdentityProvider) -> dict[str, str]:
    """The settings of Kafka's clients and of Kavka's."""
    return {
        **broker.client_settings(USER),
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.jaas.config": f'{OAUTH_MODULE} required clientId="{USER}" clientSecret="{SECRET}";',
    }


def confluent_settings(broker: Broker, provider: IdentityProvider) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(broker.security.ca_file),
        "sasl.mechanism": MECHANISM,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.client.id": USER,
        "sasl.oauthbearer.client.secret": SECRET,
    }


# ---- clients


def ours(broker: Broker, provider: IdentityProvider, topic: str) -> None:
    configuration = settings(broker, provider)
    with Producer(configuration) as producer:
        producer.send(topic, b"signed").result(TIMEOUT_S)
    with Consumer(configuration, group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        values: list[bytes | None] = []
        wait_until(
            lambda: bool(values.extend(record.value for record in consumer.poll(1.0)) or values),
            timeout=TIMEOUT_S,
            what="the record",
        )
    assert values == [b"signed"]


def confluent(broker: Broker, provider: IdentityProvider, topic: str) -> None:
    configuration = confluent_settings(broker, provider)
    producer = ConfluentProducer(configuration)
    errors: list[object] = []
    producer.produce(topic, b"signed", on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0 and errors == [None]
    consumer = ConfluentConsumer({**configuration, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None and message.error() is None and message.value() == b"signed"
    finally:
        consumer.close()


def java(broker: Broker, provider: IdentityProvider, topic: str) -> None:
    configuration = {
        **settings(broker, provider),
        "sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
    }
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.token_url}"
    with JavaClient(JAVA_VERSION, broker.bootstrap_servers, jvm=("-Xmx256m", "-XX:+UseSerialGC", allowed)) as client:
        client.call("produce", topic=topic, records=[{"partition": 0, "value": "signed"}], config=configuration)
        [record] = client.consume(topic, 1, config=configuration)
    assert record["value"] == "signed"


def with_token(client: Callable[..., None]) -> Callable[[Broker, IdentityProvider, str], None]:
    """A client to which the application passes a token."""

    def run(broker: Broker, provider: IdentityProvider, topic: str) -> None:
        client(broker.security, broker.bootstrap_servers, USER, MECHANISM, topic, provider.fetch_token)

    return run


CLIENTS = {
    "ours": ours,
    "confluent": confluent,
    "java": java,
    "kafka_python": with_token(kafka_python),
    "aiokafka": with_token(aiokafka),
    "franz_go": with_token(franz_go),
    "kafkajs": with_token(kafkajs),
}


@pytest.mark.parametrize(
    "name",
    [
        "ours",
        "confluent",
        pytest.param("java", marks=pytest.mark.java),
        *(pytest.param(name, marks=pytest.mark.matrix) for name in list(CLIENTS)[3:]),
    ],
)
def test_client(request: pytest.FixtureRequest, broker: Broker, provider: IdentityProvider, name: str) -> None:
    if name == "java":
        request.getfixturevalue("java_parts")
    before = provider.requests
    CLIENTS[name](broker, provider, f"signed-{name}")
    assert provider.requests > before


# ---- tokens that are not accepted


class TokenConnection(Messages):
    """A connection with TLS that authenticates with one token and never again."""

    def __init__(self, broker: Broker, token: str) -> None:
        super().__init__(("127.0.0.1", broker.port))
        context = ssl.create_default_context(cafile=str(broker.security.ca_file))
        self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        assert self.call(SaslHandshakeRequest(mechanism=MECHANISM), 1).error_code == 0
        first = OAuthBearerClient(token).initial()
        self.response = self.call(SaslAuthenticateRequest(auth_bytes=first), 1)

    @property
    def is_accepted(self) -> bool:
        """A refused token has an error object as the response."""
        return self.response.error_code == 0 and not self.response.auth_bytes


def test_invalid_tokens(broker: Broker, provider: IdentityProvider) -> None:
    """Every token but the first is refused, and the broker logs the reason."""
    now = int(time.time())
    forged = RSAKey.generate_key(2048, {"kid": "k1"})
    claims = {"sub": USER, "iat": now, "exp": now + 60}
    cases = [
        ("", provider.sign(USER)),
        ("signature", provider.sign(USER, forged)),
        ("signature", provider.sign(USER)[:-8]),
        ("audience", provider.sign(USER, aud="other")),
        ("issuer", provider.sign(USER, iss="https://other.example.com")),
        ("expired", provider.sign(USER, exp=now - 1)),
        ("signature", unsecured_token(claims)),
    ]
    for reason, token in cases:
        with TokenConnection(broker, token) as connection:
            assert connection.is_accepted == (not reason), (reason, connection.response)
            if reason:
                # RFC 7628: the client responds to the error object, then the exchange fails.
                response = connection.call(SaslAuthenticateRequest(auth_bytes=b"\x01"), 1)
                assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert "alice" not in response.error_message
                with pytest.raises((ConnectionError, ssl.SSLError)):
                    connection.call(MetadataRequest(topics=[]), 5)
                assert reason in broker.log_tail(2000)
    assert all(token not in broker.log_file.read_text() for _, token in cases)


def test_a_wrong_secret(broker: Broker, provider: IdentityProvider) -> None:
    configuration = settings(broker, provider)
    configuration["sasl.jaas.config"] = configuration["sasl.jaas.config"].replace(SECRET, "wrong")
    with Admin(configuration) as admin, pytest.raises(AuthenticationFailed, match="401: invalid_client"):
        admin.list_topics()
    failures: list[KafkaError] = []
    other = {**confluent_settings(broker, provider), "sasl.oauthbearer.client.secret": "wrong", "log_level": 0}
    producer = ConfluentProducer({**other, "error_cb": failures.append})
    wait_until(lambda: producer.poll(0.1) is not None and bool(failures), timeout=TIMEOUT_S, what="the error")
    assert failures[0].code() == KafkaError._AUTHENTICATION


# ---- tokens that expire, and keys that change


def test_a_connection_ends_with_its_token(broker: Broker, provider: IdentityProvider) -> None:
    expires_at = int(time.time()) + 3
    with TokenConnection(broker, provider.sign(USER, exp=expires_at)) as connection:
        assert 0 < connection.response.session_lifetime_ms <= 3000
        requests = 0
        with pytest.raises((ConnectionError, ssl.SSLError)):
            while True:
                assert connection.call(MetadataRequest(topics=[]), 5).brokers
                assert time.time() < expires_at + 1.0, "a request after the end of the token"
                requests += 1
                time.sleep(0.01)
        assert requests > 20
        assert time.time() >= expires_at - 0.1


@pytest.mark.records
def test_clients_replace_tokens_that_expire_under_load(
    broker: Broker, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients send for more than two lifetimes of their tokens without one failed request."""
    monkeypatch.setattr(provider, "lifetime_s", SHORT_S)
    errors: list[object] = []
    requests = provider.requests
    steady = ConfluentProducer({**confluent_settings(broker, provider), "retries": 3, "linger.ms": 0})
    delivered: list[int] = []

    def on_delivery(error: object, message: object) -> None:
        delivered.append(1) if error is None else errors.append(error)

    with Producer(settings(broker, provider), linger_ms=0) as producer:
        futures = []
        deadline = time.monotonic() + 2.5 * SHORT_S
        while time.monotonic() < deadline:
            futures.append(producer.send("renewed", b"%d" % len(futures), partition=0))
            steady.produce("renewed-confluent", b"%d" % len(futures), partition=0, on_delivery=on_delivery)
            steady.poll(0.005)
        offsets = [future.result(TIMEOUT_S).offset for future in futures]
        connections = producer._core.cluster.connections()
        assert max(connection.authentications for connection in connections) >= 3
        assert producer._core.cluster.connections_opened <= 3
    assert steady.flush(TIMEOUT_S) == 0 and errors == []
    assert offsets == list(range(len(futures))) and len(delivered) == len(futures)
    assert provider.requests - requests >= 4


def test_a_new_key_is_used_and_the_old_key_refused(broker: Broker, provider: IdentityProvider) -> None:
    old = provider.sign(USER)
    provider.rotate_key("k2")

    def is_accepted(token: str) -> bool:
        with TokenConnection(broker, token) as connection:
            return connection.is_accepted

    # The broker reads the key set again when a token names an unknown key.
    wait_until(lambda: is_accepted(provider.sign(USER)), timeout=30, what="the new key", interval=0.2)
    assert not is_accepted(old)
