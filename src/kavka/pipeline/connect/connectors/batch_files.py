"""Moves the files of a batch into a folder, on any file system that Spark supports. The new file
names contain the name of the batch.

The file `SOURCE.moves` beside the source folder has the name of the last batch and its new files.
It is written before the first file is moved. A batch that is repeated after a crash removes these
files first, without listing the target folder.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kavka.pipeline.spark.files import HadoopPath

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
    moves = HadoopPath(f"{source_folder.rstrip('/')}.moves", lambda: spark)
    for new_path in _earlier_attempt(moves, name, target_files, target):
        target_files.delete(path_of(target, new_path), False)
    root = str(source.toString()).rstrip("/") + "/"
    new_paths: dict[str, Any] = {}
    for file in _files(source_files, source):
        if str(file.getName()).startswith(("_", ".")):
            continue
        folder = str(file.getParent().toString() + "/").removeprefix(root)
        endings = str(file.getName()).split(".", 1)[1:]
        new_paths[folder + ".".join([f"{name}-{len(new_paths)}", *endings])] = file
    moves.write_text(json.dumps({"name": name, "files": list(new_paths)}))
    for relative, file in new_paths.items():
        new_path = path_of(target, relative)
        target_files.mkdirs(new_path.getParent())
        is_moved = source_files.getUri().equals(target_files.getUri()) and source_files.rename(file, new_path)
        if not is_moved and not jvm.org.apache.hadoop.fs.FileUtil.copy(
            source_files, file, target_files, new_path, True, settings
        ):
            raise OSError(f"cannot move {file.toString()} to {new_path.toString()}")
    source_files.delete(source, True)


def _earlier_attempt(moves: HadoopPath, name: str, target_files: Any, target: Any) -> list[str]:
    """Returns the files of an earlier attempt to move the batch, relative to the target folder."""
    try:
        last = json.loads(moves.read_text())
    except FileNotFoundError:
        # The first batch, or an attempt by a version without this file.
        root = str(target.toString()).rstrip("/") + "/"
        paths = [str(path.toString()).removeprefix(root) for path in _files(target_files, target)]
        return [path for path in paths if path.rpartition("/")[2].startswith(f"{name}-")]
    return list(last["files"]) if last["name"] == name else []


def _files(system: Any, folder: Any) -> list[Any]:
    if not system.exists(folder):
        return []
    paths = []
    entries = system.listFiles(folder, True)
    while entries.hasNext():
        paths.append(entries.next().getPath())
    return paths
