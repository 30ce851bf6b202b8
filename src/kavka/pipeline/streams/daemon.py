"""Spark's daemon of Python workers with the modules of Streams loaded.

A worker is a fork of its daemon. Without this each worker would import the modules again, which
takes longer than a micro-batch, and have them in its private memory. Spark collects garbage after
each task: `gc.freeze` keeps the modules out of that.
"""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path

_ZIP = "python/lib/pyspark.zip"


def _is_needed(entry: str) -> bool:
    """False for Spark's zip file if the same package is installed: Python compiles a module of a
    zip file in each process."""
    return not entry.endswith(_ZIP) or str(Path(entry.removesuffix(_ZIP)).parent) not in sys.path


if __name__ == "__main__":
    sys.path[:] = filter(_is_needed, sys.path)
    for name in ("routed_source", "sink", "workers"):
        importlib.import_module(f"kavka.pipeline.streams.{name}")
    for name in ("pyspark.worker", "kavka.pipeline.spark.reading"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()
