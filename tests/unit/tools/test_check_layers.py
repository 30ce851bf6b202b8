from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools" / "check_layers.py")
check_layers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_layers)


def problems(package: Path, file: str, text: str) -> list[str]:
    path = package / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return check_layers.check(package)


def test_package_has_no_problems():
    package = ROOT / "src" / "kavka"
    assert check_layers.check(package) == []
    assert list(check_layers.unused_exceptions(package)) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("storage/log.py", "from kavka.records import batch\nimport os\nimport asyncio"),
        ("api/fetch.py", "import kavka.replication.partition"),
        ("api/fetch.py", "from kavka.api import registry"),
        ("common/a.py", "import os\nos.path.join('a', 'b')\nfrom kavka import __version__"),
        ("common/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kavka.api import registry"),
        ("cli/topics.py", "from kavka.client import admin"),
        ("cli/server.py", "from kavka.broker import app"),
        ("metadata/zookeeper.py", "import kazoo"),
        ("__init__.py", "from kavka.api import registry"),
        ("pipeline/connect/flow.py", "from kavka.pipeline.columns import avro\nfrom kavka.pipeline import spark"),
        ("pipeline/mirror/sharing.py", "from kavka.pipeline.connect.distributed import assign_connectors"),
    ],
)
def test_imports_of_lower_layers_are_allowed(tmp_path, file, text):
    assert problems(tmp_path, file, text) == []


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("common/a.py", "from kavka.api import registry", "common/a.py:1: common imports api, which is above it"),
        ("records/a.py", "\nimport kavka.storage.log", "records/a.py:2: records imports storage"),
        ("storage/a.py", "from kavka.client import admin", "has the same rank"),
        ("storage/a.py", "from kavka import api", "storage imports api"),
        ("storage/a.py", "def f():\n    from kavka.api import registry", "storage/a.py:2: storage imports api"),
        ("cli/topics.py", "from kavka.storage import log", "cli may use only"),
        ("console/page.py", "from kavka.cli import main", "console may use only"),
        ("testing.py", "from kavka.broker import app", "testing may use only"),
        ("protocol/a.py", "import asyncio", "imports asyncio"),
        ("protocol/a.py", "from socket import socket", "does no I/O"),
        ("records/a.py", "import kazoo.client", "does no I/O"),
        ("records/a.py", "from os import pread", "imports os.pread"),
        ("records/a.py", "import os\nos.pread(0, 1, 2)", "records/a.py:2: uses os.pread"),
        ("common/a.py", "open('x')", "opens a file"),
        ("common/a.py", "from . import b", "relative import"),
        ("surprise/a.py", "", "surprise is not a layer"),
        ("pipeline/spark/a.py", "from kavka.pipeline.connect import flow", "spark imports pipeline.connect"),
        ("pipeline/columns/a.py", "from kavka.pipeline import spark", "columns imports pipeline.spark"),
        ("pipeline/connect/a.py", "import kavka.pipeline.streams", "which is not below it"),
    ],
)
def test_forbidden_imports_and_io_are_reported_with_the_line(tmp_path, file, text, words):
    reported = problems(tmp_path, file, text)
    assert len(reported) == 1
    assert words in reported[0]


def test_unused_exceptions_are_reported(tmp_path):
    assert "for broker in cli/server.py is not used" in "\n".join(check_layers.unused_exceptions(tmp_path))


def test_exit_code_is_1_if_there_are_problems(tmp_path, capsys):
    problems(tmp_path, "common/a.py", "import asyncio")
    assert check_layers.main([str(tmp_path)]) == 1
    assert "common/a.py:1" in capsys.readouterr().out
