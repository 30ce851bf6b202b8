"""Look up known vulnerabilities of what is installed, and of the lowest versions that pyproject.toml allows.

    python tools/audit.py        (or `make audit`, which installs pip-audit before)

It fails where there is one, and where the vulnerability service (PyPI's) cannot be asked: a package that could not be
looked up is not one without vulnerabilities.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def floors(project: dict[str, Any]) -> list[str]:
    """`name==version` for each requirement `name>=version` of users, not of developers."""
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(item for extra in extras if extra != "dev" for item in extras[extra])]
    pinned = set()
    for requirement in requirements:
        match = re.match(r"([A-Za-z0-9._-]+)>=([^,;\s]+)", requirement)
        if match is None:
            raise SystemExit(f"pyproject.toml: {requirement} has no lowest version")
        pinned.add(f"{match[1]}=={match[2]}")
    return sorted(pinned)


def installed() -> list[str]:
    command = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line for line in printed.splitlines() if "==" in line]


def audit(requirements: Iterable[str]) -> list[dict[str, Any]] | str:
    """What pip-audit says of each; a text where it could not ask."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text("\n".join(requirements) + "\n")
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        done = subprocess.run(
            [*command, "--format", "json", "-r", str(file)], capture_output=True, text=True, check=False
        )
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines() or ["pip-audit printed nothing"]
        return lines[-1]
    return packages


def report(what: str, packages: list[dict[str, Any]] | str) -> bool:
    """Whether nothing is wrong."""
    if isinstance(packages, str):
        print(f"{what}: the vulnerability service cannot be asked: {packages}")
        return False
    skipped = [package for package in packages if "skip_reason" in package]
    vulnerable = [package for package in packages if package.get("vulns")]
    for package in vulnerable:
        for one in package["vulns"]:
            fixed = ", ".join(one["fix_versions"]) or "no version yet"
            print(f"{what}: {package['name']} {package['version']}: {one['id']}, fixed in {fixed}")
    if skipped:
        print(
            f"{what}: {len(skipped)} of {len(packages)} packages could not be looked up; the vulnerability service is "
            f"not reached from here, or does not know them: {skipped[0]['skip_reason']}"
        )
    if not skipped and not vulnerable:
        print(f"{what}: {len(packages)} packages, no known vulnerability")
    return not skipped and not vulnerable


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = {"lowest versions": floors(project), "installed": installed()}
    return 0 if all([report(what, audit(requirements)) for what, requirements in parts.items()]) else 1


if __name__ == "__main__":
    sys.exit(main())
