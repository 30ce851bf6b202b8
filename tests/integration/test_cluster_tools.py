"""Apache's tools print the same output for a Kavka cluster as for an Apache cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import cluster_tools
from tests.support.cluster import KavkaCluster
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]


def normalize(output: str) -> Any:
    """Return the lines without Java stack traces and without the text of error messages.

    JSON is sorted because Apache prints it in the order of a hash table. Kavka serves
    DescribeTopicPartitions, so the tools print an empty ELR instead of `N/A`."""
    lines: list[Any] = []
    for line in output.replace("Elr: N/A", "Elr: ").splitlines():
        if line.startswith(("\tat ", "\tSuppressed: ", "Error while executing topic command")):
            continue
        line = re.sub(r"(org\.apache\.kafka\.common\.errors\.\w+): .*", r"\1", line)
        if line.startswith("{"):
            lines.append(_sorted(json.loads(line)))
        else:
            head, configs, settings = line.partition("Configs: ")
            lines.append((head + configs, sorted(settings.split(","))))
    return lines


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(item) for name, item in sorted(value.items())}
    if isinstance(value, list):
        return sorted((_sorted(item) for item in value), key=repr)
    return value


def test_every_tool_prints_the_same_for_kavka_as_for_apache(java_parts: None, tmp_path: Path) -> None:
    golden = json.loads(cluster_tools.GOLDEN.read_text())
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper, KavkaCluster(tmp_path / "cluster", zookeeper) as cluster:
        outcomes = cluster_tools.session(cluster, tmp_path)
    assert [outcome["command"] for outcome in outcomes] == [outcome["command"] for outcome in golden]
    differences = [
        f"$ {apache['command']}\nApache:\n{apache['output']}\nKavka:\n{kavka['output']}"
        for apache, kavka in zip(golden, outcomes, strict=True)
        if normalize(apache["output"]) != normalize(kavka["output"])
    ]
    assert not differences, "\n".join(differences)
