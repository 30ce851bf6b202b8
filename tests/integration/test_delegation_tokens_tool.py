"""`kafka-delegation-tokens`, Kavka's and Apache's, each with both brokers: the same command lines
have the same output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka import Admin
from kavka.cli.delegation_tokens import COMMAND
from kavka.testing import Broker
from tests.support.access_brokers import secured_apache
from tests.support.secure_clients import write_properties
from tests.support.tools import ApacheTools, Result, run_kavka
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(180)]

SECRET = {"delegation.token.secret.key": "shared"}
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")
_ID = re.compile(r"^[\w-]{22} ", re.MULTILINE)
_HMAC = re.compile(r"[A-Za-z0-9+/]{86}==")
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def apache_tools(java_parts: None) -> Iterator[ApacheTools]:
    with ApacheTools("3.9.1") as tools:
        yield tools


@pytest.fixture(scope="module", params=["kavka", "apache"])
def settings(
    request: pytest.FixtureRequest, java_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The settings of a client of the user `admin`."""
    folder = tmp_path_factory.mktemp(f"tokens-{request.param}")
    if request.param == "kavka":
        options = {"protocol": "SASL_PLAINTEXT", "mechanisms": ["PLAIN"], "users": {"admin": "secret"}}
        with Broker(SECRET, security=options) as broker:
            yield {**broker.security.client_settings("admin"), "bootstrap.servers": broker.bootstrap_servers}
        return
    zookeeper = ZooKeeper(folder / "zookeeper")
    with secured_apache(folder / "apache", zookeeper, **SECRET) as apache:
        yield {
            "bootstrap.servers": f"127.0.0.1:{apache.broker.internal_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="admin" password="secret";',
        }
    zookeeper.stop()


class Tools:
    """Runs a command line with Apache's tool, then with Kavka's."""

    def __init__(self, settings: dict[str, str], folder: Path, apache: ApacheTools) -> None:
        self.settings = settings
        self.config = str(write_properties(folder / "admin.properties", settings))
        self.apache = apache

    def run(self, command: str) -> tuple[Result, Result]:
        servers = ("--bootstrap-server", self.settings["bootstrap.servers"], "--command-config", self.config)
        arguments = ("delegation-tokens", *servers, *command.split())
        return self.apache.run(*arguments), run_kavka(*arguments)

    def compare(self, command: str) -> str:
        """Compare the outputs of both tools, except for the values that each call generates. Return
        the output of Kavka's tool."""
        theirs, ours = self.run(command)
        assert (theirs.code, ours.code) == (0, 0), (theirs, ours)
        assert _masked(ours.out) == _masked(theirs.out)
        return ours.out

    def expire_all(self) -> None:
        with Admin(self.settings) as admin:
            for token in admin.describe_delegation_token():
                admin.expire_delegation_token(token.hmac)


def _masked(output: str) -> str:
    text = re.sub(r"(?<=tokenId : ).*", "<id>", output)
    for pattern, mask in ((_DATE, "<date>"), (_ID, "<id> "), (_HMAC, "<hmac>")):
        text = pattern.sub(mask, text)
    return text


@pytest.fixture
def tools(settings: dict[str, str], tmp_path: Path, apache_tools: ApacheTools) -> Iterator[Tools]:
    tools = Tools(settings, tmp_path, apache_tools)
    yield tools
    tools.expire_all()


def test_both_tools_print_the_same(tools: Tools) -> None:
    created = tools.compare("--create --max-life-time-period 86400000 --renewer-principal User:bob")
    assert "\n\nTOKENID         HMAC                           OWNER           REQUESTER " in created
    tools.compare("--create --max-life-time-period -1")
    tools.compare(
        "--create --max-life-time-period -1 --renewer-principal User:b --renewer-principal User:c "
        "--owner-principal User:admin"
    )
    tools.expire_all()
    with Admin(tools.settings) as admin:
        token = admin.create_delegation_token(renewers=["User:bob", "User:carol"])
    theirs, ours = tools.run("--describe --owner-principal User:admin")
    assert theirs.out == ours.out
    assert token.token_id in ours.out and token.password in ours.out
    tools.compare("--describe --owner-principal User:admin --owner-principal User:bob")
    tools.compare("--describe --owner-principal User:nobody")
    assert "New expiry date : " in tools.compare(f"--renew --hmac {token.password} --renew-time-period 100000")
    tools.compare(f"--renew --hmac {token.password} --renew-time-period -1")
    tools.compare(f"--expire --hmac {token.password} --expiry-time-period 600000")
    with Admin(tools.settings) as admin:
        (changed,) = admin.describe_delegation_token(["User:admin"])
    assert changed.expires_at_ms < token.expires_at_ms


