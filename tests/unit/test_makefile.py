"""The Makefile where the environment or the checkout is unusual. `make -n` prints the commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str, cwd: Path, as_nobody: bool = False, **environment: str) -> str:
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if as_nobody else []
    command = [*prefix, "make", "--no-print-directory", *arguments]
    result = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_bytecode_is_written_even_if_the_environment_disables_it() -> None:
    rule = "--eval=show: ; @echo value=$$PYTHONDONTWRITEBYTECODE"
    assert make(rule, "show", cwd=ROOT, PYTHONDONTWRITEBYTECODE="1") == "value=\n"


def test_a_read_only_checkout_installs_a_copy_into_the_cache() -> None:
    is_root = os.geteuid() == 0
    if is_root and shutil.which("setpriv") is None:
        pytest.skip("root can write everywhere, and setpriv is not installed")
    # Other users cannot enter pytest's folder.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        check_read_only_checkout(Path(folder), as_nobody=is_root)


def check_read_only_checkout(folder: Path, *, as_nobody: bool) -> None:
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    checkout.chmod(0o555)
    cache = folder / "cache"
    commands = make("-n", "run", cwd=checkout, as_nobody=as_nobody, XDG_CACHE_HOME=str(cache))
    assert f"{cache}/kavka/venv/bin/python -m kavka.cli.main server" in commands
    assert f"log.dirs={cache}/kavka/data" in commands
    assert "--editable" not in commands
    checkout.chmod(0o755)
    commands = make("-n", "run", cwd=checkout, XDG_CACHE_HOME=str(cache))
    assert "--editable '.[console]'" in commands
    assert str(cache) not in commands
