"""Users, passwords, sessions and the checks of every request."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import time
from types import SimpleNamespace

import pytest
from starlette.requests import Request
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from kavka.common.web import network_of
from kavka.console import auth as auth_module
from kavka.console import passwords
from kavka.console.app import Handlers
from kavka.console.attempts import MAX_BURST, MAX_ENTRIES, REFILL_INTERVAL_S, Attempts, TooManyAttempts
from kavka.console.auth import MAX_PENDING_CHECKS, Auth, Role, User, UsersError, UsersFile
from kavka.console.bodies import local_path
from kavka.console.errors import Refused
from kavka.console.guard import Guard, check_origin, host_name
from kavka.console.passwords import hash_password, is_outdated, password_matches
from kavka.console.server import peer_addresses
from kavka.console.settings import ClusterSettings, ConsoleSettings, SettingsError, read_clusters

COST = passwords.N, passwords.R, passwords.P
OLD_HASH = (
    "scrypt$16384$8$1$00000000000000000000000000000000$"
    + hashlib.scrypt(b"right", salt=bytes(16), n=16384, r=8, p=1).hex()
)


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch) -> None:
    monkeypatch.setattr(passwords, "N", 2**10)


@pytest.fixture
def users(tmp_path) -> UsersFile:
    file = UsersFile(tmp_path / "users")
    file.put("anna", Role.ADMIN, "right")
    return file


def test_password_hashes_are_salted():
    first, second = hash_password("right"), hash_password("right")
    assert first != second
    assert "right" not in first
    assert password_matches("right", first) and password_matches("right", second)
    assert (
        not password_matches("wrong", first)
        and not password_matches("right", "scrypt$x")
        and not password_matches("right", "plain")
    )


def test_cost_of_new_hashes_is_owasps_first_choice():
    assert COST == (2**17, 8, 1)


def test_old_hash_is_replaced_at_login(users, caplog):
    async def body() -> None:
        users.path.write_text(f"anna:admin:{OLD_HASH}\nbert:view:{OLD_HASH}\n")
        auth = Auth(users)
        assert await auth.check("anna", "wrong", "h1") is None
        assert is_outdated(users.users()["anna"][1])
        user = await auth.check("anna", "right", "h2")
        stored_hash = users.users()["anna"][1]
        assert not is_outdated(stored_hash) and password_matches("right", stored_hash)
        assert user is not None and auth.session_user(auth.begin_session(user)) == User("anna", Role.ADMIN)
        assert users.users()["bert"][1] == OLD_HASH
        assert stat.S_IMODE(os.stat(users.path).st_mode) == 0o600
        assert await auth.check("anna", "right", "h3")
        assert users.users()["anna"][1] == stored_hash

    asyncio.run(body())


def test_hash_that_cannot_be_stored_does_not_prevent_login(users, caplog, monkeypatch):
    def fail(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    async def body() -> None:
        users.path.write_text(f"anna:admin:{OLD_HASH}\n")
        monkeypatch.setattr(UsersFile, "_write", fail)
        auth = Auth(users)
        user = await auth.check("anna", "right", "h")
        assert user is not None and auth.session_user(auth.begin_session(user)) == User("anna", Role.ADMIN)

    asyncio.run(body())
    assert "Cannot store the new password hash of anna" in caplog.text


def test_new_hash_does_not_replace_a_password_that_was_changed_meanwhile(users):
    users.path.write_text(f"anna:admin:{OLD_HASH}\n")
    UsersFile(users.path).put("anna", Role.ADMIN, "other")
    users.replace_hash("anna", OLD_HASH, hash_password("right"))
    assert password_matches("other", users.users()["anna"][1])
    users.replace_hash("nobody", OLD_HASH, OLD_HASH)
    assert set(users.users()) == {"anna"}


def test_change_of_the_users_file_waits_a_limited_time_for_its_lock(users, monkeypatch):
    monkeypatch.setattr(auth_module, "LOCK_TIMEOUT_S", 0.1)
    with users._locked(), pytest.raises(UsersError, match="another process changes"):
        UsersFile(users.path).put("bert", Role.VIEW, "x")


def request_with(scheme: str = "http", method: str = "GET", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in {"host": "console", **headers}.items()]
    return Request({
        "type": "http", "method": method, "scheme": scheme, "server": ("console", 80), "path": "/", "query_string": b"",
        "headers": raw,
    })  # fmt: skip


NAVIGATION = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@pytest.mark.parametrize(
    ("request_values", "expected"),
    [
        ({}, "data"),
        ({"sec_fetch_site": "same-origin", "origin": "http://console"}, "data"),
        ({"sec_fetch_site": "none"}, "data"),
        ({"scheme": "https", "origin": "https://console"}, "data"),
        ({"origin": "https://console"}, "data"),
        (NAVIGATION, "page"),
        ({**NAVIGATION, "sec_fetch_dest": "iframe"}, "nothing"),
        ({**NAVIGATION, "method": "POST"}, "nothing"),
        ({**NAVIGATION, "origin": "http://evil"}, "nothing"),
        ({"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, "nothing"),
        ({"origin": "null"}, "nothing"),
        ({"scheme": "https", "origin": "http://console"}, "nothing"),
    ],
)
def test_only_links_to_pages_are_accepted_from_other_origins(request_values, expected):
    accepted = "nothing"
    for may_navigate in (True, False):
        try:
            check_origin(request_with(**request_values), may_navigate)
        except Refused as error:
            assert error.status == 403
        else:
            accepted = "page" if may_navigate else "data"
    assert accepted == expected


def test_users_file_is_private_and_reloaded(users):
    assert stat.S_IMODE(os.stat(users.path).st_mode) == 0o600
    other_process = UsersFile(users.path)
    assert set(other_process.users()) == {"anna"}
    users.put("bert", Role.VIEW, "x")
    assert other_process.users()["bert"][0] == User("bert", Role.VIEW)
    users.remove("bert")
    assert "bert" not in other_process.users()


@pytest.mark.parametrize("line", ["anna:admin:plain", "anna:king:scrypt$1", "an na:view:scrypt$1", "anna"])
def test_error_in_users_file_is_reported_with_its_line_number(tmp_path, line):
    (tmp_path / "users").write_text(f"# users\n\n{line}\n")
    with pytest.raises(UsersError, match=r"users:3: "):
        UsersFile(tmp_path / "users").users()


def test_invalid_user_name_is_rejected(users):
    for name in ("a:b", "a\nb", "", "x" * 65):
        with pytest.raises(UsersError):
            users.put(name, Role.VIEW, "x")
    with pytest.raises(UsersError, match="empty"):
        users.put("bert", Role.VIEW, "")


def test_wrong_password_starts_back_off(users):
    async def body() -> None:
        auth = Auth(users)
        assert await auth.check("anna", "right", "here") == User("anna", Role.ADMIN)
        assert await auth.check("anna", "wrong", "here") is None
        with pytest.raises(TooManyAttempts):
            await auth.check("anna", "right", "here")
        assert await auth.check("anna", "right", "elsewhere"), "the back-off applies to one address"
        assert await auth.check("nobody", "x", "here") is None

    asyncio.run(body())


class Hashing:
    """A fake of scrypt that counts calls and the maximum of concurrent calls."""

    def __init__(self) -> None:
        self.count = self.running = self.max_running = 0

    def __call__(self, password: str, stored: str) -> bool:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        time.sleep(0.01)
        self.count += 1
        self.running -= 1
        return password_matches(password, stored)


@pytest.fixture
def hashing(monkeypatch) -> Hashing:
    fake = Hashing()
    monkeypatch.setattr(auth_module, "password_matches", fake)
    return fake


async def outcomes(attempts) -> list[object]:
    return list(await asyncio.gather(*attempts, return_exceptions=True))


def test_parallel_wrong_passwords_are_tried_once(users, hashing):
    async def body() -> None:
        for auth in (Auth(users), Auth(users)):
            auth.attempts = Attempts(lambda: 0.0)
            check = auth.check if not hashing.count else auth.check_basic
            results = await outcomes([check("anna", f"wrong {n}", "10.0.0.1") for n in range(200)])
            assert results.count(None) == 1 and sum(isinstance(r, TooManyAttempts) for r in results) == 199

    asyncio.run(body())
    assert hashing.count == 2


def test_attempts_per_address_and_account_are_limited(users, hashing):
    async def body() -> None:
        auth = Auth(users)
        auth.attempts = Attempts(lambda: 0.0)
        results = await outcomes([auth.check(f"name{n}", "x", "10.0.0.1") for n in range(MAX_PENDING_CHECKS)])
        assert results == [None] * MAX_PENDING_CHECKS
        while hashing.count < MAX_BURST:
            await auth.check(f"name{hashing.count}", "x", "10.0.0.1")
        with pytest.raises(TooManyAttempts):
            await auth.check("anna", "right", "10.0.0.1")
        assert await auth.check("anna", "right", "10.0.0.2")
        for number in range(MAX_BURST):
            assert await auth.check("anna", "x", f"10.0.1.{number}") is None
        with pytest.raises(TooManyAttempts):
            await auth.check("anna", "x", "10.0.2.1")
        assert await auth.check("anna", "right", "10.0.0.2"), "an address with an earlier login is exempt"

    asyncio.run(body())


def test_password_hashing_is_serial_and_queue_is_limited(users, hashing):
    async def body() -> list[object]:
        auth = Auth(users)
        return await outcomes([auth.check("anna", "right", f"10.0.0.{n}") for n in range(50)])

    results = asyncio.run(body())
    assert hashing.max_running == 1 and hashing.count == MAX_PENDING_CHECKS
    assert sum(isinstance(r, User) for r in results) == MAX_PENDING_CHECKS


def test_equal_basic_requests_are_one_attempt(users, hashing):
    async def body() -> None:
        auth = Auth(users)
        assert set(await outcomes([auth.check_basic("anna", "right", "h") for _ in range(50)])) == {
            User("anna", Role.ADMIN)
        }
        assert await auth.check_basic("anna", "right", "h")
        assert not auth._checks

    asyncio.run(body())
    assert hashing.count == 1


def test_invalid_name_is_neither_hashed_nor_stored(users, hashing):
    async def body() -> Auth:
        auth = Auth(users)
        for number, (name, password) in enumerate([("x" * 1_000_000, "x"), ("a b", "x"), ("anna", "x" * 1_000_000)]):
            assert await auth.check(name, password, f"10.0.0.{number}") is None
        return auth

    auth = asyncio.run(body())
    assert hashing.count == 0
    assert max(len(name) for name, _ in auth.attempts._back_offs) == 0


def test_tables_of_attempts_are_bounded_and_expire():
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for number in range(MAX_ENTRIES + 500):
        attempts.begin(f"name{number}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    tables = (attempts._back_offs, attempts._buckets)
    assert [len(table) for table in tables] == [MAX_ENTRIES] * 2
    waits = []
    for _ in range(8):
        attempts.begin("anna", "h")
        with pytest.raises(TooManyAttempts) as refused:
            attempts.begin("anna", "h")
        waits.append(refused.value.seconds)
        now[0] += refused.value.seconds
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    now[0] += 10_000
    for number in range(MAX_BURST):
        attempts.begin(f"n{number}", "h")
    with pytest.raises(TooManyAttempts):
        attempts.begin("other", "h")
    now[0] += REFILL_INTERVAL_S
    attempts.begin("other", "h")


def test_back_off_begins_after_a_slow_check():
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    attempts.begin("anna", "h")
    now[0] = 5.0
    attempts.record_failure("anna", "h")
    with pytest.raises(TooManyAttempts):
        attempts.begin("anna", "h")
    now[0] = 6.0
    attempts.begin("anna", "h")


def test_addresses_of_ipv6_network_count_as_one():
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert len(network_of("x" * 1_000_000)) == 64


def user_named(users: UsersFile, name: str) -> User:
    return users.users()[name][0]


def test_session_ends_on_logout_timeout_and_removal_of_the_user(users, monkeypatch):
    auth = Auth(users)
    users.put("bert", Role.OPERATE, "x")
    token = auth.begin_session(user_named(users, "bert"))
    assert auth.session_user(token) == User("bert", Role.OPERATE)
    users.path.write_text(users.path.read_text().replace("bert:operate:", "bert:view:"))
    assert auth.session_user(token) == User("bert", Role.VIEW), "the role is read from the file"
    users.remove("bert")
    assert auth.session_user(token) is None
    token = auth.begin_session(user_named(users, "anna"))
    auth.end_session(token)
    assert auth.session_user(token) is None
    token = auth.begin_session(user_named(users, "anna"))
    monkeypatch.setattr(auth_module, "MAX_SESSION_IDLE_S", -1.0)
    assert auth.session_user(token) is None
    assert auth.session_user("") is None


def test_session_ends_when_password_changes(users):
    async def body() -> None:
        auth = Auth(users)
        user = await auth.check("anna", "right", "h")
        assert user is not None
        token = auth.begin_session(user)
        assert auth.session_user(token) and auth.is_current(user)
        assert await auth.check_basic("anna", "right", "h2")
        users.put("anna", Role.ADMIN, "other")
        assert auth.session_user(token) is None and not auth.is_current(user)
        assert auth.session_user(auth.begin_session(user)) is None, "the session has the old password"
        assert await auth.check_basic("anna", "right", "h2") is None
        assert await auth.check("anna", "other", "h")

    asyncio.run(body())


def test_csrf_token_belongs_to_one_session(users):
    auth = Auth(users)
    assert auth.csrf_matches("a", auth.new_csrf_token("a"))
    assert not auth.csrf_matches("a", auth.new_csrf_token("b"))
    assert (
        not auth.csrf_matches("a", "")
        and not auth.csrf_matches("", auth.new_csrf_token(""))
        and not auth.csrf_matches("a", "é")
    )
    assert not Auth(users).csrf_matches("a", auth.new_csrf_token("a"))
    assert auth.new_csrf_token("a") != auth.new_csrf_token("a"), "compression could reveal a constant token"


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "/\\evil.example", "/\t/evil.example", "https://evil.example", "evil", "", "/a\nb", "/a b"],
)
def test_redirect_targets_are_local(path):
    assert local_path(path) == "/"
    assert local_path("/c/default/topics?x=1") == "/c/default/topics?x=1"


def guard_with(**settings: object) -> Guard:
    return Guard(None, ConsoleSettings((), **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "host", ["localhost:9080", "localhost", "127.0.0.1:9080", "[::1]:9080", "10.0.0.7", "LOCALHOST:1"]
)
def test_addresses_and_localhost_are_allowed_hosts(host):
    assert guard_with().is_allowed_host(host)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:9080", "", "127.0.0.1.evil.example"])
def test_other_hosts_are_rejected(host):
    assert not guard_with().is_allowed_host(host)
    assert guard_with(allowed_hosts=("evil.example",)).is_allowed_host("evil.example:9080")


def test_many_logins_of_a_user_do_not_end_sessions_of_others(users, monkeypatch):
    monkeypatch.setattr(auth_module, "MAX_SESSIONS", 5)
    monkeypatch.setattr(auth_module, "MAX_USER_SESSIONS", 3)
    users.put("bert", Role.VIEW, "x")
    auth = Auth(users)
    anna, bert = user_named(users, "anna"), user_named(users, "bert")
    first = auth.begin_session(anna)
    tokens = [auth.begin_session(bert) for _ in range(10)]
    assert auth.session_user(first) == anna
    assert [auth.session_user(token) for token in tokens] == [None] * 7 + [bert] * 3
    auth.close()


def test_login_name_cannot_forge_audit_log_lines(caplog):
    class Store:
        async def audit(self, line):
            pass

    handlers = Handlers(SimpleNamespace(settings=ConsoleSettings(()), store=Store(), auth=None))
    with caplog.at_level("INFO", "kavka.console.audit"):
        asyncio.run(handlers.audit("x\nanna", "192.0.2.1", "", "log_in", {}, "wrong name or password"))
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]


@pytest.mark.parametrize("peer", ["10.0.0.5", "::ffff:10.0.0.5"])
def test_trusted_proxy_is_recognized_on_dual_stack_listener(peer):
    addresses = []

    async def app(scope, receive, send):
        addresses.append(scope["client"][0])

    proxied = ProxyHeadersMiddleware(app, peer_addresses(["10.0.0.5", "fd00::5"]))
    asyncio.run(
        proxied({"type": "http", "client": (peer, 1), "headers": [(b"x-forwarded-for", b"192.0.2.1")]}, None, None)
    )
    assert addresses == ["192.0.2.1"]


def test_host_name_is_parsed_from_host_header():
    assert [host_name(host) for host in ("A:1", "a", "[::1]:2", "[::1]")] == ["a", "a", "::1", "::1"]
    malformed = ("[::1].evil.example", "127.0.0.1:evil.example", "::1", "[::1", "a:1:2")
    assert [host_name(host) for host in malformed] == [""] * len(malformed)


CLUSTER = ClusterSettings("one", {"bootstrap.servers": "x:1"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "console.example"])
def test_listening_on_other_hosts_requires_users(host, tmp_path):
    with pytest.raises(SettingsError, match="needs users"):
        ConsoleSettings((CLUSTER,), host=host).check()
    ConsoleSettings((CLUSTER,), host=host, users=tmp_path / "users").check()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"])
def test_listening_on_localhost_requires_no_users(host):
    ConsoleSettings((CLUSTER,), host=host).check()


def test_clusters_are_read_from_a_file(tmp_path):
    file = tmp_path / "clusters"
    file.write_text(
        "# clusters\n[one]\nbootstrap.servers=a:1,b:2\nclient.id=me\n\n[two]\nbootstrap.servers=c:3\nconsole.x=y\n"
    )
    first, second = read_clusters(file)
    assert (first.name, first.servers, first.client["client.id"]) == ("one", "a:1,b:2", "me")
    assert (second.name, second.own, second.client) == ("two", {"x": "y"}, {"bootstrap.servers": "c:3"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bootstrap.servers=a:1\n", "start with its name in brackets"),
        ("[one]\nclient.id=x\n", "bootstrap.servers is missing"),
        ("[one]\nbootstrap.servers=a\n[one]\n", "two clusters 'one'"),
    ],
)
def test_invalid_file_of_clusters_is_reported(tmp_path, text, message):
    file = tmp_path / "clusters"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_clusters(file)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "a b"])
def test_invalid_cluster_name_is_rejected(name):
    with pytest.raises(SettingsError, match="not a valid cluster name"):
        ConsoleSettings((ClusterSettings(name, {"bootstrap.servers": "x"}),)).check()
