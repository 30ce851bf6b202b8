"""Certificates that the other side must refuse: of brokers and of clients, with Kavka's clients,
librdkafka and Java."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kavka import Admin, AuthenticationFailed
from kavka.security.authority import DAY, Authority
from kavka.security.local_security import LocalSecurity
from kavka.testing import Broker
from tests.support.foreign_clients import JAVA_VERSION
from tests.support.java_client import JavaClient, JavaError
from tests.support.processes import free_port, wait_until

pytestmark = pytest.mark.timeout(120)

# The listeners of a broker, and a part of the error of Kavka's clients.
BROKER_CERTIFICATES = {
    "VALID": "",
    "EXPIRED": "expired",
    "SELFSIGNED": "self-signed",
    "OTHERHOST": "localhost",
    "OTHERCA": "not trusted",
}


class BadBroker:
    """A broker with a listener for each certificate."""

    def __init__(self, folder: Path) -> None:
        self.security = LocalSecurity(folder, "SSL")
        authority, hosts = self.security.authority, ("localhost", "127.0.0.1")
        certificates = {
            "VALID": authority.certificate_of("broker", hosts=hosts),
            "EXPIRED": authority.certificate_of("broker", hosts=hosts, valid_for=-DAY),
            "SELFSIGNED": authority.certificate_of("broker", hosts=hosts, self_signed=True),
            "OTHERHOST": authority.certificate_of("broker", hosts=("other.example.com",)),
            # The same name as the trusted authority, but another key.
            "OTHERCA": Authority("Kavka CA").certificate_of("broker", hosts=hosts),
        }
        self.ports = {name: free_port() for name in certificates}
        settings: dict[str, object] = {
            "listeners": ",".join(f"{name}://localhost:{port}" for name, port in self.ports.items()),
            "listener.security.protocol.map": ",".join(f"{name}:SSL" for name in certificates),
            "ssl.keystore.type": "PEM",
            "inter.broker.listener.name": "VALID",
        }
        for name, certificate in certificates.items():
            path = certificate.write_pem(folder / f"{name}.pem")
            settings[f"listener.name.{name.lower()}.ssl.keystore.location"] = path
        self.broker = Broker(settings)

    def settings(self, listener: str) -> dict[str, str]:
        return {"bootstrap.servers": f"localhost:{self.ports[listener]}", **self.security.client_settings()}


@pytest.fixture(scope="module")
def bad_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadBroker]:
    bad_broker = BadBroker(tmp_path_factory.mktemp("certificates"))
    with bad_broker.broker:
        yield bad_broker


def librdkafka_settings(servers: str, ca_file: Path, certificate: Path | None = None) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "security.protocol": "SSL",
        "ssl.ca.location": str(ca_file),
        "log_level": 0,
    }
    if certificate is not None:
        settings |= {"ssl.certificate.location": str(certificate), "ssl.key.location": str(certificate)}
    return settings


def librdkafka_connects(settings: dict[str, Any]) -> bool:
    failures: list[ConfluentError] = []
    client = AdminClient(settings | {"error_cb": failures.append})
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        client.poll(0.05)
        # With TLS 1.3 the broker's alert arrives after the client's part of the handshake.
        if any(error.code() == ConfluentError._SSL or "SSL alert" in error.str() for error in failures):
            return False
        with contextlib.suppress(KafkaException):
            return bool(client.list_topics(timeout=0.3).brokers)
    raise AssertionError(f"neither accepted nor refused: {failures[:3]}")


def test_our_clients_refuse_the_broker(bad_broker: BadBroker) -> None:
    for listener, reason in BROKER_CERTIFICATES.items():
        with Admin(bad_broker.settings(listener)) as admin:
            if not reason:
                assert admin.describe_cluster().nodes
                continue
            with pytest.raises(AuthenticationFailed) as caught:
                admin.describe_cluster()
            assert reason in str(caught.value) and "\n" not in str(caught.value)
    without_check = {**bad_broker.settings("OTHERHOST"), "ssl.endpoint.identification.algorithm": "none"}
    with Admin(without_check) as admin:
        assert admin.describe_cluster().nodes


@pytest.mark.parametrize("listener", BROKER_CERTIFICATES)
def test_librdkafka_refuses_the_broker(bad_broker: BadBroker, listener: str) -> None:
    servers = f"localhost:{bad_broker.ports[listener]}"
    settings = librdkafka_settings(servers, bad_broker.security.ca_file)
    assert librdkafka_connects(settings) == (listener == "VALID")


@pytest.mark.java
def test_java_refuses_the_broker(java_parts: None, bad_broker: BadBroker) -> None:
    with JavaClient(JAVA_VERSION) as client:
        for listener in BROKER_CERTIFICATES:
            config = {**bad_broker.settings(listener), "max.block.ms": "20000"}
            client.bootstrap = config.pop("bootstrap.servers")
            arguments = {"topic": "t", "records": [{"partition": 0, "value": "x"}], "config": config}
            if listener == "VALID":
                client.call("produce", **arguments)
                continue
            with pytest.raises(JavaError) as caught:
                client.call("produce", **arguments)
            assert "SslAuthenticationException" in str(caught.value) or "SSL handshake failed" in str(caught.value)


# ---- certificates of clients


class Clients:
    """A broker that requires certificates of two authorities."""

    def __init__(self, folder: Path) -> None:
        self.trust_file = folder / "trusted.pem"
        settings = {"ssl.truststore.location": self.trust_file}
        self.broker = Broker(settings, security={"protocol": "SSL", "client_auth": "required"})
        self.security = self.broker.security
        self.second = Authority("Second CA")
        self.trust_both()

    def trust_both(self) -> None:
        self._trust(self.security.authority.pem + self.second.pem)

    def trust_first(self) -> None:
        self._trust(self.security.authority.pem)

    def _trust(self, pem: str) -> None:
        # Not the file of the clients, which trust the authority of the broker's certificate.
        temporary = self.trust_file.with_suffix(".new")
        temporary.write_text(pem)
        temporary.rename(self.trust_file)

    def certificate(self, kind: str) -> Path:
        authority = self.security.authority
        certificate = {
            "first": lambda: authority.certificate_of("alice"),
            "second": lambda: self.second.certificate_of("alice"),
            "expired": lambda: authority.certificate_of("alice", valid_for=-DAY),
            "self-signed": lambda: authority.certificate_of("alice", self_signed=True),
            "unknown authority": lambda: Authority("Kavka CA").certificate_of("alice"),
        }[kind]()
        return certificate.write_pem(self.security.folder / f"{kind}.pem")

    def can_connect(self, certificate: Path) -> bool:
        """Open a connection with our client and with librdkafka, which must agree."""
        settings = {
            **{name: value for name, value in self.broker.client_settings().items() if "keystore" not in name},
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate),
        }
        with Admin(settings, default_api_timeout_ms=3000) as admin:
            try:
                accepted = bool(admin.describe_cluster().nodes)
            except AuthenticationFailed:
                accepted = False
        servers = self.broker.bootstrap_servers
        assert librdkafka_connects(librdkafka_settings(servers, self.security.ca_file, certificate)) == accepted
        return accepted


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    clients = Clients(tmp_path_factory.mktemp("trust"))
    with clients.broker:
        yield clients


def test_the_broker_refuses_clients(clients: Clients) -> None:
    for kind, is_accepted in {
        "first": True, "second": True, "expired": False, "self-signed": False, "unknown authority": False
    }.items():  # fmt: skip
        assert clients.can_connect(clients.certificate(kind)) == is_accepted, kind
    assert "certificate has expired" in clients.broker.log_file.read_text()


def test_an_authority_is_removed_from_the_trust_store(clients: Clients) -> None:
    """New connections and resumed sessions of its certificates are refused; an open connection
    continues."""
    first, second = clients.certificate("first"), clients.certificate("second")
    context = ssl.create_default_context(cafile=str(clients.security.ca_file))
    context.load_cert_chain(second)

    def connect(session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
        sock = socket.create_connection(("127.0.0.1", clients.broker.port), timeout=10)
        return context.wrap_socket(sock, server_hostname="localhost", session=session)

    def responds(sock: ssl.SSLSocket) -> bool:
        try:
            # ApiVersions 0 with the correlation id 7 and without a client id.
            sock.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff")
            size = int.from_bytes(sock.recv(4), "big")
            data = b""
            while len(data) < size and (piece := sock.recv(size - len(data))):
                data += piece
            return size > 0 and data[:4] == b"\x00\x00\x00\x07"
        except OSError:
            return False

    with connect() as open_connection:
        assert responds(open_connection)
        session = open_connection.session
        assert clients.can_connect(second)
        clients.trust_first()

        def is_refused() -> bool:
            with connect() as sock:
                return not responds(sock)

        wait_until(is_refused, timeout=10, what="the changed trust store")
        with connect(session) as resumed:
            assert not responds(resumed)
        assert not clients.can_connect(second)
        assert clients.can_connect(first)
        assert responds(open_connection)
    clients.trust_both()
    wait_until(lambda: clients.can_connect(second), timeout=10, what="the restored authority")
