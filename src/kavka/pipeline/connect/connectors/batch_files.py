"""Moves the files of a batch into a folder, on any file system that Spark supports. The new file
names contain the name of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def move_into(spark: SparkSession, source_folder: str, target_folder: str, name: str) -> None:
    """Moves all files below `source_folder` to the same subfolders of `target_folder`, renamed to
    NAME-0, NAME-1 … Existing files with such names come from an incomplete attempt and are removed
    first."""
    jvm: Any = spark._jvm
    path_of = jvm.org.apache.hadoop.fs.Path
    source, target = path_of(source_folder), path_of(target_folder)
    settings = spark._jsc.hadoopConfiguration()
    target_files = target.getFileSystem(settings)
    source_files = source.getFileSystem(settings)
    source, target = source_files.makeQualified(source), target_files.makeQualified(target)
    for file in _files(target_files, target):
        if str(file.getName()).startswith(f"{name}-"):
            target_files.delete(file, False)
    root = str(source.toString()).rstrip("/") + "/"
    number = 0
    for file in _files(source_files, source):
        if str(file.getName()).startswith(("_", ".")):
            continue
        folder = path_of(target, str(file.getParent().toString() + "/").removeprefix(root) or ".")
        target_files.mkdirs(folder)
        endings = str(file.getName()).split(".", 1)[1:]
        new_path = path_of(folder, ".".join([f"{name}-{number}", *endings]))
        is_moved = source_files.getUri().equals(target_files.getUri()) and source_files.rename(file, new_path)
        if not is_moved and not jvm.org.apache.hadoop.fs.FileUtil.copy(
            source_files, file, target_files, new_path, True, settings
        ):
            raise OSError(f"cannot move {file.toString()} to {new_path.toString()}")
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
