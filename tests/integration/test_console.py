"""The console's frame: who may ask, what is refused, what lasts over a restart, how it starts and
ends."""

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

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[KavkaProcess]:
    with KavkaProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="module")
def console(tmp_path_factory, broker) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(tmp_path_factory.mktemp("console"), broker.bootstrap_servers) as console:
        yield console


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, broker) -> Iterator[ConsoleProcess]:
    """One with users: anna is admin, bert may operate, carl may look."""
    folder = tmp_path_factory.mktemp("guarded")
    users = UsersFile(folder / "users")
    for name, role in (("anna", Role.ADMIN), ("bert", Role.OPERATE), ("carl", Role.VIEW)):
        users.put(name, role, f"{name}'s")
    options = ["--users", str(users.path), "--allowed-host", "console.example"]
    with ConsoleProcess(folder, broker.bootstrap_servers, "--host", "127.0.0.1", *options) as guarded:
        yield guarded


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


def test_another_name_of_this_machine_is_refused(console):
    assert console.get("/", Host="evil.example").status == 421
    assert console.get("/healthz", Host="127.0.0.1:1").status == 200


def test_a_form_of_another_site_changes_nothing(console):
    path = of_default("/topics/create")
    assert console.post(path, {"name": "forged"}, Origin="http://evil.example").status == 403
    assert console.post(path, {"name": "forged"}, Origin="null").status == 403
    assert console.post(path, {"name": "forged"}, Sec_Fetch_Site="cross-site").status == 403
    assert console.form(path, {"name": "forged"}).status == 403, "without a session, a form could be anybody's"
    plain = {"Content-Type": "text/plain"}
    assert console.request("POST", path, json.dumps({"name": "forged"}).encode(), plain).status in (403, 415)
    cookie, token = cookie_and_token(console, "/c/default/topics")
    assert console.form(path, {"name": "forged", "csrf": "0" * 64}, Cookie=cookie).status == 403
    assert console.form(path, {"name": "forged"}, Cookie=cookie).status == 403
    assert console.post(path, {"name": "forged"}, Cookie=cookie).status == 403
    assert "forged" not in console.get(of_default("/topics")).text
    done = console.form(path, {"name": "made", "csrf": token}, Cookie=cookie, Origin=console.origin)
    assert done.status == 403, "the Origin is another than the Host"
    done = console.form(path, {"name": "made", "csrf": token}, Cookie=cookie)
    assert (done.status, done.headers["Location"].partition("?")[0]) == (303, "/c/default/topics/made")
    said = console.get(done.headers["Location"], Accept="text/html")
    assert "made was created" in said.text
    again = console.get(done.headers["Location"], Accept="text/html")
    assert "made was created" not in again.text, "a line is said once"


def test_every_response_forbids_foreign_scripts_and_frames(console):
    for path in ("/c/default/overview", "/api/clusters/default/overview", "/nowhere", "/static/console.js"):
        headers = console.get(path).headers
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_files_beside_the_static_ones_are_not_served(console):
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"):
        assert console.get(path).status == 404


def test_a_body_without_end_is_not_read_on(console):
    answer = console.request(
        "POST", of_default("/topics/create"), b" " * 9_000_000, {"Content-Type": "application/json"}
    )
    assert (answer.status, answer.error) == (413, "the request body is too large")


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b"\xff\xfe"])
def test_a_body_that_is_no_object_is_refused_in_a_line(console, body):
    answer = console.request("POST", of_default("/topics/create"), body, {"Content-Type": "application/json"})
    assert answer.status == 400 and "JSON" in answer.error


def test_unknown_paths_are_errors(console):
    assert console.get("/c/nowhere/overview").error == "there is no cluster 'nowhere' here"
    assert console.get(of_default("/topics/nothing")).error == "there is no topic 'nothing'"
    page = console.get("/c/default/topics/%3Cscript%3E", Accept="text/html")
    assert page.status == 404 and "<script>" not in page.text.partition("<main")[2]
    assert console.get("/c/default/brokers/7", Accept="text/html").status == 404
    assert console.get("/c/default/topics?page=x", Accept="text/html").status == 400


