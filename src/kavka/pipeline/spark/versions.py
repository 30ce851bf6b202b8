"""Compares the versions of Kavka and Python in the driver with those in a task.

A job is pickled as (versions, bytes), so that the versions are compared before anything of the job
is loaded: other versions may have other classes.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from kavka import __version__
from kavka.pipeline.spark.errors import PipelineError

Versions = tuple[str, str]

_REMEDY = "make an archive with kavka pipeline pack and start the job with --archive"


def here() -> Versions:
    """(Kavka's version, Python's minor version) of this process."""
    return __version__, ".".join(platform.python_version_tuple()[:2])


def pickled(state: Any) -> tuple[Versions, bytes]:
    from pyspark.cloudpickle import dumps

    return here(), dumps(state)  # type: ignore[no-untyped-call]


def unpickled(driver: Versions, data: bytes) -> Any:
    """Raises PipelineError if the driver has other versions than this process."""
    import pickle

    executor = here()
    if driver != executor:
        raise PipelineError(
            f"the driver has Kavka {driver[0]} with Python {driver[1]}, and the executor on {platform.node()} has "
            f"Kavka {executor[0]} with Python {executor[1]}: {_REMEDY}"
        )
    return pickle.loads(data)


def remedy_for(lines: Sequence[str]) -> str | None:
    """The message for an exception of Spark whose cause is that executors lack a module or the
    driver's version of Python. None if it has another cause."""
    for line in lines:
        if "No module named kavka" in line.replace("'", ""):
            return f"the executors have no Kavka: {_REMEDY}, or install it there"
        if "ModuleNotFoundError: No module named" in line:
            module = line.rpartition("No module named ")[2].strip("'\"")
            return f"the executors have no module {module}: send it with --py-files, or add it by kavka pipeline pack"
        if "PYTHON_VERSION_MISMATCH" in line:
            return (
                f"the executors do not run Python {here()[1]}, as the driver does: install it there, or set "
                "PYSPARK_PYTHON to its command on the executors"
            )
        if 'Cannot run program "python' in line:
            program = line.split('"')[1]
            return f"{program} is not on the PATH of an executor: set PYSPARK_PYTHON to the command of Python there"
    return None
