"""Calls to connectors without a worker or a broker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kavka.pipeline.connect.api import Context, IncrementalSource, Offsets
from kavka.pipeline.connect.loading import Declared
from kavka.pipeline.connect.options import parsed
from kavka.pipeline.connect.plugins import load


def context_of(
    spark: Any,
    name: str,
    settings: Mapping[str, object],
    folder: Path,
    *,
    exactly_once: bool = False,
    now: bool = False,
) -> tuple[Any, Context]:
    """Start a connector. Return it and its context."""
    cls = load(name, Declared(file_connectors=True))
    texts = {option: str(value) for option, value in settings.items()}
    config = {"tasks.max": int(texts.get("tasks.max", "1")), **parsed(cls.options, texts)}
    context = Context("c", config, texts, spark, str(folder), exactly_once=exactly_once, available_now=now)
    connector = cls()
    connector.start(context)
    return connector, context


def batches(source: IncrementalSource, context: Context, start: Offsets) -> tuple[list[list[Any]], Offsets]:
    """Read batches until the source has no more data. Return the rows of each batch and the final
    offsets."""
    batches = []
    while (end := source.next(context, start)) is not None:
        batches.append(rows_between(source, context, start, end))
        start = end
    return batches, start


def rows_between(source: IncrementalSource, context: Context, start: Offsets, end: Offsets) -> list[Any]:
    """Return the rows of a batch."""
    frames = source.read_range(context, start, end)
    return [row for frame in (frames if isinstance(frames, list) else [frames]) for row in frame.collect()]


def records(spark: Any, rows: list[tuple[Any, ...]], columns: str, key: str = "id", topic: str = "out") -> Any:
    """Return the rows as records of one partition. The value is a struct of all columns, the key a
    struct of the key column. If all other columns are null, the value is null."""
    frame = spark.createDataFrame([(*row, offset) for offset, row in enumerate(rows)], f"{columns}, offset bigint")
    names = [name for name in frame.columns if name != "offset"]
    empty = " AND ".join(f"`{name}` IS NULL" for name in names if name != key)
    value = f"struct({', '.join(f'`{name}`' for name in names)})"
    return frame.selectExpr(
        f"struct(`{key}`) AS key",
        f"IF({empty}, NULL, {value}) AS value",
        f"'{topic}' AS topic",
        "0 AS partition",
        "offset",
    )
