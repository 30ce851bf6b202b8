"""Files of a batch put into a folder under names of the batch, on any file system that Spark knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def move_into(spark: SparkSession, aside: str, target: str, name: str) -> None:
    """Move all files below the folder `aside` to the same places below `target`, called NAME-0, NAME-1 … there.
    What `target` has by such names already is removed first: it is of an attempt that did not end."""
    jvm: Any = spark._jvm
    path_of = jvm.org.apache.hadoop.fs.Path
    source, goal = path_of(aside), path_of(target)
    settings = spark._jsc.hadoopConfiguration()
    files = goal.getFileSystem(settings)
    here = source.getFileSystem(settings)
    source, goal = here.makeQualified(source), files.makeQualified(goal)
    for old in _files(files, goal):
        if str(old.getName()).startswith(f"{name}-"):
            files.delete(old, False)
    root = str(source.toString()).rstrip("/") + "/"
    number = 0
    for one in _files(here, source):
        if str(one.getName()).startswith(("_", ".")):
            continue
        folder = path_of(goal, str(one.getParent().toString() + "/").removeprefix(root) or ".")
        files.mkdirs(folder)
        endings = str(one.getName()).split(".", 1)[1:]
        new = path_of(folder, ".".join([f"{name}-{number}", *endings]))
        moved = here.getUri().equals(files.getUri()) and here.rename(one, new)
        if not moved and not jvm.org.apache.hadoop.fs.FileUtil.copy(here, one, files, new, True, settings):
            raise OSError(f"{one.toString()} could not be moved to {new.toString()}")
        number += 1
    here.delete(source, True)


def _files(system: Any, folder: Any) -> list[Any]:
    if not system.exists(folder):
        return []
    found = []
    entries = system.listFiles(folder, True)
    while entries.hasNext():
        found.append(entries.next().getPath())
    return found
