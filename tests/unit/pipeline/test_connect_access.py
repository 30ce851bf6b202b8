"""Access to Connect's REST interface, and to the modules that a configuration may name."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kavka.pipeline.connect.access import Access
from kavka.pipeline.connect.errors import ConfigErrors
from kavka.pipeline.connect.herder import Herder, WrongWorker
from kavka.pipeline.connect.loading import Declared
from kavka.pipeline.connect.options import parsed
from kavka.pipeline.connect.providers import Providers
from kavka.pipeline.connect.settings import STANDALONE
from kavka.pipeline.connect.worker import Server
from kavka.web import connections
from tests.support.connect_app import SOURCE, ApiClient, idle_herder
from tests.support.half_open import check_half_open

CREATE = {"name": "c", "config": SOURCE}
FORM = "application/x-www-form-urlencoded"
LOCAL = Access(names=frozenset({"localhost"}), is_loopback=True)


@pytest.fixture
def herder() -> Herder:
    return idle_herder()


@pytest.fixture
def api(herder: Herder) -> ApiClient:
    return ApiClient(herder)


# ---- requests of web pages


@pytest.mark.parametrize(
    "method, path, body, content_type, code",
    [
        # The status codes of Kafka Connect 3.9.1.
        ("POST", "/connectors", CREATE, "text/plain", 415),
        ("POST", "/connectors", CREATE, FORM, 415),
        ("POST", "/connectors", CREATE, None, 415),
        ("POST", "/connectors", CREATE, "application/*", 415),
        ("POST", "/connectors", CREATE, "application/vnd.x+json", 415),
        ("POST", "/connectors", CREATE, "application/json; charset=utf-8", 201),
        ("POST", "/connectors", CREATE, "Application/JSON", 201),
        ("PUT", "/connectors/c/config", SOURCE, "text/plain", 415),
        ("PATCH", "/connectors/c/config", {"topic": "u"}, "text/plain", 415),
        ("PUT", "/connectors/c/pause", b"", "text/plain", 415),
        ("POST", "/connectors/c/restart", b"", FORM, 415),
        ("DELETE", "/connectors/c", b"", "text/plain", 415),
        ("GET", "/connectors", b"", "text/plain", 415),
        ("GET", "/connectors", b"", None, 200),
        ("POST", "/nothing", CREATE, "text/plain", 404),
        ("PUT", "/admin/loggers/kavka.none", {"level": "INFO"}, "text/plain", 415),
    ],
)
def test_only_json_is_accepted(
    api: ApiClient, herder: Herder, method: str, path: str, body: Any, content_type: str | None, code: int
) -> None:
    assert api(method, path, body, headers={"content-type": content_type})[0] == code
    assert herder.names() == (["c"] if code == 201 else [])


def test_requests_without_a_body_need_no_content_type(api: ApiClient, herder: Herder) -> None:
    """The console, curl and kafka-connect-py send such requests."""
    herder.create("c", SOURCE, None)
    assert api("PUT", "/connectors/c/pause")[0] == 202
    assert api("DELETE", "/connectors/c")[0] == 204


FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:3000"},
    {"origin": "http://localhost:8083.evil.example"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    # A page whose host name resolves to this machine: DNS rebinding.
    {"origin": "http://evil.example:8083", "host": "evil.example:8083", "sec-fetch-site": "same-origin"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize("method, path", [("POST", "/connectors"), ("GET", "/connectors"), ("OPTIONS", "/connectors")])
@pytest.mark.parametrize("is_loopback", [True, False])
def test_requests_of_other_sites_are_rejected(
    herder: Herder, headers: dict[str, str], method: str, path: str, is_loopback: bool
) -> None:
    api = ApiClient(herder, access=Access(names=frozenset({"localhost"}), is_loopback=is_loopback))
    status, response = api(method, path, CREATE if method == "POST" else b"", headers=headers)
    assert status in (403, 421) and response["error_code"] == status and response["message"]
    assert herder.names() == [] and "access-control-allow-origin" not in api.headers


@pytest.mark.parametrize("host", ["localhost:8083", "LOCALHOST", "127.0.0.1:8083", "[::1]:8083", "10.1.2.3", "", None])
def test_a_loopback_listener_accepts_its_addresses(herder: Herder, host: str | None) -> None:
    assert ApiClient(herder, access=LOCAL)("GET", "/connectors", headers={"host": host})[0] == 200


@pytest.mark.parametrize("host", ["evil.example:8083", "localhost.evil.example", "127.0.0.1.evil.example", "x"])
def test_a_loopback_listener_rejects_other_names(herder: Herder, host: str) -> None:
    assert ApiClient(herder, access=LOCAL)("GET", "/connectors", headers={"host": host})[0] == 421


def test_a_public_listener_accepts_any_name(herder: Herder) -> None:
    api = ApiClient(herder, access=Access(names=frozenset(), is_loopback=False))
    assert api("GET", "/connectors", headers={"host": "connect.example:8083"})[0] == 200


def test_a_page_of_the_worker_may_send_requests(api: ApiClient) -> None:
    headers = {"origin": "http://localhost:8083", "sec-fetch-site": "same-origin"}
    assert api("POST", "/connectors", CREATE, headers=headers)[0] == 201
    assert api("GET", "/connectors", headers={"sec-fetch-site": "none"})[0] == 200
    assert api.headers["x-content-type-options"] == "nosniff"


def test_origins_are_allowed_as_in_kafka_connect(herder: Herder) -> None:
    """The headers equal those of Kafka Connect 3.9.1."""
    access = Access(frozenset({"localhost"}), True, ("http://good.example", "https://*.good.example"), ("GET", "PUT"))
    api = ApiClient(herder, access=access)
    for origin in ("http://good.example", "https://ui.good.example"):
        site = {"origin": origin, "sec-fetch-site": "cross-site"}
        assert api("POST", "/connectors", {**CREATE, "name": origin}, headers=site)[0] == 201
        assert api.headers["access-control-allow-origin"] == origin
        assert api.headers["vary"] == "Origin" and api.headers["access-control-allow-credentials"] == "true"
        preflight = {**site, "access-control-request-method": "PUT", "access-control-request-headers": "content-type"}
        assert api("OPTIONS", "/connectors", headers=preflight)[0] == 200
        assert api.headers["access-control-allow-methods"] == "GET,PUT"
        assert api.headers["access-control-max-age"] == "1800"
        assert "Content-Type" in api.headers["access-control-allow-headers"]
        assert api("OPTIONS", "/connectors", headers={**preflight, "access-control-request-method": "POST"})[0] == 200
        assert "access-control-allow-methods" not in api.headers
    for origin in ("http://evil.example", "http://good.example.evil.example", "https://good.example", "null"):
        assert api("GET", "/connectors", headers={"origin": origin})[0] == 403, origin
    open_api = ApiClient(herder, access=Access(origins=("*",)))
    assert open_api("GET", "/connectors", headers={"origin": "http://any.example"})[0] == 200


@contextlib.contextmanager
def served(herder: Herder) -> Iterator[Server]:
    settings = parsed(STANDALONE, {**herder.worker.properties, "listeners": "http://localhost:0",
                                   "offset.storage.file.filename": "unused"})  # fmt: skip
    server = Server(settings, herder.worker.properties)
    started, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.run, args=(herder, stop.is_set, lambda url: started.set()))
    thread.start()
    try:
        assert started.wait(60)
        yield server
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_request_is_forwarded_to_the_leader(herder: Herder) -> None:
    """The leader has the default access rules. The Host header of a forwarded request is the
    address that the leader advertises."""
    leader = idle_herder()
    assert parsed(STANDALONE, {**leader.worker.properties, "offset.storage.file.filename": "unused"})["listeners"] == (
        "http://localhost:8083",
    )
    with served(leader) as server:
        assert server.url.startswith("http://localhost:")
        herder.require_leader = lambda: (_ for _ in ()).throw(WrongWorker(server.url))  # type: ignore[assignment, method-assign]
        api = ApiClient(herder)
        assert api("POST", "/connectors", CREATE)[0] == 201
        assert api("PUT", "/connectors/c/pause")[0] == 202
        assert (leader.names(), leader.configs.target("c"), herder.names()) == (["c"], "PAUSED", [])
        status, response = api("POST", "/connectors", {"name": "d", "config": {"connector.class": "os.path"}})
        assert status == 400 and "plugin.modules=os" in response["message"]
        assert api("POST", "/connectors", CREATE, headers={"origin": "http://evil.example"})[0] == 403


def test_half_open_requests_block_no_other_client(herder: Herder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 2.0)
    with served(herder) as server:
        check_half_open(server.listeners.sockets[0].getsockname()[1], "/connectors")


@pytest.mark.parametrize(
    "head, body, status",
    [
        (b"POST /connectors HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9", b"\r\n\r\n{", b""),
        (b"GET /connectors HTTP/1.1\r\nX: " + b"x" * (128 << 10), b"", b"400"),
    ],
    ids=["slow body", "long headers"],
)
def test_the_connection_is_closed_for_slow_bodies_and_long_headers(
    herder: Herder, monkeypatch: pytest.MonkeyPatch, head: bytes, body: bytes, status: bytes
) -> None:
    monkeypatch.setattr(connections, "BODY_TIMEOUT_S", 0.5)
    with (
        served(herder) as server,
        socket.create_connection(server.listeners.sockets[0].getsockname(), timeout=30) as client,
    ):
        response = b""
        with contextlib.suppress(ConnectionError):
            client.sendall(head + b"\r\nHost: localhost" + body)
            while data := client.recv(4096):
                response += data
        assert response[9:12] == status
    assert herder.names() == []


# ---- bad requests


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"name": "c", "config": ' + b'{"a":' * 900 + b"1" + b"}" * 901,
        b'{"name": "c", "initial_state": 7, "config": ' + json.dumps(SOURCE).encode() + b"}",
        b'{"name": {"a": 1}, "config": ' + json.dumps(SOURCE).encode() + b"}",
        b'{"name": "c", "config": {"connector.class": NaN}}',
        b'{"name": "\\ud800", "config": ' + json.dumps(SOURCE).encode() + b"}",
        b'{"name": "c", "config": {"connector.class": "\\udfff"}}',
        b"9" * 10_000,
        b"\xef\xbb\xbf{}",
    ],
)
@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/connectors"),
        ("PUT", "/connectors/c/config"),
        ("PUT", "/connector-plugins/FileStreamSource/config/validate"),
    ],
)
def test_invalid_json_is_a_bad_request(api: ApiClient, method: str, path: str, body: bytes) -> None:
    status, response = api(method, path, body)
    assert status == 400 and response["error_code"] == 400, response


def test_a_body_of_many_small_values_is_rejected_before_parsing(api: ApiClient) -> None:
    start_time = time.process_time()
    for body in (b"[" + b"[]," * 1_300_000 + b"[]]", b'{"a":' + (b"[" * 63 + b"]" * 63 + b",") * 33_000):
        status, response = api("PUT", "/connectors/c/config", body)
        assert status == 400 and "more than 100000 values" in response["message"]
    assert time.process_time() - start_time < 1


def test_many_settings_take_little_time(api: ApiClient) -> None:
    start_time = time.process_time()
    aliases = [f"a{number}" for number in range(10_000)]
    names = {**SOURCE, "name": "c", "transforms": ",".join(aliases)}
    types = {f"transforms.{alias}.type": "Filter" for alias in aliases}
    validate = "/connector-plugins/FileStreamSource/config/validate"
    assert api("PUT", validate, names)[1]["error_count"] == 10_000
    status, response = api("PUT", validate, {**names, **types})
    assert status == 400 and "10005 settings" in response["message"]
    assert time.process_time() - start_time < 8


def test_a_number_that_json_cannot_represent_is_rejected(api: ApiClient, herder: Herder) -> None:
    assert api("POST", "/connectors", {**CREATE, "initial_state": "STOPPED"})[0] == 201
    name = CREATE["name"]
    herder._reconcile()
    body = b'{"offsets": [{"partition": {"filename": "f"}, "offset": {"position": 1, "x": 1e999}}]}'
    assert api("PATCH", f"/connectors/{name}/offsets", body)[0] == 400
    assert api("GET", f"/connectors/{name}/offsets") == (200, {"offsets": []})


def test_a_body_that_is_too_large_is_rejected_by_its_length(api: ApiClient) -> None:
    assert api("POST", "/connectors", CREATE, headers={"content-length": str(5 << 20)})[0] == 413


# ---- plugins

MARK = "import pathlib; pathlib.Path(__file__).with_suffix('.imported').touch()\n"
CLASSES = """
from kavka.connect import ConfigProvider, Source
from kavka.pipeline.connect.converters import StringConverter
from kavka.pipeline.connect.transforms.base import Transform
from kavka.pipeline.connect.transforms.predicates import Predicate