def test_the_description_of_the_api_names_every_operation(console):
    described = console.get("/api/openapi.json").json()
    create = described["paths"]["/api/clusters/{cluster}/topics/create"]["post"]
    schema = create["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["name"] and schema["properties"]["partitions"]["minimum"] == 1
    detail = described["paths"]["/api/clusters/{cluster}/topics/{topic}"]["get"]
    assert [p["name"] for p in detail["parameters"]] == ["cluster", "topic"]
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)))
    assert references <= described["components"]["schemas"].keys()


# --- users and roles


def test_all_pages_require_a_login(guarded):
    answer = guarded.get("/c/default/overview", Accept="text/html")
    assert (answer.status, answer.headers["Location"]) == (303, "/login?next=/c/default/overview")
    for path in ("/api/clusters/default/overview", "/c/default/events", "/api/openapi.json"):
        assert guarded.get(path).status == 401
    assert guarded.get("/api/clusters/default/overview", Authorization=basic("nobody")).status == 401
    assert guarded.post(of_default("/topics/create"), {"name": "x"}).status == 401


def test_logging_in_and_out(guarded):
    cookie, token = cookie_and_token(guarded, "/login")
    wrong = guarded.form("/login", {"name": "bert", "password": "no", "csrf": token}, Cookie=cookie)
    assert wrong.status == 401 and "wrong name or password" in wrong.text
    soon = guarded.form("/login", {"name": "bert", "password": "bert's", "csrf": token}, Cookie=cookie)
    assert soon.status == 429 and "wait" in soon.text
    forged = guarded.form("/login", {"name": "anna", "password": "anna's"}, Cookie=cookie)
    assert forged.status == 403
    values = {"name": "anna", "password": "anna's", "csrf": token, "next": "//evil.example/"}
    done = guarded.form("/login", values, Cookie=cookie)
    assert (done.status, done.headers["Location"]) == (303, "/")
    assert "HttpOnly" in done.headers["Set-Cookie"] and "SameSite=strict" in done.headers["Set-Cookie"]
    session = done.headers["Set-Cookie"].partition(";")[0]
    assert session != cookie, "a session is a new one: nobody can have prepared it"
    page = guarded.get("/c/default/overview", Accept="text/html", Cookie=session)
    assert page.status == 200 and "anna" in page.text
    _, fresh = cookie_and_token(guarded, "/c/default/overview", Cookie=session)
    assert guarded.form("/logout", {"csrf": fresh}, Cookie=session).status == 303
    assert guarded.get("/c/default/overview", Accept="text/html", Cookie=session).status == 303


def test_a_role_may_what_it_may_and_every_change_is_written_down(guarded):
    carl, anna = basic("carl"), basic("anna")
    assert guarded.get(of_default("/overview"), Authorization=carl).status == 200
    refused = guarded.post(of_default("/topics/create"), {"name": "roles"}, Authorization=carl)
    assert (refused.status, refused.error) == (403, "this requires the role operate, and carl has view")
    assert guarded.get("/c/default/topics/x/actions", Accept="text/html", Authorization=carl).status == 403
    assert guarded.get(of_default("/audit"), Authorization=carl).status == 403
    assert guarded.post(of_default("/topics/create"), {"name": "roles"}, Authorization=anna).status == 200
    lines = guarded.get(of_default("/audit"), Authorization=anna).json()
    entries = [(line["user"], line["action"], line["arguments"].get("name"), line["outcome"]) for line in lines]
    assert ("anna", "create_topic", "roles", "done") in entries
    assert ("carl", "create_topic", None, "this requires the role operate, and carl has view") in entries


def test_a_user_who_is_removed_is_out_at_once(guarded):
    users = UsersFile(guarded.folder / "users")
    users.put("dora", Role.VIEW, "dora's")
    assert guarded.get(of_default("/overview"), Authorization=basic("dora")).status == 200
    users.remove("dora")
    assert guarded.get(of_default("/overview"), Authorization=basic("dora")).status == 401


def test_of_wrong_passwords_in_parallel_few_are_tried(guarded):
    UsersFile(guarded.folder / "users").put("emma", Role.VIEW, "emma's")
    with ThreadPoolExecutor(50) as threads:
        statuses = Counter(threads.map(
            lambda n: guarded.get(of_default("/overview"), Authorization=basic("emma", f"wrong {n}")).status, range(200)
        ))  # fmt: skip
    assert statuses[401] + statuses[429] == 200
    # The first second has one attempt, the second and third second one more, and so on.
    assert statuses[401] < 10


