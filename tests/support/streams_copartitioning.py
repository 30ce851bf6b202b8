"""Topologies of the topics a, b and c, of which some must have the same number of partitions. The
same are in java/StreamsProbe.java, under the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kavka.streams import (
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Named,
    Repartitioned,
    StreamJoined,
    StreamsBuilder,
    TableJoined,
    TimeWindows,
)

WINDOWS = JoinWindows.of_time_difference_with_no_grace(10)


def pair(left: Any, right: Any) -> str:
    return f"{left} {right}"


def append(key: Any, value: Any, aggregate: Any) -> Any:
    return aggregate


def stream_table(builder: StreamsBuilder) -> None:
    builder.stream("a").join(builder.table("b"), pair).to("out")


def nothing_repartitioned(builder: StreamsBuilder) -> None:
    stream_table(builder)


def named_stream_table(builder: StreamsBuilder) -> None:
    builder.stream("a").left_join(builder.table("b"), pair, Joined.as_("enrich")).to("out")


def named_stream_stream(builder: StreamsBuilder) -> None:
    how = StreamJoined.as_("stores").with_name("enrich")
    builder.stream("a").outer_join(builder.stream("b"), pair, WINDOWS, how).to("out")


def named_table_table(builder: StreamsBuilder) -> None:
    builder.table("a").join(builder.table("b"), pair, named=Named.as_("enrich")).to_stream().to("out")


def cogroup(builder: StreamsBuilder) -> None:
    other = builder.stream("b").group_by_key()
    builder.stream("a").group_by_key().cogroup(append).cogroup(other, append).aggregate(str).to_stream().to("out")


def windowed_cogroup(builder: StreamsBuilder) -> None:
    other = builder.stream("b").group_by_key()
    both = builder.stream("a").group_by_key().cogroup(append).cogroup(other, append)
    both.windowed_by(TimeWindows.of_size_with_no_grace(10)).aggregate(str)


def merged_with_a_joined_stream(builder: StreamsBuilder) -> None:
    builder.stream("a").merge(builder.stream("b")).join(builder.table("c"), pair, Joined.as_("enrich")).to("out")


def several_joins(builder: StreamsBuilder) -> None:
    """`a` with `c`, the result with `b`."""
    joined = builder.stream("a").join(builder.table("c"), pair, Joined.as_("first"))
    joined.map_values(str).join(builder.table("b"), pair, Joined.as_("second")).to("out")


def several_topics(builder: StreamsBuilder) -> None:
    builder.stream(["a", "b"]).join(builder.table("c"), pair, Joined.as_("enrich")).to("out")


def given_number(builder: StreamsBuilder) -> None:
    stream = builder.stream("a").repartition(Repartitioned.as_("mine").with_number_of_partitions(4))
    stream.join(builder.table("b"), pair, Joined.as_("enrich")).to("out")


def merge(builder: StreamsBuilder) -> None:
    builder.stream("a").merge(builder.stream("b")).to("out")


def global_table(builder: StreamsBuilder) -> None:
    stream = builder.stream("a")
    stream.join(builder.global_table("b"), lambda key, value: key, pair, Named.as_("join-with-join")).to("out")


def foreign_key(builder: StreamsBuilder) -> None:
    left, right = builder.table("a"), builder.table("b")
    left.join(right, str.upper, pair, TableJoined.as_("enrich")).to_stream().to("out")


def rekeyed(builder: StreamsBuilder) -> None:
    stream = builder.stream("a").select_key(lambda key, value: value)
    stream.join(builder.table("b"), pair, Joined.as_("enrich")).to("out")


def rekeyed_cogroup(builder: StreamsBuilder) -> None:
    left = builder.stream("a").group_by(lambda key, value: value, Grouped.as_("left"))
    right = builder.stream("b").group_by(lambda key, value: value, Grouped.as_("right"))
    left.cogroup(append).cogroup(right, append).aggregate(str, Materialized.as_("both"))


def by_name(*steps: Callable[[StreamsBuilder], None]) -> dict[str, Callable[[StreamsBuilder], None]]:
    return {function.__name__: function for function in steps}


# Refused if a has another number of partitions than b.
TOGETHER = by_name(
    stream_table,
    named_stream_table,
    named_stream_stream,
    named_table_table,
    cogroup,
    windowed_cogroup,
    merged_with_a_joined_stream,
    several_joins,
    several_topics,
)
# Refused as well, though not by Kafka, which checks topologies with repartition topics only.
NOT_CHECKED_BY_KAFKA = by_name(nothing_repartitioned)
# With b in four partitions accepted, otherwise refused.
GIVEN = by_name(given_number)
# Accepted with any numbers.
APART = by_name(merge, global_table, foreign_key, rekeyed)
# Accepted here, since records meet in repartition topics alone. Kafka refuses sources that differ.
REFUSED_BY_KAFKA_ALONE = by_name(rekeyed_cogroup)