class CustomSource(Source):
    "A source without records."

class Text(StringConverter):
    pass

class Step(Transform):
    pass

class Condition(Predicate):
    pass

class Vault(ConfigProvider):
    pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module on Python's path. Its code creates the file `.imported` when it runs."""
    path = tmp_path / "plugins_of_a_test.py"
    path.write_text(MARK + CLASSES)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield path
    sys.modules.pop(path.stem, None)


def uses(name: str) -> list[tuple[str, dict[str, str]]]:
    """Returns (setting, configuration) for every setting of a connector that names a class."""
    steps = {"transforms": "a", "transforms.a.type": "Filter", "predicates": "p", "predicates.p.type": "HasHeaderKey"}
    return [
        ("connector.class", {"connector.class": f"{name}.CustomSource"}),
        ("key.converter", {"key.converter": f"{name}.Text"}),
        ("value.converter", {"value.converter": f"{name}:Text"}),
        ("transforms.a.type", {"transforms": "a", "transforms.a.type": f"{name}.Step"}),
        ("predicates.p.type", {**steps, "predicates.p.type": f"{name}.Condition"}),
        ("producer.override.PARTITIONER.class", {"producer.override.PARTITIONER.class": f"{name}.CustomSource"}),
        ("producer.override.interceptor.classes", {"producer.override.interceptor.classes": f"x,{name}.CustomSource"}),
        ("producer.override.serializer.class", {"producer.override.serializer.class": f"{name}.CustomSource"}),
        ("consumer.override.partition.assignment.strategy",
         {"consumer.override.partition.assignment.strategy": f"{name}.CustomSource"}),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(len(uses(""))))
