"""The console: authentication, rejected requests, alerts, start and stop, and the commands of
docs/console.md."""

from __future__ import annotations

import base64
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kavka.console.auth import Role, UsersFile
from tests.support.console import ConsoleClient, ConsoleProcess, of_default
from tests.support.kavka_process import KavkaProcess
from tests.support.missing import need_command
from tests.support.processes import ManagedProcess, free_port, wait_until

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[KavkaProcess]:
    with KavkaProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="module")
def console(tmp_path_factory, broker) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(tmp_path_factory.mktemp("console"), broker.bootstrap_servers) as console:
        yield console


@pytest.fixture(scope="module")
def console_with_users(tmp_path_factory, broker) -> Iterator[ConsoleProcess]:
    """A console with users: anna has the role admin, bert operate, carl view."""
    folder = tmp_path_factory.mktemp("console-with-users")
    users = UsersFile(folder / "users")
    for name, role in (("anna", Role.ADMIN), ("bert", Role.OPERATE), ("carl", Role.VIEW)):
        users.put(name, role, f"{name}'s")
    options = ["--users", str(users.path), "--allowed-host", "console.example"]
    with ConsoleProcess(folder, broker.bootstrap_servers, "--host", "127.0.0.1", *options) as console_with_users:
        yield console_with_users


def basic(name: str, password: str | None = None) -> str:
    text = f"{name}:{password if password is not None else name + chr(39) + 's'}"
    return "Basic " + base64.b64encode(text.encode()).decode()


def cookie_and_token(console: ConsoleProcess, path: str, **headers: str) -> tuple[str, str]:
    page = console.get(path, Accept="text/html", **headers)
    cookie = headers.get("Cookie") or page.headers["Set-Cookie"].partition(";")[0]
    token = re.search(r'name="csrf" (?:content|value)="(\w+)"', page.text)
    assert token is not None
    return cookie, token[1]


# --- forged requests


def test_an_unknown_host_header_is_rejected(console):
    assert console.get("/", Host="evil.example").status == 421
    assert console.get("/healthz", Host="127.0.0.1:1").status == 200


def test_a_cross_site_form_changes_nothing(console):
    path = of_default("/topics/create")
    assert console.post(path, {"name": "forged"}, Origin="http://evil.example").status == 403
    assert console.post(path, {"name": "forged"}, Origin="null").status == 403
    assert console.post(path, {"name": "forged"}, Sec_Fetch_Site="cross-site").status == 403
    assert console.form(path, {"name": "forged"}).status == 403, "a form without a session was accepted"
    text_headers = {"Content-Type": "text/plain"}
    assert console.request("POST", path, json.dumps({"name": "forged"}).encode(), text_headers).status in (403, 415)
    cookie, token = cookie_and_token(console, "/c/default/topics")
    assert console.form(path, {"name": "forged", "csrf": "0" * 64}, Cookie=cookie).status == 403
    assert console.form(path, {"name": "forged"}, Cookie=cookie).status == 403
    assert console.post(path, {"name": "forged"}, Cookie=cookie).status == 403
    assert "forged" not in console.get(of_default("/topics")).text
    response = console.form(path, {"name": "accepted", "csrf": token}, Cookie=cookie, Origin=console.origin)
    assert response.status == 403, "an Origin that differs from the Host was accepted"
    response = console.form(path, {"name": "accepted", "csrf": token}, Cookie=cookie)
    assert (response.status, response.headers["Location"].partition("?")[0]) == (303, "/c/default/topics/accepted")
    page = console.get(response.headers["Location"], Accept="text/html")
    assert "accepted was created" in page.text
    page = console.get(response.headers["Location"], Accept="text/html")
    assert "accepted was created" not in page.text, "the message was shown twice"


def test_another_site_can_link_to_pages_but_starts_no_search_or_stream(console):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert console.request("GET", "/c/default/topics", headers=link).status == 200
    for path in (
        of_default("/messages?topic=x"), of_default("/overview"), "/c/default/events", "/api/openapi.json",
        "/c/default/messages/stream?topic=x", "/c/default/messages/download?topic=x",
        "/c/default/messages/raw?topic=x",
    ):  # fmt: skip
        assert console.request("GET", path, headers=link).status == 403, path
        assert console.get(path, Origin="http://evil.example").status == 403, path
    assert console.get("/c/default/topics", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="no-cors").status == 403
    assert console.get(of_default("/overview"), Sec_Fetch_Site="same-origin").status == 200


