"""The commands of README.md work as written, except for ports and folders."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kavka.testing import Broker

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def python_blocks() -> list[str]:
    return [text for language, text in BLOCKS if language == "python"]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run(arguments: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("number", range(len(python_blocks())))
def test_a_python_example_of_the_readme_runs(kavka_broker: Broker, tmp_path: Path, number: int) -> None:
    program = python_blocks()[number].replace("localhost:9092", kavka_broker.bootstrap_servers)
    result = run([sys.executable, "-c", program], tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_the_server_starts_and_stops_with_the_commands_of_the_readme(tmp_path: Path) -> None:
    (commands,) = (text for language, text in BLOCKS if language == "sh" and "kafka-server-start" in text)
    start, stop = (line for line in commands.splitlines() if line.startswith("bin/"))
    environment = {"KAVKA_RUN_DIR": str(tmp_path / "run"), "LOG_DIR": str(tmp_path / "logs")}
    arguments = start.replace("/tmp/kavka-logs", str(tmp_path / "data")).split()
    arguments += ["--override", f"listeners=PLAINTEXT://localhost:{free_port()}"]
    start_result = run([arguments[0], "-daemon", *arguments[1:]], ROOT, **environment)
    assert start_result.returncode == 0, start_result.stderr
    try:
        assert (tmp_path / "data" / "meta.properties").exists()
    finally:
        stop_result = run(stop.split(), ROOT, **environment)
    assert stop_result.returncode == 0, stop_result.stderr
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_the_tools_of_the_readme_produce_and_consume_a_record(kavka_broker: Broker) -> None:
    (commands,) = (text for language, text in BLOCKS if language == "sh" and "kafka-console-producer" in text)
    outputs = []
    for line in commands.splitlines():
        result = run(["sh", "-c", line.replace("localhost:9092", kavka_broker.bootstrap_servers)], ROOT)
        assert result.returncode == 0, result.stderr
        outputs.append(result.stdout)
    assert outputs[0] == "Created topic orders.\n"
    assert outputs[2].splitlines()[0] == "a first order"


def test_every_linked_file_of_the_documents_exists() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)", document.read_text()):
            if "://" not in link:
                assert (document.parent / link).exists(), f"{document.name} links to {link}"