def test_an_undeclared_module_is_not_imported(api: ApiClient, module: Path, number: int) -> None:
    setting, config = uses(module.stem)[number]
    status, response = api("POST", "/connectors", {"name": "c", "config": {**SOURCE, **config}})
    assert status == 400, response
    assert f"plugin.modules={module.stem}" in response["message"] and "plugin.path" in response["message"]
    assert not module.with_suffix(".imported").exists(), setting


def test_a_connector_may_not_name_a_token_endpoint(api: ApiClient) -> None:
    """It could make the worker send a file to the brokers of the connector."""
    option = "producer.override.sasl.oauthbearer.token.endpoint.url"
    status, response = api("POST", "/connectors", {"name": "c", "config": {**SOURCE, option: "file:///etc/passwd"}})
    assert status == 400 and "only the worker's settings may name a token endpoint" in response["message"]


def test_plugin_requests_do_not_import_undeclared_modules(api: ApiClient, module: Path) -> None:
    assert api("GET", f"/connector-plugins/{module.stem}.CustomSource/config")[0] == 404
    path = f"/connector-plugins/{module.stem}.CustomSource/config/validate"
    assert api("PUT", path, {"connector.class": f"{module.stem}.CustomSource"})[0] == 400
    assert not module.with_suffix(".imported").exists()