def test_every_response_forbids_foreign_scripts_and_frames(console):
    for path in ("/c/default/overview", "/api/clusters/default/overview", "/nowhere", "/static/console.js"):
        headers = console.get(path).headers
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_files_outside_the_static_folder_are_not_served(console):
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"):
        assert console.get(path).status == 404


def test_a_body_that_is_too_large_is_rejected(console):
    response = console.request(
        "POST", of_default("/topics/create"), b" " * 9_000_000, {"Content-Type": "application/json"}
    )
    assert (response.status, response.error) == (413, "the request body is too large")


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b"\xff\xfe"])
def test_a_body_that_is_not_a_json_object_is_rejected(console, body):
    response = console.request("POST", of_default("/topics/create"), body, {"Content-Type": "application/json"})
    assert response.status == 400 and "JSON" in response.error


def test_unknown_paths_are_errors(console):
    assert console.get("/c/nowhere/overview").error == "there is no cluster 'nowhere' here"
    assert console.get(of_default("/topics/nothing")).error == "there is no topic 'nothing'"
    page = console.get("/c/default/topics/%3Cscript%3E", Accept="text/html")
    assert page.status == 404 and "<script>" not in page.text.partition("<main")[2]
    assert console.get("/c/default/brokers/7", Accept="text/html").status == 404
    assert console.get("/c/default/topics?page=x", Accept="text/html").status == 400


def test_the_openapi_document_describes_operations_and_their_schemas(console):
    openapi = console.get("/api/openapi.json").json()
    create = openapi["paths"]["/api/clusters/{cluster}/topics/create"]["post"]
    schema = create["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["name"] and schema["properties"]["partitions"]["minimum"] == 1
    detail = openapi["paths"]["/api/clusters/{cluster}/topics/{topic}"]["get"]
    assert [p["name"] for p in detail["parameters"]] == ["cluster", "topic"]
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(openapi)))
    assert references <= openapi["components"]["schemas"].keys()


# --- users and roles


def test_all_pages_require_a_login(console_with_users):
    response = console_with_users.get("/c/default/overview", Accept="text/html")
    assert (response.status, response.headers["Location"]) == (303, "/login?next=/c/default/overview")
    for path in ("/api/clusters/default/overview", "/c/default/events", "/api/openapi.json"):
        assert console_with_users.get(path).status == 401
    assert console_with_users.get("/api/clusters/default/overview", Authorization=basic("nobody")).status == 401
    assert console_with_users.post(of_default("/topics/create"), {"name": "x"}).status == 401


def test_users_log_in_and_out(console_with_users):
    cookie, token = cookie_and_token(console_with_users, "/login")
    wrong_password = console_with_users.form("/login", {"name": "bert", "password": "no", "csrf": token}, Cookie=cookie)
    assert wrong_password.status == 401 and "wrong name or password" in wrong_password.text
    early_retry = console_with_users.form(
        "/login", {"name": "bert", "password": "bert's", "csrf": token}, Cookie=cookie
    )
    assert early_retry.status == 429 and "wait" in early_retry.text
    forged = console_with_users.form("/login", {"name": "anna", "password": "anna's"}, Cookie=cookie)
    assert forged.status == 403
    values = {"name": "anna", "password": "anna's", "csrf": token, "next": "//evil.example/"}
    login = console_with_users.form("/login", values, Cookie=cookie)
    assert (login.status, login.headers["Location"]) == (303, "/")
    assert "HttpOnly" in login.headers["Set-Cookie"] and "SameSite=strict" in login.headers["Set-Cookie"]
    session = login.headers["Set-Cookie"].partition(";")[0]
    assert session != cookie, "the login did not replace the session id (session fixation)"
    page = console_with_users.get("/c/default/overview", Accept="text/html", Cookie=session)
    assert page.status == 200 and "anna" in page.text
    _, session_token = cookie_and_token(console_with_users, "/c/default/overview", Cookie=session)
    assert console_with_users.form("/logout", {"csrf": session_token}, Cookie=session).status == 303
    assert console_with_users.get("/c/default/overview", Accept="text/html", Cookie=session).status == 303


