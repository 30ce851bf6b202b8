"""`make demo`: a broker, the word count by `kavka pipeline run`, its status, and its end by `kavka
pipeline stop`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.missing import need_command

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.mark.java
@pytest.mark.timeout(400)
def test_the_demo_shows_counts_that_move() -> None:
    need_command("java")
    ran = subprocess.run(
        [sys.executable, str(DEMO), "--seconds", "8"], capture_output=True, text=True, timeout=380, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counted = [int(count) for count in re.findall(r"(?:^|  )the (\d+)", ran.stdout, re.MULTILINE)]
    assert len(counted) >= 2
    assert counted == sorted(counted)
    assert counted[-1] > counted[0]
    assert re.search(r"^wordCountApp +\d+ +RUNNING", ran.stdout, re.MULTILINE)
    assert "stopped wordCountApp" in ran.stdout
