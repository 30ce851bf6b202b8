"""Every fuzz target on a fixed set of mutated inputs, each in a separate process to measure its
memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.fuzz.engine import Finding, Target, peak_memory, run_input
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_stay_within_the_limits(name: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz", name, "--seed", "1", "--inputs", str(TARGETS[name].inputs)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_targets_run_a_hundred_thousand_inputs() -> None:
    assert sum(target.inputs for target in TARGETS.values()) >= 100_000


def _busy(_data: bytes) -> None:
    sum(range(20_000_000))


def _greedy(_data: bytes) -> None:
    """Allocate more memory than the peak of this process."""
    len(b"\1" * (peak_memory() + (100 << 20)))


def _failing(_data: bytes) -> None:
    raise KeyError("undocumented")


@pytest.mark.parametrize(
    ("run", "cpu_seconds", "reason"),
    [(_busy, 0.05, "CPU time"), (_failing, 60.0, "undocumented"), (_greedy, 60.0, "of memory")],
    ids=["time", "exception", "memory"],
)
def test_an_input_beyond_a_limit_is_a_finding(run: Callable[[bytes], None], cpu_seconds: float, reason: str) -> None:
    target = Target("example", run, lambda: [b""], 1, cpu_seconds=cpu_seconds)
    with pytest.raises(Finding, match=reason):
        run_input(target, b"input")
