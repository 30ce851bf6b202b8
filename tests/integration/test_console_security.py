"""The console's security pages, rights per topic prefix, masks, and logins with an identity
provider, on a broker with an authorizer."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import pytest

from kavka import Admin, NewTopic, Producer
from kavka.console.auth import Role, UsersFile
from tests.support.acls import ANONYMOUS, AUTHORIZER
from tests.support.axe import serious_violations
from tests.support.browser import browser, expect, page_of
from tests.support.console import ConsoleClient, ConsoleProcess, Response, of_default, open_details, send
from tests.support.identity_provider import IdentityProvider
from tests.support.kavka_process import KavkaProcess

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

BASE = "/kavka"
PASSWORD = "the password of alice"
USERS = {"root": Role.ADMIN, "anna": Role.VIEW, "bert": Role.ADMIN, "carl": Role.VIEW}


@pytest.fixture(scope="module")
def provider(tmp_path_factory) -> Iterator[IdentityProvider]:
    with IdentityProvider(tmp_path_factory.mktemp("provider")) as provider:
        yield provider


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[KavkaProcess]:
    overrides = {**AUTHORIZER, "super.users": ANONYMOUS}
    with KavkaProcess(tmp_path_factory.mktemp("broker"), overrides=overrides) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, 1, 1) for name in ("payments.cards", "orders.all", "secret")])
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for topic in ("payments.cards", "secret"):
                producer.send(topic, json.dumps({"card": {"number": "4111"}, "id": 1}).encode(), key=b"k")
            producer.flush()
        yield broker


@pytest.fixture(scope="module")
def console(tmp_path_factory, broker, provider) -> Iterator[ConsoleProcess]:
    """A console at /kavka. The user anna may view payments.* and operate orders.*."""
    folder = tmp_path_factory.mktemp("console")
    users = UsersFile(folder / "users")
    for name, role in USERS.items():
        users.put(name, role, f"{name}'s")
    (folder / "clusters").write_text(
        f"[default]\nbootstrap.servers={broker.bootstrap_servers}\n"
        "console.rights.anna=view:payments., operate:orders.\n"
        "console.rights.bert=none\n"
        "console.rights.@team=view:payments.\n"
        "console.mask.payments.*=$.card.number\n"
    )
    options = ["--config", str(folder / "clusters"), "--users", str(users.path), "--base-path", BASE]
    options += ["--oidc", str(provider.console_settings(folder))]
    with ConsoleProcess(folder, "", *options) as console:
        yield console


def basic(name: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{name}'s".encode()).decode()}


def get(console: ConsoleClient, path: str, user: str = "root", **headers: str) -> Response:
    return console.get(BASE + of_default(path), **basic(user), **headers)


def post(console: ConsoleClient, path: str, values: object, user: str = "root") -> Response:
    return console.post(BASE + of_default(path), values, **basic(user))


def page(console: ConsoleClient, path: str, user: str = "root") -> Response:
    return console.get(f"{BASE}/c/default{path}", Accept="text/html", **basic(user))


ACL = {"principal": "User:alice", "operation": "Read", "resource_type": "Topic", "name": "pay", "pattern": "Prefixed"}


def test_acls_are_created_explained_and_deleted(console):
    question = "/acls/explain?principal=User:alice&operation=Describe&resource_type=Topic&name=payments.cards"
    denied = get(console, question).json()
    assert (denied["allowed"], denied["rule"]) == (False, "default") and "no ACL applies" in denied["reason"]
    assert post(console, "/acls/create", ACL).status == 200
    assert [acl["name"] for acl in get(console, "/acls?principal=User:alice").json()] == ["pay"]
    assert get(console, "/acls?resource_type=Topic&name=payments.cards").json()
    assert not get(console, "/acls?resource_type=Topic&name=orders.all").json()
    allowed = get(console, question).json()
    assert allowed["allowed"] and allowed["acls"][0]["operation"] == "Read"
    super_user = get(console, question.replace("User:alice", ANONYMOUS)).json()
    assert (super_user["allowed"], super_user["rule"]) == (True, "super user")
    shown = page(console, "/security?" + question.partition("?")[2] + "&explain=true")
    assert shown.status == 200 and "an ACL allows Describe" in shown.text and f'action="{BASE}/api/' in shown.text
    assert post(console, "/acls/delete", {**ACL, "confirm": "alice"}).status == 400
    assert post(console, "/acls/delete", {**ACL, "confirm": "User:alice"}).status == 200
    assert post(console, "/acls/delete", {**ACL, "confirm": "User:alice"}).status == 404
    assert not get(console, "/acls?principal=User:alice").json()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"principal": "alice"}, "principal"),
        ({"operation": "IdempotentWrite"}, "operation"),
        ({"operation": "Fly"}, "operation"),
        ({"name": ""}, "name"),
        ({"resource_type": "Cluster", "operation": "Alter", "pattern": "Literal"}, "name"),
    ],
)
def test_invalid_acls_are_rejected(console, change, field):
    response = post(console, "/acls/create", {**ACL, **change})
    assert (response.status, response.json()["field"]) == (400, field)


def test_scram_users_are_created_and_deleted_and_the_password_is_nowhere(console):
    values = {"name": "alice", "password": PASSWORD, "mechanism": "SCRAM-SHA-256"}
    assert post(console, "/scram-users/set", values).status == 200
    assert post(console, "/scram-users/set", {**values, "iterations": 8192}).status == 200
    assert get(console, "/scram-users").json() == [{"name": "alice", "mechanisms": {"SCRAM-SHA-256": 8192}}]
    assert post(console, "/scram-users/set", {**values, "iterations": 1}).status == 400
    shown = page(console, "/security/users")
    audit = get(console, "/audit").text
    assert "alice" in shown.text and "set_scram_user" in audit
    log = console.log.read_text()
    assert PASSWORD not in shown.text + audit + log + page(console, "/audit").text
    deletion = {"name": "alice", "mechanism": "SCRAM-SHA-256", "confirm": "alice"}
    assert post(console, "/scram-users/delete", deletion).status == 200
    assert get(console, "/scram-users").json() == []


def test_quotas_are_set_by_precedence_and_removed(console):
    quota = {"key": "producer_byte_rate", "value": 1000}
    assert post(console, "/quotas/set", {**quota, "user": "(default)"}).status == 200
    assert post(console, "/quotas/set", {**quota, "user": "alice", "client": "app", "value": 5}).status == 200
    assert post(console, "/quotas/set", {"key": "connection_creation_rate", "ip": "10.0.0.1", "value": 7}).status == 200
    effective = get(console, "/quotas/effective?user=alice&client=app&ip=10.0.0.1").json()
    assert [(row["key"], row["value"]) for row in effective] == [
        ("producer_byte_rate", 5), ("connection_creation_rate", 7),
    ]  # fmt: skip
    assert get(console, "/quotas/effective?user=bob").json()[0]["entity"] == "the default user"
    shown = page(console, "/security/quotas?user=alice&client=app")
    assert shown.status == 200 and "user alice, client app" in shown.text
    for entity in ({"user": "(default)"}, {"user": "alice", "client": "app"}):
        assert post(console, "/quotas/set", {"key": "producer_byte_rate", **entity}).status == 200
    assert post(console, "/quotas/set", {"key": "connection_creation_rate", "ip": "10.0.0.1"}).status == 200
    assert get(console, "/quotas").json() == []


def test_security_pages_require_an_admin(console):
    for path in ("/security", "/security/users", "/security/quotas"):
        assert page(console, path, "carl").status == 403
    for path in ("/acls", "/acls/principals", "/scram-users", "/quotas", "/quotas/effective?user=x"):
        assert get(console, path, "carl").status == 403
    assert post(console, "/acls/create", ACL, "carl").status == 403
    assert "/security" not in page(console, "/topics", "carl").text


# --- rights


def test_prefix_rights_limit_lists_searches_and_changes(console):
    names = [topic["name"] for topic in get(console, "/topics", "anna").json()]
    assert names == ["orders.all", "payments.cards"]
    topics_page = page(console, "/topics", "anna")
    assert "payments.cards" in topics_page.text and "secret" not in topics_page.text
    assert get(console, "/messages?topic=payments.cards", "anna").json()["messages"]
    assert page(console, "/messages?topic=payments.cards", "anna").status == 200
    assert "secret" not in page(console, "/messages", "anna").text
    for path in ("/topics/secret", "/messages?topic=secret", "/messages/one?topic=secret&partition=0&offset=0"):
        assert get(console, path, "anna").status == 403, path
    for path in ("stream", "download", "raw", "one"):
        query = "topic=secret&partition=0&offset=0"
        assert page(console, f"/messages/{path}?{query}", "anna").status == 403, path
        doubled = page(console, f"/messages/{path}?topic=payments.cards&{query}", "anna")
        assert doubled.status == 403, "the last of two topics is not the checked one"
    assert page(console, "/topics/secret", "anna").status == 403
    for path in ("/overview", "/brokers", "/groups/one?group=x", "/transactions", "/alerts", "/audit", "/rates"):
        assert get(console, path, "anna").status == 403, path
    assert post(console, "/topics/create", {"name": "orders.new"}, "anna").status == 200
    for name in ("secret.new", "payments.new", "order", " secret"):
        assert post(console, "/topics/create", {"name": name}, "anna").status == 403, name
    copy = {"topic": "payments.cards", "partition": 0, "offset": 0, "to_topic": "orders.all"}
    assert post(console, "/messages/copy", copy, "anna").status == 403
    assert post(console, "/messages/produce", {"topic": "secret", "value": "x"}, "anna").status == 403
    assert post(console, "/messages/produce", {"topic": "orders.all", "value": "x"}, "anna").status == 200
    home = console.get(BASE + "/c/default", **basic("anna"))
    assert (home.status, home.headers["Location"]) == (302, f"{BASE}/c/default/topics")
    denied = [line for line in get(console, "/audit").json() if line["user"] == "anna" and line["outcome"] != "done"]
    assert len(denied) >= 6


def test_a_user_without_rights_sees_no_cluster(console):
    assert get(console, "/topics", "bert").status == 404
    assert console.get(BASE + "/api/clusters", **basic("bert")).status == 403
    assert console.get(BASE + "/", Accept="text/html", **basic("bert")).status == 403
    assert console.get(f"{BASE}/c/default/events", **basic("bert")).status == 404


# --- masks


def test_masked_fields_are_hidden_from_everyone(console):
    query = "topic=payments.cards&partition=0"
    for path in (f"/messages?{query}", f"/messages/one?{query}&offset=0", f"/messages?{query}&value_format=hex"):
        response = get(console, path)
        assert response.status == 200 and "4111" not in response.text and "34 31 31 31" not in response.text, path
    assert get(console, f"/messages?{query}&text=4111").json()["messages"] == []
    for path in (f"one?{query}&offset=0", f"download?{query}", f"download?{query}&format=csv"):
        response = page(console, f"/messages/{path}")
        assert response.status == 200 and "4111" not in response.text, path
    assert page(console, f"/messages/raw?{query}&offset=0").status == 403
    copy = {"topic": "payments.cards", "partition": 0, "offset": 0, "to_topic": "orders.all"}
    refused = post(console, "/messages/copy", copy)
    assert refused.status == 403 and "masked" in refused.error
    assert "4111" in get(console, "/messages?topic=secret").text


# --- logins with an identity provider, and the base path


def log_in(console: ConsoleClient, provider: IdentityProvider) -> tuple[Response, str]:
    """Log in as a browser does. Returns the last response and the cookie of the session."""
    begin = console.get(f"{BASE}/login/provider?next={BASE}/c/default/topics")
    assert begin.status == 302 and begin.headers["Location"].startswith(provider.url)
    cookie = begin.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and f"Path={BASE}/login" in cookie
    callback = provider.authorize(dict(parse_qsl(urlsplit(begin.headers["Location"]).query)))
    parts = urlsplit(callback)
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    headers = {"Cookie": cookie.partition(";")[0], **link}
    response = console.request("GET", f"{parts.path}?{parts.query}", headers=headers)
    cookies = [text.partition(";")[0] for text in response.headers.get_all("Set-Cookie") or []]
    session = next((text for text in cookies if "_login=" not in text), "")
    return response, session


def test_a_provider_user_logs_in_with_the_rights_of_the_groups(console, provider):
    provider.login_user, provider.login_claims = "dora@example.com", {"groups": ["team", "sre"]}
    response, session = log_in(console, provider)
    assert response.status == 200 and response.headers["Refresh"] == f"0; url={BASE}/c/default/topics"
    topics = console.get(f"{BASE}/c/default/topics", Accept="text/html", Cookie=session)
    assert topics.status == 200 and "dora@example.com" in topics.text
    assert "payments.cards" in topics.text and "secret" not in topics.text, "the rights of the group replace the role"
    entry = next(line for line in get(console, "/audit").json() if line["user"] == "dora@example.com")
    assert (entry["action"], entry["outcome"]) == ("log_in", "done")


def test_a_provider_user_cannot_take_the_name_of_a_user_with_a_password(console, provider):
    provider.login_user, provider.login_claims = "root", {"groups": ["sre"]}
    response, session = log_in(console, provider)
    assert response.status == 403 and "root is a user with a password" in response.text
    assert console.get(BASE + of_default("/topics"), Cookie=session).status == 401


def test_a_callback_without_its_cookie_is_rejected(console, provider):
    response = console.get(f"{BASE}/login/callback?state=x&code=y", Accept="text/html")
    assert response.status == 401 and "no login in this browser" in response.text


def test_everything_is_below_the_base_path(console):
    assert (console.get("/").status, console.get("/").headers["Location"]) == (307, f"{BASE}/")
    assert console.get("/c/default/topics").status == 404
    assert console.get("/healthz").status == console.get(f"{BASE}/healthz").status == 200
    login = console.get(f"{BASE}/c/default/topics", Accept="text/html")
    assert login.headers["Location"] == f"{BASE}/login?next={BASE}/c/default/topics"
    shown = page(console, "/topics")
    links = [text.partition('"')[0] for attribute in ("href", "src", "action") for text in
             shown.text.split(f'{attribute}="')[1:]]  # fmt: skip
    assert links and all(link.startswith((f"{BASE}/", "?", "#")) for link in links), links
    created = post(console, "/topics/create", {"name": "based"})
    assert created.json()["location"] == f"{BASE}/c/default/topics/based"
    static = next(link for link in links if "/static/console.css" in link)
    assert console.get(static).status == 200


@pytest.mark.slow
def test_an_admin_logs_in_and_gives_a_user_a_right_in_a_browser(console, provider):
    """In a browser, because it decides which cookies follow the redirects of the provider."""
    provider.login_user, provider.login_claims = "erik@example.com", {"groups": ["sre"]}
    with browser() as chromium, page_of(chromium, console.origin) as (tab, watch):
        tab.goto(f"{BASE}/c/default/topics")
        tab.get_by_role("link", name="Log in with").click()
        expect(tab.get_by_role("link", name="payments.cards")).to_be_visible()
        tab.get_by_role("link", name="ACLs", exact=True).click()
        send(open_acl_dialog(tab), "Add", "the ACL of User:erik was created")
        form = tab.locator("#explain")
        for name, value in (("principal", "User:erik"), ("name", "orders.all")):
            form.locator(f"[name={name}]").fill(value)
        form.locator("[name=resource_type]").select_option("Topic")
        form.locator("[name=operation]").select_option("Describe")
        form.get_by_role("button", name="Explain access").click()
        expect(tab.locator("#decision")).to_contain_text("an ACL allows Describe")
        assert not serious_violations(tab)
        for path in ("users", "quotas?user=erik"):
            tab.goto(f"{BASE}/c/default/security/{path}")
            assert not serious_violations(tab)
        tab.get_by_role("button", name="Log out").click()
        expect(tab.get_by_role("link", name="Log in with")).to_be_visible()
        assert (watch.dialogs, watch.errors) == ([], [])
        assert all(request.startswith(provider.url) for request in watch.external_requests)


def open_acl_dialog(tab: Page) -> Locator:
    dialog = open_details(tab, "add")
    dialog.locator("[name=principal]").fill("User:erik")
    dialog.locator("[name=name]").fill("orders.")
    dialog.locator("[name=pattern]").select_option("Prefixed")
    return dialog