def test_a_session_and_its_streams_end_with_the_password(guarded):
    users = UsersFile(guarded.folder / "users")
    users.put("fred", Role.VIEW, "fred's")
    cookie, token = cookie_and_token(guarded, "/login")
    done = guarded.form("/login", {"name": "fred", "password": "fred's", "csrf": token}, Cookie=cookie)
    session = done.headers["Set-Cookie"].partition(";")[0]
    assert guarded.get(of_default("/overview"), Cookie=session).status == 200
    stream = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=PATIENCE_S)
    stream.request("GET", "/c/default/events", headers={"Cookie": session})
    answer = stream.getresponse()
    assert answer.read(5)
    users.put("fred", Role.VIEW, "other")
    assert guarded.get(of_default("/overview"), Cookie=session).status == 401
    assert answer.read().endswith(b'event: failed\ndata: "log in first"\n\n')
    stream.close()


def test_a_name_of_a_megabyte_is_refused_before_it_is_read(guarded):
    cookie, token = cookie_and_token(guarded, "/login")
    for size, expected in ((1 << 20, 413), (10_000, 401)):
        values = {"name": "x" * size, "password": "x", "csrf": token}
        answer = guarded.form("/login", values, Cookie=cookie)
        assert answer.status == expected and len(answer.text) < 10_000


def test_half_open_requests_do_not_block_other_clients(guarded):
    """520 of them, from one address and from several."""
    peers = []
    try:
        for number in range(520):
            where = ("127.0.0.1" if number < 120 else f"127.0.1.{number % 6}", 0)
            peer = socket.create_connection(("127.0.0.1", guarded.port), PATIENCE_S, source_address=where)
            peer.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n" + b"\r\n" * (number % 2))
            peers.append(peer)
        assert guarded.get("/healthz").status == 200
        assert guarded.get(of_default("/overview"), Authorization=basic("anna")).status == 200
        assert any(not received(peer) for peer in peers[:100])
    finally:
        for peer in peers:
            peer.close()


def received(peer: socket.socket) -> bytes:
    """b"" where the console has closed the connection."""
    peer.setblocking(False)
    try:
        return peer.recv(100)
    except BlockingIOError:
        return b"open"
    except ConnectionError:
        return b""


def test_users_behind_a_trusted_proxy_have_their_own_addresses(tmp_path, broker):
    users = UsersFile(tmp_path / "users")
    users.put("anna", Role.ADMIN, "anna's")
    options = ["--users", str(users.path), "--trusted-proxy", "127.0.0.1"]
    wrong = run_tool("console", "--bootstrap-server", broker.bootstrap_servers, "--trusted-proxy", "proxy.example")
    assert wrong.returncode == 1 and "must be an IP address" in wrong.stderr
    with ConsoleProcess(tmp_path / "console", broker.bootstrap_servers, *options) as console:
        path = of_default("/overview")
        assert console.get(path, Authorization=basic("anna", "no"), X_Forwarded_For="10.0.0.1").status == 401
        assert console.get(path, Authorization=basic("anna"), X_Forwarded_For="10.0.0.1").status == 429
        assert console.get(path, Authorization=basic("anna"), X_Forwarded_For="10.0.0.2").status == 200


def test_an_allowed_host_name_is_served(guarded):
    assert guarded.get("/healthz", Host="console.example").status == 200
    assert guarded.get("/healthz", Host="other.example").status == 421


def run_tool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kavka.cli.main", *arguments],
        input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_the_tool_that_keeps_the_users(tmp_path):
    users = str(tmp_path / "users")
    added = run_tool("console-user", "--users", users, "--add", "anna", "--role", "admin", text="secret\n")
    assert (added.returncode, added.stdout) == (0, "anna has the role admin\n")
    assert "secret" not in Path(users).read_text()
    assert run_tool("console-user", "--users", users, "--list").stdout == "anna admin\n"
    assert run_tool("console-user", "--users", users, "--remove", "anna").returncode == 0
    again = run_tool("console-user", "--users", users, "--remove", "anna")
    assert (again.returncode, again.stderr) == (1, f"kavka console-user: {users} has no user 'anna'\n")


# --- starting and ending


