"""Connect's REST interface with TLS, basic authentication and signed internal requests."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jks
import pytest

from kavka.cli.connect import distributed_main
from kavka.pipeline.connect.basic_auth import Users
from kavka.pipeline.connect.distributed import Assignments, DistributedHerder
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.herder import Herder, WrongWorker
from kavka.pipeline.connect.listeners import Listeners, TlsStores, addresses
from kavka.pipeline.connect.options import parsed
from kavka.pipeline.connect.peers import PeerError, Peers
from kavka.pipeline.connect.publisher import Publisher
from kavka.pipeline.connect.session_keys import ALGORITHM, SIGNATURE, KeySettings, SessionKey, SignatureError
from kavka.pipeline.connect.settings import DISTRIBUTED, STANDALONE, client_settings
from kavka.pipeline.connect.stores import STARTED, ConfigStore, MemoryTable, StatusStore
from kavka.pipeline.connect.worker import Server
from kavka.security.authority import Authority
from tests.support.connect_app import SOURCE, ApiClient, idle_herder

EXTENSION = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
MODULE = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"
PASSWORD = "store-password"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("Connect CA")


@pytest.fixture(scope="module")
def stores(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the server's key in each format, the trusted authority and a client's key."""
    folder = tmp_path_factory.mktemp("stores")
    server = authority.certificate_of("worker", hosts=("localhost", "127.0.0.1"))
    server.write_pem(folder / "server.pem")
    server.write_pkcs12(folder / "server.p12", PASSWORD)
    authority.write_pem(folder / "ca.pem")
    key = ssl.PEM_cert_to_DER_cert(server.key_pem.replace("PRIVATE KEY", "CERTIFICATE"))
    entry = jks.PrivateKeyEntry.new("key", [server.der], key, "pkcs8")
    jks.KeyStore.new("jks", [entry]).save(str(folder / "server.jks"), PASSWORD)
    authority.certificate_of("client").write_pem(folder / "client.pem")
    Authority("Other CA").certificate_of("client").write_pem(folder / "stranger.pem")
    authority.certificate_of("worker", hosts=("other.example",)).write_pem(folder / "misnamed.pem")
    return folder


def standalone(properties: Mapping[str, str]) -> dict[str, Any]:
    required = {"key.converter": "StringConverter", "value.converter": "StringConverter"}
    return parsed(STANDALONE, {**required, "offset.storage.file.filename": "unused", **properties})


def pem_settings(stores: Path, key: str = "server.pem", prefix: str = "") -> dict[str, str]:
    return {
        f"{prefix}ssl.keystore.type": "PEM",
        f"{prefix}ssl.keystore.location": str(stores / key),
        f"{prefix}ssl.truststore.type": "PEM",
        f"{prefix}ssl.truststore.location": str(stores / "ca.pem"),
    }


@contextlib.contextmanager
def served(herder: Herder, properties: Mapping[str, str]) -> Iterator[Server]:
    server = Server(standalone(properties), properties)
    started, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.run, args=(herder, stop.is_set, lambda url: started.set()))
    thread.start()
    try:
        assert started.wait(60)
        yield server
    finally:
        stop.set()
        thread.join(60)
        server.listeners.close()
    assert not thread.is_alive()


def client_context(stores: Path, certificate: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(stores / "ca.pem"))
    if certificate is not None:
        context.load_cert_chain(stores / certificate)
    return context


def get(url: str, context: ssl.SSLContext | None = None, **headers: str) -> int:
    try:
        request = urllib.request.Request(f"{url}/connectors", headers=headers)
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# ---- settings


