"""Handling of external programs that are not installed."""

from __future__ import annotations

import os
import shutil
import warnings

import pytest

from tests.support import debian

ON_CI = os.environ.get("CI", "").lower() == "true"


def skip_loudly(reason: str) -> None:
    """An external program is missing: skip with a visible message, and fail in CI."""
    if ON_CI:
        pytest.fail(f"on CI nothing may be skipped: {reason}")
    warnings.warn(f"SKIPPED, NOT TESTED: {reason}", stacklevel=2)
    pytest.skip(reason)


def need_command(command: str, package: str | None = None) -> str:
    """A command's path, installed from Debian's packages where we may."""
    path = shutil.which(command)
    problem = ""
    if path is None and package is not None and debian.may_install():
        problem = debian.install(package)
        path = shutil.which(command)
    if path is None:
        skip_loudly(f"{command} is not here {problem}".strip())
    assert path is not None
    return path
