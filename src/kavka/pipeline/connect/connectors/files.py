"""Lines of files as records: Kafka's FileStreamSource, and a source for all files of a folder."""

from __future__ import annotations

import fnmatch
import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kavka.common.config import HIGH, INT, LONG, LOW, AtLeast, NotEmpty
from kavka.pipeline.connect.api import Context, IncrementalSource, Offsets
from kavka.pipeline.connect.connectors.file_bookmarks import Bookmark, find_next, is_here, locate
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

logger = logging.getLogger(__name__)

# Registering again replaces the data source, but must not happen concurrently.
_REGISTER_LOCK = threading.Lock()

_TOPIC = Option("topic", doc="The topic to write the lines to.", importance=HIGH, validator=NotEmpty())
_BATCH_BYTES = Option(
    "batch.bytes",
    LONG,
    256 << 20,
    "The approximate size of a batch. (Kafka's `batch.size`, in lines, is accepted and has no effect.)",
    LOW,
    AtLeast(1),
)
_BATCH_SIZE = Option("batch.size", INT, 2000, "Has no effect: see batch.bytes.", LOW, AtLeast(1))


class _FileSource(IncrementalSource):
    """Follows files. The offset of a file is a bookmark (`file_bookmarks.py`)."""

    partition_field = "filename"
    poll_interval = 1.0

    @classmethod
    def opens_files(cls, originals: Mapping[str, str]) -> bool:
        return True

    def start(self, context: Context) -> None:
        from kavka.pipeline.connect.connectors.lines import Lines

        with _REGISTER_LOCK:
            context.spark.dataSource.register(Lines)

    def paths(self, context: Context) -> list[Path]:
        raise NotImplementedError

    def next(self, context: Context, start: Offsets) -> Offsets | None:
        try:
            return _next(self.paths(context), start, context["batch.bytes"])
        except OSError as error:
            raise ConnectError(f"cannot read {error.filename}: {error.strerror}") from None

    def read_range(self, context: Context, start: Offsets, end: Offsets) -> DataFrame:
        ranges = self.ranges(context, start, end)
        reader = context.spark.read.format("kavka-lines").option("ranges", json.dumps(ranges))
        return reader.option("tasks", str(context["tasks.max"])).load()

    def writer(self, context: Context, start: Offsets, end: Offsets) -> DataFrameWriter:
        from kavka.pipeline.connect.connectors.lines import sender

        return sender(context.spark, self.ranges(context, start, end), context["tasks.max"])

    def ranges(self, context: Context, start: Offsets, end: Offsets) -> list[tuple[str, int, int]]:
        """Returns the byte ranges between the offsets, with the current paths of the files. A range
        that no longer exists is omitted with a warning, or raises ConnectError for exactly-once
        delivery."""
        ranges = []
        for name, offset in sorted(end.items()):
            if offset == start.get(name) or offset.get("begin") == offset.get("position"):
                continue
            bookmark = Bookmark.from_json(offset)
            path = locate(Path(name), bookmark)
            if path is None:
                message = (
                    f"{name}: bytes {bookmark.begin} to {bookmark.position} must be read again, but no longer exist"
                )
                if context.exactly_once:
                    raise ConnectError(message)
                logger.warning("%s", message)
                continue
            ranges.append((str(path), bookmark.begin, bookmark.position))
        return ranges

    @classmethod
    def check_offsets(cls, offsets: Offsets) -> None:
        for name, offset in offsets.items():
            try:
                Bookmark.from_json(offset)
            except ValueError as error:
                raise ConnectError(f"{name}: {error}") from None


def _next(paths: list[Path], start: Offsets, budget: int) -> Offsets | None:
    """Returns the offsets after the next lines of these files, and of files that were renamed after
    they were read. Returns None if there are no new lines. Deleted files are removed from the
    offsets."""
    bookmarks = {name: Bookmark.from_json(offset) for name, offset in start.items()}
    renamed_paths = [Path(name) for name, bookmark in bookmarks.items() if _is_elsewhere(Path(name), bookmark, paths)]
    end: Offsets = {}
    has_new_lines = False
    for path in [*paths, *renamed_paths]:
        name = str(path)
        bookmark = bookmarks.get(name)
        if bookmark is None or not is_here(path, bookmark):
            others = (other for other_name, other in bookmarks.items() if other_name != name)
            renamed = next((other for other in others if is_here(path, other)), None)
            # Lines that were read under the previous name are not read again.
            bookmark = bookmark if renamed is None else replace(renamed, begin=renamed.position)
        next_bookmark = find_next(path, bookmark, budget, paths) if budget > 0 else None
        if next_bookmark is not None:
            has_new_lines = True
            budget -= next_bookmark.position - next_bookmark.begin
            end[name] = next_bookmark.to_json()
        elif bookmark is not None:
            end[name] = start[name] if bookmark is bookmarks.get(name) else bookmark.to_json()
    return end if has_new_lines else None


def _is_elsewhere(path: Path, bookmark: Bookmark, followed: list[Path]) -> bool:
    """Whether the bookmark's file exists, but neither its previous nor its current path is
    followed."""
    if path in followed:
        return False
    current_path = locate(path, bookmark)
    return current_path is not None and current_path not in followed


class FileStreamSource(_FileSource):
    """Reads the lines of a file, one record per line, and follows appended lines.

    When a file is rotated (renamed and created again), the old file is read to its end first. A
    truncated file is read from its beginning. With `tasks.max=1` the lines keep their order."""

    options = (
        Option("file", doc="The file, on the worker's machine.", importance=HIGH, validator=NotEmpty()),
        _TOPIC,
        _BATCH_SIZE,
        _BATCH_BYTES,
    )

    def paths(self, context: Context) -> list[Path]:
        return [Path(context["file"]).absolute()]


class FolderSource(_FileSource):
    """Reads the lines of all files of a folder, one record per line, and follows new files and
    appended lines."""

    options = (
        Option("folder", doc="The folder, on the worker's machine.", importance=HIGH, validator=NotEmpty()),
        Option(
            "pattern", default="*", doc="The pattern of file names: `*.log`. Names that start with a dot are ignored."
        ),
        _TOPIC,
        _BATCH_BYTES,
    )

    def paths(self, context: Context) -> list[Path]:
        folder = Path(context["folder"]).absolute()
        try:
            files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
        except FileNotFoundError:
            return []
        return sorted(path for path in files if fnmatch.fnmatchcase(path.name, context["pattern"]))

    @classmethod
    def check(cls, config: Mapping[str, Any], originals: Mapping[str, str]) -> dict[str, str]:
        if config["pattern"] and "/" in config["pattern"]:
            return {"pattern": "a pattern of file names must not contain a /"}
        return {}
