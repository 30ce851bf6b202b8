"""Every operator has the same output in our TopologyTestDriver, on Spark, and in Kafka Streams
3.9.1 and 4.3.0, on topics with three partitions (`tests/support/streams_comparison.py` says what is
compared).

`make test` runs two samples, which together have all values of version, cache and guarantee;
`make test-matrix` runs all operators with each."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, NewTopic
from kavka.streams import KafkaStreams, StreamsBuilder, TopologyException
from tests.support import streams_cases
from tests.support.java_client import probe_command
from tests.support.processes import dying_with_parent
from tests.support.streams_comparison import CACHE, NOT_CACHED, PROBE, Comparison, defined_in
from tests.support.streams_copartitioning import (
    APART,
    GIVEN,
    NOT_CHECKED_BY_KAFKA,
    REFUSED_BY_KAFKA_ALONE,
    TOGETHER,
)
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.records]

ALL = list(streams_cases.CASES)
ALL_CACHED = [name for name in ALL if name not in NOT_CACHED]
# Operators of every kind: those in the first list are compared record by record.
SAMPLE = [
    "stateless",
    "reduce",
    "repartition_number",
    "tumbling",
    "session",
    "suppress",
    "stream_left_join",
    "table_join_stream",
    "tables_outer_join",
    "cogroup_tumbling",
    "process",
    "versioned_join",
]
SAMPLE_CACHED = ["group_by", "aggregate", "table_group", "hopping", "sliding", "fk_left_join", "cogroup", "to_table"]
NONE, EXACTLY_ONCE = "at_least_once", "exactly_once_v2"

Start = Callable[[Sequence[str]], Comparison]


@pytest.fixture
def compare(java_parts: None, target: Target, topic: str, tmp_path: Path) -> Iterator[Start]:
    comparisons: list[Comparison] = []

    def start(names: Sequence[str]) -> Comparison:
        comparisons.append(Comparison(target.bootstrap_servers, topic, tmp_path, names))
        return comparisons[-1]

    yield start
    for comparison in comparisons:
        comparison.close()


def check(spark: Any, comparison: Comparison, cached: bool, guarantee: str, versions: dict[str, str]) -> None:
    """Run all cases of a comparison on Spark and in versions of Kafka Streams, each with its
    guarantee, and compare the outputs with that of the driver."""
    cache = CACHE if cached else 0
    with ThreadPoolExecutor(1) as pool:
        in_kafka = {
            version: pool.submit(comparison.in_kafka_streams, version, cache, own) for version, own in versions.items()
        }
        outputs = {"spark": comparison.on_spark(spark, cache, guarantee)}
        outputs |= {version: future.result() for version, future in in_kafka.items()}
    wrong = {
        f"{writer}: {name}": different[:2]
        for writer, by_case in outputs.items()
        for name, output in by_case.items()
        if (different := comparison.differences(name, output, defined_in(name, writer, cached)))
    }
    assert not wrong


@pytest.mark.timeout(600)
def test_a_sample_writes_the_same_records(spark: Any, compare: Start) -> None:
    check(spark, compare(SAMPLE), False, EXACTLY_ONCE, {"4.3.0": NONE})


@pytest.mark.timeout(600)
def test_a_sample_with_a_cache_writes_the_same_tables(spark: Any, compare: Start) -> None:
    check(spark, compare(SAMPLE_CACHED), True, NONE, {"3.9.1": EXACTLY_ONCE})


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("on_spark", "in_kafka"), [(NONE, EXACTLY_ONCE), (EXACTLY_ONCE, NONE)])
@pytest.mark.parametrize("cached", [False, True])
def test_all_operators(spark: Any, compare: Start, cached: bool, on_spark: str, in_kafka: str) -> None:
    comparison = compare(ALL_CACHED if cached else ALL)
    check(spark, comparison, cached, on_spark, {"3.9.1": in_kafka, "4.3.0": in_kafka})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["4.3.0", pytest.param("3.9.1", marks=pytest.mark.matrix)])
def test_topics_that_must_be_copartitioned_are_refused_where_kafka_refuses_them(
    spark: Any, java_parts: None, target: Target, topic: str, tmp_path: Path, version: str
) -> None:
    """`a` and `c` have three partitions, `b` has two. Refusals list the same topics."""
    prefix, topics = f"{topic}.", ("a", "b", "c", "d", "out")
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(f"{prefix}{name}", 2 if name == "b" else 3) for name in topics])
    refused = TOGETHER | GIVEN | NOT_CHECKED_BY_KAFKA
    names = [*refused, *APART, *REFUSED_BY_KAFKA_ALONE]
    arguments = ["copartitioned", target.bootstrap_servers, prefix, str(tmp_path / "java"), *names]
    command = probe_command(version, *arguments, source=PROBE, kind="streams")
    result = subprocess.run(dying_with_parent(command), capture_output=True, text=True, timeout=250, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    in_kafka = dict(line.split(" ", 1) for line in result.stdout.splitlines())
    assert list(in_kafka) == names
    accepted = {name for name, verdict in in_kafka.items() if verdict == "starts"}
    assert accepted == {*APART, *NOT_CHECKED_BY_KAFKA}
    for name in refused:
        topology = streams_cases.CaseTopology()
        topology.case = topology.output = topic
        builder = StreamsBuilder()
        builder.topology = topology
        refused[name](builder)
        settings = {
            "bootstrap.servers": target.bootstrap_servers,
            "application.id": f"{prefix}{name}",
            "state.dir": str(tmp_path),
        }
        with pytest.raises(TopologyException) as refusal:
            KafkaStreams(topology, settings, spark).start()
        if name in TOGETHER:
            assert _listed(str(refusal.value)) == _listed(in_kafka[name])


def _listed(message: str) -> list[str]:
    """Return the topics that a refusal lists, with their numbers of partitions."""
    listed = re.search(r"(?:same number of partitions|not co-partitioned): \[\{(.*)\}\]", message)
    assert listed is not None, message
    return sorted(listed[1].split(", "))
