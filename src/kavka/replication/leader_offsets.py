"""ListOffsets requests of a follower: the range of the leader's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kavka.common.errors import KafkaError, known_code
from kavka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kavka.replication.fetcher_session import FollowedPartition

if TYPE_CHECKING:
    from kavka.replication.peers import Peers

CHANNEL = "fetch-questions"
LATEST = -1
EARLIEST = -2
# A follower cannot copy records that the leader has moved to tiered storage.
EARLIEST_LOCAL = -4


async def leader_offset(
    peers: Peers, broker_id: int, leader_id: int, followed: FollowedPartition, timestamp: int, timeout_s: float
) -> int:
    """One offset of the partition at its leader. Raises KafkaError or OSError."""
    partition = ListOffsetsPartition(
        partition_index=followed.index, current_leader_epoch=followed.leader_epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=broker_id, topics=[ListOffsetsTopic(name=followed.topic, partitions=[partition])]
    )
    response = await peers.ask(leader_id, request, channel=CHANNEL, timeout=timeout_s)
    result = response.topics[0].partitions[0]
    if result.error_code:
        raise KafkaError(known_code(result.error_code))
    return int(result.offset)
