"""Topics whose records meet by key must have the same number of partitions, however the steps are
named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kavka.pipeline.streams import application
from kavka.pipeline.streams.plan import check_copartitioned, make_plan
from kavka.streams import (
    Grouped,
    Joined,
    KafkaStreams,
    Materialized,
    Named,
    Record,
    Repartitioned,
    Serdes,
    Stores,
    StreamsBuilder,
    TableJoined,
    Topology,
    TopologyException,
)
from tests.support.streams_copartitioning import TOGETHER, append, named_stream_table, pair


def built(steps: Callable[[StreamsBuilder], None]) -> Topology:
    builder = StreamsBuilder()
    steps(builder)
    return builder.build()


def check(topology: Topology, **counts: int) -> dict[str, int]:
    plan = make_plan(topology, counts, 2)
    check_copartitioned(topology, plan.partitions)
    return dict(plan.partitions)


@pytest.mark.parametrize("steps", TOGETHER.values(), ids=TOGETHER)
def test_topics_that_meet_must_have_as_many_partitions(steps: Callable[[StreamsBuilder], None]) -> None:
    topology = built(steps)
    with pytest.raises(TopologyException, match=re.escape("number of partitions: [{a=3, b=2")):
        check(topology, a=3, b=2, c=3)
    check(topology, a=3, b=3, c=3)


def test_an_application_checks_it_when_it_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    topology = built(named_stream_table)
    config = {"application.id": "app", "bootstrap.servers": "localhost:9", "state.dir": str(tmp_path)}
    monkeypatch.setattr(application, "partitions_of", lambda admin, topics: {"a": 3, "b": 2})
    streams = KafkaStreams(topology, config)
    with pytest.raises(TopologyException, match=r"Invalid topology: Following topics .*\[\{a=3, b=2\}\]"):
        streams._planned(topology, None)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_repartition_topics_take_the_number_of_the_topics_that_they_meet() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("a").select_key(lambda key, value: value)
    stream.join(builder.table("b"), pair, Joined.as_("enrich")).to("out")
    assert check(builder.build(), a=5, b=2)["enrich-repartition"] == 2


def test_repartition_topics_that_meet_take_the_largest_number_of_what_feeds_them() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(name).group_by(lambda key, value: value, Grouped.as_(name)) for name in "ab")
    left.cogroup(append).cogroup(right, append).aggregate(str, Materialized.as_("both"))
    counts = check(builder.build(), a=3, b=2)
    assert [count for name, count in counts.items() if name.endswith("-repartition")] == [3, 3]


def test_a_number_of_partitions_that_the_user_gives_is_checked_and_not_changed() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("a").repartition(Repartitioned.as_("mine").with_number_of_partitions(4))
    stream.join(builder.table("b"), pair, Joined.as_("enrich")).to("out")
    topology = builder.build()
    # The constructor does not know the topics of the cluster.
    KafkaStreams(topology, {"application.id": "app", "bootstrap.servers": "localhost:9"})
    assert check(topology, a=1, b=4)["mine-repartition"] == 4
    with pytest.raises(TopologyException, match=re.escape("[{b=3, mine-repartition=4}]")):
        check(topology, a=4, b=3)


def test_a_foreign_key_needs_no_tables_with_as_many_partitions() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("a"), builder.table("b")
    left.join(right, str.upper, pair, TableJoined.as_("enrich")).to_stream().to("out")
    counts = check(builder.build(), a=3, b=2)
    subscriptions, responses = "enrich-subscription-registration-topic", "enrich-subscription-response-topic"
    assert (counts[subscriptions], counts[responses]) == (2, 3)


class Remembering:
    def process(self, record: Record) -> None:
        """Nothing."""


def test_global_tables_and_processors_of_the_user_need_no_topics_with_as_many_partitions() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("a")
    stream.join(builder.global_table("b"), lambda key, value: key, pair, Named.as_("join-with-join")).to("out")
    check(builder.build(), a=3, b=2)
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("JOIN"), Serdes.String(), Serdes.String())
    topology = Topology().add_source("s", "a", "b").add_processor("JOIN", Remembering, "s")
    topology.add_state_store(store, "JOIN")
    check(topology, a=3, b=2)


def test_topics_of_a_pattern_are_checked_by_what_they_have_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile("logs.*")).join(builder.table("b"), pair, Joined.as_("enrich")).to("out")
    counts = {"logs1": 2, "b": 2}
    monkeypatch.setattr(application, "partitions_of", lambda admin, topics: counts)
    monkeypatch.setattr(application, "create_own", lambda *_: None)
    config = {"application.id": "app", "bootstrap.servers": "localhost:9", "state.dir": str(tmp_path)}
    topology = builder.build()
    KafkaStreams(topology, config)._planned(topology.with_topics(["logs1"]), None)  # type: ignore[arg-type]
    counts["logs2"] = 3
    with pytest.raises(TopologyException, match=re.escape("[{b=2, logs1=2, logs2=3}]")):
        KafkaStreams(topology, config)._planned(topology.with_topics(["logs1", "logs2"]), None)  # type: ignore[arg-type]
