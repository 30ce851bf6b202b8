"""Writes records to a file, one line each: Kafka's FileStreamSink."""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kavka.common.config import HIGH
from kavka.pipeline.connect.api import Context, Sink, query_id
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.stores import sync_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_COPY_BUFFER_BYTES = 1 << 24


class FileStreamSink(Sink):
    """Appends the values of records to a file, one line each and exactly once.

    Text is written unchanged, structs as JSON. A folder beside the file, `.NAME.kavka`, stores the
    length of the file at the start of the last batch. A batch that is written again after a crash
    replaces the incomplete batch. No other program may write to the file. On a Spark cluster the
    file must be on a file system that the tasks share.
    """

    exactly_once = True
    options = (
        Option("file", default="", doc="The file, on the worker's machine. Empty: standard output.", importance=HIGH),
    )

    @classmethod
    def opens_files(cls, originals: Mapping[str, str]) -> bool:
        return True

    def write(self, context: Context, records: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions as f

        from kavka.pipeline.connect.connectors.columns import text_of

        text = records.select(f.coalesce(text_of(records, "value"), f.lit("null")).alias("value"))
        if not context["file"]:
            for row in text.toLocalIterator():
                print(row.value)
            sys.stdout.flush()
            return
        try:
            target = Target(Path(context["file"]).absolute())
            target.begin(query_id(context), batch_id)
            task = write_part(str(target.parts))
            written = text.mapInArrow(task, "partition int, part string").collect()
            target.append([row.part for row in sorted(written)])
        except OSError as error:
            raise ConnectError(f"cannot write {context['file']}: {error.strerror or error}") from None


def write_part(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function of a Spark task, which writes its lines to a separate file. The file of
    a failed attempt is not used."""

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        path = os.path.join(folder, uuid.uuid4().hex)
        size = 0
        with open(path, "wb") as file:
            for batch in batches:
                column = batch.column(0).cast(pa.string())
                if len(column):
                    # Arrow stores the values of a column contiguously: with "\n" appended to each
                    # value, the data buffer is the content of the file.
                    lines = pc.binary_join_element_wise(column, "", "\n")
                    offset, data = lines.buffers()[1:]
                    ends = memoryview(offset).cast("i")
                    chunk = memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]
                    size += file.write(chunk)
        if size:
            yield pa.RecordBatch.from_pydict({"partition": pa.array([number], pa.int32()), "part": [path]})

    return task


class Target:
    """Owns the file and the folder beside it. The file `state` in the folder has the query and
    number of the last batch that was started, and the length of the target file at that time. It is
    durable before the first byte of the batch is written: after a crash, all bytes beyond that
    length belong to the batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.with_name(f".{path.name}.kavka")
        self.parts = self.folder / "parts"
        self._state = self.folder / "state"

    def begin(self, query: str, batch: int) -> None:
        """Truncates an incomplete attempt of this batch, or records the length for a new batch."""
        shutil.rmtree(self.parts, ignore_errors=True)
        self.parts.mkdir(parents=True)
        size = self.path.stat().st_size if self.path.exists() else 0
        state = self._read()
        if state is not None and state["query"] == query and state["batch"] == batch:
            if state["length"] < size:
                os.truncate(self.path, state["length"])
            return
        self._write({"query": query, "batch": batch, "length": size})

    def append(self, parts: list[str]) -> None:
        """Appends the files of the tasks, and returns when they are durable."""
        with self.path.open("ab") as file:
            for part in parts:
                try:
                    with open(part, "rb") as lines:
                        shutil.copyfileobj(lines, file, _COPY_BUFFER_BYTES)
                except FileNotFoundError:
                    raise ConnectError(
                        f"a task's output in {self.parts} does not exist: the tasks must run on this machine, "
                        "or the file must be on a file system that the tasks share"
                    ) from None
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(self.parts, ignore_errors=True)

    def _read(self) -> dict[str, Any] | None:
        try:
            state = json.loads(self._state.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            raise ConnectError(f"{self._state} is corrupt: remove it to append the next batch") from None
        return dict(state)

    def _write(self, state: dict[str, Any]) -> None:
        temporary = self._state.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._state)
        sync_folder(self.folder)
