"""The conversion of rows to records and of records to rows, and decisions as JSON."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kavka.client.types import PreparedTransaction
from kavka.pipeline.spark.decisions import Decision, TaskEntry
from kavka.pipeline.spark.errors import OptionError, PipelineError
from kavka.pipeline.spark.reading import schema, spark_batch
from kavka.pipeline.spark.rows import Layout, find_layout, send, size_of

HEADERS = "array<struct<key:string,value:binary>>"


class RecordingProducer:
    """Replaces a producer, and records the arguments of `send`."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []

    def send(self, *arguments: Any) -> int:
        self.records.append(arguments)
        return len(self.records)


def test_columns_are_found_by_name_and_others_are_ignored() -> None:
    columns = [("Key", "string"), ("more", "double"), ("value", "binary"), ("headers", HEADERS), ("partition", "int")]
    assert find_layout(columns, "t") == Layout("t", value=2, key=0, partition=4, headers=3)
    assert find_layout([("topic", "string"), ("value", "string")], None) == Layout(None, value=1, topic=0)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("key", "string")], "there is no column value in key"),
        ([("value", "string")], "set the option topic, or add a column topic"),
        ([("value", "int"), ("topic", "string")], "column value must be string or binary, not int"),
        (
            [("value", "string"), ("partition", "bigint"), ("topic", "string")],
            "column partition must be int, not bigint",
        ),
        ([("value", "string"), ("topic", "string"), ("headers", "string")], "column headers must be array<struct"),
    ],
)
def test_invalid_columns_are_rejected(columns: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        find_layout(columns, None)
    assert message in str(caught.value)


def test_text_and_bytes_are_sent_as_bytes() -> None:
    rows = pa.RecordBatch.from_pydict({"key": pa.array(["k", None]), "value": pa.array([b"v", None], pa.binary())})
    producer = RecordingProducer()
    send(producer, rows, Layout("t", value=1, key=0))  # type: ignore[arg-type]
    assert producer.records == [("t", b"v", b"k"), ("t", None, None)]
    assert size_of(rows, Layout("t", value=1, key=0)) == 2


def test_rows_determine_topic_partition_and_headers() -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"x"}], None], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    )
    rows = pa.RecordBatch.from_pydict(
        {"topic": ["a", "b"], "value": ["1", "2"], "partition": pa.array([3, None], pa.int32()), "headers": headers}
    )
    producer = RecordingProducer()
    layout = Layout(None, value=1, topic=0, partition=2, headers=3)
    send(producer, rows, layout)  # type: ignore[arg-type]
    assert producer.records == [("a", b"1", None, 3, None, [("h", b"x")]), ("b", b"2", None, None, None, None)]
    without_topic = pa.RecordBatch.from_pydict({"topic": pa.array([None], pa.string()), "value": ["1"]})
    with pytest.raises(PipelineError, match="a row has no topic"):
        send(producer, without_topic, Layout(None, value=1, topic=0))  # type: ignore[arg-type]


def test_a_decision_round_trips_through_json() -> None:
    entry = TaskEntry(0, 5, 500, PreparedTransaction("q-0-0", 7, 2, True), ("t", 1, 42))
    decision = Decision("q", "run", 3, "id", {0: entry, 1: TaskEntry(1, 0, 0)})
    assert Decision.from_json("q", decision.to_json()) == decision
    with pytest.raises(PipelineError, match="a newer version of Kavka wrote the last decision"):
        Decision.from_json("q", decision.to_json().replace(b'"version":1', b'"version":2'))
    with pytest.raises(PipelineError, match="is invalid"):
        Decision.from_json("q", b"{}")


def test_consumed_records_have_sparks_columns() -> None:
    from kavka.client.consumer._decode import Columns
    from kavka.client.consumer.arrow import record_batch

    columns = Columns()
    columns.add(5, 1_700_000_000_123, b"k", None, None)
    columns.add_run("t", 2, 1, 1)
    rows = spark_batch(record_batch(columns), True)
    assert rows.schema == schema(headers=True)
    (row,) = rows.to_pylist()
    assert (row["key"], row["value"], row["topic"], row["partition"], row["offset"]) == (b"k", None, "t", 2, 5)
    assert (row["timestamp"].timestamp(), row["timestampType"], row["headers"]) == (1_700_000_000.123, 1, None)


def test_text_columns_replace_invalid_utf8() -> None:
    from kavka.client.consumer._decode import Columns
    from kavka.client.consumer.arrow import record_batch

    columns = Columns()
    columns.add(5, 1_700_000_000_123, b"\xff", "grün".encode(), None)
    columns.add(6, 1_700_000_000_123, None, b"gr\xc3", None)
    columns.add(7, 1_700_000_000_123, b"k", None, None)
    columns.add_run("t", 2, 1, 3)
    batch = record_batch(columns)
    rows = spark_batch(batch, False, {"key", "value"})
    assert rows.schema == schema(headers=False, text={"key", "value"})
    assert rows.column("key").to_pylist() == ["\ufffd", None, "k"]
    assert rows.column("value").to_pylist() == ["grün", "gr\ufffd", None]
    assert spark_batch(batch, False, {"value"}).column("key").to_pylist() == [b"\xff", None, b"k"]