def test_describe_without_an_owner_shows_the_tokens_of_the_user(tools: Tools) -> None:
    """The help of Apache's tool says so as well, but the tool requests the tokens of no owner."""
    with Admin(tools.settings) as admin:
        token = admin.create_delegation_token()
        assert admin.describe_delegation_token() == [token]
        assert admin.describe_delegation_token([]) == []
    theirs, ours = tools.run("--describe")
    assert "Total number of tokens : 0\n" in theirs.out
    assert "Total number of tokens : 1\n" in ours.out and token.token_id in ours.out


@pytest.mark.parametrize(
    "command",
    [
        "--create --describe --max-life-time-period -1",
        "--hmac abc=",
        "--create",
        "--create --max-life-time-period -1 --hmac abc=",
        "--create --max-life-time-period -1 --renewer-principal bob",
        "--renew --hmac abc=",
        "--renew --hmac abc= --renew-time-period 5 --owner-principal User:a",
        "--expire --expiry-time-period 5",
        "--expire --hmac abc= --expiry-time-period 5 --max-life-time-period 5",
        "--describe --hmac abc=",
    ],
)
def test_both_tools_refuse(tools: Tools, command: str) -> None:
    theirs, ours = tools.run(command)
    assert (theirs.code, ours.code) == (1, 1), (theirs, ours)
    message = ours.err.strip().removeprefix("kavka delegation-tokens: ").removesuffix(" (--help shows the options)")
    assert message in theirs.out + theirs.err
    assert ours.err.count("\n") == 1
    assert ours.out == ""


@pytest.mark.parametrize(
    ("command", "exception", "message"),
    [
        ("--renew --hmac aaaa --renew-time-period 5", "DelegationTokenNotFound", "delegation token not found"),
        ("--expire --hmac aaaa --expiry-time-period -1", "DelegationTokenNotFound", "delegation token not found"),
        (
            "--create --max-life-time-period -1 --renewer-principal T:a",
            "InvalidPrincipalType",
            "invalid principal type",
        ),
    ],
)
def test_errors_of_the_broker(tools: Tools, command: str, exception: str, message: str) -> None:
    theirs, ours = tools.run(command)
    assert (theirs.code, ours.code) == (1, 1), (theirs, ours)
    assert theirs.err.startswith(f"org.apache.kafka.common.errors.{exception}Exception: ")
    assert ours.err == f"kavka delegation-tokens: {message}\n"
    assert ours.out == theirs.out


def test_the_example_of_the_admin_client(tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "admin.md").read_text(), re.MULTILINE | re.DOTALL)
    (example,) = [block for block in blocks if "create_delegation_token" in block]
    secured = example.replace('bootstrap_servers="localhost:9092"', "SETTINGS")
    exec(compile(secured, "admin.md", "exec"), {"SETTINGS": tools.settings})
    token_id, *_, count = capsys.readouterr().out.split()
    assert len(token_id) == 22 and count == "0"


def test_the_examples_of_the_help_text(tools: Tools) -> None:
    for example in COMMAND.examples:
        text = example.replace("localhost:9092", tools.settings["bootstrap.servers"])
        name, tool, *arguments = text.replace("alice.properties", tools.config).split()
        result = run_kavka(tool, *arguments)
        assert (name, result.code) == ("kavka", 0), result
    assert "Total number of tokens : 1\n" in result.out


def test_json(tools: Tools) -> None:
    arguments = ("--bootstrap-server", tools.settings["bootstrap.servers"], "--command-config", tools.config, "--json")
    create = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    created = json.loads(run_kavka("delegation-tokens", *arguments, *create).out)
    assert created["renewers"] == ["User:bob"]
    assert json.loads(run_kavka("delegation-tokens", *arguments, "--describe").out) == [created]
    period = ("--expire", "--hmac", created["hmac"], "--expiry-time-period", "-1")
    assert "expiryTimestamp" in json.loads(run_kavka("delegation-tokens", *arguments, *period).out)
    assert run_kavka("delegation-tokens", *arguments, "--describe").out.strip() == "[]"
