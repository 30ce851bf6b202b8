"""Every block of docs/security.md works as written: commands, settings and programs. Only
addresses, folders and placeholders are replaced."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kavka import Admin, NewTopic, Producer
from kavka.cli.catalogue import find
from kavka.common.errors import ErrorCode, KafkaError
from kavka.security.local_security import LocalSecurity
from tests.support.identity_provider import SECRET, IdentityProvider
from tests.support.processes import dying_with_parent, free_port, wait_until
from tests.support.secure_clients import write_properties
from tests.support.tools import kavka_command, run_kavka
from tests.support.zookeeper import ZooKeeper

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).resolve().parents[2]
# Every password of the page.
PASSWORD = SECRET


class Block(NamedTuple):
    section: str
    language: str
    text: str

    def settings(self) -> dict[str, str]:
        """The settings of a block of a properties file."""
        return dict(line.split("=", 1) for line in self.text.splitlines())

    def commands(self) -> list[str]:
        return self.text.replace("\\\n", " ").splitlines()


def _blocks() -> list[Block]:
    blocks, section = [], ""
    text = (ROOT / "docs" / "security.md").read_text()
    for match in re.finditer(r"^##+ ([^\n]*)$|^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if match[1]:
            section = match[1]
        else:
            blocks.append(Block(section, match[2] or "sh", match[3]))
    return blocks


BLOCKS = _blocks()


def take(section: str, language: str) -> list[Block]:
    blocks = [block for block in BLOCKS if (block.section, block.language) == (section, language)]
    assert blocks, f"no block of {language} in the section {section}"
    return blocks


def settings_in(*sections: str) -> dict[str, str]:
    """The settings of all properties blocks of these sections. Lists of mechanisms are joined,
    since one broker stands for the brokers of several sections."""
    merged: dict[str, str] = {}
    mechanisms: list[str] = []
    for section in sections:
        for block in take(section, "properties"):
            merged |= block.settings()
            mechanisms += filter(None, [block.settings().get("sasl.enabled.mechanisms")])
    if mechanisms:
        merged["sasl.enabled.mechanisms"] = ",".join(mechanisms)
    return merged


class Node:
    """A folder in the place of /etc/kavka, and a broker that runs in it."""

    def __init__(self, folder: Path, replacements: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.port, self.client_port = free_port(), free_port()
        self.server = f"localhost:{self.port}"
        self.replacements = {
            "/etc/kavka": str(folder),
            "broker1.example.com:9093": self.server,
            "broker1.example.com:9094": f"localhost:{self.client_port}",
            "localhost:9092": self.server,
            "HOST": self.server,
            "…": PASSWORD,
            **(replacements or {}),
        }

    def text(self, text: str) -> str:
        pattern = "|".join(map(re.escape, sorted(self.replacements, key=len, reverse=True)))
        return re.sub(pattern, lambda match: self.replacements[match[0]], text)

    def write(self, name: str, settings: Mapping[str, str]) -> Path:
        return write_properties(self.folder / name, {key: self.text(value) for key, value in settings.items()})

    def write_server(self, settings: Mapping[str, str], **others: object) -> None:
        log_dirs = {"log.dirs": str(self.folder / "data"), "group.initial.rebalance.delay.ms": "0"}
        extra = {name.replace("_", "."): str(value) for name, value in others.items()}
        self.write("server.properties", {**log_dirs, **extra, **settings})

    @contextlib.contextmanager
    def serve(self, command: str, client: Mapping[str, str]) -> Iterator[None]:
        """Run a documented command that starts a broker, until the end of the block."""
        words = shlex.split(self.text(command))
        assert words[:2] == ["kavka", "server"]
        with (self.folder / "broker.log").open("ab") as log:
            broker = subprocess.Popen(
                dying_with_parent(kavka_command(*words[1:])), cwd=self.folder, stdout=log, stderr=log
            )
        try:
            with Admin(dict(client)) as admin:
                wait_until(
                    lambda: broker.poll() is not None or bool(admin.describe_cluster().nodes),
                    timeout=60,
                    what="the broker",
                )
            assert broker.poll() is None, (self.folder / "broker.log").read_text()[-2000:]
            yield
        finally:
            broker.terminate()
            broker.wait(60)

    def run(self, command: str) -> str:
        """Run a documented command and return its output."""
        words = shlex.split(self.text(command))
        tool = find(words[0].removeprefix("bin/")) if words[0] != "kavka" else find(words.pop(1))
        assert tool is not None, command
        with contextlib.chdir(self.folder):
            result = run_kavka(tool.name, *words[1:])
        assert (result.code, result.err) == (0, ""), f"{command}\n{result.out}{result.err}"
        return result.out


def client_settings(path: Path, server: str) -> dict[str, str]:
    return {"bootstrap.servers": server, **dict(line.split("=", 1) for line in path.read_text().splitlines())}


def test_a_secured_node_in_a_minute(tmp_path: Path) -> None:
    [block] = take("A secured node in a minute", "sh")
    create, start, use = block.commands()
    node = Node(tmp_path)
    node.run(f"{create} --port {node.port}")
    admin = client_settings(tmp_path / "kavka-security" / "admin.properties", node.server)
    with node.serve(start, admin):
        assert node.run(use) == ""


def test_tls_and_rotation(tmp_path: Path) -> None:
    node = Node(tmp_path)
    security = LocalSecurity(tmp_path, "SSL", client_auth="required")
    node.write_server(settings_in("TLS"))
    client = security.client_settings("Alice")
    node.write("admin.properties", client)
    with node.serve("kavka server server.properties", {"bootstrap.servers": node.server, **client}):
        security.new_server_certificate().write_pem(tmp_path / "new.pem")
        [block] = take("Rotate certificates", "sh")
        [command] = block.commands()
        assert "Completed updating config" in node.run(command)
        with Producer({"bootstrap.servers": node.server, **client}) as producer:
            producer.send("t", b"x").result(30)
        assert "uses the changed certificates" in (tmp_path / "broker.log").read_text()


# ---- SASL: one broker with the settings of several sections


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    with IdentityProvider(tmp_path_factory.mktemp("provider")) as provider:
        yield provider


@pytest.fixture(scope="module")
def node(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    key_set = provider.broker_settings()["sasl.oauthbearer.jwks.endpoint.url"]
    urls = {"https://idp.example.com/keys": key_set, "https://idp.example.com/token": provider.token_url}
    node = Node(folder, urls)
    LocalSecurity(folder, "SASL_SSL")
    node.write_server(
        settings_in("Users with SCRAM", "PLAIN", "OAuth", "ACLs"), delegation_token_secret_key="token-key"
    )
    (folder / "users").write_text(f"SCRAM-SHA-512=[name=admin,password={PASSWORD}]\n")
    start, create = take("Users with SCRAM", "sh")
    template, oauth = take("Clients", "properties")
    node.write("oauth.properties", {**oauth.settings(), **trust(folder)})
    for user in ("admin", "alice", "bob"):
        settings = template.settings()
        settings["sasl.jaas.config"] = settings["sasl.jaas.config"].replace('"alice"', f'"{user}"')
        node.write(f"{user}.properties", settings)
    with node.serve(*start.commands(), settings_of(node, "admin")):
        [command] = create.commands()
        for user in ("alice", "bob"):
            output = node.run(command.replace("alice", user))
            assert output == f"Completed updating config for user {user}.\n"
        yield node


def trust(folder: Path) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(folder / "ca.pem")}


def settings_of(node: Node, user: str) -> dict[str, str]:
    return client_settings(node.folder / f"{user}.properties", node.server)


def can_connect(settings: dict[str, str]) -> bool:
    with Admin(settings) as admin:
        return bool(admin.describe_cluster().nodes)


def test_users_of_every_mechanism(node: Node) -> None:
    alice = settings_of(node, "alice")
    assert can_connect(alice)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    for user in ("alice", "bob"):
        jaas = f'{module} required username="{user}" password="{PASSWORD}";'
        assert can_connect({**alice, "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas})
    assert can_connect(settings_of(node, "oauth"))


def test_a_client_with_keywords(node: Node) -> None:
    with Admin(settings_of(node, "admin")) as admin:
        admin.create_topics([NewTopic("orders", 1, 1)])
    [block] = take("Clients", "python")
    program = node.text(block.text.replace("broker1.example.com:9094", "broker1.example.com:9093"))
    names: dict[str, Any] = {}
    exec(compile(program, "security.md", "exec"), names)
    # The client is connected and authenticated, but alice may not write yet.
    with names["producer"] as producer, pytest.raises(KafkaError) as caught:
        producer.send("orders", b"x").result(30)
    assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_delegation_tokens(node: Node) -> None:
    [commands] = take("Delegation tokens", "sh")
    create, describe, renew, expire = commands.commands()
    created = node.run(create)
    words = created.split()
    [hmac] = [word for word in words if len(word) > 80]
    token_id = words[words.index(hmac) - 1]
    node.replacements |= {"HMAC": hmac, "<id>": token_id, "<hmac>": hmac}
    assert hmac in node.run(describe)
    [client] = take("Delegation tokens", "properties")
    settings = settings_of(node, "alice") | {key: node.text(value) for key, value in client.settings().items()}
    assert can_connect(settings)
    assert "Completed renew operation" in node.run(renew)
    node.run(expire)
    assert hmac not in node.run(describe)


def test_quotas(node: Node) -> None:
    outputs = [node.run(command) for block in take("Quotas", "sh") for command in block.commands()]
    assert "Quota configs for user-principal 'alice', client-id 'app' are request_percentage=20.0\n" in "".join(outputs)


def test_acls(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    for block in take("Manage ACLs", "sh"):
        for command in block.commands():
            assert node.run(command) or "--remove" in command
    [program] = take("Manage ACLs", "python")
    text = program.text.replace('bootstrap_servers="localhost:9092"', "SETTINGS")
    exec(compile(text, "security.md", "exec"), {"SETTINGS": settings_of(node, "admin")})
    assert capsys.readouterr().out.count("name='orders-'") == 2


def test_a_broker_in_a_test() -> None:
    [block] = take("Tests", "python")
    program = f"{block.text}    check(settings)\n"
    exec(compile(program, "security.md", "exec"), {"check": lambda settings: Admin(settings).describe_cluster().nodes})


# ---- a cluster


@pytest.mark.java
def test_a_cluster_with_secured_zookeeper(java_parts: None, tmp_path: Path) -> None:
    """Two brokers with SASL_SSL between them, and TLS and a login to ZooKeeper."""
    security = LocalSecurity(tmp_path, "SASL_SSL")
    security.client_certificate("broker").rename(tmp_path / "broker.pem")
    secure_port = free_port()
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(
        f'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_kafka="{PASSWORD}"; }};\n'
    )
    cluster = settings_in("Cluster")
    tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(security.server_file), **trust(tmp_path)}
    sasl = {"sasl.enabled.mechanisms": "SCRAM-SHA-512", "min.insync.replicas": "2"}
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={jaas}")
            zookeeper = ZooKeeper(tmp_path / "zookeeper", overrides=_zookeeper_settings(security, secure_port))
        stack.callback(zookeeper.kill)
        client: dict[str, str] = {}
        for number in (0, 1):
            folder = tmp_path / f"broker-{number}"
            folder.mkdir()
            node = Node(folder, {"zookeeper1.example.com:2182": f"localhost:{secure_port}"})
            node.replacements["/etc/kavka"] = str(tmp_path)
            node.write_server({**tls, **sasl, **cluster}, broker_id=number)
            (folder / "users").write_text(f"SCRAM-SHA-512=[name=broker,password={PASSWORD}]\n")
            security.users["broker"] = PASSWORD
            client = {
                "bootstrap.servers": f"localhost:{node.client_port}",
                **security.client_settings("broker", "SCRAM-SHA-512"),
            }
            stack.enter_context(node.serve("kavka server server.properties --add-scram @users", client))
        with Admin(client) as admin:
            wait_until(lambda: len(admin.describe_cluster().nodes) == 2, timeout=60, what="both brokers")
            admin.create_topics([NewTopic("replicated", 1, 2)])
        with Producer(client, acks="all") as producer:
            producer.send("replicated", b"x").result(60)


def _zookeeper_settings(security: LocalSecurity, secure_port: int) -> dict[str, object]:
    return {
        "secureClientPort": secure_port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": security.server_file,
        "ssl.trustStore.location": security.ca_file,
        "ssl.clientAuth": "need",
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }


def test_every_block_is_covered() -> None:
    """A new section needs a test above that takes its blocks."""
    source = Path(__file__).read_text()
    covered = set(re.findall(r'take\("([^"]+)", "(\w+)"\)', source))
    for sections in re.findall(r"settings_in\(([^)]*)\)", source):
        covered |= {(section, "properties") for section in re.findall(r'"([^"]+)"', sections)}
    assert covered == {(block.section, block.language) for block in BLOCKS}