def test_an_undeclared_configuration_provider_is_not_imported(module: Path) -> None:
    properties = {"config.providers": "v", "config.providers.v.class": f"{module.stem}.Vault"}
    with pytest.raises(ConfigErrors, match=f"plugin.modules={module.stem}"):
        Providers.of(properties, Declared())
    assert not module.with_suffix(".imported").exists()
    Providers.of(properties, Declared(frozenset({module.stem})))
    assert module.with_suffix(".imported").exists()


@pytest.mark.parametrize("option", ["plugin.modules", "plugin.path"])
def test_declared_modules_are_imported(module: Path, option: str) -> None:
    declared = Declared.of({option: module.stem if option == "plugin.modules" else str(module.parent)})
    assert not module.with_suffix(".imported").exists()
    api = ApiClient(idle_herder(declared))
    for number, (setting, settings) in enumerate(uses(module.stem)[:4]):
        config = {"connector.class": f"{module.stem}.CustomSource", **settings}
        status, response = api("POST", "/connectors", {"name": str(number), "config": config})
        assert status == 201, (setting, response)
    # Each setting accepts only classes of its kind, even from a declared module.
    for setting, class_name in (
        ("connector.class", "Step"), ("value.converter", "CustomSource"), ("transforms.a.type", "Text"),
    ):  # fmt: skip
        config = {"connector.class": f"{module.stem}.CustomSource", "transforms": "a", "transforms.a.type": "Filter"}
        config[setting] = f"{module.stem}.{class_name}"
        status, response = api("POST", "/connectors", {"name": "wrong", "config": config})
        assert status == 400 and f"{module.stem}.{class_name}" in response["message"], response


