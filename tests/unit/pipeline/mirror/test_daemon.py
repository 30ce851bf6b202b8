"""The daemon that forks Spark's Python processes."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys
import kavka.pipeline.mirror.daemon
assert "kavka.client.producer.producer" in sys.modules
print(len(os.listdir("/proc/self/task")))
"""


def test_the_daemon_has_no_threads_when_it_forks() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "1\n"
