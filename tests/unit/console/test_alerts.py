"""Silence, formats and tests of alert rules, the export of the audit log, and the metrics."""

from __future__ import annotations

import asyncio
import csv
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.console.alerts import Alerts, message_of
from kavka.console.auth import Role, User
from kavka.console.context import Context
from kavka.console.metrics import Metrics
from kavka.console.pages.audit import ExportFormat, export_audit
from kavka.console.rights import Rights
from kavka.console.rules import Format, Kind, Rule
from kavka.console.store import AUDIT_CHUNK, AuditLine, Store
from tests.unit.console.test_samples import SENT, handle, sample


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    store = Store(tmp_path / "data")
    store.open()
    yield store
    store.close()


def states(alerts: Alerts) -> list[object]:
    """Return the states of the queued messages, and remove them."""
    queue = alerts._messages
    return [queue.get_nowait()[1]["state"] for _ in range(queue.qsize())]


async def with_alerts(store: Store) -> Alerts:
    cluster = handle(store)
    alerts = Alerts(cluster, SENT)
    await alerts.load()
    assert alerts._sender is not None
    alerts._sender.cancel()
    for rule in list(alerts.rules):
        await alerts.remove(rule)
    return alerts


def test_silenced_rule_sends_the_message_after_the_silence(store):
    async def body() -> None:
        alerts = await with_alerts(store)
        until = time.time() + 60
        rule = await alerts.put(Rule(0, Kind.OFFLINE, webhook="http://h/", silenced_until=until))
        alerts.cluster.sample = sample(leaders=(-1, 0))
        await alerts.evaluate()
        assert len(alerts.cluster.alerts) == 1 and len(await alerts.events(10)) == 1
        assert states(alerts) == [], "a silenced rule sent a message"
        restarted = Alerts(alerts.cluster, SENT)
        await restarted.load()
        assert restarted.rules[rule.id].silenced_until == until, "the silence is stored"
        await restarted.close()
        await alerts.put(Rule(rule.id, Kind.OFFLINE, webhook="http://h/"))
        assert states(alerts) == ["raised"]
        await alerts.evaluate()
        assert states(alerts) == []
        alerts.cluster.sample = sample()
        await alerts.evaluate()
        assert states(alerts) == ["ended"]
        await alerts.put(Rule(rule.id, Kind.OFFLINE, webhook="http://h/", silenced_until=until))
        for leaders in ((-1, 0), (0, 0)):
            alerts.cluster.sample = sample(leaders=leaders)
            await alerts.evaluate()
        await alerts.put(Rule(rule.id, Kind.OFFLINE, webhook="http://h/"))
        assert states(alerts) == [], "an alert that began and ended during the silence was sent"

    asyncio.run(body())


def test_message_for_slack_mentions_no_channel():
    rule = Rule(1, Kind.LAG, format=Format.SLACK)
    message = message_of("default", rule, "raised", "g", "group <!channel> & <http://evil|x> has a lag", 0.0)
    assert message == {"text": "[default] raised: group &lt;!channel&gt; &amp; &lt;http://evil|x&gt; has a lag"}
    assert message_of("c", Rule(1, Kind.LAG), "ended", "g", "<t>", 1.0)["text"] == "<t>"


def test_test_message_reports_the_status(store):
    received: list[Any] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/broken" else 200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    async def body(port: int) -> list[str]:
        alerts = await with_alerts(store)
        urls = [f"http://127.0.0.1:{port}/", f"http://127.0.0.1:{port}/broken", "http://127.0.0.1:1/"]
        return [await alerts.test(Rule(7, Kind.LAG, webhook=url, format=Format.SLACK)) for url in urls]

    server = HTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    sent, broken, refused = asyncio.run(body(server.server_port))
    server.shutdown()
    server.server_close()
    assert (sent, broken) == ("sent", "HTTP status 500") and "refused" in refused.lower()
    assert received[0] == {"text": "[one] test: test of the alert rule 7"}


def test_rules_of_an_earlier_version_are_read(tmp_path):
    with sqlite3.connect(tmp_path / "console.db") as db:
        db.execute(
            "CREATE TABLE rule (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, kind TEXT NOT NULL, "
            "subject TEXT NOT NULL, threshold REAL NOT NULL, for_s REAL NOT NULL, webhook TEXT NOT NULL, "
            "enabled INTEGER NOT NULL)"
        )
        db.execute("INSERT INTO rule VALUES (1, 'one', 'disk', '*', 85, 0, 'http://h/', 1)")
        db.execute("CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        db.execute("INSERT INTO setting VALUES ('rules-made/one', '1')")
    db.close()
    store = Store(tmp_path)
    store.open()

    async def body() -> None:
        alerts = Alerts(handle(store), SENT)
        await alerts.load()
        assert alerts.rules == {1: Rule(1, Kind.DISK, "*", 85.0, 0.0, "http://h/")}
        await alerts.close()

    asyncio.run(body())
    store.close()


@pytest.mark.parametrize("export_format", list(ExportFormat))
def test_audit_log_is_exported_completely(store, export_format):
    count = AUDIT_CHUNK + 7
    access = [True]

    async def body() -> str:
        for number in range(count):
            text = "=cmd()" if number == 0 else 'a "text",\nwith lines'
            await store.audit(
                AuditLine(float(number), text, "h", "one" if number else "", "act", {"n": number}, "done")
            )
        await store.audit(AuditLine(0.0, "x", "h", "other", "act", {}, "done"))
        auth = SimpleNamespace(is_current=lambda user: access[0])
        cluster: Any = SimpleNamespace(name="one")
        console: Any = SimpleNamespace(store=store, auth=auth)
        context = Context(console, User("anna", Role.ADMIN), "h", cluster, Rights(Role.ADMIN))
        response: Any = await export_audit(context, export_format)
        assert "attachment" in response.headers["Content-Disposition"]
        return b"".join([chunk async for chunk in response.body_iterator]).decode()

    text = asyncio.run(body())
    if export_format is ExportFormat.CSV:
        rows = list(csv.DictReader(text.splitlines(keepends=True)))
        assert rows[-1]["user"] == "'=cmd()", "a spreadsheet would evaluate the name"
    else:
        rows = [json.loads(line) for line in text.splitlines()]
        assert rows[-1]["user"] == "=cmd()"
    assert len(rows) == count and {row["cluster"] for row in rows} == {"one", ""}
    assert rows[0]["time"] > rows[-1]["time"]


def test_metrics_have_the_state_of_clusters_and_no_names_of_topics(store):
    cluster = handle(store)
    cluster.sample = sample(leaders=(-1, 0))
    metrics = Metrics({"one": cluster}, lambda: 3, lambda: 1)
    metrics.requests.labels("GET", "/c/{cluster}/topics").observe(0.02)
    metrics.logins.labels("failed").value += 1
    text = metrics.registry.render().decode()
    for line in (
        'kavka_console_cluster_up{cluster="one"} 1.0',
        'kavka_console_cluster_offline_partitions{cluster="one"} 1.0',
        'kavka_console_logins_total{outcome="failed"} 1.0',
        "kavka_console_sessions 3.0",
        'kavka_console_request_seconds_count{method="GET",route="/c/{cluster}/topics"} 1.0',
    ):
        assert line in text
    assert "orders" not in text
