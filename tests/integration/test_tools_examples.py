"""Every example in docs/tools.md works, with other ports and fewer records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka import Admin, NewTopic, Producer, TopicPartition
from kavka.cli.catalogue import TOOLS, table_of
from kavka.client.errors import KafkaError
from tests.support.cluster import KavkaCluster
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.usefixtures("java_parts")]

# Tools that start servers on default ports, write to folders of the system or need a login.
# test_start_stop, test_cluster_tool, test_zookeeper_tools, test_streams_demo, test_mirror_tool,
# test_connect, test_console, test_security_init, test_delegation_tokens_tool, test_schemas_tools
# and test_newcomers cover them.
EXCLUDED = {
    "server", "cluster", "zookeeper-server-start", "zkServer", "pipeline", "mirror-maker", "connect-mirror-maker",
    "connect-standalone", "connect-distributed", "console", "security", "delegation-tokens", "registry", "quickstart",
}  # fmt: skip
# Tools that run until they are stopped, and parts of their first lines.
ENDLESS = {
    "console-consumer": "",
    "verifiable-consumer": '"name":"startup_complete"',
    "replica-verification": "verification process is started",
}
# All clients are super users.
AUTHORIZER = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
REPLACEMENTS = {"5000000": "1000", "--max-messages 100": "--max-messages 10"}


def examples() -> list[str]:
    examples = []
    for tool in TOOLS:
        if tool.name not in EXCLUDED:
            command = table_of(tool)
            examples += [*command.examples, *(text for sub in command.subcommands for text in sub.examples)]
    return examples


class Environment:
    """Runs examples on a cluster, in a folder with the files that they name."""

    def __init__(self, folder: Path, cluster: KavkaCluster, zookeeper: ZooKeeper) -> None:
        self.folder, self.cluster, self.zookeeper = folder, cluster, zookeeper
        self.environment = {
            **os.environ,
            "PATH": f"{ROOT / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
        }
        moves = {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}
        files = {
            "delete.json": {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "offset": 1}]},
            "topics.json": {"version": 1, "topics": [{"topic": "orders"}]},
            "plan.json": moves,
            "p.json": moves,
        }
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content))

    def prepare(self, admin: Admin) -> None:
        """Creates the topics, records and group of the examples. An open transaction begins at
        offset 42 of orders-0."""
        admin.create_topics([NewTopic("orders", replica_assignments={0: [0, 1], 1: [1, 2], 2: [2, 0]})])
        admin.create_topics([NewTopic("a", 3), NewTopic("numbers", 1), NewTopic("benchmark", 1)])
        with Producer(bootstrap_servers=self.cluster.bootstrap_servers) as producer:
            for number in range(42):
                producer.send("orders", str(number).encode(), partition=0).get(30)
        admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 5})
        (self.folder / "kavka-data").symlink_to(self.cluster.log_dirs[1][0])

    def command(self, text: str) -> list[str]:
        for original, replacement in REPLACEMENTS.items():
            text = text.replace(original, replacement)
        text = text.replace("localhost:9092", self.cluster.bootstrap_servers)
        text = text.replace("localhost:2181", self.zookeeper.connect)
        return ["bash", "-c", text if text.startswith("source") else f"exec {text}"]

    def run(self, text: str) -> None:
        result = subprocess.run(
            self.command(text), cwd=self.folder, env=self.environment, input="k:one\nk:two\n", capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        assert result.returncode == 0, f"{text}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr

    def run_until_ctrl_c(self, text: str, first_line: str) -> None:
        process = subprocess.Popen(
            self.command(text), cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        if first_line:
            assert first_line in process.stdout.readline()
        elif "--from-beginning" in text:
            assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors


@pytest.fixture(scope="module")
def environment(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("examples")
    zookeeper = ZooKeeper(folder / "zookeeper")
    try:
        with KavkaCluster(folder / "brokers", zookeeper, overrides=AUTHORIZER) as cluster:
            environment = Environment(folder, cluster, zookeeper)
            with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                environment.prepare(admin)
                yield environment
    finally:
        zookeeper.kill()


@pytest.fixture(scope="module")
def open_transaction(environment: Environment) -> Iterator[None]:
    """A transaction that an example aborts."""
    producer = Producer(bootstrap_servers=environment.cluster.bootstrap_servers, transactional_id="hangs")
    producer.init_transactions()
    producer.begin_transaction()
    assert producer.send("orders", b"x", partition=0).get(30).offset == 42
    yield
    try:
        producer.abort_transaction()
        producer.close()
    except KafkaError:
        producer.close()


@pytest.mark.parametrize("text", examples())
def test_an_example_works(environment: Environment, text: str, request: pytest.FixtureRequest) -> None:
    tool = text.split()[1]
    if " --create --topic orders " in text:
        text = text.replace(" orders ", " orders-2 ")
    if tool == "transactions":
        request.getfixturevalue("open_transaction")
    if tool in ENDLESS:
        environment.run_until_ctrl_c(text, ENDLESS[tool])
    else:
        environment.run(text)


def test_the_reassignment_of_the_examples_is_complete(environment: Environment) -> None:
    with Admin(bootstrap_servers=environment.cluster.bootstrap_servers) as admin:
        wait_until(
            lambda: [n.id for n in admin.describe_topics("orders")["orders"].partitions[0].replicas] == [1, 2],
            timeout=60,
            what="orders-0 on brokers 1 and 2",
        )
