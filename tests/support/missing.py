"""Skips tests whose external programs are not installed."""

from __future__ import annotations

import os
import shutil
import warnings

import pytest

from tests.support import debian

ON_CI = os.environ.get("CI", "").lower() == "true"


def skip_loudly(reason: str) -> None:
    """Skip the test with a warning, because an external program is missing. On CI, fail it."""
    if ON_CI:
        pytest.fail(f"tests must not be skipped on CI: {reason}")
    warnings.warn(f"SKIPPED, NOT TESTED: {reason}", stacklevel=2)
    pytest.skip(reason)


def need_command(command: str, package: str | None = None) -> str:
    """Return the path of a command. Install its Debian package if it is missing."""
    path = shutil.which(command)
    problem = ""
    if path is None and package is not None and debian.may_install():
        problem = debian.install(package)
        path = shutil.which(command)
    if path is None:
        skip_loudly(f"{command} is not installed {problem}".strip())
    assert path is not None
    return path
