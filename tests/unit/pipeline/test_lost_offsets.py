"""Offsets that retention has passed while a job was stopped."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kavka.common.types import TopicPartition
from kavka.pipeline.spark.cluster import SourceCluster
from kavka.pipeline.spark.errors import DataLoss, OptionError
from kavka.pipeline.spark.offsets import Range
from kavka.pipeline.spark.options import source_options
from kavka.pipeline.spark.reading import _after_loss
from kavka.pipeline.spark.source import KavkaStreamReader

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
STOPPED = {"t": {"0": 5, "1": 7}}
LOST = "t-0: offsets 5 to 11 no longer exist, the first is now 12"


class Retained(SourceCluster):
    """Partition 0 has the offsets 12 to 19, partition 1 those from 0 to 8."""

    def ends(self, *, missing_is_empty: bool = False) -> dict[TopicPartition, int]:
        return {T0: 20, T1: 9}

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: {T0: 12, T1: 0}[tp] for tp in partitions}


def reader(**more: str) -> KavkaStreamReader:
    options = source_options({"kafka.bootstrap.servers": "x:1", "subscribe": "t", **more}, streaming=True)
    made = KavkaStreamReader(options)
    made._cluster = Retained(options)
    return made


def ranges(made: KavkaStreamReader) -> list[Any]:
    end = made.latestOffset(STOPPED, ReadAllAvailable())
    return [(part.offsets.tp, part.offsets.start, part.offsets.end) for part in made.partitions(STOPPED, end)]


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        ("earliest", [(T0, 12, 20), (T1, 7, 9)]),
        ("latest", [(T1, 7, 9)]),
        ('{"t":"latest"}', [(T1, 7, 9)]),
        ('{"other":"latest"}', [(T0, 12, 20), (T1, 7, 9)]),
    ],
)
def test_a_stopped_stream_continues_by_its_reset_policy(
    caplog: pytest.LogCaptureFixture, reset: str, expected: list[Any]
) -> None:
    with caplog.at_level(logging.WARNING):
        assert ranges(reader(failOnDataLoss="false", dataLossReset=reset)) == expected
    assert [LOST in line for line in caplog.messages] == [True]


def test_without_a_policy_and_with_fail_on_data_loss_the_stream_ends() -> None:
    with pytest.raises(DataLoss, match=f"{LOST}, and there is no reset policy"):
        ranges(reader(failOnDataLoss="false", dataLossReset="none"))
    with pytest.raises(DataLoss, match=f"{LOST} .failOnDataLoss=false continues at offset 12"):
        ranges(reader())


def test_the_log_start_is_looked_up_once_per_start() -> None:
    made = reader(failOnDataLoss="false")
    end = made.latestOffset(STOPPED, ReadAllAvailable())
    made._cluster = Ended(made._options)
    assert made.latestOffset(end, ReadAllAvailable()) != STOPPED


class Ended(Retained):
    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        raise AssertionError("the first offsets are looked up again")


class LosingConsumer:
    """The log starts at 12 and ends at 30."""

    def beginning_offsets(self, partitions: Any, timeout: float) -> dict[TopicPartition, int]:
        return {T0: 12}

    def end_offsets(self, partitions: Any, timeout: float) -> dict[TopicPartition, int]:
        return {T0: 30}


@pytest.mark.parametrize(("reset", "position"), [("earliest", 12), ("latest", 20)])
def test_a_task_of_a_running_stream_skips_lost_records(reset: str, position: int) -> None:
    options = reader(failOnDataLoss="false", dataLossReset=reset)._options
    consumer: Any = LosingConsumer()
    assert _after_loss(consumer, options, Range("t", 0, 5, 20), 5) == position


def test_a_task_without_a_policy_ends_the_stream() -> None:
    options = reader(failOnDataLoss="false", dataLossReset="none")._options
    consumer: Any = LosingConsumer()
    with pytest.raises(DataLoss, match="no reset policy"):
        _after_loss(consumer, options, Range("t", 0, 5, 20), 5)


@pytest.mark.parametrize("text", ["newest", '{"t":"newest"}', "{"])
def test_an_unknown_policy_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="dataLossReset must be"):
        reader(dataLossReset=text)
