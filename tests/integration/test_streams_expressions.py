"""Expressions have the same results in Spark and in Python, and Spark evaluates them without
Python."""

from __future__ import annotations

from typing import Any

import pytest

from kavka.pipeline.streams.expressions import TEXTS, Expression
from kavka.pipeline.streams.native import chain_of, native_frame, to_column
from kavka.pipeline.streams.settings import settings_of
from kavka.streams import StreamsBuilder, col, lit

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SAMPLES = [None, "", " ", "  a b  ", "A.b|c.", "ÄÖßſ", "ΑΣ", "İi", "日本 語", "a\tb\n", "\\Qa\\E", "😀z", "..", "\x00"]
key, value = col("key"), col("value")
EXPRESSIONS: list[Expression] = [
    value.lower(),
    value.upper(),
    value.trim(),
    value.split(" "),
    value.split("."),
    value.split("\\E"),
    value.split("|").is_null(),
    "<" + value + "|" + key + ">",
    value.length() > 1,
    value.length() <= key.length(),
    value.contains("b") | key.is_null(),
    value.startswith(key) & value.endswith(""),
    ~value.endswith("."),
    value == key,
    value != "..",
    value < key,
    value >= "a",
    value.is_in("", "..", "ΑΣ"),
    (value == "x") & (key == key),
    value.is_not_null() & lit(True),
]


def test_expressions_have_the_same_results_in_spark_and_python(spark: Any) -> None:
    rows = [(left, right) for left in SAMPLES for right in SAMPLES]
    frame = spark.createDataFrame(rows, "key string, value string")
    columns = [to_column(expression).alias(f"e{number}") for number, expression in enumerate(EXPRESSIONS)]
    wrong = []
    for row in frame.select("key", "value", *columns).collect():
        for number, expression in enumerate(EXPRESSIONS):
            if row[f"e{number}"] != expression(row.key, row.value):
                wrong.append((expression, row.key, row.value, row[f"e{number}"], expression(row.key, row.value)))
    assert not wrong
    assert any(expression.kind == TEXTS for expression in EXPRESSIONS)


def test_a_chain_of_expressions_needs_no_python(spark: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in").filter(value.is_not_null()).flat_map_values(value.lower().split(" ")).to("out")
    settings = settings_of({"application.id": "x"}, need_servers=False)
    topology = builder.build()
    chain = chain_of(topology, topology.subtopologies()[0], settings)
    assert chain is not None
    schema = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>"
    )
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(1.5, UTC)
    rows: list[Any] = [
        (b"k", b"A b", "in", 0, 0, at, [("h", b"1")]),
        (None, None, "in", 0, 1, at, None),
        (b"k", b"C", "in", 0, 2, None, None),
    ]
    made = native_frame(spark.createDataFrame(rows, schema), chain)
    outputs = [(row.topic, row.key, row.value, row.partition, row.sent_at, row.headers) for row in made.collect()]
    assert outputs == [("out", b"k", word, None, 1500, [("h", b"1")]) for word in (bytearray(b"a"), bytearray(b"b"))]
    plan = made._jdf.queryExecution().executedPlan().toString()
    assert "Python" not in plan
    assert "MapInArrow" not in plan
    broken = spark.createDataFrame([(b"k", b"\xff\xfe", "in", 3, 7, at, None)], schema)
    with pytest.raises(Exception, match=r"in-3 offset 7 cannot be read: its value is not UTF-8"):
        native_frame(broken, chain).collect()


def test_chains_that_need_python_are_not_native() -> None:
    def chain(build: Any, **config: Any) -> Any:
        builder = StreamsBuilder()
        build(builder)
        topology = builder.build()
        settings = {"application.id": "x", **{name.replace("_", "."): value for name, value in config.items()}}
        return chain_of(topology, topology.subtopologies()[0], settings_of(settings, need_servers=False))

    def plain(builder: StreamsBuilder) -> None:
        builder.stream("in").filter(value == "x").to("out")

    assert chain(plain) is not None
    assert chain(plain, default_deserialization_exception_handler="LogAndContinueExceptionHandler") is None
    assert chain(plain, default_value_serde="Long") is None
    assert chain(lambda b: b.stream("in").filter(value == "x").map_values(lambda v: v).to("out")) is None
    assert chain(lambda b: b.stream("in").map_values(value.length()).to("out")) is None
    assert chain(lambda b: b.stream("in").filter(value == "x").to(lambda key, value, at: "out")) is None
