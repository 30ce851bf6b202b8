"""Runs the jobs and cleanings of the storage layer to their end in the calling thread."""

from __future__ import annotations

from kavka.storage.cleaner import CleaningResult, LogCleaning
from kavka.storage.jobs import Job


def run_now(job: Job) -> int:
    """Run all rounds of a job. Return their number."""
    rounds = 0
    while job.prepare():
        error: BaseException | None = None
        try:
            job.run()
        except Exception as failure:
            error = failure
        rounds += 1
        if not job.finish(error):
            break
    return rounds


def clean_now(cleaning: LogCleaning) -> CleaningResult:
    """Run all steps of a cleaning."""
    while True:
        try:
            cleaning.prepare()
            cleaning.run()
        except BaseException:
            cleaning.fail()
            raise
        result = cleaning.finish()
        if result is not None:
            return result
