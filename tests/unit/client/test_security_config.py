"""The settings that secure a client, without a broker."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from kavka.client.consumer_config import consumer_config
from kavka.client.producer_config import producer_config
from kavka.client.security_config import security_of
from kavka.common.config import ConfigError
from kavka.security.authority import Authority
from kavka.security.client_security import ClientSecurity
from kavka.security.sasl import SaslError
from tests.support.loops import run_in_loop

SERVERS = {"bootstrap.servers": "localhost:1"}


def security(settings: dict[str, Any], **keywords: Any) -> ClientSecurity:
    result = security_of(producer_config({**SERVERS, **settings}, keywords))
    assert result is not None
    return result


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    authority = Authority()
    chain, key = authority.certificate_of("client").write_separate(tmp_path, "client")
    encrypted = tmp_path / "encrypted.key"
    certificate = authority.certificate_of("other")
    encrypted.write_text(certificate.encrypted_key_pem("secret"))
    (tmp_path / "other.crt").write_text(certificate.chain_pem)
    return {
        "ca": str(authority.write_pem(tmp_path / "ca.pem")),
        "chain": str(chain),
        "key": str(key),
        "encrypted": str(encrypted),
        "other": str(tmp_path / "other.crt"),
    }


def test_plaintext_loads_no_security() -> None:
    assert security_of(consumer_config(SERVERS, {})) is None


def test_the_names_of_librdkafka(files: dict[str, str]) -> None:
    client = security(
        {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": files["ca"],
            "ssl.certificate.location": files["chain"],
            "ssl.key.location": files["key"],
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": "secret",
        }
    )
    assert client.mechanism == "SCRAM-SHA-256"
    assert client.context is not None
    assert client.context.verify_mode is ssl.CERT_REQUIRED and client.context.check_hostname
    assert [dict(item[0] for item in ca["subject"]) for ca in client.context.get_ca_certs()] == [
        {"commonName": "Kavka CA"}
    ]


def test_inline_pem_and_an_encrypted_key(files: dict[str, str]) -> None:
    security(
        {
            "security.protocol": "SSL",
            "ssl.ca.pem": Path(files["ca"]).read_text(),
            "ssl.certificate.pem": Path(files["other"]).read_text(),
            "ssl.key.pem": Path(files["encrypted"]).read_text(),
            "ssl.key.password": "secret",
        }
    )


def test_verification_can_be_switched_off() -> None:
    context = security({"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}).context
    assert context is not None and context.verify_mode is ssl.CERT_NONE and not context.check_hostname
    context = security({"security.protocol": "SSL"}, ssl_endpoint_identification_algorithm="").context
    assert context is not None and context.verify_mode is ssl.CERT_REQUIRED and not context.check_hostname


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/such"}, "ssl.truststore.location: cannot read /no/such"),
        ({"security.protocol": "SSL", "ssl.key.location": "k"}, "ssl.certificate.location: must be set together"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism: 'GSSAPI' is not supported"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config: must be set"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER requires a token"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "http://localhost/token",
            },
            "client.id: must be set",
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.login.callback.handler.class": "com.example.Handler"},
            "sasl.login.callback.handler.class: 'com.example.Handler' is not supported",
        ),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols: 'SSLv3'"),
    ],
)
def test_errors_name_the_setting(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        security(settings)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_wrong_key_password_is_not_repeated(files: dict[str, str]) -> None:
    settings = {"ssl.certificate.location": files["other"], "ssl.key.location": files["encrypted"]}
    with pytest.raises(ConfigError, match=r"ssl.key.password: the private key is encrypted"):
        security({"security.protocol": "SSL", **settings})
    with pytest.raises(ConfigError, match=r"ssl.key.password") as caught:
        security({"security.protocol": "SSL", **settings, "ssl.key.password": "wrong-4711"})
    assert "wrong-4711" not in str(caught.value)


OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


async def first_message(callback: Any) -> bytes:
    client = security(OAUTH, sasl_login_callback=callback)
    assert client.new_exchange is not None
    return (await client.new_exchange()).initial()


@run_in_loop
async def test_login_callbacks() -> None:
    async def asynchronous() -> tuple[str, float]:
        return "async-token", 1e10

    def failing() -> str:
        raise OSError("no network")

    assert b"Bearer plain-token" in await first_message(lambda: "plain-token")
    assert b"Bearer async-token" in await first_message(asynchronous)
    with pytest.raises(SaslError, match=r"sasl.login.callback failed: OSError: no network"):
        await first_message(failing)
    with pytest.raises(SaslError, match=r"must return a token as text, not a int"):
        await first_message(lambda: 7)
    with pytest.raises(ConfigError, match=r"sasl.login.callback"):
        security(OAUTH, sasl_login_callback="no.such:function")
