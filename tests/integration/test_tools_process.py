"""The tools as processes: scripts, pipes, terminals, Ctrl-C, and unreachable brokers."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kavka import Admin, NewTopic
from kavka.testing import Broker
from tests.support.processes import free_port
from tests.support.tools import run_kavka

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "xterm"}
ENVIRONMENT["PYTHONPATH"] = str(ROOT / "src")


def script(name: str, *args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "bin" / name, *args], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
        **options,  # type: ignore[call-overload]
    )  # fmt: skip


def run_in_terminal(*argv: str, **environment: str) -> str:
    """Runs a command in a pseudo-terminal. Returns its output."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execvpe(argv[0], list(argv), {**ENVIRONMENT, **environment})
    pieces = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([descriptor], [], [], 1.0)
        if not ready:
            continue
        try:
            piece = os.read(descriptor, 4096)
        except OSError:
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(descriptor)
    os.waitpid(pid, 0)
    return b"".join(pieces).decode().replace("\r\n", "\n")


@pytest.fixture
def topic(kavka_broker: Broker, topic: str) -> str:
    with Admin(bootstrap_servers=kavka_broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 2, configs={"retention.ms": "1000"})])
    return topic


def test_a_script_works_by_both_names_from_any_folder_and_through_a_link(
    kavka_broker: Broker, topic: str, tmp_path: Path
) -> None:
    for name in ("kafka-topics.sh", "kafka-topics"):
        listed = script(name, "--list", "--bootstrap-server", kavka_broker.bootstrap_servers, cwd=tmp_path)
        assert (listed.returncode, listed.stderr) == (0, "")
        assert topic in listed.stdout.split()
    link = tmp_path / "kafka-topics.sh"
    link.symlink_to(ROOT / "bin" / "kafka-topics.sh")
    linked = subprocess.run(
        [link, "--list", "--bootstrap-server", kavka_broker.bootstrap_servers],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert topic in linked.stdout.split()


def test_tables_and_colours_are_printed_only_to_terminals(kavka_broker: Broker, topic: str) -> None:
    command = ("--describe", "--topic", topic, "--bootstrap-server", kavka_broker.bootstrap_servers)
    plain = script("kafka-topics.sh", *command).stdout
    assert plain.startswith(f"Topic: {topic}\tTopicId: ")
    assert "\x1b" not in plain
    colored = run_in_terminal(str(ROOT / "bin" / "kafka-topics.sh"), *command)
    assert "\x1b[1m" in colored
    assert "PARTITION  LEADER  REPLICAS  ISR" in colored
    assert "retention.ms=1000" in colored
    uncolored = run_in_terminal(str(ROOT / "bin" / "kafka-topics.sh"), *command, NO_COLOR="1")
    assert "\x1b" not in uncolored
    assert "PARTITION  LEADER  REPLICAS  ISR" in uncolored


def test_every_list_is_available_as_json(kavka_broker: Broker, topic: str) -> None:
    servers = ("--bootstrap-server", kavka_broker.bootstrap_servers)
    for tool, *args in (
        ("topics", "--list"),
        ("topics", "--describe"),
        ("configs", "--describe", "--entity-type", "topics"),
        ("consumer-groups", "--list"),
        ("consumer-groups", "--describe", "--all-groups"),
        ("log-dirs", "--describe"),
        ("transactions", "list"),
        ("transactions", "describe-producers", "--topic", topic, "--partition", "0"),
        ("features", "describe"),
        ("broker-api-versions",),
    ):
        result = run_kavka(tool, *servers, *args, "--json")
        assert result.code == 0, result.err
        assert isinstance(json.loads(result.out), list | dict)
    assert json.loads(run_kavka("topics", *servers, "--describe", "--topic", topic, "--json").out)[0]["configs"] == {
        "retention.ms": "1000"
    }


def test_an_unreachable_broker_is_reported_in_one_line_after_the_timeout() -> None:
    address = f"localhost:{free_port()}"
    start_time = time.monotonic()
    failed = script("kafka-topics.sh", "--list", "--bootstrap-server", address, "--timeout", "1000")
    assert failed.returncode == 1
    assert failed.stdout == ""
    message = f"Error while executing topic command : no broker was reachable at {address} within 1 s: no connection to"
    assert failed.stderr.startswith(message)
    assert time.monotonic() - start_time < 30


def test_waiting_for_a_broker_is_reported_and_ctrl_c_ends_it_quietly() -> None:
    address = f"localhost:{free_port()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "kavka.cli.main", "topics", "--list", "--bootstrap-server", address],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == (
        f"kavka topics: no broker is reachable at {address} yet; waiting up to 60 s (--timeout)\n"
    )
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (130, "", "")