def test_a_role_limits_operations_and_the_audit_log_has_every_change(console_with_users):
    carl, anna = basic("carl"), basic("anna")
    assert console_with_users.get(of_default("/overview"), Authorization=carl).status == 200
    response = console_with_users.post(of_default("/topics/create"), {"name": "roles"}, Authorization=carl)
    assert (response.status, response.error) == (403, "this requires the role operate, and carl has view")
    assert console_with_users.get("/c/default/topics/x/actions", Accept="text/html", Authorization=carl).status == 403
    assert console_with_users.get(of_default("/audit"), Authorization=carl).status == 403
    assert console_with_users.post(of_default("/topics/create"), {"name": "roles"}, Authorization=anna).status == 200
    lines = console_with_users.get(of_default("/audit"), Authorization=anna).json()
    entries = [(line["user"], line["action"], line["arguments"].get("name"), line["outcome"]) for line in lines]
    assert ("anna", "create_topic", "roles", "done") in entries
    assert ("carl", "create_topic", None, "this requires the role operate, and carl has view") in entries


def test_a_removed_user_loses_access_immediately(console_with_users):
    users = UsersFile(console_with_users.folder / "users")
    users.put("dora", Role.VIEW, "dora's")
    assert console_with_users.get(of_default("/overview"), Authorization=basic("dora")).status == 200
    users.remove("dora")
    assert console_with_users.get(of_default("/overview"), Authorization=basic("dora")).status == 401


def test_parallel_wrong_passwords_are_rate_limited(console_with_users):
    UsersFile(console_with_users.folder / "users").put("emma", Role.VIEW, "emma's")
    with ThreadPoolExecutor(50) as threads:
        headers = [basic("emma", f"wrong {n}") for n in range(200)]
        statuses = Counter(
            threads.map(
                lambda header: console_with_users.get(of_default("/overview"), Authorization=header).status, headers
            )
        )
    assert statuses[401] + statuses[429] == 200
    # The wait after a wrong password is 1 s at first and doubles with every further attempt.
    assert statuses[401] < 10


def test_a_changed_password_ends_the_session_and_its_streams(console_with_users):
    users = UsersFile(console_with_users.folder / "users")
    users.put("fred", Role.VIEW, "fred's")
    cookie, token = cookie_and_token(console_with_users, "/login")
    login = console_with_users.form("/login", {"name": "fred", "password": "fred's", "csrf": token}, Cookie=cookie)
    session = login.headers["Set-Cookie"].partition(";")[0]
    assert console_with_users.get(of_default("/overview"), Cookie=session).status == 200
    stream = http.client.HTTPConnection("127.0.0.1", console_with_users.port, timeout=TIMEOUT_S)
    stream.request("GET", "/c/default/events", headers={"Cookie": session})
    response = stream.getresponse()
    assert response.read(5)
    users.put("fred", Role.VIEW, "other")
    assert console_with_users.get(of_default("/overview"), Cookie=session).status == 401
    assert response.read().endswith(b'event: failed\ndata: "log in first"\n\n')
    stream.close()


def test_a_user_name_of_a_megabyte_is_rejected(console_with_users):
    cookie, token = cookie_and_token(console_with_users, "/login")
    for size, expected in ((1 << 20, 413), (10_000, 401)):
        values = {"name": "x" * size, "password": "x", "csrf": token}
        response = console_with_users.form("/login", values, Cookie=cookie)
        assert response.status == expected and len(response.text) < 10_000


def test_half_open_requests_do_not_block_other_clients(console_with_users):
    """120 requests come from one address, 400 from six other addresses."""
    peers = []
    try:
        for number in range(520):
            source_address = ("127.0.0.1" if number < 120 else f"127.0.1.{number % 6}", 0)
            peer = socket.create_connection(
                ("127.0.0.1", console_with_users.port), TIMEOUT_S, source_address=source_address
            )
            peer.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n" + b"\r\n" * (number % 2))
            peers.append(peer)
        assert console_with_users.get("/healthz").status == 200
        assert console_with_users.get(of_default("/overview"), Authorization=basic("anna")).status == 200
        assert any(not receive(peer) for peer in peers[:100])
    finally:
        for peer in peers:
            peer.close()


