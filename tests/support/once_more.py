"""Pytest, and the few tests that failed beside others once more by themselves (docs/decisions/0006):
`python -m tests.support.once_more [pytest's arguments]`.

A test of real clusters that fails on two full cores and passes alone has counted on the clock: it is named at the end
of the run, to be mended, and does not hold up what has nothing to do with it. Everything else fails the run as ever:
a test that fails again, more than `AT_MOST` of them, a crash of the process that tests, and whatever goes wrong while a
test is taken down, such as a broker that has ended by itself (the same test passes with a new one).
"""

from __future__ import annotations

import subprocess
import sys

import pytest

AT_MOST = 3


class Failures:
    """A plugin that remembers which tests failed, and which of them not in a way that a second try may answer."""

    def __init__(self) -> None:
        self.tests: list[str] = []
        self.final: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            kept = self.tests if report.when in ("setup", "call") else self.final
            if report.nodeid not in kept:
                kept.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.final.append(report.nodeid)

    def may_be_tried_again(self, outcome: int) -> bool:
        return outcome == pytest.ExitCode.TESTS_FAILED and not self.final and 0 < len(self.tests) <= AT_MOST


def main(arguments: list[str]) -> int:
    failures = Failures()
    outcome = int(pytest.main(arguments, plugins=[failures]))
    if not failures.may_be_tried_again(outcome):
        return outcome
    say("FAILED BESIDE OTHERS, once more alone:", failures.tests)
    outcome = subprocess.run([sys.executable, "-m", "pytest", *failures.tests], check=False).returncode
    if outcome == pytest.ExitCode.OK:
        say("PASSED ALONE, to be mended:", failures.tests)
    return outcome


def say(what: str, tests: list[str]) -> None:
    print("\n".join([what, *(f"    {test}" for test in tests)]), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
