"""Lines of files to a topic: Kafka's FileStreamSource, and the same for all files of a folder."""

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
from kavka.pipeline.connect.connectors.following import Place, is_here, locate, look
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

log = logging.getLogger(__name__)

# To register again is to replace, but not at the same moment.
_REGISTERING = threading.Lock()

_TOPIC = Option("topic", doc="The topic that the lines go to.", importance=HIGH, validator=NotEmpty())
_BATCH_BYTES = Option(
    "batch.bytes",
    LONG,
    256 << 20,
    "About how much of a file is read into one batch. (Kafka's `batch.size`, in lines, is taken and has no effect.)",
    LOW,
    AtLeast(1),
)
_BATCH_SIZE = Option("batch.size", INT, 2000, "Has no effect: see batch.bytes.", LOW, AtLeast(1))


class _Following(IncrementalSource):
    partition_field = "filename"
    poll_interval = 1.0

    @classmethod
    def opens_files(cls, given: Mapping[str, str]) -> bool:
        return True

    def start(self, context: Context) -> None:
        from kavka.pipeline.connect.connectors.lines import Lines

        with _REGISTERING:
            context.spark.dataSource.register(Lines)

    def paths(self, context: Context) -> list[Path]:
        raise NotImplementedError

    def next(self, context: Context, start: Offsets) -> Offsets | None:
        try:
            return _next(self.paths(context), start, context["batch.bytes"])
        except OSError as error:
            raise ConnectError(f"{error.filename} cannot be read: {error.strerror}") from None

    def read_range(self, context: Context, start: Offsets, end: Offsets) -> DataFrame:
        ranges = self.ranges(context, start, end)
        reader = context.spark.read.format("kavka-lines").option("ranges", json.dumps(ranges))
        return reader.option("tasks", str(context["tasks.max"])).load()

    def writer(self, context: Context, start: Offsets, end: Offsets) -> DataFrameWriter:
        from kavka.pipeline.connect.connectors.lines import sender

        return sender(context.spark, self.ranges(context, start, end), context["tasks.max"])

    def ranges(self, context: Context, start: Offsets, end: Offsets) -> list[tuple[str, int, int]]:
        """Of files, by where they are now: the bytes between."""
        ranges = []
        for name, found in sorted(end.items()):
            if found == start.get(name) or found.get("begin") == found.get("position"):
                continue
            place = Place.from_json(found)
            where = locate(Path(name), place)
            if where is None:
                lost = f"{name}: bytes {place.begin} to {place.position} were to be read again, and are gone"
                if context.exactly_once:
                    raise ConnectError(lost)
                log.warning("%s", lost)
                continue
            ranges.append((str(where), place.begin, place.position))
        return ranges

    @classmethod
    def check_offsets(cls, offsets: Offsets) -> None:
        for name, found in offsets.items():
            try:
                Place.from_json(found)
            except ValueError as error:
                raise ConnectError(f"{name}: {error}") from None


def _next(paths: list[Path], start: Offsets, most: int) -> Offsets | None:
    """The offsets after the next lines of all these files, and of those that were one of them and are elsewhere now.
    Files that are gone are forgotten."""
    known = {name: Place.from_json(found) for name, found in start.items()}
    moved = [Path(name) for name, place in known.items() if _is_elsewhere(Path(name), place, paths)]
    end: Offsets = {}
    news = False
    for path in [*paths, *moved]:
        name = str(path)
        place = known.get(name)
        if place is None or not is_here(path, place):
            renamed = next((one for other, one in known.items() if other != name and is_here(path, one)), None)
            # Nothing of it is to be read under its new name that was read under the old one.
            place = place if renamed is None else replace(renamed, begin=renamed.position)
        found = look(path, place, most, paths) if most > 0 else None
        if found is not None:
            news = True
            most -= found.position - found.begin
            end[name] = found.to_json()
        elif place is not None:
            end[name] = start[name] if place is known.get(name) else place.to_json()
    return end if news else None


def _is_elsewhere(path: Path, place: Place, followed: list[Path]) -> bool:
    if path in followed:
        return False
    where = locate(path, place)
    return where is not None and where not in followed


class FileStreamSource(_Following):
    """Lines of a file, one record each; what is appended to the file follows.

    A file that is rotated (moved away, and made anew) is read to its end first; one that is cut is read from its
    beginning. With `tasks.max=1` the lines keep their order."""

    options = (
        Option("file", doc="The file, on the worker's machine.", importance=HIGH, validator=NotEmpty()),
        _TOPIC,
        _BATCH_SIZE,
        _BATCH_BYTES,
    )

    def paths(self, context: Context) -> list[Path]:
        return [Path(context["file"]).absolute()]


class FolderSource(_Following):
    """Lines of all files of a folder, one record each; new files, and what is appended to them, follow."""

    options = (
        Option("folder", doc="The folder, on the worker's machine.", importance=HIGH, validator=NotEmpty()),
        Option("pattern", default="*", doc="Which names of files in it count: `*.log`. Names with a dot first do not."),
        _TOPIC,
        _BATCH_BYTES,
    )

    def paths(self, context: Context) -> list[Path]:
        folder = Path(context["folder"]).absolute()
        try:
            found = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
        except FileNotFoundError:
            return []
        return sorted(path for path in found if fnmatch.fnmatchcase(path.name, context["pattern"]))

    @classmethod
    def check(cls, config: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
        if config["pattern"] and "/" in config["pattern"]:
            return {"pattern": "it is for names of files in the folder, and has a /"}
        return {}
