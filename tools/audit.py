"""Look up known vulnerabilities of the installed packages and of the lowest versions that
pyproject.toml allows.

    python tools/audit.py        (or `make audit`, which installs pip-audit first)

It fails if there is a vulnerability, or if a package cannot be looked up, for example because
PyPI's vulnerability service is not reachable.
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
    """Return `name==version` for each requirement `name>=version`, except those of developers."""
    extras = project["optional-dependencies"]
    requirements = list(project["dependencies"])
    requirements += [item for extra in extras if extra not in ("all", "dev") for item in extras[extra]]
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
    """Return the report of pip-audit for each package, or an error message."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text("\n".join(requirements) + "\n")
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        process = subprocess.run(
            [*command, "--format", "json", "-r", str(file)], capture_output=True, text=True, check=False
        )
    try:
        packages: list[dict[str, Any]] = json.loads(process.stdout)["dependencies"]
    except (ValueError, KeyError):
        lines = process.stderr.strip().splitlines() or ["pip-audit printed nothing"]
        return lines[-1]
    return packages


def report(title: str, packages: list[dict[str, Any]] | str) -> bool:
    """Print the result. Return True if all packages were looked up and none is vulnerable."""
    if isinstance(packages, str):
        print(f"{title}: cannot query the vulnerability service: {packages}")
        return False
    skipped = [package for package in packages if "skip_reason" in package]
    vulnerable = [package for package in packages if package.get("vulns")]
    for package in vulnerable:
        for vulnerability in package["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            print(f"{title}: {package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}")
    if skipped:
        print(
            f"{title}: {len(skipped)} of {len(packages)} packages could not be looked up, because the vulnerability "
            f"service is not reachable or does not contain them: {skipped[0]['skip_reason']}"
        )
    if not skipped and not vulnerable:
        print(f"{title}: {len(packages)} packages, no known vulnerability")
    return not skipped and not vulnerable


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements_by_title = {"lowest versions": floors(project), "installed": installed()}
    return (
        0 if all([report(title, audit(requirements)) for title, requirements in requirements_by_title.items()]) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
