"""`make audit` without the vulnerability service."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools import audit

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
FLOORS = {
    "starlette": (1, 3, 1), "h11": (0, 16), "protobuf": (5, 29, 6), "jinja2": (3, 1, 6),
    "python-multipart": (0, 0, 31), "pyarrow": (23, 0, 1),
}  # fmt: skip


def test_lowest_versions_have_no_known_vulnerability() -> None:
    lowest: dict[str, list[tuple[int, ...]]] = {}
    for requirement in audit.floors(PROJECT):
        name, _, version = requirement.partition("==")
        lowest.setdefault(name, []).append(tuple(map(int, version.split("."))))
    for name, fixed in FLOORS.items():
        assert min(lowest[name]) >= fixed, name
    with pytest.raises(SystemExit, match="has no lowest version"):
        audit.floors({"dependencies": ["uvloop"], "optional-dependencies": {}})


def test_dev_extra_contains_all_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    names = ",".join(extra for extra in extras if extra not in ("all", "dev"))
    assert extras["all"] == [f"kavka[{names}]"]
    assert "kavka[all]" in extras["dev"]


@pytest.mark.parametrize(
    "packages, is_fine, printed",
    [
        ([{"name": "a", "version": "1", "vulns": []}], True, "part: 1 packages, no known vulnerability"),
        ([{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}], False,
         "part: a 1: CVE-1, fixed in 2"),
        ([{"name": "a", "version": "1", "skip_reason": "not found"}], False, "1 of 1 packages could not be looked up"),
        ("no route to host", False, "part: cannot query the vulnerability service: no route to host"),
    ],
)  # fmt: skip
def test_report_fails_for_vulnerable_and_unknown_packages(
    packages: list[dict[str, Any]] | str, is_fine: bool, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.report("part", packages) is is_fine
    assert printed in capsys.readouterr().out