def receive(peer: socket.socket) -> bytes:
    """Return the received data, `b"open"` if there is none, or `b""` if the console closed the
    connection."""
    peer.setblocking(False)
    try:
        return peer.recv(100)
    except BlockingIOError:
        return b"open"
    except ConnectionError:
        return b""


PROTOCOLS = ("https", "http")


def test_forwarded_headers_of_an_unknown_peer_are_ignored(console_with_users):
    response = console_with_users.get("/login", X_Forwarded_Proto="https", X_Forwarded_For="10.0.0.1")
    assert "Secure" not in response.headers["Set-Cookie"]


def test_login_limits_apply_per_user_address_behind_a_trusted_proxy(tmp_path, broker):
    users = UsersFile(tmp_path / "users")
    users.put("anna", Role.ADMIN, "anna's")
    options = ["--users", str(users.path), "--trusted-proxy", "127.0.0.1"]
    result = run_tool("console", "--bootstrap-server", broker.bootstrap_servers, "--trusted-proxy", "proxy.example")
    assert result.returncode == 1 and "must be an IP address" in result.stderr
    with ConsoleProcess(tmp_path / "console", broker.bootstrap_servers, *options) as console:
        path = of_default("/overview")
        assert console.get(path, Authorization=basic("anna", "no"), X_Forwarded_For="10.0.0.1").status == 401
        assert console.get(path, Authorization=basic("anna"), X_Forwarded_For="10.0.0.1").status == 429
        assert console.get(path, Authorization=basic("anna"), X_Forwarded_For="10.0.0.2").status == 200
        secure = {scheme: console.get("/login", X_Forwarded_Proto=scheme).headers["Set-Cookie"] for scheme in PROTOCOLS}
        assert ["Secure" in secure[scheme] for scheme in PROTOCOLS] == [True, False]


def test_an_allowed_host_name_is_served(console_with_users):
    assert console_with_users.get("/healthz", Host="console.example").status == 200
    assert console_with_users.get("/healthz", Host="other.example").status == 421


def run_tool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kavka.cli.main", *arguments],
        input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def test_the_user_tool_adds_lists_and_removes_users(tmp_path):
    users = str(tmp_path / "users")
    result = run_tool("console-user", "--users", users, "--add", "anna", "--role", "admin", text="secret\n")
    assert (result.returncode, result.stdout) == (0, "anna has the role admin\n")
    assert "secret" not in Path(users).read_text()
    assert run_tool("console-user", "--users", users, "--list").stdout == "anna admin\n"
    assert run_tool("console-user", "--users", users, "--remove", "anna").returncode == 0
    second_removal = run_tool("console-user", "--users", users, "--remove", "anna")
    assert (second_removal.returncode, second_removal.stderr) == (
        1,
        f"kavka console-user: {users} has no user 'anna'\n",
    )


# --- start and stop


def test_a_start_error_is_printed_in_one_line(tmp_path, console, broker):
    start = ["console", "--bootstrap-server", broker.bootstrap_servers, "--data", str(tmp_path / "d")]
    all_interfaces = run_tool(*start, "--host", "0.0.0.0", "--port", "0")
    assert all_interfaces.returncode == 1 and "the console needs users" in all_interfaces.stderr
    port_in_use = run_tool(*start, "--port", str(console.port))
    assert (port_in_use.returncode, port_in_use.stderr.count("\n")) == (1, 1) and "is in use" in port_in_use.stderr
    directory_in_use = run_tool(*start[:3], "--data", str(console.folder / "data"), "--port", "0")
    assert directory_in_use.returncode == 1 and "another console uses the directory" in directory_in_use.stderr
    without_servers = run_tool("console")
    assert without_servers.returncode == 1 and "bootstrap-server" in without_servers.stderr


