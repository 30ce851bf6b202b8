"""What `make test` forgives, and what it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.once_more import AT_MOST

ROOT = Path(__file__).resolve().parents[3]
FAILS_ONCE = """
import pathlib, pytest
@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    flag = pathlib.Path(__file__).with_name(f"{{number}}.seen")
    seen = flag.exists()
    flag.touch()
    assert seen
def test_other():
    pass
"""
FAILS_AT_ITS_END = """
import pytest
@pytest.fixture(scope="module")
def broker():
    yield
    assert False, "the broker has ended"
def test_it(broker):
    pass
"""


def run(folder: Path, text: str, *options: str) -> tuple[int, str]:
    (folder / "test_given.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.once_more", *options, "test_given.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


def test_what_passes_is_run_once(tmp_path):
    outcome, said = run(tmp_path, "def test_it(): pass")
    assert outcome == 0
    assert "ALONE" not in said and "alone" not in said


def test_what_passes_alone_is_forgiven_and_named(tmp_path):
    outcome, said = run(tmp_path, FAILS_ONCE.format(count=AT_MOST))
    assert outcome == 0, said
    assert "PASSED ALONE, to be mended:" in said
    assert said.rstrip().endswith(f"test_given.py::test_it[{AT_MOST - 1}]")


@pytest.mark.parametrize(
    "text",
    [
        "def test_it(): assert False",
        FAILS_ONCE.format(count=AT_MOST + 1),
        FAILS_AT_ITS_END,
        "import nothing_of_this_name",
        "import os\ndef test_it(): os._exit(1)",
    ],
    ids=["fails again", "too many", "a broker that has ended", "not a test", "a crash"],
)
def test_everything_else_fails_the_run(tmp_path, text):
    outcome, said = run(tmp_path, text, "--numprocesses", "1")
    assert outcome != 0
    assert ("FAILED BESIDE" in said) == ("assert False" in text and "yield" not in text)
    assert "PASSED ALONE" not in said
