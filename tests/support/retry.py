"""Run pytest, then retry a few failed tests alone (docs/decisions/0006).

    python -m tests.support.retry [pytest arguments]

An integration test that fails on two busy cores and passes alone is treated as a flaky test. It is
named in the last lines of the run and does not fail the run. These failures are final:

- a test that fails again, and more than `MAX_RETRIES` failures
- a failed assertion of a test with the marker `records`: a record is missing, duplicated or wrong
- a broker that ended by itself (`BROKER_ENDED` in the failure), and errors in a test's teardown
- a unit test, an error in collection, a crash of the test process
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MAX_RETRIES = 3
BROKER_ENDED = "broker has ended"
UNIT_TESTS = "tests/unit/"
PASSED_ALONE = "PASSED ALONE, to be fixed:"
# The names of retried tests are appended to this file. `make test` prints it at its end.
SUMMARY_VARIABLE = "KAVKA_RETRIED_TESTS"


class Failures:
    """A pytest plugin that collects the retriable and the final failures."""

    def __init__(self) -> None:
        self.retriable: list[str] = []
        self.final: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            tests = self.final if is_final(report) else self.retriable
            if report.nodeid not in tests:
                tests.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.final.append(report.nodeid)

    def may_retry(self, outcome: int) -> bool:
        """Return whether the failures of a run with this exit code may be retried."""
        return outcome == pytest.ExitCode.TESTS_FAILED and not self.final and 0 < len(self.retriable) <= MAX_RETRIES


def is_final(report: pytest.TestReport) -> bool:
    """Return whether the failure must not be retried."""
    if report.when == "teardown" or report.nodeid.startswith(UNIT_TESTS):
        return True
    crash = getattr(report.longrepr, "reprcrash", None)
    # A report without an exception means that the test process crashed.
    if crash is None or BROKER_ENDED in crash.message:
        return True
    return "records" in report.keywords and crash.message.startswith(("AssertionError", "assert "))


def main(arguments: list[str]) -> int:
    """Run pytest and retry failed tests. Return the exit code."""
    # The `-m` in pytest's settings would deselect the tests of the matrix. pytest changes the list.
    selection = ["-m", arguments[arguments.index("-m") + 1]] if "-m" in arguments else []
    failures = Failures()
    outcome = int(pytest.main(arguments, plugins=[failures]))
    if failures.final:
        print_tests("FAILED, not retried:", failures.final)
    if not failures.may_retry(outcome):
        return outcome
    print_tests("FAILED IN PARALLEL, retried alone:", failures.retriable)
    for test in failures.retriable:
        outcome = subprocess.run([sys.executable, "-m", "pytest", *selection, test], check=False).returncode
        if outcome != pytest.ExitCode.OK:
            return outcome
    print_tests(PASSED_ALONE, failures.retriable)
    if summary := os.environ.get(SUMMARY_VARIABLE):
        with open(summary, "a") as file:
            file.writelines(f"    {test}\n" for test in failures.retriable)
    return outcome


def print_tests(title: str, tests: list[str]) -> None:
    print("\n".join([title, *(f"    {test}" for test in tests)]), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
