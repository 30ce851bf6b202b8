"""Key stores, contexts and names of certificates, with TLS handshakes in memory."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from kavka.common.config import ConfigError
from kavka.security.authority import DAY, Authority
from kavka.security.certificates import alternative_names, distinguished_name, subject_of
from kavka.security.tls import TlsSettings, client_context, openssl_name, server_context

PASSWORD = "changeit"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Run a handshake in memory. Raises ssl.SSLError of either side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, to_server, server_hostname=host)
    pending = [client_side, server_side]
    for _ in range(10):
        for side in list(pending):
            try:
                side.do_handshake()
                pending.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not pending
    # With TLS 1.3 the client learns of a refused certificate when it reads.
    server_side.write(b"x")
    assert client_side.read(1) == b"x"
    return server_side, client_side


def contexts(server: Mapping[str, Any], client: Mapping[str, Any]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return server_context(TlsSettings.from_values(server)), client_context(TlsSettings.from_values(client))


def trusting(authority: Authority) -> dict[str, Any]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority.pem}


def inline(certificate: Any) -> dict[str, Any]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": certificate.key_pem,
        "ssl.keystore.certificate.chain": certificate.chain_pem,
    }


def test_inline_pem_and_versions(authority: Authority) -> None:
    values = inline(authority.certificate_of("broker", hosts=("localhost",)))
    for version in ("TLSv1.2", "TLSv1.3"):
        server, client = contexts({**values, "ssl.enabled.protocols": (version,)}, trusting(authority))
        assert shake(server, client)[0].version() == version


def test_an_encrypted_key(authority: Authority) -> None:
    broker = authority.certificate_of("broker", hosts=("localhost",))
    values = {**inline(broker), "ssl.keystore.key": broker.encrypted_key_pem("pw"), "ssl.key.password": "pw"}
    shake(*contexts(values, trusting(authority)))
    for password in (None, "wrong"):
        with pytest.raises(ConfigError) as caught:
            server_context(TlsSettings.from_values({**values, "ssl.key.password": password}))
        assert caught.value.name == "ssl.key.password"


def test_files(authority: Authority, tmp_path: Path) -> None:
    broker = authority.certificate_of("broker", hosts=("localhost",))
    pem = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(broker.write_pem(tmp_path / "server.pem"))}
    pkcs12 = {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(broker.write_pkcs12(tmp_path / "server.p12", PASSWORD)),
        "ssl.keystore.password": PASSWORD,
    }
    trust_pem = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.write_pem(tmp_path / "ca.pem")),
    }
    trust_pkcs12 = {
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(authority.write_pkcs12(tmp_path / "ca.p12", PASSWORD)),
        "ssl.truststore.password": PASSWORD,
    }
    shake(*contexts(pem, trust_pkcs12))
    shake(*contexts(pkcs12, trust_pem))


@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs keytool")
def test_key_stores_of_keytool(authority: Authority, tmp_path: Path) -> None:
    """Java creates JKS and PKCS12 stores from a PKCS12 file."""
    source = authority.certificate_of("broker", hosts=("localhost",)).write_pkcs12(tmp_path / "in.p12", PASSWORD)
    ca = authority.write_pem(tmp_path / "ca.pem")
    for kind in ("JKS", "PKCS12"):
        key_store, trust_store = tmp_path / f"key.{kind}", tmp_path / f"trust.{kind}"
        for command in (
            ["-importkeystore", "-srckeystore", source, "-srcstorepass", PASSWORD, "-srcstoretype", "PKCS12",
             "-destkeystore", key_store, "-deststorepass", PASSWORD, "-deststoretype", kind],
            ["-importcert", "-file", ca, "-alias", "ca", "-keystore", trust_store, "-storepass", PASSWORD,
             "-storetype", kind],
        ):  # fmt: skip
            subprocess.run(["keytool", *map(str, command), "-noprompt"], check=True, capture_output=True, timeout=60)
        # As in Java, the type JKS opens both formats.
        for declared in ("JKS", kind):
            server = {
                "ssl.keystore.type": declared,
                "ssl.keystore.location": str(key_store),
                "ssl.keystore.password": PASSWORD,
            }
            client = {
                "ssl.truststore.type": declared,
                "ssl.truststore.location": str(trust_store),
                "ssl.truststore.password": PASSWORD,
            }
            shake(*contexts(server, client))
            for values, name, wrong in (
                (server, "ssl.keystore.password", server_context),
                (client, "ssl.truststore.password", client_context),
            ):
                with pytest.raises(ConfigError) as caught:
                    wrong(TlsSettings.from_values({**values, name: "wrong"}))
                assert caught.value.name == name


def test_client_certificates(authority: Authority) -> None:
    broker = inline(authority.certificate_of("broker", hosts=("localhost",)))
    alice = authority.certificate_of("CN=alice,OU=Users,O=Example")
    for mode in ("requested", "required"):
        server = {**broker, **trusting(authority), "ssl.client.auth": mode}
        side, _ = shake(*contexts(server, {**trusting(authority), **inline(alice)}))
        der = side.getpeercert(binary_form=True)
        assert der is not None and subject_of(der) == "CN=alice,OU=Users,O=Example"
    with pytest.raises(ssl.SSLError):
        shake(*contexts({**broker, **trusting(authority), "ssl.client.auth": "required"}, trusting(authority)))
    shake(*contexts({**broker, **trusting(authority), "ssl.client.auth": "requested"}, trusting(authority)))
    stranger = inline(Authority("Other CA").certificate_of("alice"))
    expired = inline(authority.certificate_of("alice", valid_for=-DAY))
    for mode in ("requested", "required"):
        for certificate in (stranger, expired):
            with pytest.raises(ssl.SSLError):
                server = {**broker, **trusting(authority), "ssl.client.auth": mode}
                shake(*contexts(server, {**trusting(authority), **certificate}))


def test_clients_reject_bad_servers(authority: Authority) -> None:
    trusted = trusting(authority)
    for certificate in (
        authority.certificate_of("broker", hosts=("localhost",), valid_for=-DAY),
        authority.certificate_of("broker", hosts=("localhost",), self_signed=True),
        authority.certificate_of("broker", hosts=("other.example",)),
        Authority("Kavka CA").certificate_of("broker", hosts=("localhost",)),
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(*contexts(inline(certificate), trusted))
    elsewhere = inline(authority.certificate_of("broker", hosts=("other.example",)))
    shake(*contexts(elsewhere, {**trusted, "ssl.endpoint.identification.algorithm": ""}))


def test_cipher_suites(authority: Authority) -> None:
    values = inline(authority.certificate_of("broker", hosts=("localhost",)))
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    side, _ = shake(*contexts({**values, "ssl.cipher.suites": (suite,)}, trusting(authority)))
    cipher = side.cipher()
    assert cipher is not None and cipher[0] == "ECDHE-ECDSA-AES128-GCM-SHA256"
    side, _ = shake(*contexts({**values, "ssl.cipher.suites": ("TLS_AES_256_GCM_SHA384",)}, trusting(authority)))
    assert side.version() == "TLSv1.3"
    assert openssl_name("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256") == "ECDHE-RSA-CHACHA20-POLY1305"
    assert openssl_name("TLS_RSA_WITH_AES_256_CBC_SHA256") == "AES256-SHA256"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"ssl.enabled.protocols": ("TLSv1.1",)}, "ssl.enabled.protocols"),
        ({"ssl.cipher.suites": ("TLS_NO_WITH_SUCH",)}, "ssl.cipher.suites"),
        ({"ssl.keystore.type": "BKS"}, "ssl.keystore.type"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.certificate.chain"),
        ({"ssl.keystore.key": None}, "ssl.keystore.key"),
        ({"ssl.keystore.certificate.chain": None}, "ssl.keystore.certificate.chain"),
        ({"ssl.keystore.certificate.chain": "no certificate"}, "ssl.keystore.certificate.chain"),
        ({"ssl.keystore.key": "no key"}, "ssl.keystore.key"),
        ({"ssl.keystore.key": None, "ssl.keystore.certificate.chain": None}, "ssl.keystore.location"),
        ({"ssl.client.auth": "required", "ssl.truststore.location": "/nonexistent"}, "ssl.truststore.location"),
    ],
)
def test_errors_name_the_setting(authority: Authority, changes: dict[str, Any], name: str) -> None:
    values = {**inline(authority.certificate_of("broker")), **changes}
    with pytest.raises(ConfigError) as caught:
        server_context(TlsSettings.from_values(values))
    assert caught.value.name == name
    assert "\n" not in str(caught.value) and "PRIVATE" not in str(caught.value)


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    values = inline(authority.certificate_of("broker"))
    values["ssl.keystore.key"] = authority.certificate_of("broker").key_pem
    with pytest.raises(ConfigError, match="no certificate of its private key"):
        server_context(TlsSettings.from_values(values))


def test_names_as_java_writes_them(authority: Authority) -> None:
    name = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.COUNTRY_NAME, "NL"),
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Example, Inc"),
            x509.NameAttribute(x509.NameOID.EMAIL_ADDRESS, "a@b.nl"),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, "#alice"),
        ]
    )
    assert distinguished_name(name) == r"CN=\#alice,1.2.840.113549.1.9.1=#1606614062" + r"2e6e6c,O=Example\, Inc,C=NL"
    names = alternative_names(authority.certificate_of("broker", hosts=("localhost", "127.0.0.1")).certificate)
    assert names == {"DNSName:localhost", "IPAddress:127.0.0.1"}
