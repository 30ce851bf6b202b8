"""Three brokers under load survive each kind of fault once. `make chaos` runs longer.

The checks are in tests/chaos/checker.py and tests/chaos/run.py. docs/faults.md describes them."""

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


def test_no_fault_loses_or_duplicates_a_record(java_parts: None, tmp_path: Path) -> None:
    assert _violations(FAULTS, tmp_path) == []


@pytest.mark.matrix
def test_no_early_election_loses_or_duplicates_a_record(java_parts: None, tmp_path: Path) -> None:
    """Brokers that are alive are treated as failed (docs/decisions/0016)."""
    assert _violations("nap-leader,refuse-leader,refuse-controller,flap-any,cut-controller", tmp_path) == []


def test_a_full_disk_on_a_follower_delays_no_producer(java_parts: None, tmp_path: Path) -> None:
    if not can_mount():
        skip_loudly("only root can mount a small disk")
    assert _violations("disk-full", tmp_path) == []


def _violations(faults: str, folder: Path) -> list[str]:
    outcomes = run(faults_by_name(faults), rounds=1, duration=0, apache=False, seed=SEED, folder=folder)
    return [f"{outcome.fault}: {violation}" for outcome in outcomes for violation in outcome.violations]