@pytest.mark.parametrize(
    "settings, name",
    [
        ({"listeners": "ftp://localhost:1"}, "listeners"),
        ({"listeners": "localhost:8083"}, "listeners"),
        ({"listeners": "http://localhost:70000"}, "listeners"),
        ({"listeners": "http://user@localhost:1"}, "listeners"),
        ({"listeners": "https://localhost:0"}, "ssl.keystore.location"),
        ({"listeners": "https://localhost:0", "listeners.https.ssl.client.auth": "maybe"},
         "listeners.https.ssl.client.auth"),
        ({"listeners": "https://localhost:0", "listeners.https.ssl.keystore.location": "/none.jks"},
         "listeners.https.ssl.keystore.location"),
        # If a setting has the prefix, the settings without it do not apply.
        ({"listeners": "https://localhost:0", "listeners.https.ssl.keystore.type": "PEM",
          "ssl.keystore.location": "/none.pem"}, "listeners.https.ssl.keystore.location"),
        ({"listeners": "https://localhost:0", "ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols"),
        ({"listeners": "http://localhost:0", "rest.advertised.listener": "https"}, "rest.advertised.listener"),
        ({"rest.extension.classes": "org.example.Other"}, "rest.extension.classes"),
        ({"rest.extension.classes": EXTENSION}, "rest.extension.jaas.config"),
        ({"rest.extension.classes": EXTENSION, "rest.extension.jaas.config": "nonsense"}, "rest.extension.jaas.config"),
        ({"rest.extension.classes": EXTENSION, "rest.extension.jaas.config": "org.example.Ldap required;"},
         "rest.extension.jaas.config"),
        ({"rest.extension.classes": EXTENSION, "rest.extension.jaas.config": f"{MODULE} required;"},
         "rest.extension.jaas.config"),
        ({"rest.extension.classes": EXTENSION, "rest.extension.jaas.config": f'{MODULE} required file="/none";'},
         "rest.extension.jaas.config"),
        ({"rest.extension.classes": EXTENSION, "rest.extension.jaas.config": f'{MODULE} required file="/dev/null";'},
         "rest.extension.jaas.config"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_named_in_one_line(settings: dict[str, str], name: str) -> None:
    with pytest.raises(ConnectError) as error:
        Server(standalone(settings), settings)
    assert str(error.value).startswith(f"{name}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings, url",
    [
        ({"listeners": "https://127.0.0.1:0,http://localhost:0"}, "http://localhost:{1}"),
        ({"listeners": "https://127.0.0.1:0,http://localhost:0", "rest.advertised.listener": "HTTPS"},
         "https://127.0.0.1:{0}"),
        ({"listeners": "HTTPS://localhost:0", "rest.advertised.host.name": "w1", "rest.advertised.port": "443"},
         "https://w1:443"),
    ],
)  # fmt: skip
def test_the_advertised_address_is_chosen_as_in_kafka_connect(stores: Path, settings: dict[str, str], url: str) -> None:
    properties = {**settings, **pem_settings(stores)}
    with contextlib.closing(Listeners(standalone(properties), properties)) as listeners:
        assert listeners.url == url.format(*(listener.getsockname()[1] for listener in listeners.sockets))
        assert listeners.name == listeners.url.partition("://")[2]


def test_an_ipv6_listener_and_the_default_port() -> None:
    parsed_addresses = addresses(standalone({"listeners": "http://[::1]:0, https://:8443,http://h"}))
    assert [tuple(address) for address in parsed_addresses] == [
        ("http", "::1", 0), ("https", "", 8443), ("http", "h", 8083),
    ]  # fmt: skip


def test_clients_of_the_cluster_do_not_get_the_listeners_settings() -> None:
    settings = client_settings({"ssl.client.auth": "required", "ssl.key.password": "x", "listeners.https.ssl.a": "b"})
    assert "ssl.key.password" in settings and len(settings) == 2


# ---- TLS


@pytest.mark.parametrize("kind", ["PEM", "PKCS12", "JKS"])
@pytest.mark.parametrize("prefix", ["", "listeners.https."])
def test_the_certificate_may_be_in_any_format(stores: Path, kind: str, prefix: str) -> None:
    file = {"PEM": "server.pem", "PKCS12": "server.p12", "JKS": "server.jks"}[kind]
    properties = {
        "listeners": "https://localhost:0",
        f"{prefix}ssl.keystore.type": kind,
        f"{prefix}ssl.keystore.location": str(stores / file),
    }
    if kind != "PEM":
        properties[f"{prefix}ssl.keystore.password"] = PASSWORD
    with served(idle_herder(), properties) as server:
        assert get(server.url, client_context(stores)) == 200


def test_http_and_https_are_served_together(stores: Path) -> None:
    properties = {"listeners": "http://localhost:0,https://localhost:0", **pem_settings(stores)}
    with served(idle_herder(), properties) as server:
        http_port, https_port = (listener.getsockname()[1] for listener in server.listeners.sockets)
        assert get(f"http://localhost:{http_port}") == 200
        assert get(f"https://localhost:{https_port}", client_context(stores)) == 200
        # The wrong protocol on a port ends the connection. The worker continues.
        with pytest.raises(OSError):
            get(f"http://localhost:{https_port}")
        with pytest.raises(OSError):
            get(f"https://localhost:{http_port}", client_context(stores))
        assert get(f"https://localhost:{https_port}", client_context(stores)) == 200


@pytest.mark.parametrize(
    "client_auth, certificate, is_accepted",
    [
        ("none", None, True),
        ("requested", None, True),
        ("requested", "client.pem", True),
        ("requested", "stranger.pem", False),
        ("required", "client.pem", True),
        ("REQUIRED", None, False),
        ("required", "stranger.pem", False),
    ],
)
def test_client_certificates(stores: Path, client_auth: str, certificate: str | None, is_accepted: bool) -> None:
    properties = {"listeners": "https://localhost:0", **pem_settings(stores), "ssl.client.auth": client_auth}
    with served(idle_herder(), properties) as server:
        if is_accepted:
            assert get(server.url, client_context(stores, certificate)) == 200
            return
        with pytest.raises(OSError):
            get(server.url, client_context(stores, certificate))


def forwarding_herder(url: str) -> Herder:
    herder = idle_herder()
    herder.require_leader = lambda: (_ for _ in ()).throw(WrongWorker(url))  # type: ignore[assignment, method-assign]
    return herder


def test_requests_are_forwarded_over_https_with_a_client_certificate(stores: Path) -> None:
    properties = {"listeners": "https://localhost:0", **pem_settings(stores), "ssl.client.auth": "required"}
    leader = idle_herder()
    with served(leader, properties) as server:
        api = ApiClient(forwarding_herder(server.url), peers=Peers(TlsStores(properties).client_context))
        assert api("POST", "/connectors", {"name": "c", "config": SOURCE})[0] == 201
        assert leader.names() == ["c"]
        # A worker without a key store has no certificate.
        trusting = {name: value for name, value in properties.items() if "keystore" not in name}
        api = ApiClient(forwarding_herder(server.url), peers=Peers(TlsStores(trusting).client_context))
        status, response = api("DELETE", "/connectors/c")
        assert status == 500 and response["message"].startswith("IO Error trying to forward REST request: ")
        assert leader.names() == ["c"]


def test_the_host_name_of_another_worker_is_verified(stores: Path) -> None:
    properties = {"listeners": "https://localhost:0", **pem_settings(stores, "misnamed.pem")}
    with served(idle_herder(), properties) as server:
        with pytest.raises(PeerError, match="certificate is not valid for"):
            Peers(TlsStores(properties).client_context).send("GET", f"{server.url}/connectors", None, {})
        unchecked = {**properties, "ssl.endpoint.identification.algorithm": ""}
        response = Peers(TlsStores(unchecked).client_context).send("GET", f"{server.url}/connectors", None, {})
        assert (response.code, response.body) == (200, b"[]")
        untrusting = {name: value for name, value in unchecked.items() if "truststore" not in name}
        with pytest.raises(PeerError, match="CERTIFICATE_VERIFY_FAILED"):
            Peers(TlsStores(untrusting).client_context).send("GET", f"{server.url}/connectors", None, {})


# ---- basic authentication


@pytest.fixture
def users(tmp_path: Path) -> Users:
    file = tmp_path / "users.properties"
    file.write_text("admin=s3cret\njosé=пароль\nempty=\n# comment=x\n", encoding="utf-8")
    settings = {
        "rest.extension.classes": (EXTENSION,),
        "rest.extension.jaas.config": f'{MODULE} required file="{file}";',
    }
    users = Users.of(settings)
    assert users is not None
    return users


@pytest.mark.parametrize(
    "authorization, is_accepted",
    [
        (basic("admin", "s3cret"), True),
        (basic("admin", "s3cret").replace("Basic", "basic"), True),
        (basic("josé", "пароль"), True),
        (basic("empty", ""), True),
        (basic("admin", "s3cret2"), False),
        (basic("admin", ""), False),
        (basic("Admin", "s3cret"), False),
        (basic("nobody", "s3cret"), False),
        (basic("", ""), False),
        ("Basic", False),
        ("Basic !!", False),
        ("Basic /w==", False),
        ("Bearer YWRtaW46czNjcmV0", False),
        ("Basic " + base64.b64encode(b"admin").decode(), False),
        (None, False),
    ],
)
def test_only_users_with_their_password_are_accepted(
    users: Users, authorization: str | None, is_accepted: bool
) -> None:
    api = ApiClient(idle_herder(), users=users)
    status, response = api("GET", "/connectors", headers={"authorization": authorization})
    assert status == (200 if is_accepted else 401)
    if not is_accepted:
        assert response == {"error_code": 401, "message": "User cannot access the resource."}
        assert api.headers["www-authenticate"].startswith('Basic realm="')


@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", "/"), ("POST", "/connectors"), ("PUT", "/connectors/tasks/config"), ("GET", "/connectors/c/tasks"),
        ("GET", "/nothing"), ("PUT", "/admin/loggers/root"), ("POST", "/connectors/c/tasks/0/restart"),
        ("DELETE", "/connectors/c/tasks"), ("POST", "/connectors/c/tasks/"), ("OPTIONS", "/connectors"),
        ("HEAD", "/connectors/c/tasks"), ("POST", "/connector-plugins/x/tasks"),
    ],
)  # fmt: skip
def test_every_request_except_internal_ones_needs_a_user(users: Users, method: str, path: str) -> None:
    assert ApiClient(idle_herder(), users=users)(method, path)[0] == 401


def test_preflight_requests_of_browsers_need_no_user(users: Users) -> None:
    headers = {"access-control-request-method": "GET"}
    assert ApiClient(idle_herder(), users=users)("OPTIONS", "/connectors", headers=headers)[0] == 200


def test_the_credentials_of_a_client_are_forwarded(stores: Path, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("admin=s3cret\n")
    properties = {
        "listeners": "https://localhost:0",
        **pem_settings(stores),
        "rest.extension.classes": EXTENSION,
        "rest.extension.jaas.config": f'{MODULE} required file="{tmp_path / "users"}";',
    }
    leader = idle_herder()
    with served(leader, properties) as server:
        peers = Peers(TlsStores(properties).client_context)
        api = ApiClient(forwarding_herder(server.url), peers=peers)
        create = {"name": "c", "config": SOURCE}
        assert api("POST", "/connectors", create)[0] == 401 and leader.names() == []
        headers: dict[str, str | None] = {"authorization": basic("admin", "s3cret")}
        assert api("POST", "/connectors", create, headers=headers)[0] == 201 and leader.names() == ["c"]


# ---- signed internal requests

KEY = SessionKey(b"0123456789abcdef0123456789abcdef", "HmacSHA256", 1_000)
CONFIG = {**SOURCE, "name": "c"}
TASKS = [{**CONFIG, "task.class": "FileStreamSource"}]


def signed(body: bytes, key: SessionKey = KEY, algorithm: str = "HmacSHA256") -> dict[str, str]:
    """The headers of KIP-507, computed without the tested code."""
    mac = hmac.new(key.secret, body, getattr(hashlib, algorithm.removeprefix("Hmac").lower()))
    return {SIGNATURE: base64.b64encode(mac.digest()).decode(), ALGORITHM: algorithm}


def group_herder(table: MemoryTable, leader: str = "w:1", leader_url: str = "http://none:1") -> DistributedHerder:
    """A worker w:1 of a group, which does not run."""
    worker = idle_herder().worker
    settings = {"rebalance.timeout.ms": 1, "session.timeout.ms": 600_000}
    herder = DistributedHerder(worker, ConfigStore(table), StatusStore(MemoryTable()), settings, "")
    herder.set_assignments(Assignments(leader, 1, {leader: leader_url}, {leader: ("c",)}))
    return herder


@pytest.fixture
def table() -> MemoryTable:
    table = MemoryTable()
    ConfigStore(table).put("c", CONFIG, STARTED)
    ConfigStore(table).put_session_key(KEY)
    return table


def test_the_session_key_has_kafka_connects_record(table: MemoryTable) -> None:
    assert json.loads(table.get("session-key") or "") == {
        "key": base64.b64encode(KEY.secret).decode(), "algorithm": "HmacSHA256", "creation-timestamp": 1000,
    }  # fmt: skip
    store = ConfigStore(table)
    assert store.session_key() == KEY and "0123" not in repr(KEY)
    for text in ("{}", "[]", "x", '{"key": "!", "algorithm": "a", "creation-timestamp": 1}',
                 '{"key": "", "algorithm": "a", "creation-timestamp": 1}'):  # fmt: skip
        table.put({"session-key": text})
        assert store.session_key() is None
    assert store.names() == ["c"]


def test_the_leader_replaces_the_key_when_it_must() -> None:
    keys = KeySettings(ttl_ms=1000)
    key = keys.new_key(5_000)
    assert len(key.secret) == 32 and key.algorithm == "HmacSHA256" and key.secret != keys.new_key(5_000).secret
    assert keys.must_replace(None, 0)
    assert not keys.must_replace(key, 5_999) and keys.must_replace(key, 6_000)
    assert not KeySettings(ttl_ms=0).must_replace(key, 10**15)
    assert KeySettings(key_algorithm="HmacSHA512").must_replace(key, 5_000)
    larger = KeySettings(key_bits=512)
    assert larger.must_replace(key, 5_000) and len(larger.new_key(0).secret) == 64


@pytest.mark.parametrize("algorithm", ["HmacSHA1", "HmacSHA224", "HmacSHA256", "HmacSHA384", "HmacSHA512"])
def test_signatures_are_those_of_kip_507(algorithm: str) -> None:
    keys = KeySettings(signature_algorithm=algorithm, verification_algorithms=(algorithm,))
    assert keys.signature(KEY, b"[{}]") == signed(b"[{}]", algorithm=algorithm)
    keys.verify(KEY, b"[{}]", signed(b"[{}]", algorithm=algorithm))
    with pytest.raises(SignatureError, match="invalid signature"):
        keys.verify(KEY, b"[{ }]", signed(b"[{}]", algorithm=algorithm))


@pytest.mark.parametrize(
    "name, value",
    [
        ("inter.worker.signature.algorithm", "HmacSHA512"),
        ("inter.worker.verification.algorithms", "HmacNone"),
        ("inter.worker.key.generation.algorithm", "AES"),
        ("inter.worker.key.size", "8"),
        ("inter.worker.key.ttl.ms", "-1"),
    ],
)
def test_invalid_settings_of_signatures_are_named(name: str, value: str) -> None:
    required = {"group.id": "g", "key.converter": "s", "value.converter": "s"}
    topics = {f"{role}.storage.topic": role for role in ("config", "offset", "status")}
    with pytest.raises(ConnectError, match=name):
        KeySettings.of(parsed(DISTRIBUTED, {**required, **topics, name: value}))


def test_a_signed_request_publishes_the_configuration_of_a_task(table: MemoryTable, users: Users) -> None:
    api = ApiClient(group_herder(table), users=users)
    body = json.dumps(TASKS).encode()
    for _ in range(2):
        assert api("POST", "/connectors/c/tasks", body, headers=signed(body)) == (204, None)
    assert json.loads(table.get("task-c-0") or "") == {"properties": TASKS[0]}
    assert json.loads(table.get("commit-c") or "") == {"tasks": 1}


BODY = json.dumps(TASKS).encode()
OLD_KEY = SessionKey(b"another key of the same size....", "HmacSHA256", 1)


@pytest.mark.parametrize(
    "path, body, headers, code",
    [
        ("c", BODY, {}, 400),
        ("c", BODY, {SIGNATURE: signed(BODY)[SIGNATURE]}, 400),
        ("c", BODY, {ALGORITHM: "HmacSHA256"}, 400),
        ("c", BODY, {**signed(BODY), SIGNATURE: "?"}, 400),
        ("c", BODY, signed(BODY, algorithm="HmacSHA512"), 400),
        ("c", BODY, {**signed(BODY), ALGORITHM: "none"}, 400),
        ("c", BODY, {**signed(BODY), SIGNATURE: ""}, 403),
        # A forged request, a changed body, a request recorded before the key was replaced.
        ("c", BODY, signed(b""), 403),
        ("c", BODY.replace(b'"t"', b'"u"'), signed(BODY), 403),
        ("c", BODY, signed(BODY, OLD_KEY), 403),
        # The signature is verified before the body is parsed.
        ("c", b"[" * 100_000, signed(BODY), 403),
        # A recorded request for another connector or an earlier configuration changes nothing.
        ("d", BODY, signed(BODY), 409),
        ("none", BODY, signed(BODY), 404),
        ("c", b'[{"name": "c"}]', signed(b'[{"name": "c"}]'), 409),
        ("c", b"[]", signed(b"[]"), 409),
        ("c", b"", signed(b""), 409),
    ],
)  # fmt: skip
def test_forged_and_replayed_internal_requests_are_rejected(
    table: MemoryTable, users: Users, path: str, body: bytes, headers: dict[str, str | None], code: int
) -> None:
    ConfigStore(table).put("d", {**CONFIG, "name": "d"}, STARTED)
    before = table.items()
    status, response = ApiClient(group_herder(table), users=users)(
        "POST", f"/connectors/{path}/tasks", body, headers=headers
    )
    assert (status, response["error_code"]) == (code, code) and response["message"]
    assert table.items() == before


def test_only_the_leader_of_a_group_with_a_key_accepts_internal_requests(table: MemoryTable) -> None:
    follower = ApiClient(group_herder(table, leader="w:2"))
    assert follower("POST", "/connectors/c/tasks", BODY, "forward=false", signed(BODY))[0] == 409
    table.put({"session-key": None})
    assert ApiClient(group_herder(table))("POST", "/connectors/c/tasks", BODY, headers=signed(BODY))[0] == 503
    assert ApiClient(idle_herder())("POST", "/connectors/c/tasks", BODY, headers=signed(BODY))[0] == 500


class RunningTask:
    """Two tasks that run nothing."""

    originals, count = CONFIG, 2


def test_a_worker_publishes_its_tasks_through_the_leader(stores: Path, table: MemoryTable, tmp_path: Path) -> None:
    """Over HTTPS, with basic authentication, which does not apply to internal requests."""
    (tmp_path / "users").write_text("admin=s3cret\n")
    properties = {
        "listeners": "https://localhost:0",
        **pem_settings(stores),
        "rest.extension.classes": EXTENSION,
        "rest.extension.jaas.config": f'{MODULE} required file="{tmp_path / "users"}";',
    }
    # A config topic of an earlier version: no session key, and the configuration of the task was
    # written with that of the connector.
    table.put({"session-key": None, "task-c-0": json.dumps({"properties": CONFIG})})
    leader, keys = group_herder(table), KeySettings()
    with served(leader, properties) as server:
        peers = Peers(TlsStores(properties).client_context)
        follower = group_herder(table, leader="w:2", leader_url=server.url)
        follower._tasks["c"] = RunningTask()  # type: ignore[assignment]
        publisher = Publisher(follower, keys, peers)
        # Nothing is sent without a session key, which the leader creates.
        publisher.publish()
        assert follower.configs.session_key() is None
        Publisher(leader, keys, peers).publish()
        key = follower.configs.session_key()
        assert key is not None
        publisher.publish()
        assert follower.configs.task_configs("c") == TASKS * 2
        # A valid key is not replaced.
        Publisher(leader, keys, peers).publish()
        assert follower.configs.session_key() == key
        follower.configs.put_task_configs("c", [{}])
        weak = KeySettings(signature_algorithm="HmacSHA1")
        with pytest.raises(ConnectError, match="status 400"):
            Publisher(follower, weak, peers).publish()
    with pytest.raises(PeerError, match="does not respond"):
        publisher.publish()


def test_the_leader_publishes_its_own_tasks(table: MemoryTable) -> None:
    leader = group_herder(table)
    leader._tasks["c"] = RunningTask()  # type: ignore[assignment]
    Publisher(leader, KeySettings(), Peers()).publish()
    assert leader.configs.task_configs("c") == TASKS * 2


@pytest.mark.parametrize(
    "name, value",
    [
        ("listeners.https.ssl.keystore.location", "/none.pem"),
        ("listeners", "ftp://localhost:1"),
        ("inter.worker.key.size", "none"),
        ("inter.worker.signature.algorithm", "HmacSHA512"),
    ],
)
def test_the_tool_reports_a_bad_setting_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    settings = {
        "group.id": "g", "key.converter": "StringConverter", "value.converter": "StringConverter",
        "listeners": "https://localhost:0", name: value,
        **{f"{role}.storage.topic": role for role in ("config", "offset", "status")},
    }  # fmt: skip
    file = tmp_path / "worker.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    assert distributed_main([str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{name}: " in line


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://localhost/x", "data:,x", "connectors", "http://[x/"])
def test_requests_to_other_workers_use_http_alone(url: str) -> None:
    with pytest.raises(PeerError):
        Peers().send("GET", url, None, {})


def test_an_error_response_that_is_incomplete_is_no_response() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def respond() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 500 Error\r\nContent-Length: 100\r\n\r\npart")
                # The client closes the connection after its timeout.
                connection.recv(1)

        thread = threading.Thread(target=respond)
        thread.start()
        try:
            with pytest.raises(PeerError):
                Peers().send("GET", f"http://127.0.0.1:{listener.getsockname()[1]}/", None, {}, timeout_s=1)
        finally:
            thread.join()
