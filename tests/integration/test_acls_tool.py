"""`kafka-acls`, Kavka's and Apache's, each with both brokers: the same command lines have the same
output and the same effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka import AclFilter, Admin
from kavka.security.acls import Operation, ResourceType
from tests.support.access_brokers import secured_apache
from tests.support.acls import acl, start_with_acls
from tests.support.tools import ApacheTools, Result, run_kavka, run_kavka_process
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(180)]

# Anonymous clients may list and change ACLs.
ADMIN = acl(Operation.ALTER, ResourceType.CLUSTER)


@pytest.fixture(scope="module")
def apache_acls(java_parts: None) -> Iterator[ApacheTools]:
    with ApacheTools("3.9.1") as tools:
        yield tools


@pytest.fixture(scope="module", params=["kavka", "apache"])
def servers(
    request: pytest.FixtureRequest, java_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(f"acls-{request.param}")
    if request.param == "kavka":
        broker = start_with_acls(folder, ADMIN)
        yield broker.bootstrap_servers
        broker.close()
        return
    zookeeper = ZooKeeper(folder / "zookeeper")
    with secured_apache(folder / "apache", zookeeper) as apache:
        # `count` is 0: this ACL allows every host, and `grant` counts ACLs of the client's host.
        apache.grant([ADMIN], count=0)
        yield apache.broker.bootstrap_servers
    zookeeper.stop()


class Tools:
    """Runs a command line with Apache's tool, then with Kavka's, from the same ACLs."""

    def __init__(self, servers: str, apache: ApacheTools) -> None:
        self.servers = servers
        self.apache = apache

    def reset(self) -> None:
        with Admin(bootstrap_servers=self.servers) as admin:
            bindings = [binding for binding in admin.describe_acls() if "User:t" in binding.acl.principal]
            admin.delete_acls({AclFilter(principal=binding.acl.principal) for binding in bindings})

    def run(self, *commands: str) -> tuple[list[Result], list[Result]]:
        """Return the results of both tools."""
        all_results: list[list[Result]] = []
        for tool in (self.apache.run, run_kavka):
            self.reset()
            all_results.append([tool("acls", "--bootstrap-server", self.servers, *c.split()) for c in commands])
        return all_results[0], all_results[1]

    def compare(self, *commands: str) -> list[str]:
        """Compare the outputs of each command. The order of entries in Apache's output depends on
        hash codes, so lines are compared in any order if there is more than one entry."""
        apache, kavka = self.run(*commands)
        for command, theirs, ours in zip(commands, apache, kavka, strict=True):
            assert (theirs.code, ours.code) == (0, 0), (command, theirs, ours)
            if theirs.out.count("(principal=") <= 1:
                assert ours.out == theirs.out, command
            else:
                assert sorted(map(str.strip, ours.out.split("\n"))) == sorted(map(str.strip, theirs.out.split("\n"))), (
                    command
                )
        return [result.out for result in kavka]


@pytest.fixture
def tools(servers: str, apache_acls: ApacheTools) -> Iterator[Tools]:
    tools = Tools(servers, apache_acls)
    yield tools
    tools.reset()


def test_both_tools_print_the_same(tools: Tools) -> None:
    outputs = tools.compare(
        "--add --allow-principal User:t1 --operation Read --topic k-a",
        "--list --topic k-a",
        "--list --topic k-a --principal User:t1",
        "--list --topic k-a --principal User:t2",
        "--list --topic k-none",
        "--add --allow-principal User:t1 --allow-host 10.0.0.1 --group k- --resource-pattern-type prefixed",
        "--list --group k-group --resource-pattern-type match",
        "--list --group k- --resource-pattern-type any",
        "--remove --group k- --resource-pattern-type prefixed --force",
        "--remove --topic k-a --allow-principal User:t1 --operation Read --force",
        "--list --topic k-a",
    )
    assert outputs[1] == (
        "Current ACLs for resource `ResourcePattern(resourceType=TOPIC, name=k-a, patternType=LITERAL)`: \n"
        " \t(principal=User:t1, host=*, operation=READ, permissionType=ALLOW) \n\n"
    )
    assert outputs[-1] == ""


def test_roles_hosts_and_several_resources(tools: Tools) -> None:
    tools.compare(
        "--add --allow-principal User:t1 --producer --topic k-p --transactional-id k-x --idempotent",
        "--add --allow-principal User:t2 --consumer --topic k-p --group k-g",
        "--add --allow-principal User:t3 --producer --consumer --topic k-b --group k-g",
        "--add --allow-principal User:t4 --deny-principal User:t5 --allow-host 10.0.0.1 --allow-host 10.0.0.2 "
        "--deny-host 10.0.0.3 --operation Write --operation Read --topic k-c --topic k-d",
        "--add --deny-principal User:t6 --operation DescribeConfigs --cluster",
        "--add --allow-principal User:t7 --operation CreateTokens --user-principal User:k-u",
        "--add --allow-principal User:t7 --operation Describe --delegation-token k-token",
        "--list --principal User:t1 --principal User:t3",
        "--remove --allow-principal User:t2 --consumer --topic k-p --group k-g --force",
        "--remove --topic k-c --force",
        "--list --topic k-c --topic k-d --topic k-p --group k-g",
    )


@pytest.mark.parametrize(
    "command",
    [
        "--add --topic t",
        "--add --allow-principal User:a",
        "--list --add",
        "--list --producer",
        "--topic t",
        "--add --allow-principal User:a --producer --group g",
        "--add --allow-principal User:a --consumer --topic t",
        "--add --allow-principal User:a --topic t --resource-pattern-type any",
        "--add --allow-principal User:a --topic t --principal User:a",
        "--add --allow-principal User:a --topic t --idempotent",
        "--add --allow-principal User:a --topic t --producer --operation Read",
        "--add --allow-principal User:a --topic t --operation ClusterAction",
        "--add --allow-principal alice --topic t",
    ],
)
def test_invalid_command_lines(tools: Tools, command: str) -> None:
    (theirs,), (ours,) = tools.run(command)
    assert (theirs.code, ours.code) == (1, 1), (theirs, ours)
    message = ours.err.strip().removeprefix("kavka acls: ").removesuffix(" (--help shows the options)")
    if "only supports operations" in message:
        message = message.partition("operations")[0]
    assert message.rstrip() in theirs.out + theirs.err
    assert ours.err.count("\n") == 1


def test_a_removal_asks_first(servers: str, tools: Tools) -> None:
    connection = ("--bootstrap-server", servers)
    run_kavka("acls", *connection, *["--add", "--allow-principal", "User:t1", "--operation", "Read", "--topic", "k-q"])
    remove = ("acls", *connection, "--remove", "--topic", "k-q")
    refused = run_kavka_process(*remove, stdin=b"n\n")
    assert "Are you sure you want to delete all ACLs for resource filter" in refused.out
    list_topic = ("acls", *connection, "--list", "--topic", "k-q")
    assert "User:t1" in run_kavka(*list_topic).out
    run_kavka_process(*remove, stdin=b"y\n")
    assert run_kavka(*list_topic).out == ""


def test_json(servers: str, tools: Tools) -> None:
    connection = ("--bootstrap-server", servers)
    run_kavka("acls", *connection, *["--add", "--allow-principal", "User:t1", "--operation", "Read", "--topic", "k-j"])
    listed = run_kavka("acls", *connection, "--list", "--topic", "k-j", "--json")
    assert '"operation": "READ"' in listed.out


def test_a_broker_without_an_authorizer(tmp_path: Path) -> None:
    from tests.support.kavka_process import KavkaProcess

    broker = KavkaProcess(tmp_path)
    try:
        result = run_kavka("acls", "--bootstrap-server", broker.bootstrap_servers, "--list")
        assert (result.code, result.out) == (1, "")
        assert result.err == "Error while executing ACL command: No Authorizer is configured on the broker\n"
    finally:
        broker.close()
