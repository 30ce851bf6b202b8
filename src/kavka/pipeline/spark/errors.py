"""What goes wrong in the source and the sink, told in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kavka.common.config import ConfigError
from kavka.common.errors import KafkaError


class PipelineError(Exception):
    """Something that whoever runs the job can put right; the message says what."""


class OptionError(PipelineError):
    """An option that is not there, or whose value cannot be."""


class DataLoss(PipelineError):
    """Offsets that should have been read are not in the topic any more (`failOnDataLoss`)."""


@contextmanager
def one_clear_line() -> Iterator[None]:
    """Around everything that Spark calls: the user gets the message, not our stack.

    Spark's Python worker prints the stack unless its environment says otherwise. The process ends with the error, so
    that nothing else is hidden."""
    try:
        yield
    except (PipelineError, ConfigError, KafkaError) as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if isinstance(error, PipelineError):
            raise
        raise PipelineError(str(error)) from None


def cause_in(lines: Sequence[str], marks: Sequence[str]) -> str:
    """Of the lines, at least one, that Spark makes of an error: what follows the first of the marks, which are names of
    errors of ours; else the last line that names any error; else the first."""
    for line in lines:
        for mark in marks:
            if mark in line:
                return line.split(mark, 1)[1].strip()
    found = [line for line in lines if line.split(":", 1)[0].rsplit(".", 1)[-1].endswith(("Error", "Exception"))]
    return found[-1] if found else lines[0]