def test_an_unreachable_cluster_is_reported(tmp_path):
    with ConsoleProcess(tmp_path, f"localhost:{free_port()}") as console:
        page = console.get("/c/default/overview", Accept="text/html")
        assert page.status == 503 and "no broker responds at" in page.text
        assert console.get(of_default("/topics")).status == 503
        alerts = console.get(of_default("/alerts")).json()
        assert [alert["text"].partition(":")[0] for alert in alerts] == ["no broker responds"]


class WebhookHandler(BaseHTTPRequestHandler):
    """Stores the JSON bodies of all POST requests."""

    received: list[dict[str, object]] = []

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def test_an_alert_is_sent_to_its_webhook_once_and_survives_a_restart(tmp_path, broker):
    webhook_server = HTTPServer(("127.0.0.1", 0), WebhookHandler)
    threading.Thread(target=webhook_server.serve_forever, daemon=True).start()
    try:
        with ConsoleProcess(tmp_path, broker.bootstrap_servers) as console:
            webhook = f"http://127.0.0.1:{webhook_server.server_port}/x"
            assert console.post(of_default("/alerts/rules"), {"kind": "disk", "webhook": "file:///x"}).status == 400
            values = {"kind": "disk", "threshold": 0, "webhook": webhook}
            assert console.post(of_default("/alerts/rules"), values).status == 200
            wait_until(lambda: bool(WebhookHandler.received), timeout=TIMEOUT_S, what="a request to the webhook")
            assert (WebhookHandler.received[0]["state"], WebhookHandler.received[0]["kind"]) == ("raised", "disk")
            alerts = console.get(of_default("/alerts")).json()
            page = console.get("/c/default/topics", Accept="text/html")
            assert "% full" in page.text, "the page does not show the alert"
            rule = next(r for r in console.get(of_default("/alerts/rules")).json() if r["webhook"] == webhook)
            console.stop()
            console.start()
            wait_until(
                lambda: console.get(of_default("/alerts")).json() == alerts,
                timeout=TIMEOUT_S,
                what="the same alert after the restart",
            )
            console.get("/c/default/overview")
            assert len(WebhookHandler.received) == 1, "the webhook was called twice"
            path = of_default(f"/alerts/rules/{rule['id']}/delete")
            assert console.post(path, {"confirm": "no"}).status == 400
            assert console.post(path, {"confirm": str(rule["id"]), "seen": "0" * 16}).status == 409
            assert console.post(path, {"confirm": str(rule["id"]), "seen": rule["seen"]}).status == 200
            assert console.get(of_default("/alerts")).json() == []
            events = console.get(of_default("/alerts/events")).json()
            assert events[0]["ended"] is not None
    finally:
        webhook_server.shutdown()


def test_the_console_of_a_broker_process_ends_with_the_broker(tmp_path):
    port = free_port()
    config = tmp_path / "server.properties"
    config.write_text(f"listeners=PLAINTEXT://localhost:{free_port()}\nlog.dirs={tmp_path / 'logs'}\n")
    server = [sys.executable, "-m", "kavka.cli.main", "server", str(config), "--console", str(port)]
    console = ConsoleClient(port)
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        broker = ManagedProcess(server, log=tmp_path / "broker.out")
        wait_until(
            lambda: console.responds(of_default("/overview")),
            timeout=TIMEOUT_S,
            what="a response of the console",
            interval=0.2,
        )
        broker.signal(signal_number)
        wait_until(lambda: not console.responds(), timeout=TIMEOUT_S, what="the end of the console", interval=0.2)
        broker.stop()


def test_a_broker_runs_without_its_console_if_the_port_is_in_use(tmp_path, console):
    port = free_port()
    options = ["--override", f"listeners=PLAINTEXT://localhost:{port}", "--override", f"log.dirs={tmp_path / 'logs'}"]
    server = [sys.executable, "-m", "kavka.cli.main", "server", *options, "--console", str(console.port)]
    broker = ManagedProcess(server, log=tmp_path / "broker.out")
    try:
        wait_until(
            lambda: f"port {console.port} of localhost is in use" in broker.log_tail(),
            timeout=TIMEOUT_S,
            what="the log message",
        )
        assert run_tool("topics", "--bootstrap-server", f"localhost:{port}", "--list").returncode == 0
    finally:
        assert broker.stop() == 0


