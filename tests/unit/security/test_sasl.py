"""SASL mechanisms: both sides against each other, and hostile messages against each side."""

from __future__ import annotations

import asyncio

import pytest

from kavka.common.config import ConfigError
from kavka.security.client_security import client_security
from kavka.security.credentials import (
    CredentialError,
    credential_of_salted_password,
    format_credential,
    new_credential,
    parse_credential,
)
from kavka.security.sasl import SaslClient, SaslError, SaslServer
from kavka.security.sasl.oauth_bearer import OAuthBearerClient, OAuthBearerServer, Token, TokenError
from kavka.security.sasl.plain import PlainClient, PlainPasswords, PlainServer
from kavka.security.sasl.scram import ScramClient, ScramServer, TokenCredential

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def exchange(client: SaslClient, server: SaslServer) -> None:
    message: bytes | None = client.initial()
    for _ in range(5):
        if message is None:
            break
        message = client.respond(server.respond(message))
    assert client.is_complete
    assert server.identity is not None


def scram_server(mechanism: str = "SCRAM-SHA-256", **passwords: str) -> ScramServer:
    return ScramServer(mechanism, {name: new_credential(mechanism, word) for name, word in passwords.items()}.get)


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "Jörg"])
def test_scram(mechanism: str, user: str) -> None:
    server = ScramServer(mechanism, {user: new_credential(mechanism, "pässword")}.get)
    exchange(ScramClient(mechanism, user, "pässword"), server)
    assert server.identity is not None and server.identity.name == user


def test_scram_matches_the_example_of_rfc_7677() -> None:
    credential = credential_of_salted_password(
        "SCRAM-SHA-256",
        bytes.fromhex("c4a49510323ab4f952cac1fa99441939e78ea74d6be81ddf7096e87513dc615d"),
        b"",
        4096,
    )
    import hashlib
    from base64 import b64decode

    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    assert credential == credential_of_salted_password("SCRAM-SHA-256", salted, b"", 4096)
    client = ScramClient("SCRAM-SHA-256", "user", "pencil")
    client._nonce = "rOprNGfwEbeRWgbNEkqO"
    client._first_bare = "n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = client.respond(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert final is not None and final.endswith(b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client.respond(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert client.is_complete


def test_scram_rejects_a_wrong_password_and_an_unknown_user_alike() -> None:
    errors = []
    for user in ("alice", "mallory"):
        server = scram_server(alice="right")
        client = ScramClient("SCRAM-SHA-256", user, "wrong")
        final = client.respond(server.respond(client.initial()))
        assert final is not None
        with pytest.raises(SaslError) as caught:
            server.respond(final)
        errors.append(str(caught.value))
        assert server.identity is None
    assert errors[0] == errors[1]


def test_the_salt_of_an_unknown_user_does_not_change() -> None:
    salts = set()
    for _ in range(3):
        first = scram_server().respond(ScramClient("SCRAM-SHA-256", "nobody", "x").initial())
        salts.add(first.split(b",s=")[1])
    assert len(salts) == 1


def test_scram_rejects_a_replayed_exchange() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "secret")
    server = scram_server(alice="secret")
    initial = client.initial()
    final = client.respond(server.respond(initial))
    assert final is not None
    server.respond(final)
    with pytest.raises(SaslError, match="complete"):
        server.respond(final)
    other = scram_server(alice="secret")
    other.respond(initial)
    with pytest.raises(SaslError, match="nonce"):
        other.respond(final)


@pytest.mark.parametrize(
    "message",
    [b"", b"n", b"n,,", b"n,,n=,r=x", b"p=tls-unique,,n=a,r=x", b"n,a=bob,n=alice,r=x", b"n,,n=a=b,r=x", b"\xff\xfe",
     b"n,,n=a,r=" + b"\x00" * 10, b"n,,n=alice,r=x," * 1000],
)  # fmt: skip
def test_scram_rejects_invalid_first_messages(message: bytes) -> None:
    with pytest.raises(SaslError):
        scram_server(alice="secret").respond(message)


@pytest.mark.parametrize("final", [b"", b"c=biws", b"c=biws,r={nonce},p=", b"c=biws,r={nonce},p=AAAA",
                                   b"c=biws,r=x,p=AA==",
                                   b"c=eSws,r={nonce},p=AAAA", b"c=biws,r={nonce},p=!!!!"])  # fmt: skip
