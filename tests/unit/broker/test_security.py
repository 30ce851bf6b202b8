"""The security of a broker from its settings: errors that name the setting, reloads, warnings."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from kavka.broker import security as securities
from kavka.broker.listener_settings import listener_values, mechanism_values, warn_if_open
from kavka.broker.security import BrokerSecurity
from kavka.broker.settings import Settings
from kavka.common.config import ConfigError
from kavka.common.metrics import Registry
from kavka.security.credentials import new_credential
from kavka.security.local_security import LocalSecurity
from kavka.security.sasl.oauth_bearer import OAuthBearerClient
from kavka.security.sasl.plain import PlainClient

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
CREDENTIAL = new_credential("SCRAM-SHA-256", "secret")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalSecurity:
    return LocalSecurity(tmp_path_factory.mktemp("security"), "SSL")


async def run_directly(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def new_security(settings: Settings) -> BrokerSecurity:
    credentials: Any = SimpleNamespace(lookup=lambda mechanism: {"alice": CREDENTIAL}.get)
    return BrokerSecurity(settings, credentials, Registry(), run_directly)


def start(values: dict[str, str], body: Callable[[BrokerSecurity, Settings], Any] | None = None) -> None:
    async def scenario() -> None:
        settings = Settings(values)
        security = new_security(settings)
        try:
            await security.start()
            if body is not None:
                await body(security, settings)
        finally:
            await security.stop()

    asyncio.run(scenario())


def tls(local: LocalSecurity, **changes: str) -> dict[str, str]:
    return {"listeners": "SSL://localhost:0", **local.broker_settings(), **changes}


SASL = {"listeners": "SASL_PLAINTEXT://localhost:0", "sasl.enabled.mechanisms": "PLAIN"}
BAD: list[tuple[dict[str, str], str]] = [
    ({"ssl.keystore.location": "/nonexistent"}, "ssl.keystore.location"),
    ({"ssl.keystore.location": ""}, "ssl.keystore.location"),
    ({"ssl.keystore.type": "BKS"}, "ssl.keystore.type"),
    ({"ssl.keystore.type": "PKCS12"}, "ssl.keystore.password"),
    ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols"),
    ({"ssl.cipher.suites": "NONE"}, "ssl.cipher.suites"),
    ({"ssl.client.auth": "maybe"}, "ssl.client.auth"),
    ({"ssl.client.auth": "required", "ssl.truststore.location": "/nonexistent"}, "ssl.truststore.location"),
    ({"ssl.principal.mapping.rules": "RULE:x"}, "ssl.principal.mapping.rules"),
    ({"listener.name.ssl.ssl.keystore.location": "/other"}, "ssl.keystore.location"),
    ({**SASL, "sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms"),
    ({**SASL, "sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms"),
    ({**SASL}, "sasl.jaas.config"),
    ({**SASL, "listener.name.sasl_plaintext.plain.sasl.jaas.config": "broken"}, "sasl.jaas.config"),
    ({**SASL, "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{OAUTH};"}, "sasl.jaas.config"),
    ({**SASL, "sasl.enabled.mechanisms": "OAUTHBEARER"}, "sasl.oauthbearer.jwks.endpoint.url"),
    (
        {**SASL, "sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "file:///nonexistent"},
        "sasl.oauthbearer.jwks.endpoint.url",
    ),
    (
        {
            **SASL,
            "zookeeper.connect": "localhost:1",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        },
        "sasl.mechanism.inter.broker.protocol",
    ),
]


@pytest.mark.parametrize(("changes", "name"), BAD)
def test_a_bad_setting_is_named(local: LocalSecurity, changes: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        start(tls(local, **changes))
    assert caught.value.name == name
    assert "\n" not in str(caught.value)


def test_settings_of_listeners_and_mechanisms() -> None:
    values = {
        "a": 1,
        "listener.name.in.a": 2,
        "listener.name.in.plain.a": 3,
        "listener.name.other.a": 4,
    }
    assert listener_values(values, "IN")["a"] == 2
    assert listener_values(values, "OUT")["a"] == 1
    assert mechanism_values(values, "IN", "PLAIN")["a"] == 3
    assert mechanism_values(values, "IN", "OTHER")["a"] == 2


def test_listeners_with_different_mechanisms() -> None:
    jaas = "listener.name.{}.plain.sasl.jaas.config"

    async def body(security: BrokerSecurity, settings: Settings) -> None:
        assert set(security.listeners["IN"].mechanisms) == {"PLAIN", "SCRAM-SHA-256"}
        assert set(security.listeners["OUT"].mechanisms) == {"PLAIN"}
        assert security.listeners["OUT"].mechanisms["PLAIN"].max_reauth_ms == 5000
        for listener, password in (("IN", "a"), ("OUT", "b")):
            exchange = security.listeners[listener].mechanisms["PLAIN"].new_exchange()
            exchange.respond(PlainClient("alice", password).initial())
            assert exchange.identity is not None

    start(
        {
            "listeners": "IN://localhost:0,OUT://localhost:0",
            "listener.security.protocol.map": "IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.in.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.out.plain.connections.max.reauth.ms": "5000",
            jaas.format("in"): f'{PLAIN} user_alice="a";',
            jaas.format("out"): f'{PLAIN} user_alice="b";',
        },
        body,
    )


def test_signed_tokens(tmp_path: Path) -> None:
    key = ECKey.generate_key("P-256", {"kid": "k1", "alg": "ES256"})
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(KeySet([key]).as_dict(private=False)))

    async def body(security: BrokerSecurity, settings: Settings) -> None:
        claims = {"sub": "alice", "iat": security._now_s(), "exp": security._now_s() + 60, "aud": "kafka"}
        for audience, is_valid in (("kafka", True), ("other", False)):
            token = jwt.encode({"alg": "ES256", "kid": "k1"}, {**claims, "aud": audience}, key)
            exchange = security.listeners["SASL_PLAINTEXT"].mechanisms["OAUTHBEARER"].new_exchange()
            exchange.respond(OAuthBearerClient(token).initial())
            assert (exchange.identity is not None) == is_valid

    start(
        {
            **SASL,
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
        },
        body,
    )


def test_brokers_get_their_tokens_from_the_identity_provider(tmp_path: Path) -> None:
    key = ECKey.generate_key("P-256", {"kid": "k1", "alg": "ES256"})
    keys = json.dumps(KeySet([key]).as_dict(private=False)).encode()

    class IdentityProvider(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(keys)

        def do_POST(self) -> None:
            now = time.time()
            claims = {"sub": "broker", "iat": now, "exp": now + 60}
            token = jwt.encode({"alg": "ES256", "kid": "k1"}, claims, key)
            self._send(json.dumps({"access_token": token, "expires_in": 60}).encode())

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    async def body(security: BrokerSecurity, settings: Settings) -> None:
        client = security.inter_broker()
        assert client is not None and client.new_exchange is not None
        exchange = security.listeners["SASL_PLAINTEXT"].mechanisms["OAUTHBEARER"].new_exchange()
        exchange.respond((await client.new_exchange()).initial())
        assert exchange.identity is not None and exchange.identity.name == "broker"

    with ThreadingHTTPServer(("127.0.0.1", 0), IdentityProvider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        try:
            start(
                {
                    **SASL,
                    "zookeeper.connect": "localhost:1",
                    "security.inter.broker.protocol": "SASL_PLAINTEXT",
                    "sasl.enabled.mechanisms": "OAUTHBEARER",
                    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
                    "sasl.oauthbearer.jwks.endpoint.url": url,
                    "sasl.oauthbearer.token.endpoint.url": url,
                    "sasl.oauthbearer.client.credentials.client.id": "broker",
                    "sasl.oauthbearer.client.credentials.client.secret": "secret",
                },
                body,
            )
        finally:
            server.shutdown()


@pytest.fixture
def fast_watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(securities, "WATCH_INTERVAL_S", 0.01)
    yield


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_changed_file_is_reloaded(tmp_path: Path, fast_watch: None) -> None:
    local = LocalSecurity(tmp_path, "SSL")

    async def body(security: BrokerSecurity, settings: Settings) -> None:
        listener = security.listeners["SSL"]
        context = listener.context
        await asyncio.sleep(0.05)
        assert listener.context is context
        local.write_server_certificate(local.new_server_certificate())
        await until(lambda: listener.context is not context)

    start(tls(local), body)


@pytest.mark.parametrize(
    ("name", "hosts", "setting"),
    [("CN=other", ("localhost",), "ssl.allow.dn.changes"), ("CN=broker,O=Kavka", ("x",), "ssl.allow.san.changes")],
)
def test_other_names_are_refused(
    tmp_path: Path, fast_watch: None, caplog: pytest.LogCaptureFixture, name: str, hosts: tuple[str], setting: str
) -> None:
    local = LocalSecurity(tmp_path, "SSL", hosts=("localhost",))

    async def body(security: BrokerSecurity, settings: Settings) -> None:
        listener = security.listeners["SSL"]
        context = listener.context
        local.write_server_certificate(local.authority.certificate_of(name, hosts=hosts))
        if settings[setting]:
            await until(lambda: listener.context is not context)
        else:
            await until(lambda: setting in caplog.text)
            assert listener.context is context
            # The broken file of a careless copy neither stops the listener nor the watch.
            local.server_file.write_text("half")
            await until(lambda: "no private key" in caplog.text)
            local.write_server_certificate(local.new_server_certificate())
            await until(lambda: listener.context is not context)

    start(tls(local), body)
    start(tls(local, **{setting: "true"}), body)


def test_dynamic_settings(tmp_path: Path) -> None:
    local = LocalSecurity(tmp_path, "SSL")
    renewed = local.new_server_certificate().write_pem(tmp_path / "renewed.pem")
    other = local.authority.certificate_of("CN=other").write_pem(tmp_path / "other.pem")
    name = "listener.name.ssl.ssl.keystore.location"

    async def body(security: BrokerSecurity, settings: Settings) -> None:
        listener = security.listeners["SSL"]
        context = listener.context
        await security.check_dynamic(settings.configs.with_dynamic(broker={name: str(renewed)}).values)
        with pytest.raises(ConfigError, match=r"ssl\.allow\.dn\.changes"):
            await security.check_dynamic(settings.configs.with_dynamic(broker={name: str(other)}).values)
        with pytest.raises(ConfigError, match="cannot read"):
            await security.check_dynamic(settings.configs.with_dynamic(broker={name: "/nonexistent"}).values)
        assert listener.context is context
        security.on_settings_changed(settings.set_dynamic(broker={name: str(renewed)}))
        await until(lambda: listener.context is not context)

    start(tls(local), body)


@pytest.mark.parametrize(
    ("values", "is_open"),
    [
        ({"listeners": "PLAINTEXT://localhost:9092"}, False),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, False),
        ({"listeners": "PLAINTEXT://[::1]:9092"}, False),
        ({"listeners": "PLAINTEXT://:9092"}, True),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092", "advertised.listeners": "PLAINTEXT://x:9092"}, True),
        ({"listeners": "SSL://:9092"}, True),
        ({"listeners": "SSL://:9092", "ssl.client.auth": "required"}, False),
        ({"listeners": "SASL_SSL://:9092"}, False),
    ],
)
def test_an_open_listener_is_announced(values: dict[str, str], is_open: bool, caplog: pytest.LogCaptureFixture) -> None:
    warn_if_open(Settings(values))
    assert ("ANYONE" in caplog.text) == is_open
    assert len(caplog.records) == int(is_open)
