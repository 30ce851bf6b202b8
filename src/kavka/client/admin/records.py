"""Offsets of partitions, and the deletion of records."""

from __future__ import annotations

from collections.abc import Mapping

from kavka.client.admin.base import AdminBase, Outcome, by_partition, milliseconds
from kavka.client.admin.types import ListedOffset, OffsetSpec
from kavka.client.errors import UnsupportedVersion
from kavka.common.types import TopicPartition, by_topic
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kavka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

ISOLATION = {"read_uncommitted": 0, "read_committed": 1}
# The first version of ListOffsets that supports each special timestamp.
MIN_SPECIAL_TIMESTAMP_VERSIONS = {-3: 7, -4: 8, -5: 9, -6: 11}


class Records(AdminBase):
    async def list_offsets(
        self,
        partitions: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout: float | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """Return the offset that each spec selects. With read_committed, the latest offset is the
        last stable offset."""
        if isolation_level not in ISOLATION:
            raise ValueError(f"isolation_level must be one of {', '.join(ISOLATION)}, not {isolation_level}")
        requested = {TopicPartition(*tp): spec for tp, spec in partitions.items()}

        async def send(node_id: int, leader_partitions: list[TopicPartition]) -> Outcome[TopicPartition, ListedOffset]:
            connection = await self.cluster.connection(node_id, timeout=self._request_timeout)
            version = connection.version_of(ApiKey.LIST_OFFSETS)
            for tp in leader_partitions:
                if version < MIN_SPECIAL_TIMESTAMP_VERSIONS.get(requested[tp].timestamp, 1):
                    raise UnsupportedVersion(
                        f"{connection.name} does not support ListOffsets with timestamp {requested[tp].timestamp}"
                    )
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=ISOLATION[isolation_level],
                topics=[
                    ListOffsetsTopic(
                        name=name,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=p, timestamp=requested[TopicPartition(name, p)].timestamp
                            )
                            for p in ids
                        ],
                    )
                    for name, ids in by_topic(leader_partitions).items()
                ],
                timeout_ms=milliseconds(self._request_timeout),
            )
            response = await connection.send(request, version=version, timeout=self._request_timeout)
            return by_partition(
                response.topics,
                lambda p: ListedOffset(p.offset, p.timestamp, None if p.leader_epoch < 0 else p.leader_epoch),
            )

        return await self._each_leader(requested, send, timeout)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete all records before the offset of each partition; -1 is the high watermark. Returns
        the low watermark of each partition."""
        requested = {TopicPartition(*tp): offset for tp, offset in offsets.items()}

        async def send(node_id: int, leader_partitions: list[TopicPartition]) -> Outcome[TopicPartition, int]:
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=name,
                        partitions=[
                            DeleteRecordsPartition(partition_index=p, offset=requested[TopicPartition(name, p)])
                            for p in ids
                        ],
                    )
                    for name, ids in by_topic(leader_partitions).items()
                ],
                timeout_ms=milliseconds(self._request_timeout),
            )
            response = await self._request(node_id, request)
            return by_partition(response.topics, lambda p: p.low_watermark)

        return await self._each_leader(requested, send, timeout)
