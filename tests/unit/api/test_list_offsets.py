"""ListOffsets on real logs: searches by time that finish in a worker thread."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kavka.api import list_offsets
from kavka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.unit.api.records_world import RecordsWorld, in_records_world


def offsets_request(partitions: int) -> ListOffsetsRequest:
    items = [ListOffsetsPartition(partition_index=n, timestamp=1) for n in range(partitions)]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="a", partitions=items)])


@pytest.mark.parametrize("loop_s", [60.0, -1.0])
def test_a_request_that_takes_long_is_finished_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop_s: float
) -> None:
    async def body(world: RecordsWorld) -> None:
        monkeypatch.setattr(list_offsets, "MAX_DECOMPRESSION_ON_LOOP_S", loop_s)
        await world.create("a", partitions=5)
        for index in range(5):
            world.append("a", index, count=2)
        response = world.send(offsets_request(5), 5)
        assert asyncio.iscoroutine(response) is (loop_s < 0)
        if loop_s < 0:
            response = await response
        results = response.topics[0].partitions
        assert [(partition.error_code, partition.offset) for partition in results] == [(0, 0)] * 5

    in_records_world(tmp_path, body)
