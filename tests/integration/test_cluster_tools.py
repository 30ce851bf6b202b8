"""Apache's own tools find in our cluster what they find in Apache's: the same words for the same
commands."""

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


def compared(output: str) -> Any:
    """Lines, without Java's traces and without what a broker says in its own words. Where they are
    JSON, in any order: Apache's is that of a hash table. Our brokers serve DescribeTopicPartitions:
    ELRs are empty, not unknown."""
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
        return {name: _sorted(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return sorted((_sorted(each) for each in value), key=repr)
    return value


def test_every_tool_says_of_our_cluster_what_it_says_of_apaches(java_parts: None, tmp_path: Path) -> None:
    golden = json.loads(cluster_tools.GOLDEN.read_text())
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper, KavkaCluster(tmp_path / "cluster", zookeeper) as cluster:
        outcomes = cluster_tools.session(cluster, tmp_path)
    assert [each["command"] for each in outcomes] == [each["command"] for each in golden]
    different = [
        f"$ {theirs['command']}\nApache:\n{theirs['output']}\nKavka:\n{ours['output']}"
        for theirs, ours in zip(golden, outcomes, strict=True)
        if compared(theirs["output"]) != compared(ours["output"])
    ]
    assert not different, "\n".join(different)
