"""The commands and examples of pages that need one broker work as written, except for ports and
folders. Each page has a new broker. Sections that need a cluster or Spark have other tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kavka.testing import Broker
from tests.support.pages import ROOT, blocks
from tests.support.processes import free_port

# The sections of each page that test_cluster_docs runs.
PAGES: dict[str, tuple[str, ...]] = {
    "README.md": (),
    "docs/get-started.md": (),
    "docs/delivery.md": (),
    "docs/backup.md": (),
    "docs/monitoring.md": (),
    "docs/sizing.md": (),
    "docs/upgrades.md": (),
    "docs/migrating.md": (),
    "docs/other-clients.md": (),
    "docs/tutorial.md": ("5. A cluster that loses its leader", "6. A word count on Spark"),
}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Run a command in a folder with the scripts and files of a checkout; return its output. A
    server that it starts uses other ports."""
    for name in ("bin", "examples", "deploy"):
        (tmp_path / name).symlink_to(ROOT / name)
    ports = {port: str(free_port()) for port in ("9092", "9405")}
    (tmp_path / "config").mkdir()
    settings = (ROOT / "config" / "standalone.properties").read_text()
    (tmp_path / "config" / "standalone.properties").write_text(settings.replace(":9092", f":{ports['9092']}"))
    environment = {**os.environ, "KAVKA_RUN_DIR": str(tmp_path / "run"), "LOG_DIR": str(tmp_path / "logs")}

    def run(command: str) -> str:
        for port, free in ports.items():
            command = command.replace(f"localhost:{port}", f"localhost:{free}")
        result = subprocess.run(
            ["sh", "-c", command.replace("/tmp/kavka", f"{tmp_path}/kavka")],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
        return result.stdout

    yield run
    subprocess.run([ROOT / "bin" / "kafka-server-stop.sh"], env=environment, capture_output=True, check=False)


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page: str, run: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    tested = [block for block in blocks(page) if not block.reason and block.section not in PAGES[page]]
    assert tested
    with Broker(group_initial_rebalance_delay_ms=0) as broker:
        for block in tested:
            starts_server = "kafka-server-start" in block.text
            text = block.text if starts_server else block.text.replace("localhost:9092", broker.bootstrap_servers)
            if block.language == "python":
                exec(compile(text, page, "exec"), {"__name__": "example"})
            else:
                for command in block._replace(text=text).commands:
                    print(run(command))
    OUTPUT_CHECKS.get(page, lambda output: None)(capsys.readouterr().out)


def _check_get_started(output: str) -> None:
    assert "Created topic greetings." in output
    assert "\nhello\n" in output
    assert "b'k1' b'hello from Python'" in output


def _check_tutorial(output: str) -> None:
    descriptions = [line.split() for line in output.splitlines() if line.startswith("kitchen")]
    assert [columns[5] for columns in descriptions if len(columns) == 9].count("1") == 1
    assert "b'carl' b'soup'" in output


def _check_backup(output: str) -> None:
    assert "\nprecious\n" in output
    assert [line.split()[3] for line in output.splitlines() if line.split()[:1] == ["billing"]] == ["0", "2"]


def _check_monitoring(output: str) -> None:
    assert "\nkavka_partitions " in output


OUTPUT_CHECKS: dict[str, Callable[[str], None]] = {
    "docs/get-started.md": _check_get_started,
    "docs/tutorial.md": _check_tutorial,
    "docs/backup.md": _check_backup,
    "docs/monitoring.md": _check_monitoring,
}
