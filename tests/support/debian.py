"""Installs Debian packages for tests whose programs are missing."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# Tests run in several processes, and apt-get does not run concurrently: this file serializes them.
_LOCK = Path(tempfile.gettempdir()) / "kavka-tests-apt.lock"
_OPTIONS = ("-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")


def may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_get(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    with _LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run(
            ["apt-get", *_OPTIONS, *arguments],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )


def install(*packages: str) -> str:
    """Install packages, as root. Return "" on success, else the error of apt-get. A failed update
    of the package lists is ignored, because older lists may be sufficient."""
    apt_get("update")
    result = apt_get("install", "-y", "-o", "Dpkg::Options::=--force-confold", *packages)
    return result.stderr[-500:].strip() if result.returncode else ""