def test_a_closed_pipe_is_not_an_error(kavka_broker: Broker, topic: str) -> None:
    command = f"'{ROOT}/bin/kafka-topics.sh' --list --bootstrap-server {kavka_broker.bootstrap_servers} | true"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["topics", "--lst"], "lst is not a recognized option; did you mean --list?"),
        (["topics", "--list"], 'Missing required argument "[bootstrap-server]"'),
        (["topics", "--list", "--bootstrap-server", "nonsense"], "'nonsense' is not allowed; it must be host:port"),
        (["topics", "--list", "--bootstrap-server", "x:1", "--command-config", "/nothing"], "/nothing: No such file"),
        (["configs", "--describe", "--entity-type", "nonsense"], "one of topics, brokers"),
        (["consumer-groups", "--list", "--timeout", "soon"], "Cannot parse argument 'soon' of option timeout"),
    ],
)
def test_an_error_is_one_line_on_standard_error(argv: list[str], message: str) -> None:
    failed = run_kavka(*argv)
    assert (failed.code, failed.out) == (1, "")
    assert message in failed.err
    assert failed.err.count("\n") == 1


def test_regular_expressions_are_validated_without_a_broker() -> None:
    result = script("kafka-consumer-groups.sh", "--validate-regex", "orders-.*")
    assert (result.returncode, result.stdout) == (0, "The regular expression `orders-.*` is valid.\n")
    result = script("kafka-consumer-groups.sh", "--validate-regex", "a(")
    assert result.stdout.startswith("The regular expression `a(` is invalid: missing )")
    assert (result.returncode, result.stderr) == (0, "")


def test_the_topics_tool_alters_settings_with_a_deprecation_warning(kavka_broker: Broker, topic: str) -> None:
    alter = ("topics", "--bootstrap-server", kavka_broker.bootstrap_servers, "--alter", "--topic", topic)
    altered = run_kavka(*alter, "--config", "retention.ms=77", "--config", "segment.ms=5000", "--partitions", "3")
    assert (altered.code, altered.out) == (0, f"Updated config for topic {topic}.\n")
    assert "deprecated" in altered.err
    assert run_kavka(*alter, "--delete-config", "segment.ms").code == 0
    described = run_kavka(*alter[:3], "--describe", "--topic", topic).out
    assert "PartitionCount: 3" in described
    assert "Configs: retention.ms=77\n" in described


def test_values_that_are_too_large_are_reported_in_one_line(kavka_broker: Broker, topic: str, tmp_path: Path) -> None:
    servers = ("--bootstrap-server", kavka_broker.bootstrap_servers)
    deep, large = tmp_path / "deep.json", tmp_path / "large.json"
    deep.write_text("[" * 100_000)
    large.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 10**30}]}))
    for tool, *args in (
        ("topics", "--create", "--topic", "x" * 40_000),
        ("topics", "--create", "--topic", "x", "--partitions", "99999999999"),
        ("topics", "--create", "--topic", "a\udcff"),
        ("consumer-groups", "--describe", "--group", "x" * 40_000),
        ("configs", "--alter", "--topic", topic, "--add-config", "retention.ms=" + "9" * 40_000),
        ("configs", "--describe", "--broker", "99999999999"),
        ("delete-records", "--offset-json-file", str(deep)),
        ("delete-records", "--offset-json-file", str(large)),
    ):
        failed = run_kavka(tool, *servers, *args)
        assert failed.code == 1
        assert failed.err.count("\n") == 1


def test_settings_of_the_client_are_read_from_a_file(kavka_broker: Broker, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=a-name\nrequest.timeout.ms=5000\n")
    servers = ("--bootstrap-server", kavka_broker.bootstrap_servers)
    assert topic in run_kavka("topics", "--list", *servers, "--command-config", str(file)).out
    file.write_text("request.timeout.ms=soon\n")
    failed = run_kavka("topics", "--list", *servers, "--command-config", str(file))
    assert failed.code == 1
    assert "request.timeout.ms" in failed.err


def test_listing_topics_imports_no_unnecessary_modules(kavka_broker: Broker) -> None:
    """Imports take most of the start time."""
    code = (
        "import sys; from kavka.cli.main import main\n"
        f"main(['topics', '--list', '--bootstrap-server', '{kavka_broker.bootstrap_servers}'])\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(process.stderr.split())
    assert "kavka.client.admin" in loaded
    for name in ("kavka.client.producer.core", "kavka.client.consumer.core", "kavka.records", "kavka.broker", "kazoo",
                 "cramjam", "argparse", "kavka.cli.configs", "kavka.storage"):  # fmt: skip
        assert name not in loaded, name