def test_a_start_error_is_one_line(tmp_path, console, broker):
    start = ["console", "--bootstrap-server", broker.bootstrap_servers, "--data", str(tmp_path / "d")]
    everywhere = run_tool(*start, "--host", "0.0.0.0", "--port", "0")
    assert everywhere.returncode == 1 and "the console needs users" in everywhere.stderr
    taken = run_tool(*start, "--port", str(console.port))
    assert (taken.returncode, taken.stderr.count("\n")) == (1, 1) and "is in use" in taken.stderr
    shared = run_tool(*start[:3], "--data", str(console.folder / "data"), "--port", "0")
    assert shared.returncode == 1 and "another console uses the directory" in shared.stderr
    nothing = run_tool("console")
    assert nothing.returncode == 1 and "bootstrap-server" in nothing.stderr


def test_an_unreachable_cluster_is_shown_until_it_responds(tmp_path):
    with ConsoleProcess(tmp_path, f"localhost:{free_port()}") as lonely:
        page = lonely.get("/c/default/overview", Accept="text/html")
        assert page.status == 503 and "no broker responds at" in page.text
        assert lonely.get(of_default("/topics")).status == 503
        alerts = lonely.get(of_default("/alerts")).json()
        assert [alert["text"].partition(":")[0] for alert in alerts] == ["no broker responds"]


class Hook(BaseHTTPRequestHandler):
    received: list[dict[str, object]] = []

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def test_an_alert_reaches_its_webhook_and_outlives_a_restart(tmp_path, broker):
    hook = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    try:
        with ConsoleProcess(tmp_path, broker.bootstrap_servers) as first:
            webhook = f"http://127.0.0.1:{hook.server_port}/x"
            assert first.post(of_default("/alerts/rules"), {"kind": "disk", "webhook": "file:///x"}).status == 400
            values = {"kind": "disk", "threshold": 0, "webhook": webhook}
            assert first.post(of_default("/alerts/rules"), values).status == 200
            wait_until(lambda: bool(Hook.received), timeout=PATIENCE_S, what="the webhook hears of it")
            assert (Hook.received[0]["state"], Hook.received[0]["kind"]) == ("raised", "disk")
            alerts = first.get(of_default("/alerts")).json()
            page = first.get("/c/default/topics", Accept="text/html")
            assert "% full" in page.text, "it is on every page"
            rule = next(r for r in first.get(of_default("/alerts/rules")).json() if r["webhook"] == webhook)
            first.stop()
            first.start()
            wait_until(
                lambda: first.get(of_default("/alerts")).json() == alerts, timeout=PATIENCE_S, what="it is still raised"
            )
            first.get("/c/default/overview")
            assert len(Hook.received) == 1, "nobody is told twice"
            path = of_default(f"/alerts/rules/{rule['id']}/delete")
            assert first.post(path, {"confirm": "no"}).status == 400
            assert first.post(path, {"confirm": str(rule["id"]), "seen": "0" * 16}).status == 409
            assert first.post(path, {"confirm": str(rule["id"]), "seen": rule["seen"]}).status == 200
            assert first.get(of_default("/alerts")).json() == []
            events = first.get(of_default("/alerts/events")).json()
            assert events[0]["ended"] is not None
    finally:
        hook.shutdown()


def test_the_console_beside_a_broker_ends_with_it(tmp_path):
    port = free_port()
    config = tmp_path / "server.properties"
    config.write_text(f"listeners=PLAINTEXT://localhost:{free_port()}\nlog.dirs={tmp_path / 'logs'}\n")
    server = [sys.executable, "-m", "kavka.cli.main", "server", str(config), "--console", str(port)]
    beside = ConsoleClient(port)
    for end in (signal.SIGTERM, signal.SIGKILL):
        broker = ManagedProcess(server, log=tmp_path / "broker.out")
        wait_until(
            lambda: beside.responds(of_default("/overview")),
            timeout=PATIENCE_S,
            what="the console answers",
            interval=0.2,
        )
        broker.signal(end)
        wait_until(lambda: not beside.responds(), timeout=PATIENCE_S, what="the console is gone", interval=0.2)
        broker.stop()


