"""The server that shows the limit of the machine in the benchmarks serves real clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from bench.ceiling import BATCH_RECORDS, CeilingSide, compiler
from bench.measure import Pairs, Row
from kavka import Consumer, Producer, TopicPartition
from tests.support.missing import skip_loudly


@pytest.fixture
def side(tmp_path: Path) -> Iterator[CeilingSide]:
    if compiler() is None:
        skip_loudly("there is no C compiler (cc)")
    side = CeilingSide(tmp_path / "ceiling", records=10 * BATCH_RECORDS, record_size=100)
    side.start()
    yield side
    side.close()


def test_records_are_written_and_the_prepared_segment_is_read(side: CeilingSide) -> None:
    side.new_topic("t", partitions=2)
    native = confluent_kafka.Producer({"bootstrap.servers": side.bootstrap, "linger.ms": 5})
    for number in range(1000):
        native.produce("t", b"x" * 100, partition=number % 2)
    assert native.flush(30) == 0
    with Producer(bootstrap_servers=side.bootstrap, acks=1, enable_idempotence=False) as producer:
        producer.send("t", b"x" * 5000, partition=1).get(30)
    sizes = [(side.folder / f"{partition}.log").stat().st_size for partition in (0, 1)]
    assert 50_000 < sizes[0] < sizes[1] - 5000
    with Consumer(bootstrap_servers=side.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        offsets: list[int] = []
        while len(offsets) < 10 * BATCH_RECORDS:
            records = consumer.poll(30.0)
            assert records
            offsets += [record.offset for record in records]
    assert offsets == list(range(10 * BATCH_RECORDS))
    side.drop_topic("t")
    assert (side.folder / "0.log").stat().st_size == 0


def test_share_of_the_ceiling_is_the_median_of_the_runs() -> None:
    row = Row("produce", "records/s", Pairs([(90.0, 30.0), (50.0, 50.0), (80.0, 40.0)], [100.0, 100.0, 100.0]))
    assert (row.ratio, row.share_of_ceiling) == (2.0, 0.8)
    assert row.ceiling_cells() == ["100 records/s", "0.80"]
    assert Row("other", "", [(1.0, 2.0)]).ceiling_cells() == ["–", "–"]
