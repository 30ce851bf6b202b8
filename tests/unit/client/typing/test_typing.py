"""mypy and pyright infer the types of user code, and find its errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = Path(__file__).parents[4] / "src"
PROGRAMS = ("accepted", "rejected")

pytestmark = pytest.mark.slow


def expected_errors(program: str) -> list[int]:
    lines = (HERE / f"{program}.py").read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# error")]


def mypy(folder: Path) -> list[tuple[str, int, str]]:
    """(program, line, message) of every error."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--output", "json"]
    command += ["--follow-imports", "silent", *(f"{program}.py" for program in PROGRAMS)]
    environment = {**os.environ, "MYPYPATH": str(SOURCE)}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    diagnostics = [json.loads(line) for line in run.stdout.splitlines()]
    return [(Path(d["file"]).stem, d["line"], d["message"]) for d in diagnostics if d["severity"] == "error"]


def pyright(folder: Path) -> list[tuple[str, int, str]]:
    settings = {"extraPaths": [str(SOURCE)], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    # Ignore errors that only follow from another error in the same line.
    settings |= dict.fromkeys(("reportUnusedExpression", "reportUnusedCoroutine"), "none")
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    diagnostics = [d for d in json.loads(run.stdout)["generalDiagnostics"] if d["severity"] == "error"]
    return [(Path(d["file"]).stem, d["range"]["start"]["line"] + 1, d["message"]) for d in diagnostics]


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checker_reports_exactly_the_errors_in_user_code(
    checker: Callable[[Path], list[tuple[str, int, str]]], tmp_path: Path
) -> None:
    for program in PROGRAMS:
        shutil.copy(HERE / f"{program}.py", tmp_path)
    errors = checker(tmp_path)
    for program in PROGRAMS:
        messages = {line: message for name, line, message in errors if name == program}
        expected = expected_errors(program)
        unexpected = {line: message for line, message in messages.items() if line not in expected}
        assert not unexpected, program
        assert sorted(messages) == expected, program
