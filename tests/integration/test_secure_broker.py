"""A secured broker process: rotation of certificates, changes of passwords, and hostile peers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

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

from kavka.testing import Broker, BrokerFailed
from tests.support.java_client import run_tool
from tests.support.processes import wait_until
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
    security = broker.security
    settings = confluent_settings(security, broker.bootstrap_servers, "alice", "SCRAM-SHA-256")
    errors: list[object] = []
    stop = threading.Event()

    def produce() -> None:
        # New connections all the time, and one that stays.
        steady = Producer({**settings, "retries": 0, "error_cb": errors.append})
        while not stop.is_set():
            fresh = Producer({**settings, "retries": 0, "error_cb": errors.append})
            for producer in (steady, fresh):
                producer.produce("rotation", b"x", on_delivery=lambda error, message: error and errors.append(error))
            for producer in (steady, fresh):
                if producer.flush(30):
                    errors.append("not delivered")

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for _ in range(3):
            time.sleep(0.5)
            before = server_certificate(broker)
            security.write_server_certificate(security.new_server_certificate())
            wait_until(partial(is_changed, broker, before), timeout=20, what="the new certificate")
    finally:
        stop.set()
        thread.join(60)
    assert errors == []


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
    """The broker serves others while a thousand peers have connected: a third is silent, a third
    has sent half a ClientHello, a third has TLS but does not authenticate."""
    context = ssl.create_default_context(cafile=str(broker.security.ca_file))
    sockets: list[socket.socket] = []
    try:
        for number in range(1000):
            sock = socket.create_connection(("127.0.0.1", broker.port), timeout=30)
            sockets.append(sock)
            if number % 3 == 1:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01")
            elif number % 3 == 2:
                sockets[-1] = context.wrap_socket(sock, server_hostname="localhost")
        confluent(broker.security, broker.bootstrap_servers, "alice", "SCRAM-SHA-256", "beside-idle-peers")
    finally:
        for sock in sockets:
            sock.close()


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


def test_a_bad_setting_stops_the_start() -> None:
    with pytest.raises(BrokerFailed) as caught, Broker(security="SASL_SSL", ssl_keystore_location="/nonexistent"):
        pass
    errors = [line for line in str(caught.value).splitlines() if line.startswith("kavka: ")]
    assert len(errors) == 1 and errors[0].startswith("kavka: ssl.keystore.location: cannot read /nonexistent")
    assert "Traceback" not in str(caught.value)
