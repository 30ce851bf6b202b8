"""Moves the files of a batch into a folder, under names of the batch, on any file system that Spark
supports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def move_into(spark: SparkSession, source_folder: str, target: str, name: str) -> None:
    """Move all files below `source_folder` to the same subfolders of `target`, renamed to NAME-0,
    NAME-1 … Files in `target` with such names come from an incomplete attempt and are removed
    first."""
    jvm: Any = spark._jvm
    path_of = jvm.org.apache.hadoop.fs.Path
    source, goal = path_of(source_folder), path_of(target)
    settings = spark._jsc.hadoopConfiguration()
    target_files = goal.getFileSystem(settings)
    source_files = source.getFileSystem(settings)
    source, goal = source_files.makeQualified(source), target_files.makeQualified(goal)
    for old in _files(target_files, goal):
        if str(old.getName()).startswith(f"{name}-"):
            target_files.delete(old, False)
    root = str(source.toString()).rstrip("/") + "/"
    number = 0
    for file in _files(source_files, source):
        if str(file.getName()).startswith(("_", ".")):
            continue
        folder = path_of(goal, str(file.getParent().toString() + "/").removeprefix(root) or ".")
        target_files.mkdirs(folder)
        endings = str(file.getName()).split(".", 1)[1:]
        new = path_of(folder, ".".join([f"{name}-{number}", *endings]))
        moved = source_files.getUri().equals(target_files.getUri()) and source_files.rename(file, new)
        if not moved and not jvm.org.apache.hadoop.fs.FileUtil.copy(
            source_files, file, target_files, new, True, settings
        ):
            raise OSError(f"cannot move {file.toString()} to {new.toString()}")
        number += 1
    source_files.delete(source, True)


def _files(system: Any, folder: Any) -> list[Any]:
    if not system.exists(folder):
        return []
    paths = []
    entries = system.listFiles(folder, True)
    while entries.hasNext():
        paths.append(entries.next().getPath())
    return paths
