"""The exceptions of the source and the sink."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kavka.common.config import ConfigError
from kavka.common.errors import KafkaError


class PipelineError(Exception):
    """An error that the user of the job can correct; the message describes it."""


class OptionError(PipelineError):
    """A missing option or an invalid value."""


class DataLoss(PipelineError):
    """Records that should have been read no longer exist (`failOnDataLoss`)."""


def no_reset(loss: str) -> str:
    """Return the message of a loss of records that the job has no reset policy for."""
    return f"{loss}, and there is no reset policy (none): set it to earliest or latest to continue"


@contextmanager
def concise_errors() -> Iterator[None]:
    """Show the message of an error to the user without our stack trace: re-raise it as
    PipelineError. Every method that Spark calls uses this.

    Spark's Python worker prints the stack trace unless an environment variable disables it. The
    process ends after the error, so that the variable hides no other trace.
    """
    try:
        yield
    except (PipelineError, ConfigError, KafkaError) as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if isinstance(error, PipelineError):
            raise
        raise PipelineError(str(error)) from None


def cause_in(lines: Sequence[str], marks: Sequence[str]) -> str:
    """Return the cause in the lines of an exception of Spark: the text after a mark (the name of
    one of our exceptions), else the last line with the name of an exception, else the first
    line."""
    for line in lines:
        for mark in marks:
            if mark in line:
                return line.split(mark, 1)[1].strip()
    named = [line for line in lines if line.split(":", 1)[0].rsplit(".", 1)[-1].endswith(("Error", "Exception"))]
    return named[-1] if named else lines[0]
