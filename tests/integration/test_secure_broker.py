"""A secured broker process: rotation of certificates, changes of passwords, and hostile peers."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

import kavka
from kavka.common.errors import ErrorCode
from kavka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kavka.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kavka.security.local_security import LocalSecurity
from kavka.security.sasl.scram import ScramClient
from kavka.testing import Broker
from tests.support.java_client import run_tool
from tests.support.kavka_process import KavkaProcess
from tests.support.messages import Messages
from tests.support.processes import free_port, resident_bytes, wait_until
from tests.support.secure_clients import confluent, confluent_settings, write_properties

USERS = {"admin": "admin-secret", "alice": "alice-secret"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(security={"protocol": "SASL_SSL", "users": USERS}) as broker:
        yield broker


def can_connect(broker: Broker, user: str, password: str) -> bool:
    settings = confluent_settings(broker.security, broker.bootstrap_servers, "admin", "SCRAM-SHA-256")
    failures: list[KafkaError] = []
    settings |= {"sasl.username": user, "sasl.password": password, "log_level": 0, "error_cb": failures.append}
    admin = AdminClient(settings)
    # Not `list_topics`, which waits for its timeout after a failed authentication.
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        admin.poll(0.05)
        if any(error.code() == KafkaError._AUTHENTICATION for error in failures):
            return False
        with contextlib.suppress(KafkaException):
            return bool(admin.list_topics(timeout=0.3).brokers)
    raise AssertionError(f"neither accepted nor rejected: {failures}")


def server_certificate(broker: Broker) -> bytes | None:
    context = ssl.create_default_context(cafile=str(broker.security.ca_file))
    sock = socket.create_connection(("127.0.0.1", broker.port), timeout=10)
    with sock, context.wrap_socket(sock, server_hostname="localhost") as tls:
        return tls.getpeercert(binary_form=True)


def is_changed(broker: Broker, before: bytes | None) -> bool:
    return server_certificate(broker) != before


def test_users_of_confluents_admin_client(broker: Broker) -> None:
    settings = confluent_settings(broker.security, broker.bootstrap_servers, "admin", "SCRAM-SHA-256")
    admin = AdminClient(settings)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    changes = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"one")])
    changes["bob"].result(30)
    assert can_connect(broker, "bob", "one")
    described = admin.describe_user_scram_credentials(["bob"])["bob"].result(30)
    assert [(entry.mechanism, entry.iterations) for entry in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 8192)
    ]
    changes = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"two")])
    changes["bob"].result(30)
    assert not can_connect(broker, "bob", "one")
    assert can_connect(broker, "bob", "two")
    deletion = UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])["bob"].result(30)
    assert not can_connect(broker, "bob", "two")
    with pytest.raises(KafkaException, match="does not exist"):
        admin.alter_user_scram_credentials([deletion])["bob"].result(30)
    with pytest.raises(KafkaException, match="Too few iterations"):
        weak = UserScramCredentialUpsertion("bob", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100), b"x")
        admin.alter_user_scram_credentials([weak])["bob"].result(30)


@pytest.mark.java
def test_users_of_kafka_configs(java_parts: None, broker: Broker, tmp_path: Path) -> None:
    config = write_properties(tmp_path / "client.properties", broker.security.client_settings("admin"))
    arguments = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(config))
    user = ("--entity-type", "users", "--entity-name", "carol")
    run_tool("3.9.1", "configs", *arguments, "--alter", *user, "--add-config", "SCRAM-SHA-256=[password=c]")
    assert can_connect(broker, "carol", "c")
    described = run_tool("3.9.1", "configs", *arguments, "--describe", "--entity-type", "users")
    assert "SCRAM credential configs for user-principal 'carol' are SCRAM-SHA-256=iterations=4096" in described.stdout
    run_tool("3.9.1", "configs", *arguments, "--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert not can_connect(broker, "carol", "c")


def test_users_remain_after_a_restart(broker: Broker) -> None:
    broker.restart()
    assert can_connect(broker, "alice", "alice-secret")


@pytest.mark.records
def test_rotation_of_the_certificate_under_load(broker: Broker) -> None:
    """Not one request fails, of open and of new connections, without retries."""
    security = broker.security
    settings = confluent_settings(security, broker.bootstrap_servers, "alice", "SCRAM-SHA-256")
    errors: list[object] = []
    requests = [0, 0]
    stop = threading.Event()

    def produce_with_confluent() -> None:
        steady = Producer({**settings, "retries": 0, "error_cb": errors.append})
        while not stop.is_set():
            fresh = Producer({**settings, "retries": 0, "error_cb": errors.append})
            for producer in (steady, fresh):
                producer.produce("rotation", b"x", on_delivery=lambda error, message: error and errors.append(error))
            for producer in (steady, fresh):
                if producer.flush(30):
                    errors.append("not delivered")
                requests[0] += 1

    def produce_with_ours() -> None:
        ours = {**broker.client_settings("alice"), "retries": "0", "enable.idempotence": "false"}
        with kavka.Producer(ours) as steady:
            while not stop.is_set():
                with kavka.Producer(ours) as fresh:
                    for producer in (steady, fresh):
                        try:
                            producer.send("rotation", b"x").result(30)
                        except Exception as error:
                            errors.append(error)
                        requests[1] += 1

    threads = [threading.Thread(target=target) for target in (produce_with_confluent, produce_with_ours)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            time.sleep(0.5)
            before = server_certificate(broker)
            security.write_server_certificate(security.new_server_certificate())
            wait_until(partial(is_changed, broker, before), timeout=20, what="the new certificate")
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert errors == []
    assert min(requests) > 10


def test_a_certificate_with_another_name_is_refused(broker: Broker) -> None:
    security = broker.security
    before = server_certificate(broker)
    security.write_server_certificate(security.authority.certificate_of("CN=mallory", hosts=("localhost",)))
    wait_until(lambda: "ssl.allow.dn.changes" in broker.log_tail(), timeout=20, what="the refusal in the log")
    assert server_certificate(broker) == before
    security.write_server_certificate(security.new_server_certificate())
    wait_until(lambda: server_certificate(broker) != before, timeout=20, what="the next certificate")


def test_a_key_store_is_changed_at_run_time(broker: Broker) -> None:
    security = broker.security
    admin = AdminClient(confluent_settings(security, broker.bootstrap_servers, "admin", "SCRAM-SHA-256"))
    name = "listener.name.sasl_ssl.ssl.keystore.location"

    def change(location: Path) -> None:
        entry = ConfigEntry(name, str(location), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    other = security.authority.certificate_of("CN=mallory").write_pem(security.folder / "other.pem")
    for location, reason in ((Path("/nonexistent"), "cannot read"), (other, "ssl.allow.dn.changes")):
        with pytest.raises(KafkaException, match=reason):
            change(location)
    certificate = security.new_server_certificate()
    change(certificate.write_pem(security.folder / "moved.pem"))
    wait_until(lambda: server_certificate(broker) == certificate.der, timeout=20, what="the moved certificate")


def test_connections_that_handshake_and_stop(broker: Broker) -> None:
    """A thousand peers complete the TLS handshake and stop, and some more stop before it. Other
    clients are served meanwhile, and the memory of the peers is bounded and released."""
    context = ssl.create_default_context(cafile=str(broker.security.ca_file))
    sockets: list[socket.socket] = []
    latencies: list[float] = []
    stop = threading.Event()

    def produce() -> None:
        with kavka.Producer(broker.client_settings("alice"), linger_ms=0) as producer:
            while not stop.is_set():
                start = time.monotonic()
                producer.send("beside-idle-peers-ours", b"x").result(30)
                latencies.append(time.monotonic() - start)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        wait_until(lambda: len(latencies) > 20, timeout=30, what="the first requests")
        before, memory = open_sockets(broker), resident_bytes(broker.pid)
        for number in range(1000):
            sock = socket.create_connection(("127.0.0.1", broker.port), timeout=30)
            sockets.append(sock)
            sockets[-1] = context.wrap_socket(sock, server_hostname="localhost")
            if number % 5 == 0:
                sockets.append(socket.create_connection(("127.0.0.1", broker.port), timeout=30))
                sockets[-1].sendall((b"", b"\x16\x03\x01\x02\x00\x01")[number % 2])
        assert open_sockets(broker) - before >= 1200
        assert resident_bytes(broker.pid) - memory < 100e6
        confluent(broker.security, broker.bootstrap_servers, "alice", "SCRAM-SHA-256", "beside-idle-peers")
    finally:
        stop.set()
        thread.join(60)
        for sock in sockets:
            sock.close()
    assert max(latencies) < 2.0
    assert sorted(latencies)[int(0.99 * len(latencies))] < 0.5
    wait_until(lambda: open_sockets(broker) <= before, timeout=30, what="the end of the connections")


def open_sockets(broker: Broker) -> int:
    targets = []
    for path in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(path))
    return sum(target.startswith("socket:") for target in targets)


class TlsMessages(Messages):
    """A connection with TLS and without authentication."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(("127.0.0.1", broker.port))
        context = ssl.create_default_context(cafile=str(broker.security.ca_file))
        self._socket = context.wrap_socket(self._socket, server_hostname="localhost")

    def exchange(self, *messages: bytes) -> list[Any]:
        assert self.call(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1).error_code == 0
        return [self.call(SaslAuthenticateRequest(auth_bytes=message), 1) for message in messages]

    def is_closed(self) -> bool:
        try:
            return not self._socket.recv(1)
        except (ConnectionError, ssl.SSLError):
            return True