def test_scram_rejects_invalid_final_messages(final: bytes) -> None:
    server = scram_server(alice="secret")
    first = server.respond(b"n,,n=alice,r=abc")
    nonce = first.split(b",")[0].removeprefix(b"r=")
    with pytest.raises(SaslError):
        server.respond(final.replace(b"{nonce}", nonce))
    assert server.identity is None


def test_the_client_requires_proof_of_the_server() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "secret")
    server = ScramServer("SCRAM-SHA-256", {"alice": new_credential("SCRAM-SHA-256", "other")}.get)
    client.respond(server.respond(client.initial()))
    with pytest.raises(SaslError, match="signature"):
        client.respond(b"v=AAAA")
    assert not client.is_complete


@pytest.mark.parametrize("iterations", [1, 4095, 999_999_999])
def test_the_client_rejects_cheap_and_endless_iterations(iterations: int) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "secret")
    with pytest.raises(SaslError, match="iterations"):
        client.respond(f"r={client._nonce}x,s=AAAA,i={iterations}".encode())


def test_scram_with_a_delegation_token() -> None:
    token = TokenCredential(new_credential("SCRAM-SHA-256", "hmac"), "alice", 12345)
    server = ScramServer("SCRAM-SHA-256", {}.get, {"id1": token}.get)
    exchange(ScramClient("SCRAM-SHA-256", "id1", "hmac", {"tokenauth": "true"}), server)
    assert server.identity is not None
    assert (server.identity.name, server.identity.is_token, server.identity.expires_at_ms) == ("alice", True, 12345)
    without = ScramServer("SCRAM-SHA-256", {}.get, {"id1": token}.get)
    client = ScramClient("SCRAM-SHA-256", "id1", "hmac")
    final = client.respond(without.respond(client.initial()))
    assert final is not None
    with pytest.raises(SaslError):
        without.respond(final)


def test_the_text_of_a_credential() -> None:
    credential = new_credential("SCRAM-SHA-512", "secret", 8192)
    text = format_credential(credential)
    assert text.startswith("salt=") and text.endswith(",iterations=8192")
    assert parse_credential(text) == credential
    for bad in ("", "salt=x", text.replace("stored_key", "storedkey"), text.replace("8192", "many")):
        with pytest.raises(CredentialError):
            parse_credential(bad)


def test_plain() -> None:
    passwords = PlainPasswords({"username": "broker", "password": "b", "user_alice": "secret", "user_bob": ""})
    server = PlainServer(passwords.verify)
    exchange(PlainClient("alice", "secret"), server)
    assert server.identity is not None and server.identity.name == "alice"
    for message in (b"", b"\x00alice\x00wrong", b"\x00nobody\x00secret", b"\x00\x00secret", b"\x00alice\x00",
                    b"\x00bob\x00",
                    b"eve\x00alice\x00secret", b"\xff\x00a\x00b", b"a\x00b\x00c\x00d"):  # fmt: skip
        with pytest.raises(SaslError):
            PlainServer(passwords.verify).respond(message)


def test_oauth_bearer() -> None:
    server = OAuthBearerServer(lambda text: Token("alice", 1000))
    exchange(OAuthBearerClient("abc.def.ghi", {"team": "a"}), server)
    assert server.identity is not None
    assert server.identity.expires_at_ms == 1000
    assert server.identity.extensions == {"team": "a"}


def test_oauth_bearer_with_an_invalid_token() -> None:
    def validate(text: str) -> Token:
        raise TokenError("expired")

    server = OAuthBearerServer(validate)
    client = OAuthBearerClient("abc.def.ghi")
    final = client.respond(server.respond(client.initial()))
    assert final == b"\x01"
    with pytest.raises(SaslError) as caught:
        server.respond(final)
    assert caught.value.detail == "expired" and "expired" not in str(caught.value)
    for message in (b"", b"n,,\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01auth=Bearer \x01\x01", b"\xff"):
        with pytest.raises(SaslError):
            OAuthBearerServer(lambda text: Token("a", 1)).respond(message)


def test_clients_from_settings() -> None:
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="se\\"cret";'
    security = client_security(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas}
    )
    assert security.new_exchange is not None

    async def new() -> SaslClient:
        assert security.new_exchange is not None
        return await security.new_exchange()

    exchange(asyncio.run(new()), scram_server(alice='se"cret'))
    for values, name in (
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas},
            "sasl.jaas.config",
        ),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}, "sasl.jaas.config"),
    ):
        with pytest.raises(ConfigError) as caught:
            client_security(values)
        assert caught.value.name == name
