"""The standalone commands and the custom connectors of docs/connect.md work."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.apache import write_properties
from tests.support.connect_worker import spark_settings
from tests.support.processes import free_port
from tests.support.spark import light_home
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "connect.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run(script: str, folder: Path, environment: dict[str, str]) -> str:
    result = subprocess.run(
        ["sh", "-ec", script], cwd=folder, capture_output=True, text=True, timeout=500, check=False, env=environment
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_documented_commands_run_file_and_custom_connectors(target: Target, tmp_path: Path) -> None:
    """Runs the commands of the page in one shell, with other ports and folders, and then the custom
    connectors of the page's Python code."""
    import os

    (script,) = (text for language, text in BLOCKS if language == "sh" and "connect-standalone" in text)
    (program,) = (text for language, text in BLOCKS if language == "python")
    (tmp_path / "my_connectors.py").write_text(program)
    settings = dict(
        line.split("=", 1)
        for line in (ROOT / "config" / "connect-standalone.properties").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    settings |= {"offset.storage.file.filename": str(tmp_path / "offsets"), "checkpoint.dir": str(tmp_path / "points")}
    settings |= {name: str(value) for name, value in spark_settings(tmp_path).items()}
    settings |= {"listeners": f"http://127.0.0.1:{free_port()}", "plugin.path": str(tmp_path)}
    settings["bootstrap.servers"] = target.bootstrap_servers
    worker = write_properties(tmp_path / "worker.properties", settings)
    custom = {"name": "shown", "connector.class": "my_connectors.Shown", "topics": "lines", "trigger": "available-now"}
    write_properties(tmp_path / "shown.properties", custom)
    script = script.replace("bin/", f"{ROOT}/bin/").replace("config/connect-standalone.properties", str(worker))
    script = script.replace("localhost:9092", target.bootstrap_servers)
    environment = {**os.environ, "SPARK_HOME": str(light_home(tmp_path / "home"))}
    output = run(script, tmp_path, environment)
    records = [line for line in output.splitlines() if line.startswith('{"schema"')]
    assert [line.rpartition(":")[2] for line in records] == ['"one"}', '"two"}']
    enable_files = "--override file.connectors.enable=true"
    command = f"{ROOT}/bin/connect-standalone.sh {enable_files} {worker} lines.properties shown.properties"
    output = run(command, tmp_path, environment)
    assert [line for line in output.splitlines() if line.startswith("lines ")] == ["lines one", "lines two"]
