"""Failures that `make test` retries, and failures that are final."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.retry import MAX_RETRIES, SUMMARY_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
FAILS_ONCE = """
import pathlib, pytest
{marker}
@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    flag = pathlib.Path(__file__).with_name(f"{{number}}.seen")
    seen = flag.exists()
    flag.touch()
    {statement}
def test_other():
    pass
"""
FAILS_IN_TEARDOWN = """
import pytest
@pytest.fixture(scope="module")
def broker():
    yield
    assert False, "the broker has ended"
def test_it(broker):
    pass
"""


def fails_once(count: int = 1, marker: str = "", statement: str = "assert seen") -> str:
    return FAILS_ONCE.format(count=count, marker=marker, statement=statement)


def run(folder: Path, text: str, *options: str) -> tuple[int, str]:
    """Return the exit code and the output. `retried` in the folder has the names of retried
    tests."""
    (folder / "test_example.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  records\n  matrix\naddopts = -m 'not matrix'\n")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.retry", *options, "test_example.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), SUMMARY_VARIABLE: str(folder / "retried")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


def test_the_retry_selects_the_same_marker(tmp_path):
    outcome, output = run(tmp_path, fails_once(marker="@pytest.mark.matrix"), "-m", "matrix")
    assert outcome == 0, output
    assert "1 passed" in output


def test_passing_tests_run_once(tmp_path):
    outcome, output = run(tmp_path, "def test_it(): pass")
    assert outcome == 0
    assert "ALONE" not in output and "alone" not in output
    assert not (tmp_path / "retried").exists()


def test_failures_that_pass_alone_are_named(tmp_path):
    outcome, output = run(tmp_path, fails_once(MAX_RETRIES))
    assert outcome == 0, output
    assert "PASSED ALONE, to be fixed:" in output
    assert output.rstrip().endswith(f"test_example.py::test_it[{MAX_RETRIES - 1}]")
    names = [f"test_example.py::test_it[{number}]" for number in range(MAX_RETRIES)]
    assert (tmp_path / "retried").read_text().split() == names


def test_timeout_of_a_test_of_records_is_retried(tmp_path):
    statement = "if not seen: raise TimeoutError('too slow')"
    outcome, output = run(tmp_path, fails_once(marker="@pytest.mark.records", statement=statement))
    assert outcome == 0, output
    assert "PASSED ALONE" in output


@pytest.mark.parametrize(
    "text",
    [
        FAILS_IN_TEARDOWN,
        fails_once(marker="@pytest.mark.records"),
        fails_once(marker="@pytest.mark.records", statement="assert seen, 'record 7 is missing'"),
        fails_once(statement="assert seen, 'the broker has ended: traceback'"),
        "import no_module_of_this_name",
        "import os\ndef test_it(): os._exit(1)",
    ],
    ids=["teardown", "records", "records with a message", "a broker that ended", "collection", "a crash"],
)
def test_final_failures_are_not_retried(tmp_path, text):
    outcome, output = run(tmp_path, text, "--numprocesses", "1")
    assert outcome != 0
    assert "FAILED, not retried:" in output
    assert "retried alone" not in output


def test_unit_tests_are_not_retried(tmp_path):
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_unit.py").write_text(fails_once())
    outcome, output = run(tmp_path, "def test_it(): pass", "tests/unit/test_unit.py")
    assert outcome != 0
    assert "FAILED, not retried:" in output


@pytest.mark.parametrize(
    ("text", "is_retried"),
    [
        ("def test_it(): assert False", True),
        (fails_once(MAX_RETRIES + 1), False),
    ],
    ids=["fails again", "too many"],
)
def test_repeated_and_numerous_failures_fail_the_run(tmp_path, text, is_retried):
    outcome, output = run(tmp_path, text, "--numprocesses", "1")
    assert outcome != 0
    assert ("retried alone" in output) == is_retried
    assert "PASSED ALONE" not in output
