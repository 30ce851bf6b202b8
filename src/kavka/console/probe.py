"""Takes a sample of a cluster with a small, fixed number of requests and short timeouts.

- Metadata: one request for all topics.
- ListOffsets: two requests per broker, for the first and the last offsets of its partitions.
- DescribeLogDirs and ListGroups: one request per broker.
- FindCoordinator: one request for all groups. OffsetFetch: one request per coordinator.

Nothing is retried, since the next sample follows soon. A failed request adds a line to `problems`,
and the sample contains the results of the other requests.
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

METADATA_TIMEOUT_S, TIMEOUT_S = 3.0, 5.0
LATEST, EARLIEST = -1, -2
# API versions. Versions of OffsetFetch after the maximum identify topics by id.
MAX_OFFSET_FETCH_VERSION = 9
MIN_MULTI_GROUP_OFFSET_FETCH_VERSION = 8
MIN_MULTI_KEY_FIND_COORDINATOR_VERSION = 4

Sizes = dict[TopicPartition, dict[int, int]]


async def take_sample(admin: Admin) -> Sample:
    """Sample everything but the groups. Raises KafkaError or TimeoutError if no broker responds."""
    began = time.monotonic()
    metadata = await _metadata(admin)
    nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in metadata.brokers}
    problems: list[str] = []
    partitions_by_leader: dict[int, dict[str, list[int]]] = {}
    for topic in metadata.topics:
        for p in topic.partitions:
            if p.leader_id in nodes:
                partitions_by_topic = partitions_by_leader.setdefault(p.leader_id, {})
                partitions_by_topic.setdefault(topic.name or "", []).append(p.partition_index)
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    dirs: dict[int, tuple[LogDir, ...]] = {}
    sizes: Sizes = {}
    await asyncio.gather(
        *(
            _add_offsets(admin, broker, topics, timestamp, offsets, problems)
            for broker, topics in partitions_by_leader.items()
            for timestamp, offsets in ((EARLIEST, starts), (LATEST, ends))
        ),
        *(_add_log_dirs(admin, broker, dirs, sizes, problems) for broker in nodes),
    )
    # In a thread, so that pages do not wait: this takes about 0.2 s for 10,000 topics.
    topics = await asyncio.to_thread(lambda: {t.name: t for t in _topics(metadata, starts, ends, sizes)})
    sample = Sample(
        at=time.time(),
        duration=time.monotonic() - began,
        cluster_id=metadata.cluster_id or "",
        controller=metadata.controller_id,
        nodes=dict(sorted(nodes.items())),
        topics=topics,
        dirs=dirs,
        problems=tuple(dict.fromkeys(problems)),
    )
    return await asyncio.to_thread(sample.compute)


async def _metadata(admin: Admin) -> MetadataResponse:
    """Return the metadata from the first broker that responds. A broker that hangs delays the
    sample by METADATA_TIMEOUT_S only. Raises the first error if no broker responds."""
    first_error: Exception | None = None
    for node in [None, *(node for node in admin.cluster.nodes if node >= 0)]:
        try:
            return await _metadata_of(admin, node, METADATA_TIMEOUT_S)
        except (KafkaError, TimeoutError) as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


async def _metadata_of(admin: Admin, node: int | None, timeout: float) -> MetadataResponse:
    cluster = admin.cluster
    if node is None:
        connection = await cluster.any_connection(timeout=timeout)
    else:
        connection = await cluster.connection(node, timeout=timeout)
    api_version = connection.version_of(MetadataRequest.API_KEY)
    request = MetadataRequest(topics=[] if api_version == 0 else None, allow_auto_topic_creation=api_version < 4)
    response: MetadataResponse = await connection.send(request, timeout=timeout, version=api_version)
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


async def _add_offsets(
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
        # A partition of the response has a single offset since version 1 (Kafka 0.10.1).
        response = await admin.cluster.request(broker, request, timeout=TIMEOUT_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not return offsets: {reason(error)}")
        return
    for topic in response.topics:
        for p in topic.partitions:
            if not p.error_code and p.offset >= 0:
                offsets[TopicPartition(topic.name, p.partition_index)] = p.offset


async def _add_log_dirs(
    admin: Admin, broker: int, dirs: dict[int, tuple[LogDir, ...]], sizes: Sizes, problems: list[str]
) -> None:
    try:
        response = await admin.cluster.request(broker, DescribeLogDirsRequest(topics=None), timeout=TIMEOUT_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not describe its log directories: {reason(error)}")
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
    """Return all groups with their committed offsets and their lag to `ends`, and a line per failed
    request."""
    problems: list[str] = []
    listings: dict[str, Any] = {}
    await asyncio.gather(*(_add_listings(admin, broker, listings, problems) for broker in sample.nodes))
    coordinators = await _coordinators(admin, sorted(listings), problems)
    offsets: dict[str, dict[TopicPartition, int]] = {}
    names_by_coordinator: dict[int, list[str]] = {}
    for name, coordinator in coordinators.items():
        names_by_coordinator.setdefault(coordinator, []).append(name)
    await asyncio.gather(
        *(_add_committed(admin, broker, names, offsets, problems) for broker, names in names_by_coordinator.items())
    )
    groups = {}
    for name, listing in sorted(listings.items()):
        committed = offsets.get(name)
        lags = None
        if committed is not None:
            lags = {tp: max(0, ends[tp] - offset) for tp, offset in committed.items() if tp in ends}
        groups[name] = Group(
            name,
            listing.protocol_type,
            listing.group_state or "",
            (listing.group_type or "classic").lower(),
            coordinators.get(name, -1),
            committed,
            lags,
        )
    return groups, problems


async def _add_listings(admin: Admin, broker: int, listings: dict[str, Any], problems: list[str]) -> None:
    try:
        response = await admin.cluster.request(broker, ListGroupsRequest(), timeout=TIMEOUT_S)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not list its groups: {reason(error)}")
        return
    for group in response.groups:
        listings[group.group_id] = group


async def _coordinators(admin: Admin, groups: list[str], problems: list[str]) -> dict[str, int]:
    if not groups:
        return {}
    coordinators: dict[str, int] = {}
    try:
        connection = await admin.cluster.any_connection(timeout=TIMEOUT_S)
        if connection.version_of(ApiKey.FIND_COORDINATOR) < MIN_MULTI_KEY_FIND_COORDINATOR_VERSION:
            nodes = await asyncio.gather(
                *(admin.cluster.find_coordinator(group, GROUP, timeout=TIMEOUT_S) for group in groups),
                return_exceptions=True,
            )
            return {g: node.id for g, node in zip(groups, nodes, strict=True) if isinstance(node, Node)}
        request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=groups)
        response = await connection.send(request, timeout=TIMEOUT_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"the coordinators of the groups are unknown: {reason(error)}")
        return coordinators
    for coordinator in response.coordinators:
        if not coordinator.error_code:
            admin.cluster.add_node(Node(coordinator.node_id, coordinator.host, coordinator.port))
            coordinators[coordinator.key] = coordinator.node_id
    return coordinators


async def _add_committed(
    admin: Admin,
    broker: int,
    groups: list[str],
    offsets: dict[str, dict[TopicPartition, int]],
    problems: list[str],
) -> None:
    try:
        connection = await admin.cluster.connection(broker, timeout=TIMEOUT_S)
        api_version = connection.version_of(ApiKey.OFFSET_FETCH, MAX_OFFSET_FETCH_VERSION)
        if api_version < MIN_MULTI_GROUP_OFFSET_FETCH_VERSION:
            for group in groups:
                committed = await admin.list_consumer_group_offsets(group, timeout=TIMEOUT_S)
                offsets[group] = {tp: offset.offset for tp, offset in committed.items() if offset is not None}
            return
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups])
        response = await connection.send(request, version=api_version, timeout=TIMEOUT_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not return the committed offsets of its groups: {reason(error)}")
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
