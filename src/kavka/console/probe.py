"""How a cluster is asked for one sample: a fixed, small number of requests, each to be answered soon or left out.

One Metadata request for all topics; to each broker one ListOffsets for the first and one for the last offsets of what
it leads, and one DescribeLogDirs; for groups one ListGroups to each broker, FindCoordinator for all of them together,
one OffsetFetch to each coordinator. Nothing is tried again: the next sample comes soon. What fails becomes a line in
`problems`, and the sample holds the rest.
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

FIRST_PATIENCE_S, PATIENCE_S = 3.0, 5.0
LATEST, EARLIEST = -1, -2
# Versions after this name topics by id.
LAST_FETCH_BY_NAME = 9
FIRST_FETCH_OF_GROUPS = 8
FIRST_COORDINATORS = 4

Sizes = dict[TopicPartition, dict[int, int]]


async def take_sample(admin: Admin) -> Sample:
    """Everything but the groups. Raises KafkaError when no broker answers."""
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
    """From whoever answers: a broker that hangs must not hide the others."""
    first: Exception | None = None
    for node in [None, *(node for node in admin.cluster.nodes if node >= 0)]:
        try:
            return await _metadata_of(admin, node, FIRST_PATIENCE_S)
        except (KafkaError, TimeoutError) as error:
            first = first or error
    assert first is not None
    raise first


async def _metadata_of(admin: Admin, node: int | None, patience: float) -> MetadataResponse:
    cluster = admin.cluster
    if node is None:
        connection = await cluster.any_connection(timeout=patience)
    else:
        connection = await cluster.connection(node, timeout=patience)
    version = connection.version_of(MetadataRequest.API_KEY)
    request = MetadataRequest(topics=[] if version == 0 else None, allow_auto_topic_creation=version < 4)
    response: MetadataResponse = await connection.send(request, timeout=patience, version=version)
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
            here = sizes.get(tp)
            if here:
                disk = (disk or 0) + sum(here.values())
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
                    here.get(p.leader_id) if here else None,
                )
            )
        yield Topic(topic.name or "", topic.topic_id, topic.is_internal, tuple(partitions), disk)


async def _offsets(
    admin: Admin,
    broker: int,
    topics: Mapping[str, list[int]],
    which: int,
    found: dict[TopicPartition, int],
    problems: list[str],
) -> None:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=name, partitions=[ListOffsetsPartition(partition_index=p, timestamp=which) for p in ids]
            )
            for name, ids in topics.items()
        ],
    )
    try:
        # From version 1 on the answer is one offset; version 0 is of brokers before 0.10.1.
        response = await admin.cluster.request(broker, request, timeout=PATIENCE_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not say its offsets: {reason(error)}")
        return
    for topic in response.topics:
        for p in topic.partitions:
            if not p.error_code and p.offset >= 0:
                found[TopicPartition(topic.name, p.partition_index)] = p.offset


async def _log_dirs(
    admin: Admin, broker: int, dirs: dict[int, tuple[LogDir, ...]], sizes: Sizes, problems: list[str]
) -> None:
    try:
        response = await admin.cluster.request(broker, DescribeLogDirsRequest(topics=None), timeout=PATIENCE_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not say what is on its disks: {reason(error)}")
        return
    found = []
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
        found.append(
            LogDir(
                result.log_dir,
                error_text if code else "",
                replicas,
                size,
                None if result.total_bytes < 0 else result.total_bytes,
                None if result.usable_bytes < 0 else result.usable_bytes,
            )
        )
    dirs[broker] = tuple(found)


# --- groups


async def take_groups(
    admin: Admin, sample: Sample, ends: Mapping[TopicPartition, int]
) -> tuple[dict[str, Group], list[str]]:
    """All groups with what they have committed, and how far that is behind `ends`."""
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
    found = {}
    for name, entry in sorted(listed.items()):
        committed = offsets.get(name)
        lags = None
        if committed is not None:
            lags = {tp: max(0, ends[tp] - offset) for tp, offset in committed.items() if tp in ends}
        found[name] = Group(
            name,
            entry.protocol_type,
            entry.group_state or "",
            (entry.group_type or "classic").lower(),
            coordinators.get(name, -1),
            committed,
            lags,
        )
    return found, problems


async def _list_groups(admin: Admin, broker: int, found: dict[str, Any], problems: list[str]) -> None:
    try:
        response = await admin.cluster.request(broker, ListGroupsRequest(), timeout=PATIENCE_S)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not list its groups: {reason(error)}")
        return
    for group in response.groups:
        found[group.group_id] = group


async def _coordinators(admin: Admin, groups: list[str], problems: list[str]) -> dict[str, int]:
    if not groups:
        return {}
    found: dict[str, int] = {}
    try:
        connection = await admin.cluster.any_connection(timeout=PATIENCE_S)
        if connection.version_of(ApiKey.FIND_COORDINATOR) < FIRST_COORDINATORS:
            nodes = await asyncio.gather(
                *(admin.cluster.find_coordinator(group, GROUP, timeout=PATIENCE_S) for group in groups),
                return_exceptions=True,
            )
            return {g: node.id for g, node in zip(groups, nodes, strict=True) if isinstance(node, Node)}
        request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=groups)
        response = await connection.send(request, timeout=PATIENCE_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"nobody said who coordinates the groups: {reason(error)}")
        return found
    for answer in response.coordinators:
        if not answer.error_code:
            admin.cluster.add_node(Node(answer.node_id, answer.host, answer.port))
            found[answer.key] = answer.node_id
    return found


async def _committed(
    admin: Admin,
    broker: int,
    groups: list[str],
    found: dict[str, dict[TopicPartition, int]],
    problems: list[str],
) -> None:
    try:
        connection = await admin.cluster.connection(broker, timeout=PATIENCE_S)
        version = connection.version_of(ApiKey.OFFSET_FETCH, LAST_FETCH_BY_NAME)
        if version < FIRST_FETCH_OF_GROUPS:
            for group in groups:
                committed = await admin.list_consumer_group_offsets(group, timeout=PATIENCE_S)
                found[group] = {tp: offset.offset for tp, offset in committed.items() if offset is not None}
            return
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups])
        response = await connection.send(request, version=version, timeout=PATIENCE_S)
    except (KafkaError, TimeoutError) as error:
        problems.append(f"broker {broker} did not say what its groups have committed: {reason(error)}")
        return
    for group_answer in response.groups:
        if group_answer.error_code:
            continue
        found[group_answer.group_id] = {
            TopicPartition(topic.name, p.partition_index): p.committed_offset
            for topic in group_answer.topics
            for p in topic.partitions
            if not p.error_code and p.committed_offset >= 0
        }