def test_replayed_truncated_and_oversized_sasl_messages(broker: Broker) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", USERS["alice"])
    first = client.initial()
    with TlsMessages(broker) as connection:
        [response] = connection.exchange(first)
        final = client.respond(response.auth_bytes)
        assert final is not None
        accepted = connection.call(SaslAuthenticateRequest(auth_bytes=final), 1)
        assert accepted.error_code == 0
    # The same messages again: the broker's nonce differs.
    cases = [(first, final), (first[:10],), (first, final[:-4]), (b"",), (b"\xff" * 100,), (b"n,," + b"x" * 100_000,)]
    for messages in cases:
        with TlsMessages(broker) as connection:
            assert connection.exchange(*messages)[-1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert connection.is_closed()
    with TlsMessages(broker) as connection:
        # A frame beyond sasl.server.max.receive.size is not awaited.
        connection._socket.sendall((600_000).to_bytes(4, "big") + b"\x00\x24\x00\x01")
        assert connection.is_closed()
    assert can_connect(broker, "alice", USERS["alice"])


def test_wrong_passwords_are_delayed_and_counted(broker: Broker) -> None:
    assert not can_connect(broker, "alice", "wrong")
    assert not can_connect(broker, "nobody", "wrong")
    log = broker.log_tail(20_000)
    assert "wrong user name or password of 'alice'" in log
    assert "wrong user name or password of 'nobody'" in log
    assert "alice-secret" not in broker.log_file.read_text() and "admin-secret" not in broker.log_file.read_text()


def test_plain_bytes_on_a_tls_port(broker: Broker) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as sock:
        sock.sendall(b"\x00\x00\x00\x10\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff")
        while sock.recv(100):
            pass
    assert "does not use TLS" in broker.log_tail()


BAD_SETTINGS = {
    "ssl.keystore.location": {"ssl.keystore.location": "/nonexistent"},
    "sasl.jaas.config": {"sasl.enabled.mechanisms": "PLAIN"},
    "listener.security.protocol.map": {"listener.security.protocol.map": "SASL_SSL:TLS"},
}


def test_a_bad_setting_stops_the_start(tmp_path: Path) -> None:
    """The broker prints one line that names the setting."""
    security = LocalSecurity(tmp_path / "security", "SASL_SSL", users=USERS)
    brokers: dict[str, KavkaProcess] = {}
    for name, changes in BAD_SETTINGS.items():
        settings = {"listeners": f"SASL_SSL://127.0.0.1:{free_port()}", **security.broker_settings(), **changes}
        brokers[name] = KavkaProcess(tmp_path / name, overrides=settings, start=False)
        brokers[name].launch()
    for name, broker in brokers.items():
        assert broker.process.wait(60) == 1
        lines = (broker.folder / "kavka.out").read_text().splitlines()
        assert [line for line in lines if " INFO " not in line] == lines[-1:], lines
        assert lines[-1].startswith("kavka: ") and f"{name}: " in lines[-1], lines
