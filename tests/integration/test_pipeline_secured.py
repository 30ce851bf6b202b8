"""Tools, Spark jobs and the console with a secured broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka import Consumer, Producer
from kavka.testing import Broker
from tests.support.console import ConsoleProcess
from tests.support.secure_clients import write_properties

pytestmark = pytest.mark.timeout(300)

USER, PASSWORD = "alice", "hidden-4711"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    security = {"protocol": "SASL_SSL", "mechanisms": ("SCRAM-SHA-256",), "users": {USER: PASSWORD}}
    with Broker(security=security) as broker:
        yield broker


def kavka(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kavka.cli.main", *args],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_tools(broker: Broker, tmp_path: Path) -> None:
    client = broker.client_settings(USER)
    config = write_properties(tmp_path / "client.properties", client)
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    created = kavka("topics", *servers, "--command-config", str(config), "--create", "--topic", "tools")
    assert (created.returncode, created.stdout) == (0, "Created topic tools.\n"), created.stderr
    credential = "SCRAM-SHA-256=[iterations=8192,password=bob-secret]"
    user = ("--entity-type", "users", "--entity-name", "bob")
    admin = ("configs", *servers, "--command-config", str(config))
    altered = kavka(*admin, "--alter", *user, "--add-config", credential)
    assert (altered.returncode, altered.stdout) == (0, "Completed updating config for user bob.\n"), altered.stderr
    described = kavka(*admin, "--describe", *user)
    assert described.stdout == "SCRAM credential configs for user-principal 'bob' are SCRAM-SHA-256=iterations=8192\n"
    jaas = client["sasl.jaas.config"].replace(USER, "bob").replace(PASSWORD, "bob-secret")
    bob = write_properties(tmp_path / "bob.properties", {**client, "sasl.jaas.config": jaas})
    sent = kavka("console-producer", *servers, "--producer.config", str(bob), "--topic", "tools", text="hello\n")
    assert sent.returncode == 0, sent.stderr
    received = kavka(
        "console-consumer", *servers, "--consumer.config", str(bob), "--topic", "tools", "--from-beginning",
        "--max-messages", "1", "--timeout-ms", "60000",
    )  # fmt: skip
    assert received.stdout == "hello\n", received.stderr
    deleted = kavka(*admin, "--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert deleted.returncode == 0, deleted.stderr
    rejected = kavka("topics", *servers, "--command-config", str(bob), "--list")
    assert rejected.returncode == 1 and "rejected the authentication" in rejected.stderr
    assert rejected.stderr.count("\n") == 1 and "bob-secret" not in rejected.stderr
    for option, message in (
        ("SCRAM-SHA-256=[iterations=100,password=x]", "between 4096 and 16384"),
        ("SCRAM-SHA-256=[iterations=8192]", "expected [password="),
    ):
        refused = kavka(*admin, "--alter", *user, "--add-config", option)
        assert refused.returncode == 1 and message in refused.stderr


def test_the_console(broker: Broker, tmp_path: Path) -> None:
    with Producer(broker.client_settings(USER)) as producer:
        producer.send("shown", b"x").result(60)
    config = write_properties(tmp_path / "client.properties", broker.client_settings(USER))
    console = ConsoleProcess(tmp_path / "console", broker.bootstrap_servers, "--command-config", str(config))
    try:
        assert "shown" in json.dumps(console.api("/topics"))
        assert PASSWORD not in console.log.read_text()
    finally:
        console.close()


@pytest.mark.java
def test_spark_reads_and_writes_and_shows_no_secret(java_parts: None, broker: Broker, tmp_path: Path) -> None:
    # A private key in the settings, although the broker does not require a certificate.
    certificate = broker.security.authority.certificate_of(USER)
    key = certificate.key_pem.splitlines()[1]
    settings = broker.client_settings(USER) | {
        "ssl.key.pem": certificate.key_pem,
        "ssl.certificate.pem": certificate.chain_pem,
    }
    with Producer(settings) as producer:
        for number in range(10):
            producer.send("in", b"%d" % number)
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    folder = tmp_path / "spark"
    folder.mkdir()
    job = subprocess.run(
        [sys.executable, "-m", "tests.support.secured_spark_job", str(folder), str(tmp_path / "settings.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert job.returncode == 0, job.stderr[-4000:]
    assert "numInputRows" in job.stdout and "Plan" in job.stdout
    with Consumer(settings, group_id="check", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["out"])
        values: list[bytes | None] = []
        while len(values) < 20:
            values += [record.value for record in consumer.poll(5.0)]
    assert sorted(filter(None, values)) == sorted([b"%d" % number for number in range(10)] * 2)
    for secret in (PASSWORD, key):
        assert secret not in job.stdout
        assert secret not in job.stderr
    written = [path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(folder / "home")]
    assert any("offsets" in path.parts for path in written) and any("events" in path.parts for path in written)
    for path in written:
        assert PASSWORD.encode() not in path.read_bytes() and key.encode() not in path.read_bytes(), path
