"""The schema compiler: the generated code is up to date, and invalid schemas are rejected."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.protocol.cases import ROOT

from protocolgen.modules import module_source  # isort: skip
from protocolgen.schema import SchemaError, parse  # isort: skip


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools/generate_protocol.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_generated_code_is_up_to_date() -> None:
    result = run("--check")

    assert result.returncode == 0, result.stderr


def test_check_lists_outdated_files(tmp_path: Path) -> None:
    target = tmp_path / "protocol"
    shutil.copytree(ROOT / "src/kavka/protocol", target)
    with open(target / "messages/produce.py", "a") as file:
        file.write("\n# changed by hand\n")
    (target / "messages/heartbeat.py").unlink()
    (target / "messages/stray.py").write_text("")

    result = run("--check", "--target", target)

    assert result.returncode == 1
    for expected in ("produce.py is out of date", "heartbeat.py is missing", "stray.py has no schema"):
        assert expected in result.stderr
    assert run("--target", target).returncode == 0
    assert run("--check", "--target", target).returncode == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("request R api 1", "no versions"),
        ("message M versions 0", "expected 'request'"),
        ("request R versions 0-1", "have an api number"),
        ("data D versions 0\n  a integer", "line 2: not a type: integer"),
        ("data D versions 0\n  a int32 nonsense", "unknown word nonsense"),
        ("data D versions 0\n  a int32 0-x", "not a version range"),
        ("data D versions 0\n  a int32\n    b int32", "below a field that is not a struct"),
        ("data D versions 0\n  a [S]\n    b int32\n   c int32", "line 4: the indent matches no open struct"),
        ("data D versions 0\n  a [S]", "S is not defined"),
        ("data D versions 0\n  a [S]\n    b [S]", "S contains itself"),
        ("data D versions 0\n  a int32\n  a int16", "a is defined twice"),
        ("data D versions 0\n  a [S]\n    b int8\n  c S\n    d int8", "S is defined twice"),
        ("  a int32", "a field before any message"),
    ],
)
def test_invalid_schema_is_rejected(text: str, error: str) -> None:
    with pytest.raises(SchemaError, match=error):
        parse("test", text)


def test_array_of_empty_elements_is_rejected() -> None:
    schema = parse("test", "data D versions 0-1\n  a [S]\n    b int32 1+")

    with pytest.raises(SchemaError, match="version 0: elements of a have no size"):
        module_source(schema)


def test_versions_with_same_layout_share_a_function() -> None:
    source = module_source(parse("test", "data D versions 0-5\n  a int32\n  b int32 3+ ignorable"))

    assert source.count("def decode_d_v") == 2
    assert "    5: decode_d_v3," in source
