"""Expressions have the same results in Spark and in Python, and Spark evaluates them without
Python."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from kavka.pipeline.streams.expression_columns import SPARK_SETTINGS, to_column
from kavka.pipeline.streams.lowering import lower
from kavka.pipeline.streams.plan import make_plan
from kavka.pipeline.streams.settings import settings_of
from kavka.streams import StreamsBuilder, col
from tests.unit.pipeline.streams.test_lowering import EXPRESSIONS, SAMPLES

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TEXTS = ["A.b|c.", "ΑΣ", "日本 語", "a\tb", "\\Qa\\E", "😀z", "..", "\x00", '{"a":1e2}', '{"a.b":1}', '{"a":{"x":1}}']
TIMES = [None, 0, -1, 1763460000123, -62135596800000, -62135596800001, 253402300799999, 253402300800000, 1 << 62]
key, value, timestamp = col("key"), col("value"), col("timestamp")
OF_TEXT = [value.split("."), value.split("\\E"), value.split("|").is_null(), value.startswith(key)]
OF_TEXT += [~value.endswith(".")]
OF_TIME = [timestamp.date(), timestamp.year(), timestamp.month(), timestamp.day(), timestamp.hour()]
OF_TIME += [timestamp.minute(), timestamp + 1, timestamp % 7, timestamp * 4]


def test_expressions_have_the_same_results_in_spark_and_python(spark: Any) -> None:
    texts = [*SAMPLES, *TEXTS]
    rows = [(left, right, 0) for left in texts for right in texts]
    rows += [("k", "v", time) for time in TIMES]
    expressions = [*EXPRESSIONS, *OF_TEXT, *OF_TIME]
    # Dates are in UTC, whatever the time zone of the session is.
    session = spark.newSession()
    for name, setting in {**SPARK_SETTINGS, "spark.sql.session.timeZone": "America/New_York"}.items():
        session.conf.set(name, setting)
    frame = session.createDataFrame(rows, "key string, value string, timestamp bigint")
    columns = [to_column(expression).alias(f"e{number}") for number, expression in enumerate(expressions)]
    wrong = []
    for row in frame.select("key", "value", "timestamp", *columns).collect():
        record = row.key, row.value, row.timestamp
        for number, expression in enumerate(expressions):
            if row[f"e{number}"] != expression(*record):
                wrong.append((expression, record, row[f"e{number}"], expression(*record)))
    assert not wrong


def test_a_chain_of_expressions_needs_no_python(spark: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in").filter(value.is_not_null()).flat_map_values(value.lower().split(" ")).to("out")
    settings = settings_of({"application.id": "x"}, need_servers=False)
    topology = builder.build()
    steps = lower(topology, make_plan(topology, {"in": 1}), settings).frame
    assert steps is not None
    schema = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>"
    )
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(1.5, UTC)
    rows: list[Any] = [
        (b"k", b"A b", "in", 0, 0, at, [("h", b"1")]),
        (None, None, "in", 0, 1, at, None),
    ]
    made = reduce(lambda frame, step: step(frame), steps, spark.createDataFrame(rows, schema))
    outputs = [(row.topic, row.key, row.value, row.partition, row.sent_at, row.headers) for row in made.collect()]
    assert outputs == [("out", b"k", word, None, 1500, [("h", b"1")]) for word in (bytearray(b"a"), bytearray(b"b"))]
    plan = made._jdf.queryExecution().executedPlan().toString()
    assert "Python" not in plan
    assert "MapInArrow" not in plan
    timeless = spark.createDataFrame([(b"k", b"C", "in", 0, 2, None, None)], schema)
    with pytest.raises(Exception, match=r"in-0 offset 2 has no timestamp"):
        reduce(lambda frame, step: step(frame), steps, timeless).collect()
    broken = spark.createDataFrame([(b"k", b"\xff\xfe", "in", 3, 7, at, None)], schema)
    with pytest.raises(Exception, match=r"in-3 offset 7 cannot be read: its value is not UTF-8"):
        reduce(lambda frame, step: step(frame), steps, broken).collect()
