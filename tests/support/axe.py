"""axe-core, which finds faults of accessibility in a page. It comes from npm, for tests only."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING

from tests.support.jars import ROOT
from tests.support.missing import skip_loudly

if TYPE_CHECKING:
    from playwright.sync_api import Page

VERSION = "4.14.1"
FOLDER = ROOT / ".cache" / "axe"


@cache
def axe_script() -> str:
    """Return the script. Without npm or its registry, skip the test, or fail it on CI."""
    path = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    if not path.exists():
        npm = shutil.which("npm")
        if npm is None:
            skip_loudly("axe-core needs npm")
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [str(npm), "install", "--no-audit", "--no-fund", "--prefix", str(FOLDER), f"axe-core@{VERSION}"]
        install = subprocess.run(command, capture_output=True, text=True, check=False)
        if install.returncode != 0:
            skip_loudly(f"npm cannot install axe-core: {install.stderr[-300:]}")
    return path.read_text()


def serious_violations(page: Page) -> list[str]:
    """Return the serious and critical violations of the page, one line for each element."""
    page.evaluate(axe_script())
    result = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
