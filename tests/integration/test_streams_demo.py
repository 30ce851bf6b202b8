"""The word count of `kavka quickstart` (`make demo`) runs the job with `kavka pipeline run`, shows
its status, and stops it with `kavka pipeline stop`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.missing import need_command

COMMAND = [sys.executable, "-m", "kavka.cli.main", "quickstart", "--step", "words", "--seconds", "8"]


@pytest.mark.java
@pytest.mark.timeout(400)
def test_the_demo_shows_a_live_word_count(tmp_path: Path) -> None:
    need_command("java")
    result = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    counts = [int(count) for count in re.findall(r"(?:^|  )the (\d+)", result.stdout, re.MULTILINE)]
    assert len(counts) >= 2
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    assert re.search(r"^wordCountApp +\S+ +\d+ +RUNNING", result.stdout, re.MULTILINE)
    assert "stopped wordCountApp" in result.stdout