def test_a_taken_port_of_the_console_is_a_line_and_the_broker_runs(tmp_path, console):
    port = free_port()
    options = ["--override", f"listeners=PLAINTEXT://localhost:{port}", "--override", f"log.dirs={tmp_path / 'logs'}"]
    server = [sys.executable, "-m", "kavka.cli.main", "server", *options, "--console", str(console.port)]
    broker = ManagedProcess(server, log=tmp_path / "broker.out")
    try:
        wait_until(
            lambda: f"port {console.port} of localhost is in use" in broker.log_tail(),
            timeout=PATIENCE_S,
            what="it is said",
        )
        assert run_tool("topics", "--bootstrap-server", f"localhost:{port}", "--list").returncode == 0
    finally:
        assert broker.stop() == 0


def test_it_serves_https_with_a_certificate(tmp_path, broker):
    need_command("openssl", "openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip
    options = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    half = run_tool("console", "--bootstrap-server", broker.bootstrap_servers, "--port", "0", *options[:2])
    assert half.returncode == 1 and "must be set together" in half.stderr
    with ConsoleProcess(tmp_path / "console", broker.bootstrap_servers, *options) as console:
        trust = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection("localhost", console.port, timeout=PATIENCE_S, context=trust)
        connection.request("GET", "/c/default/overview", headers={"Accept": "text/html"})
        answer = connection.getresponse()
        assert answer.status == 200 and "Secure" in answer.headers["Set-Cookie"]
        connection.close()


def test_several_clusters_are_separate(tmp_path, broker):
    file = tmp_path / "clusters"
    file.write_text(
        f"[shop]\nbootstrap.servers={broker.bootstrap_servers}\n[away]\nbootstrap.servers=localhost:{free_port()}\n"
    )
    with ConsoleProcess(tmp_path / "console", "", "--config", str(file)) as console:
        page = console.get("/c/shop/overview", Accept="text/html")
        assert page.status == 200 and 'href="/c/away/overview"' in page.text
        assert console.get("/c/away/overview", Accept="text/html").status == 503
        listed = {cluster["name"]: cluster for cluster in console.get("/api/clusters").json()}
        assert list(listed) == ["shop", "away"]
        assert (listed["shop"]["servers"], listed["shop"]["error"]) == (broker.bootstrap_servers, "")
        assert listed["away"]["error"]
        created = console.post("/api/clusters/shop/topics/create", {"name": "of-the-shop"})
        assert created.json()["location"] == "/c/shop/topics/of-the-shop"
        lines = console.get("/api/clusters/shop/audit").json()
        assert [line["action"] for line in lines] == ["create_topic"]
        assert console.get("/api/clusters/away/audit").json() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly_while_a_client_is_connected(tmp_path, broker, number):
    with ConsoleProcess(tmp_path, broker.bootstrap_servers) as console:
        stream = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE_S)
        stream.request("GET", "/c/default/events")
        assert stream.getresponse().read(5)
        console.process.signal(number)
        wait_until(lambda: not console.process.running(), timeout=PATIENCE_S, what="it ends")
        assert "Traceback" not in console.log.read_text()
        stream.close()


# --- docs/console.md


DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "console.md"


def test_the_commands_of_the_document_work_as_they_stand_there(tmp_path, broker, console):
    text = DOCUMENT.read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (clusters,) = (body for language, body in blocks if language == "ini")
    (tmp_path / "clusters.ini").write_text(clusters.replace("localhost:9092", broker.bootstrap_servers))
    here = f"{sys.executable} -m kavka.cli.main"
    started = 0
    for line in "".join(body for language, body in blocks if language == "sh").splitlines():
        command = line.replace("localhost:9092", broker.bootstrap_servers)
        command = re.sub(r"\bkavka (console)", rf"{here} \1", command)
        if " console --" in command:
            started += 1
            process = ManagedProcess(
                [*command.replace("--port 9080", "--port 0").split(), "--data", str(tmp_path / f"data-{started}")],
                log=tmp_path / f"console-{started}.log",
                cwd=tmp_path,
            )
            try:
                wait_until(lambda p=process: "The console is at" in p.log_tail(), timeout=PATIENCE_S, what=command)
            finally:
                process.stop()
            continue
        done = subprocess.run(
            ["sh", "-c", command.replace("http://localhost:9080", console.origin)],
            cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and '"error":"a' not in done.stdout, (command, done.stdout, done.stderr)
        if line.startswith("curl") and " -d " in line:
            assert json.loads(done.stdout)["message"].startswith("orders was ")
    assert started == 2