def test_a_declared_package_includes_only_its_modules() -> None:
    declared = Declared(frozenset({"shop.connectors"}))
    assert declared.allows("shop.connectors") and declared.allows("shop.connectors.orders")
    for name in ("shop", "shop.connectors_old", "shop.other", "os", ""):
        assert not declared.allows(name)


def test_installed_packages_declare_plugins_with_entry_points(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "shop-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[kavka.connect]\nShopOrders = {module.stem}:CustomSource\n")
    assert metadata.entry_points(group="kavka.connect")
    herder = idle_herder(Declared.of({}))
    assert not module.with_suffix(".imported").exists()
    for name in ("ShopOrders", f"{module.stem}.CustomSource"):
        assert herder.create(name, {"connector.class": name}, None)["type"] == "source"
    assert "ShopOrders" in {plugin["class"] for plugin in herder.list_plugins(connectors_only=True)}


# ---- connectors that open files

FILE_CONNECTORS = [
    {"connector.class": "FileStreamSource", "file": "/etc/hosts", "topic": "t"},
    {"connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "file": "/tmp/x.py", "topics": "t"},
    {"connector.class": "kavka.pipeline.connect.connectors.file_sink.FileStreamSink", "file": "x", "topics": "t"},
    {"connector.class": "FolderSource", "folder": "/etc", "topic": "t"},
    {"connector.class": "SparkSource", "spark.format": "text", "spark.path": "/etc", "topic": "t"},
    {"connector.class": "SparkSink", "spark.format": "text", "spark.path": "/tmp/x", "topics": "t"},
    {"connector.class": "JdbcSink", "connection.url": "jdbc:sqlite:/tmp/x", "topics": "t"},
    {"connector.class": "JdbcSink", "connection.url": "jdbc:derby:/tmp/x;create=true", "topics": "t"},
    {"connector.class": "JdbcSink", "connection.url": " jdbc:derby:/tmp/x;create=true", "topics": "t"},
    {"connector.class": "JdbcSource", "connection.url": "jdbc:h2:mem:x;INIT=RUNSCRIPT FROM 'f'", "mode": "bulk"},
    {"connector.class": "JdbcSource", "connection.url": "jdbc:other:x", "driver.class": "a.B", "mode": "bulk"},
]


@pytest.mark.parametrize("config", FILE_CONNECTORS, ids=lambda config: config["connector.class"])
def test_connectors_that_open_files_must_be_enabled(config: dict[str, str]) -> None:
    api = ApiClient(idle_herder(Declared()))
    status, response = api("POST", "/connectors", {"name": "c", "config": config})
    assert status == 400 and "file.connectors.enable=true" in response["message"], response
    assert ApiClient(idle_herder())("POST", "/connectors", {"name": "c", "config": config})[0] == 201


def test_connectors_to_servers_need_no_file_access() -> None:
    api = ApiClient(idle_herder(Declared()))
    names = {plugin["class"] for plugin in api("GET", "/connector-plugins")[1]}
    assert not [name for name in names if "File" in name or "Spark" in name or "Folder" in name]
    config = {"connector.class": "JdbcSink", "connection.url": "jdbc:postgresql://h/d", "topics": "t"}
    assert api("POST", "/connectors", {"name": "c", "config": config})[0] == 201
    assert api("GET", "/connector-plugins/FileStreamSource/config")[0] == 404


def test_a_stored_connector_that_opens_files_fails_with_the_setting_to_change() -> None:
    herder = idle_herder(Declared())
    herder.configs.put("c", {**SOURCE, "name": "c"}, "STARTED")
    herder._reconcile()
    status = herder.statuses.connector("c")
    assert status is not None and status.state == "FAILED" and "file.connectors.enable=true" in (status.trace or "")
