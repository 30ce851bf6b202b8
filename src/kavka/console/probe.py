"""Takes a sample of a cluster with a small, fixed number of requests and short timeouts.

One Metadata request for all topics; per broker one ListOffsets for the first and one for the last
offsets of its partitions, and one DescribeLogDirs; for groups one ListGroups per broker, one
FindCoordinator for all groups, and one OffsetFetch per coordinator. Nothing is retried, since the
next sample follows soon. A failure adds a line to `problems`, and the sample contains the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kavka.client.admin.aio import Admin
from kavka.client.cluster import GROUP
from kavka.client.metadata import Node
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.console.errors import reason
from kavka.console.state import Group, LogDir, Partition, Sample, Topic
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.list_groups import ListGroupsRequest
from kavka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kavka.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kavka.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

FIRST_TIMEOUT_S, TIMEOUT_S = 3.0, 5.0
LATEST, EARLIEST = -1, -2
# Later versions identify topics by id.
LAST_FETCH_BY_NAME = 9
FIRST_FETCH_OF_GROUPS = 8
FIRST_COORDINATORS = 4

Sizes = dict[TopicPartition, dict[int, int]]


async def take_sample(admin: Admin) -> Sample:
    """Sample everything but the groups. Raises KafkaError if no broker responds."""
    began = time.monotonic()
    metadata = await _metadata(admin)
    nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in metadata.brokers}
    problems: list[str] = []
    led: dict[int, dict[str, list[int]]] = {}
    for topic in metadata.topics:
        for p in topic.partitions:
            if p.leader_id in nodes:
                led.setdefault(p.leader_id, {}).setdefault(topic.name or "", []).append(p.partition_index)
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    dirs: dict[int, tuple[LogDir, ...]] = {}
    sizes: Sizes = {}
    await asyncio.gather(
        *(_offsets(admin, broker, topics, EARLIEST, starts, problems) for broker, topics in led.items()),
        *(_offsets(admin, broker, topics, LATEST, ends, problems) for broker, topics in led.items()),
        *(_log_dirs(admin, broker, dirs, sizes, problems) for broker in nodes),
    )
    return Sample(
        at=time.time(),
        took=time.monotonic() - began,
        cluster_id=metadata.cluster_id or "",
        controller=metadata.controller_id,
        nodes=dict(sorted(nodes.items())),
        topics={t.name: t for t in _topics(metadata, starts, ends, sizes)},
        dirs=dirs,
        problems=tuple(dict.fromkeys(problems)),
    )


async def _metadata(admin: Admin) -> MetadataResponse:
    """The metadata from the first broker that responds, so that a hanging broker does no harm."""
    first: Exception | None = None
    for node in [None, *(node for node in admin.cluster.nodes if node >= 0)]:
        try:
            return await _metadata_of(admin, node, FIRST_TIMEOUT_S)
        except (KafkaError, TimeoutError) as error:
            first = first or error
    assert first is not None
    raise first


async def _metadata_of(admin: Admin, node: int | None, timeout: float) -> MetadataResponse:
    cluster = admin.cluster
    if node is None:
        connection = await cluster.any_connection(timeout=timeout)
    else:
        connection = await cluster.connection(node, timeout=timeout)
    version = connection.version_of(MetadataRequest.API_KEY)
    request = MetadataRequest(topics=[] if version == 0 else None, allow_auto_topic_creation=version < 4)
    response: MetadataResponse = await connection.send(request, timeout=timeout, version=version)
    for broker in response.brokers:
        admin.cluster.add_node(Node(broker.node_id, broker.host, broker.port, broker.rack))
    return response


def _topics(
    metadata: MetadataResponse, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], sizes: Sizes
) -> Iterable[Topic]:
    for topic in sorted(metadata.topics, key=lambda t: t.name or ""):
        if topic.error_code and not topic.partitions:
            continue
        partitions = []
        disk: int | None = None
        for p in sorted(topic.partitions, key=lambda p: p.partition_index):
            tp = TopicPartition(topic.name or "", p.partition_index)
            replica_sizes = sizes.get(tp)
            if replica_sizes:
                disk = (disk or 0) + sum(replica_sizes.values())
            partitions.append(
                Partition(
                    tp.topic,
                    p.partition_index,
                    p.leader_id,
                    p.leader_epoch,
                    tuple(p.replica_nodes),
                    tuple(p.isr_nodes),
                    starts.get(tp),
                    ends.get(tp),
                    replica_sizes.get(p.leader_id) if replica_sizes else None,
                )
            )
        yield Topic(topic.name or "", topic.topic_id, topic.is_internal, tuple(partitions), disk)


async def _offsets(
    admin: Admin,
    broker: int,
    topics: Mapping[str, list[int]],
    timestamp: int,
    offsets: dict[TopicPartition, int],
    problems: list[str],
) -> None:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=name, partitions=[ListOffsetsPartition(partition_index=p, timestamp=timestamp) for p in ids]
            )
            for name, ids in topics.items()
        ],
    )
    try:
        # From version 1 on the response has a single offset; version 0 is before Kafka 0.10.1.
        response = await admin.cluster.request(broker, request, timeout=TIMEOUT_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not say its offsets: {reason(error)}")
        return
    for topic in response.topics:
        for p in topic.partitions:
            if not p.error_code and p.offset >= 0:
                offsets[TopicPartition(topic.name, p.partition_index)] = p.offset


async def _log_dirs(
    admin: Admin, broker: int, dirs: dict[int, tuple[LogDir, ...]], sizes: Sizes, problems: list[str]
) -> None:
    try:
        response = await admin.cluster.request(broker, DescribeLogDirsRequest(topics=None), timeout=TIMEOUT_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not say what is on its disks: {reason(error)}")
        return
    log_dirs = []
    for result in response.results:
        replicas = size = 0
        for topic in result.topics:
            for p in topic.partitions:
                size += p.partition_size
                if not p.is_future_key:
                    replicas += 1
                    sizes.setdefault(TopicPartition(topic.name, p.partition_index), {})[broker] = p.partition_size
        code = result.error_code
        error_text = (
            ErrorCode(code).name.lower().replace("_", " ") if code in ErrorCode._value2member_map_ else str(code)
        )
        log_dirs.append(
            LogDir(
                result.log_dir,
                error_text if code else "",
                replicas,
                size,
                None if result.total_bytes < 0 else result.total_bytes,
                None if result.usable_bytes < 0 else result.usable_bytes,
            )
        )
    dirs[broker] = tuple(log_dirs)


# --- groups


async def take_groups(
    admin: Admin, sample: Sample, ends: Mapping[TopicPartition, int]
) -> tuple[dict[str, Group], list[str]]:
    """All groups with their committed offsets and their lag behind `ends`."""
    problems: list[str] = []
    listed: dict[str, Any] = {}
    await asyncio.gather(*(_list_groups(admin, broker, listed, problems) for broker in sample.nodes))
    coordinators = await _coordinators(admin, sorted(listed), problems)
    offsets: dict[str, dict[TopicPartition, int]] = {}
    by_coordinator: dict[int, list[str]] = {}
    for group, coordinator in coordinators.items():
        by_coordinator.setdefault(coordinator, []).append(group)
    await asyncio.gather(
        *(_committed(admin, broker, groups, offsets, problems) for broker, groups in by_coordinator.items())
    )
    groups_by_name = {}
    for name, entry in sorted(listed.items()):
        committed = offsets.get(name)
        lags = None
        if committed is not None:
            lags = {tp: max(0, ends[tp] - offset) for tp, offset in committed.items() if tp in ends}
        groups_by_name[name] = Group(
            name,
            entry.protocol_type,
            entry.group_state or "",
            (entry.group_type or "classic").lower(),
            coordinators.get(name, -1),
            committed,
            lags,
        )
    return groups_by_name, problems


async def _list_groups(admin: Admin, broker: int, listed: dict[str, Any], problems: list[str]) -> None:
    try:
        response = await admin.cluster.request(broker, ListGroupsRequest(), timeout=TIMEOUT_S)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not list its groups: {reason(error)}")
        return
    for group in response.groups:
        listed[group.group_id] = group


async def _coordinators(admin: Admin, groups: list[str], problems: list[str]) -> dict[str, int]:
    if not groups:
        return {}
    coordinators: dict[str, int] = {}
    try:
        connection = await admin.cluster.any_connection(timeout=TIMEOUT_S)
        if connection.version_of(ApiKey.FIND_COORDINATOR) < FIRST_COORDINATORS:
            nodes = await asyncio.gather(
                *(admin.cluster.find_coordinator(group, GROUP, timeout=TIMEOUT_S) for group in groups),
                return_exceptions=True,
            )
            return {g: node.id for g, node in zip(groups, nodes, strict=True) if isinstance(node, Node)}
        request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=groups)
        response = await connection.send(request, timeout=TIMEOUT_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"nobody said who coordinates the groups: {reason(error)}")
        return coordinators
    for coordinator in response.coordinators:
        if not coordinator.error_code:
            admin.cluster.add_node(Node(coordinator.node_id, coordinator.host, coordinator.port))
            coordinators[coordinator.key] = coordinator.node_id
    return coordinators


async def _committed(
    admin: Admin,
    broker: int,
    groups: list[str],
    offsets: dict[str, dict[TopicPartition, int]],
    problems: list[str],
) -> None:
    try:
        connection = await admin.cluster.connection(broker, timeout=TIMEOUT_S)
        version = connection.version_of(ApiKey.OFFSET_FETCH, LAST_FETCH_BY_NAME)
        if version < FIRST_FETCH_OF_GROUPS:
            for group in groups:
                committed = await admin.list_consumer_group_offsets(group, timeout=TIMEOUT_S)
                offsets[group] = {tp: offset.offset for tp, offset in committed.items() if offset is not None}
            return
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups])
        response = await connection.send(request, version=version, timeout=TIMEOUT_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not say what its groups have committed: {reason(error)}")
        return
    for group_response in response.groups:
        if group_response.error_code:
            continue
        offsets[group_response.group_id] = {
            TopicPartition(topic.name, p.partition_index): p.committed_offset
            for topic in group_response.topics
            for p in topic.partitions
            if not p.error_code and p.committed_offset >= 0
        }
