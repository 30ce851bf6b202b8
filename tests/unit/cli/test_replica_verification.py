"""The comparison of replicas."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.cli.replica_verification import Partition, Replica, Verification
from kavka.common.types import TopicPartition
from kavka.records.builder import BatchBuilder
from kavka.records.record import Record

ARGS: Any = {"fetch-size": 1000, "max-wait-ms": 10, "report-interval-ms": 0, "time": -1}


def batch(offset: int, value: bytes = b"v") -> bytes:
    builder = BatchBuilder(base_offset=offset)
    builder.append(Record(timestamp=1, value=value))
    return bytes(builder.build())


def partition(**replicas: tuple[bytes, int]) -> Partition:
    by_broker = {int(name[1:]): Replica(data, watermark) for name, (data, watermark) in replicas.items()}
    return Partition(TopicPartition("t", 0), 5, by_broker)


@pytest.fixture
def verification() -> Verification:
    return Verification(SimpleNamespace(), ARGS)  # type: ignore[arg-type]


def test_equal_replicas_are_compared_up_to_the_high_watermark(
    verification: Verification, capsys: pytest.CaptureFixture[str]
) -> None:
    data = batch(5) + batch(6) + batch(7)
    compared = partition(r1=(data, 7), r2=(data, 8))
    assert verification._compare(compared)
    assert compared.offset == 7
    assert capsys.readouterr().out == ""
    verification._partitions = [compared]
    verification._report()
    report = capsys.readouterr().out
    assert re.fullmatch(r"\S+ \S+: max lag is 1 for partition t-0 at offset 7 among 1 partitions\n", report)


def test_comparison_stops_at_the_shortest_replica(verification: Verification) -> None:
    compared = partition(r1=(batch(5) + batch(6), 7), r2=(batch(5), 7))
    assert verification._compare(compared)
    assert compared.offset == 6


def test_different_checksum_is_reported_and_the_comparison_continues(
    verification: Verification, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = partition(r1=(batch(5) + batch(6), 9), r2=(batch(5, b"other") + batch(6), 9))
    assert verification._compare(compared)
    assert compared.offset == 7
    assert re.search(
        r"partition t-0 has unmatched checksum at offset 5; replica 1's checksum \d+; replica 2's checksum \d+\n",
        capsys.readouterr().out,
    )


def test_different_offsets_end_the_verification(verification: Verification, capsys: pytest.CaptureFixture[str]) -> None:
    assert not verification._compare(partition(r1=(batch(5), 9), r2=(batch(6), 9)))
    assert "partition t-0: replica 1's offset 5 doesn't match replica 2's offset 6" in capsys.readouterr().out
