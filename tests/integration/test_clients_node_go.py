"""kafkajs and franz-go work with the broker. A small program for each client prints its results as
JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.jars import ROOT
from tests.support.material import read_all
from tests.support.missing import skip_loudly
from tests.support.targets import Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SUPPORT = ROOT / "tests" / "support"
CACHE = ROOT / ".cache"


def run_probe(argv: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the program and return the last line of its output, which is a JSON object."""
    result = subprocess.run(
        argv, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    results: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return results


def test_kafkajs_creates_a_topic_produces_and_describes(need: Callable[..., str], target: Target, topic: str) -> None:
    node, npm = need("node", "nodejs"), need("npm", "npm")
    folder = CACHE / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "probe.js"):
        shutil.copy(SUPPORT / "node" / name, folder / name)
    if not (folder / "node_modules" / "kafkajs").exists():
        install = subprocess.run(
            [npm, "install", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True, check=False
        )
        if install.returncode != 0:
            skip_loudly(f"npm cannot install kafkajs: {install.stderr[-300:]}")
    results = run_probe(
        [node, "probe.js", target.bootstrap_servers, topic], cwd=folder, env={"KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    )
    assert results == {
        "created": True,
        "baseOffset": "0",
        "high": "18",
        "byTime": "0",
        "partitions": 2,
        "brokers": 1,
        "retention": "604800000",
        "low": "6",
    }
    records = read_all(target.bootstrap_servers, [(topic, 0), (topic, 1)])
    assert [(offset, value) for offset, _, value, _ in records[topic, 0]] == [
        (6 + 6 * block + 3 * codec + n, b"acks %d, compression %d, %d" % (acks, codec, n))
        for block, acks in enumerate((-1, 0))
        for codec in (0, 1)
        for n in range(3)
    ]
    assert [value for _, _, value, _ in records[topic, 1]] == [b"once"]


def test_franz_go_creates_a_topic_produces_consumes_and_describes(
    need: Callable[..., str], target: Target, topic: str
) -> None:
    go = need("go", "golang-go")
    program = CACHE / "go" / "probe"
    program.parent.mkdir(parents=True, exist_ok=True)
    build = subprocess.run(
        [go, "build", "-o", str(program), "."], cwd=SUPPORT / "go", capture_output=True, text=True, check=False
    )
    if build.returncode != 0:
        skip_loudly(f"franz-go cannot be built: {build.stderr[-500:]}")
    results = run_probe([str(program), target.bootstrap_servers, topic], cwd=program.parent)
    assert results == {
        "records": 1100,
        "inOrder": True,
        "middle": "value 500",
        "byTime": "value 250",
        "fromEnd": "value 1099",
        "end": 1100,
        "configs": True,
        "low": 10,
    }