def test_the_console_serves_https_with_a_certificate(tmp_path, broker):
    need_command("openssl", "openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    options = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    without_key = run_tool("console", "--bootstrap-server", broker.bootstrap_servers, "--port", "0", *options[:2])
    assert without_key.returncode == 1 and "must be set together" in without_key.stderr
    with ConsoleProcess(tmp_path / "console", broker.bootstrap_servers, *options) as console:
        tls_context = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection("localhost", console.port, timeout=TIMEOUT_S, context=tls_context)
        connection.request("GET", "/c/default/overview", headers={"Accept": "text/html"})
        response = connection.getresponse()
        assert response.status == 200 and "Secure" in response.headers["Set-Cookie"]
        connection.close()


def test_several_clusters_are_separate(tmp_path, broker):
    file = tmp_path / "clusters"
    file.write_text(
        f"[shop]\nbootstrap.servers={broker.bootstrap_servers}\n[away]\nbootstrap.servers=localhost:{free_port()}\n"
    )
    with ConsoleProcess(tmp_path / "console", "", "--config", str(file)) as console:
        page = console.get("/c/shop/overview", Accept="text/html")
        assert page.status == 200 and 'href="/c/away"' in page.text
        assert console.get("/c/away/overview", Accept="text/html").status == 503
        clusters = {cluster["name"]: cluster for cluster in console.get("/api/clusters").json()}
        assert list(clusters) == ["shop", "away"]
        assert (clusters["shop"]["servers"], clusters["shop"]["error"]) == (broker.bootstrap_servers, "")
        assert clusters["away"]["error"]
        created = console.post("/api/clusters/shop/topics/create", {"name": "of-the-shop"})
        assert created.json()["location"] == "/c/shop/topics/of-the-shop"
        lines = console.get("/api/clusters/shop/audit").json()
        assert [line["action"] for line in lines] == ["create_topic"]
        assert console.get("/api/clusters/away/audit").json() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_console_while_a_client_is_connected(tmp_path, broker, number):
    with ConsoleProcess(tmp_path, broker.bootstrap_servers) as console:
        stream = http.client.HTTPConnection("127.0.0.1", console.port, timeout=TIMEOUT_S)
        stream.request("GET", "/c/default/events")
        assert stream.getresponse().read(5)
        console.process.signal(number)
        wait_until(lambda: not console.process.running(), timeout=TIMEOUT_S, what="the end of the console")
        assert "Traceback" not in console.log.read_text()
        stream.close()


# --- docs/console.md


DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "console.md"


def test_the_commands_of_the_document_work(tmp_path, broker, console):
    text = DOCUMENT.read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (clusters,) = (body for language, body in blocks if language == "ini")
    (tmp_path / "clusters.ini").write_text(clusters.replace("localhost:9092", broker.bootstrap_servers))
    kavka = f"{sys.executable} -m kavka.cli.main"
    console_count = 0
    for line in "".join(body for language, body in blocks if language == "sh").splitlines():
        command = line.replace("localhost:9092", broker.bootstrap_servers)
        command = re.sub(r"\bkavka (console)", rf"{kavka} \1", command)
        if " console --" in command:
            console_count += 1
            process = ManagedProcess(
                [
                    *command.replace("--port 9080", "--port 0").split(),
                    "--data",
                    str(tmp_path / f"data-{console_count}"),
                ],
                log=tmp_path / f"console-{console_count}.log",
                cwd=tmp_path,
            )
            try:
                wait_until(lambda p=process: "The console is at" in p.log_tail(), timeout=TIMEOUT_S, what=command)
            finally:
                process.stop()
            continue
        result = subprocess.run(
            ["sh", "-c", command.replace("http://localhost:9080", console.origin)],
            cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert result.returncode == 0 and '"error":"a' not in result.stdout, (command, result.stdout, result.stderr)
        if line.startswith("curl") and " -d " in line:
            assert json.loads(result.stdout)["message"].startswith("orders was ")
    assert console_count == 2
