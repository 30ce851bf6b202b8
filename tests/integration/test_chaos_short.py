"""Each kind of fault once against three brokers under load; `make chaos` does it for as long as
asked.

The checks are in tests/chaos/checker.py and run.py; docs/faults.md describes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cluster import can_mount
from tests.chaos.faults import faults_by_name
from tests.chaos.run import run
from tests.support.missing import skip_loudly

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(900), pytest.mark.records]

SEED = 6
FAULTS = (
    "stop-controller,kill-leader,pause-leader,bounce-any,hard-bounce-leader,zookeeper-restart,cut-brokers,"
    "cut-zookeeper-controller"
)


def test_every_fault_once_loses_nothing_and_doubles_nothing(java_parts: None, tmp_path: Path) -> None:
    assert _violations(FAULTS, tmp_path) == []


def test_a_full_disk_on_a_follower_delays_no_producer(java_parts: None, tmp_path: Path) -> None:
    if not can_mount():
        skip_loudly("a small disk can only be mounted by root")
    assert _violations("disk-full", tmp_path) == []


def _violations(faults: str, folder: Path) -> list[str]:
    outcomes = run(faults_by_name(faults), rounds=1, duration=0, apache=False, seed=SEED, folder=folder)
    return [f"{outcome.fault}: {violation}" for outcome in outcomes for violation in outcome.violations]
