"""Installs Debian packages for tests whose programs are missing."""

from __future__ import annotations

import contextlib
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


def unpacked(package: str, cache: Path) -> tuple[Path, str]:
    """Download a package and unpack it to a folder of `cache`, so that its services do not start.
    Return the folder and the error of apt-get, "" on success."""
    folder = cache / package
    if folder.exists():
        return folder, ""
    if shutil.which("apt-get") is None:
        return folder, "apt-get is not installed"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        result = apt_get("download", package, cwd=Path(name))
        if result.returncode and may_install():
            apt_get("update")
            result = apt_get("download", package, cwd=Path(name))
        files = list(Path(name).glob("*.deb"))
        if result.returncode or not files:
            return folder, result.stderr[-500:].strip()
        subprocess.run(["dpkg-deb", "-x", files[0], Path(name) / "root"], check=True)
        with contextlib.suppress(OSError):  # Another process was faster.
            (Path(name) / "root").rename(folder)
    return folder, ""
