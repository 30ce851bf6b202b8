"""Users, passwords, sessions, and what stands before every request."""

from __future__ import annotations

import os
import stat

import pytest

from kavka.console import auth as auth_module
from kavka.console.app import _local
from kavka.console.auth import Auth, Role, TooSoon, User, UsersError, UsersFile, hashed, verified
from kavka.console.guard import Guard, host_name
from kavka.console.settings import ClusterSettings, ConsoleSettings, SettingsError, read_clusters


@pytest.fixture
def users(tmp_path) -> UsersFile:
    found = UsersFile(tmp_path / "users")
    found.put("anna", Role.ADMIN, "right")
    return found


def test_a_password_is_kept_as_a_hash_that_is_never_twice_the_same():
    first, second = hashed("right"), hashed("right")
    assert first != second and "right" not in first
    assert verified("right", first) and verified("right", second)
    assert not verified("wrong", first) and not verified("right", "scrypt$x") and not verified("right", "plain")


def test_the_file_of_users_is_for_its_owner_alone_and_read_again_when_it_changes(users):
    assert stat.S_IMODE(os.stat(users.path).st_mode) == 0o600
    again = UsersFile(users.path)
    assert set(again.users()) == {"anna"}
    users.put("bert", Role.VIEW, "x")
    assert again.users()["bert"][0] == User("bert", Role.VIEW)
    users.remove("bert")
    assert "bert" not in again.users()


@pytest.mark.parametrize("line", ["anna:admin:plain", "anna:king:scrypt$1", "an na:view:scrypt$1", "anna"])
def test_a_broken_file_of_users_is_named_with_its_line(tmp_path, line):
    (tmp_path / "users").write_text(f"# who\n\n{line}\n")
    with pytest.raises(UsersError, match=r"users:3: "):
        UsersFile(tmp_path / "users").users()


def test_a_name_that_would_break_the_file_is_refused(users):
    for name in ("a:b", "a\nb", "", "x" * 65):
        with pytest.raises(UsersError):
            users.put(name, Role.VIEW, "x")
    with pytest.raises(UsersError, match="empty"):
        users.put("bert", Role.VIEW, "")


def test_after_a_wrong_password_the_name_has_to_wait(users):
    import asyncio

    async def body() -> None:
        auth = Auth(users)
        assert await auth.check("anna", "right", "here") == User("anna", Role.ADMIN)
        assert await auth.check("anna", "wrong", "here") is None
        with pytest.raises(TooSoon):
            await auth.check("anna", "right", "here")
        assert await auth.check("anna", "right", "elsewhere"), "nobody can lock others out"
        assert await auth.check("nobody", "x", "here") is None

    asyncio.run(body())


def test_a_session_ends_with_its_user_its_idleness_and_by_request(users, monkeypatch):
    auth = Auth(users)
    users.put("bert", Role.OPERATE, "x")
    token = auth.begin(User("bert", Role.OPERATE))
    assert auth.session_user(token) == User("bert", Role.OPERATE)
    users.put("bert", Role.VIEW, "x")
    assert auth.session_user(token) == User("bert", Role.VIEW), "a role is that of the file, now"
    users.remove("bert")
    assert auth.session_user(token) is None
    token = auth.begin(User("anna", Role.ADMIN))
    auth.end(token)
    assert auth.session_user(token) is None
    token = auth.begin(User("anna", Role.ADMIN))
    monkeypatch.setattr(auth_module, "SESSION_IDLE_S", -1.0)
    assert auth.session_user(token) is None
    assert auth.session_user("") is None


def test_the_token_of_forms_belongs_to_one_session(users):
    auth = Auth(users)
    assert auth.csrf_fits("a", auth.csrf_of("a"))
    assert not auth.csrf_fits("a", auth.csrf_of("b"))
    assert not auth.csrf_fits("a", "") and not auth.csrf_fits("", auth.csrf_of("")) and not auth.csrf_fits("a", "é")
    assert not Auth(users).csrf_fits("a", auth.csrf_of("a"))
    assert auth.csrf_of("a") != auth.csrf_of("a"), "what is always the same could be guessed by compression"


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "/\\evil.example", "/\t/evil.example", "https://evil.example", "evil", "", "/a\nb", "/a b"],
)
def test_only_addresses_of_our_own_are_gone_to(path):
    assert _local(path) == "/"
    assert _local("/c/default/topics?x=1") == "/c/default/topics?x=1"


def guard(**settings: object) -> Guard:
    return Guard(None, ConsoleSettings((), **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "host", ["localhost:9080", "localhost", "127.0.0.1:9080", "[::1]:9080", "10.0.0.7", "LOCALHOST:1"]
)
def test_addresses_and_localhost_are_names_of_the_console(host):
    assert guard().host_allowed(host)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:9080", "", "127.0.0.1.evil.example"])
def test_no_other_name_is(host):
    assert not guard().host_allowed(host)
    assert guard(allowed_hosts=("evil.example",)).host_allowed("evil.example:9080")


def test_a_host_header_has_a_name_and_perhaps_a_port():
    assert [host_name(h) for h in ("A:1", "a", "[::1]:2", "[::1]")] == ["a", "a", "::1", "::1"]


CLUSTER = ClusterSettings("one", {"bootstrap.servers": "x:1"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "console.example"])
def test_listening_elsewhere_than_on_localhost_takes_users(host, tmp_path):
    with pytest.raises(SettingsError, match="needs users"):
        ConsoleSettings((CLUSTER,), host=host).check()
    ConsoleSettings((CLUSTER,), host=host, users=tmp_path / "users").check()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"])
def test_localhost_does_not(host):
    ConsoleSettings((CLUSTER,), host=host).check()


def test_a_file_of_several_clusters(tmp_path):
    file = tmp_path / "clusters"
    file.write_text(
        "# ours\n[one]\nbootstrap.servers=a:1,b:2\nclient.id=me\n\n[two]\nbootstrap.servers=c:3\nconsole.x=y\n"
    )
    one, two = read_clusters(file)
    assert (one.name, one.servers, one.client["client.id"]) == ("one", "a:1,b:2", "me")
    assert (two.name, two.own, two.client) == ("two", {"x": "y"}, {"bootstrap.servers": "c:3"})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("bootstrap.servers=a:1\n", "begins with its name in brackets"),
        ("[one]\nclient.id=x\n", "bootstrap.servers is missing"),
        ("[one]\nbootstrap.servers=a\n[one]\n", "two clusters 'one'"),
    ],
)
def test_a_wrong_file_of_clusters_is_said(tmp_path, text, line):
    file = tmp_path / "clusters"
    file.write_text(text)
    with pytest.raises(SettingsError, match=line):
        read_clusters(file)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "a b"])
def test_a_cluster_has_a_name_that_an_address_can_have(name):
    with pytest.raises(SettingsError, match="no name for a cluster"):
        ConsoleSettings((ClusterSettings(name, {"bootstrap.servers": "x"}),)).check()
