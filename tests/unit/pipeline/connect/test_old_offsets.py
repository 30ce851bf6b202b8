"""Configurations, states and offsets that commit e9b7370 has written. `tests/golden/` has the
content of its stores; FOLDER stands for the folder of the file that it read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from kavka.pipeline.connect.api import Context
from kavka.pipeline.connect.connectors.datagen import DatagenSource
from kavka.pipeline.connect.connectors.files import FileStreamSource
from kavka.pipeline.connect.connectors.jdbc_source import QUERY, JdbcSource, _position
from kavka.pipeline.connect.connectors.jdbc_sql import Moment, Position
from kavka.pipeline.connect.stores import PAUSED, STOPPED, ConfigStore, FileTable, OffsetStore, StatusStore

GOLDEN = Path(__file__).parents[3] / "golden" / "connect-e9b7370.json"


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, FileTable]:
    for name, content in json.loads(GOLDEN.read_text().replace("FOLDER", str(tmp_path))).items():
        (tmp_path / name).write_text(json.dumps(content))
    return {name: FileTable(tmp_path / name) for name in ("configs", "statuses", "offsets")}


def test_files_are_read_on_from_the_stored_position(tables: dict[str, FileTable], tmp_path: Path) -> None:
    store = OffsetStore(tables["offsets"])
    file = tmp_path / "lines.txt"
    file.write_text("one\ntwo\nthree\n")
    source = FileStreamSource()
    context = cast(Any, Context("lines", {"file": str(file), "batch.bytes": 1000}, {}, cast(Any, None), ""))
    start = store.offsets("lines", source.partition_field)
    end = source.next(context, start)
    assert end is not None
    assert source.ranges(context, start, end) == [(str(file), 8, 14)]
    # The batch that was interrupted has the same lines again.
    plan = store.plan("lines")
    assert plan is not None and (plan.number, plan.done) == (4, False)
    assert source.ranges(context, plan.start, plan.end) == [(str(file), 8, 14)]
    assert store.identity("lines") == plan.id
    # Another file has this name: its first bytes differ.
    file.write_text("other\nlines\n")
    end = source.next(context, start)
    assert end is not None
    assert source.ranges(context, start, end) == [(str(file), 0, 12)]


def test_tables_queries_and_generated_records_are_read_on(tables: dict[str, FileTable]) -> None:
    store = OffsetStore(tables["offsets"])
    rows = store.offsets("rows", JdbcSource.partition_field)
    assert {name: _position(offset) for name, offset in rows.items()} == {
        "public.users": Position(41, Moment(1700000000123, 123456000))
    }
    query = store.offsets("query", JdbcSource.partition_field)
    assert {name: _position(offset) for name, offset in query.items()} == {QUERY: Position(7)}
    source = DatagenSource()
    generated = store.offsets("numbers", source.partition_field)
    config = {"rows.per.second": 10, "iterations": 255, "batch.max.rows": 100, "trigger": "available-now"}
    context = cast(Any, Context("numbers", config, {}, cast(Any, None), "", available_now=True))
    source.start(context)
    assert source.next(context, generated) == {"datagen": {"count": 255}}


def test_configurations_and_states_are_read(tables: dict[str, FileTable]) -> None:
    configs, statuses = ConfigStore(tables["configs"]), StatusStore(tables["statuses"])
    assert configs.names() == ["lines", "rows"]
    assert (configs.target("lines"), configs.target("rows")) == (PAUSED, STOPPED)
    assert (configs.config("lines") or {})["topic"] == "lines"
    status = statuses.connector("lines")
    assert status is not None and (status.state, status.worker_id, status.generation) == ("PAUSED", "w:8083", 3)
    assert statuses.topics("lines") == ["lines"]
