"""Every Python example in the documents of the clients runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.targets import Target

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["producer.md", "admin.md"])
def test_the_examples_of_a_document_run_one_after_the_other(target: Target, name: str) -> None:
    blocks = _BLOCK.findall((DOCS / name).read_text())
    assert blocks
    for block in blocks:
        code = compile(block.replace("localhost:9092", target.bootstrap_servers), name, "exec")
        exec(code, {"__name__": "example"})
