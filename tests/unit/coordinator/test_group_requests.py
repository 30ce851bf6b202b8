"""Group requests in every version, through their codec and handlers to a coordinator."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kavka.api import registry
from kavka.api.context import RequestContext
from kavka.common.config_view import BrokerConfigs
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.topics import CONSUMER_OFFSETS
from kavka.coordinator.group.service import GroupCoordinator
from kavka.coordinator.internal_topic import java_hash, partition_for
from kavka.coordinator.shard_host import HostState
from kavka.metadata.store import NoNode
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.delete_groups import DeleteGroupsRequest
from kavka.protocol.messages.describe_groups import DescribeGroupsRequest
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kavka.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kavka.protocol.messages.list_groups import ListGroupsRequest
from kavka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kavka.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kavka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kavka.replication.metadata_cache import (
    BrokerInfo,
    Endpoint,
    MetadataCache,
    PartitionInfo,
    TopicUpdate,
)
from tests.unit.coordinator.fakes import FakeClock, FakePartition
from tests.unit.coordinator.harness import subscription

TOPIC_ID = UUID(int=77)
OFFSETS_PARTITIONS = 50


class TreeStore:
    """The methods of the znode tree that OffsetCommit and OffsetFetch version 0 use."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes | None] = {}

    async def ensure(self, path: str) -> None:
        if "//" in path:
            raise ValueError(path)
        self.nodes.setdefault(path, None)

    async def set(self, path: str, data: bytes) -> None:
        self.nodes[path] = data

    async def get(self, path: str) -> tuple[bytes | None, None]:
        if path not in self.nodes:
            raise NoNode(path)
        return self.nodes[path], None


class Services:
    """The attributes of a broker that the group handlers use. The broker leads every partition of
    the offsets topic."""

    def __init__(self, *, with_topic: bool = True, **overrides: Any) -> None:
        self.settings = SimpleNamespace(
            group_min_session_timeout_ms=6_000,
            group_max_session_timeout_ms=1_800_000,
            group_initial_rebalance_delay_ms=0,
            group_max_size=100,
            offset_metadata_max_bytes=4_096,
            offsets_retention_minutes=10_080,
            offsets_retention_check_interval_ms=600_000,
            offsets_topic_num_partitions=OFFSETS_PARTITIONS,
            offsets_topic_replication_factor=3,
            offsets_topic_segment_bytes=104_857_600,
            offsets_topic_compression_codec=0,
            offsets_load_buffer_size=5_242_880,
            offsets_commit_timeout_ms=5_000,
            zookeeper_connect=None,
            group_coordinator_rebalance_protocols=("classic", "consumer"),
            group_consumer_max_size=100,
            group_consumer_assignors=("uniform", "range"),
            group_consumer_migration_policy="bidirectional",
        )
        self.settings.__dict__.update(overrides)
        self.metadata_cache = MetadataCache()
        self.store = TreeStore()
        self.created: list[tuple[str, int, int, dict[str, str]]] = []
        self.creation_error: KafkaError | None = None
        self.partitions = [FakePartition(index) for index in range(OFFSETS_PARTITIONS)]
        configs = BrokerConfigs({"group.consumer.assignment.interval.ms": "0"})
        self.groups = GroupCoordinator(
            self.settings,
            clock=FakeClock(),
            metadata_cache=self.metadata_cache,
            run_in_worker=lambda function, done: done(function()),
            create_topic=self.create_topic,
            group_values=lambda group: configs.group_values({}),
        )
        self.publish_metadata("orders", TOPIC_ID, 3)
        if with_topic:
            self.bring_offsets_online()

    def bring_offsets_online(self) -> None:
        self.publish_metadata(CONSUMER_OFFSETS, UUID(int=1), OFFSETS_PARTITIONS)
        for partition in self.partitions:
            self.groups.on_leadership(partition, True)  # type: ignore[arg-type]

    def publish_metadata(self, topic: str, topic_id: UUID, partitions: int) -> None:
        broker = BrokerInfo(4, None, {"PLAINTEXT": Endpoint("here", 9092)})
        states = [PartitionInfo(index, 4) for index in range(partitions)]
        self.metadata_cache.update([broker], [TopicUpdate(topic, topic_id, states)])

    async def create_topic(self, name: str, partitions: int, replicas: int, configs: Any) -> None:
        self.created.append((name, partitions, replicas, dict(configs)))
        if self.creation_error is not None:
            raise self.creation_error
        self.bring_offsets_online()

    def context(self, version: int, listener: str = "PLAINTEXT") -> RequestContext:
        return RequestContext(self, version, 1, "client", listener, "10.0.0.1", "User:ANONYMOUS")  # type: ignore[arg-type]

    async def send(self, request: Any, version: int, listener: str = "PLAINTEXT") -> Any:
        """Handle a request like a connection: encode and decode it and its response, and build
        error responses."""
        api = registry.load()[request.API_KEY]
        decoded, _ = api.request_class.decode(memoryview(request.to_bytes(version)), 0, version)
        try:
            result = api.handle(self.context(version, listener), decoded)
            if inspect.isawaitable(result):
                result = await result
        except KafkaError as error:
            result = api.on_error(decoded, version, error)
        response, _ = type(result).decode(result.to_bytes(version), 0, version)
        return response


def with_services(test: Callable[[Services], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            services = Services()
            try:
                await test(services)
            finally:
                services.groups.stop()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def commit(
    offset: int = 5,
    *,
    topic: str = "orders",
    partition: int = 0,
    by_id: UUID | None = None,
    metadata: str = "",
    **fields: Any,
) -> Any:
    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            ],
        )
    ]
    if by_id is not None:
        topics[0].topic_id = by_id
    return OffsetCommitRequest(group_id="g", topics=topics, **fields)


def fetch(version: int, *, topic: str = "orders", partitions: tuple[int, ...] = (0,), all_topics: bool = False) -> Any:
    if version < 8:
        topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))]
        return OffsetFetchRequest(group_id="g", topics=None if all_topics else topics)
    requested = OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions))
    if version >= 10:
        requested.topic_id = TOPIC_ID
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id="g", topics=None if all_topics else [requested])]
    )


def fetched(response: Any, version: int) -> list[tuple[int, int, int]]:
    topics = response.topics if version < 8 else response.groups[0].topics
    return [(p.partition_index, p.committed_offset, p.error_code) for topic in topics for p in topic.partitions]


def commit_code(response: Any) -> ErrorCode:
    return ErrorCode(response.topics[0].partitions[0].error_code)


# ---- offsets


@pytest.mark.parametrize("version", range(11))
def test_an_offset_is_committed_and_fetched_in_every_version(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        request = commit(5, by_id=TOPIC_ID if version >= 10 else None)
        assert commit_code(await services.send(request, version)) is ErrorCode.NONE
        response = await services.send(fetch(version, partitions=(0, 1)), version)
        # For a missing offset, version 0 returns an error and later versions offset -1.
        missing = (1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version == 0 else 0)
        assert fetched(response, version) == [(0, 5, 0), missing]

    run()


def test_version_0_stores_offsets_in_the_metadata_tree() -> None:
    @with_services
    async def run(services: Services) -> None:
        await services.send(commit(42), 0)
        assert services.store.nodes == {"/consumers/g/offsets/orders/0": b"42"}
        assert services.groups.list_groups((), ()) == []

    run()


def test_a_failed_write_to_the_tree_is_a_server_error() -> None:
    @with_services
    async def run(services: Services) -> None:
        request = commit(42)
        request.group_id = "/"
        assert commit_code(await services.send(request, 0)) is ErrorCode.UNKNOWN_SERVER_ERROR

    run()


@pytest.mark.parametrize("version", [0, 1, 5, 9])
def test_a_commit_for_an_unknown_partition_is_refused_and_other_partitions_are_committed(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        request = commit(5)
        request.topics += commit(6, topic="missing").topics + commit(7, partition=3).topics
        response = await services.send(request, version)
        codes = [p.error_code for topic in response.topics for p in topic.partitions]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert fetched(await services.send(fetch(version), version), version) == [(0, 5, 0)]

    run()


def test_a_commit_by_an_unknown_topic_id_is_refused() -> None:
    @with_services
    async def run(services: Services) -> None:
        response = await services.send(commit(5, by_id=UUID(int=5)), 10)
        assert commit_code(response) is ErrorCode.UNKNOWN_TOPIC_ID
        unknown = fetch(10)
        unknown.groups[0].topics[0].topic_id = UUID(int=5)
        assert fetched(await services.send(unknown, 10), 10) == [(0, -1, ErrorCode.UNKNOWN_TOPIC_ID)]

    run()


@pytest.mark.parametrize("version", [0, 9])
def test_too_long_metadata_is_refused(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        response = await services.send(commit(5, metadata="x" * 4_097), version)
        assert commit_code(response) is ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert (await services.send(fetch(version), version)).to_bytes(version)
        assert services.store.nodes == {}
        assert services.groups.list_groups((), ()) == []

    run()


@pytest.mark.parametrize("version", range(2, 11))
def test_all_offsets_of_a_group_are_fetched(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        await services.send(commit(5), 9)
        await services.send(commit(6, partition=2), 9)
        response = await services.send(fetch(version, all_topics=True), version)
        assert fetched(response, version) == [(0, 5, 0), (2, 6, 0)]
        if version >= 10:
            assert response.groups[0].topics[0].topic_id == TOPIC_ID

    run()


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offsets_of_many_groups_are_fetched(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        await services.send(commit(5), 9)
        request = fetch(version)
        request.groups += fetch(version).groups
        request.groups[1].group_id = "another"
        response = await services.send(request, version)
        assert [(g.group_id, g.topics[0].partitions[0].committed_offset) for g in response.groups] == [
            ("g", 5),
            ("another", -1),
        ]

    run()


@pytest.mark.parametrize("version", range(1, 11))
def test_a_broker_that_does_not_coordinate_the_group_returns_not_coordinator(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        for partition in services.partitions:
            services.groups.on_leadership(partition, False)  # type: ignore[arg-type]
        code = ErrorCode.NOT_COORDINATOR
        assert commit_code(await services.send(commit(5, by_id=TOPIC_ID), version)) is code
        response = await services.send(fetch(version), version)
        if version == 1:
            assert fetched(response, version) == [(0, -1, code)]
        else:
            assert (response if version < 8 else response.groups[0]).error_code == code

    run()


def test_a_fetch_waits_for_a_commit_that_is_not_committed_yet() -> None:
    for version in (1, 8):

        @with_services
        async def run(services: Services, version: int = version) -> None:
            partition = services.partitions[partition_for("g", OFFSETS_PARTITIONS)]
            partition.hold_high_watermark = True
            committing = asyncio.ensure_future(services.send(commit(5), 7))
            fetching = asyncio.ensure_future(services.send(fetch(version), version))
            await asyncio.sleep(0.01)
            assert not committing.done()
            assert not fetching.done()
            partition.hold_high_watermark = False
            partition.advance()
            assert commit_code(await committing) is ErrorCode.NONE
            assert fetched(await fetching, version) == [(0, 5, 0)]

        run()


def test_a_commit_that_cannot_be_written_fails_for_each_partition() -> None:
    @with_services
    async def run(services: Services) -> None:
        partition = services.partitions[partition_for("g", OFFSETS_PARTITIONS)]
        partition.failure = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert commit_code(await services.send(commit(5), 9)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition.failure = None
        assert fetched(await services.send(fetch(9), 9), 9) == [(0, -1, 0)]

    run()


def test_a_commit_that_exceeds_max_message_bytes_has_an_invalid_size() -> None:
    @with_services
    async def run(services: Services) -> None:
        partition = services.partitions[partition_for("g", OFFSETS_PARTITIONS)]
        assert partition.log is not None
        partition.log.config.max_message_bytes = 200
        response = await services.send(commit(5, metadata="x" * 300), 9)
        assert commit_code(response) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE

    run()


def test_offsets_are_deleted_for_partitions_that_exist() -> None:
    @with_services
    async def run(services: Services) -> None:
        await services.send(commit(5), 9)
        request = OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name="orders",
                    partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)],
                )
            ],
        )
        response = await services.send(request, 0)
        assert [p.error_code for p in response.topics[0].partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert fetched(await services.send(fetch(9), 9), 9) == [(0, -1, 0)]
        request.group_id = "missing"
        assert (await services.send(request, 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        request.group_id = ""
        assert (await services.send(request, 0)).error_code == ErrorCode.INVALID_GROUP_ID

    run()


def test_offsets_of_a_deleted_topic_are_deleted() -> None:
    @with_services
    async def run(services: Services) -> None:
        await services.send(commit(5), 9)
        services.groups.on_topics_deleted(["orders"])
        await asyncio.sleep(0)
        assert fetched(await services.send(fetch(9), 9), 9) == [(0, -1, 0)]

    run()


# ---- members


async def join(services: Services, version: int) -> Any:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000 if version else -1,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("orders"))],
    )
    response = await services.send(request, version)
    if version >= 4:
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        request.member_id = response.member_id
        response = await services.send(request, version)
    return response


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_syncs_sends_heartbeats_and_leaves_in_every_version(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        response = await join(services, version)
        assert (response.error_code, response.generation_id, response.protocol_name) == (0, 1, "range")
        assert [m.member_id for m in response.members] == [response.member_id]
        assert response.member_id.startswith("client-")
        sync = SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=response.member_id,
            assignments=[SyncGroupRequestAssignment(member_id=response.member_id, assignment=b"mine")],
        )
        sync_version = min(version, 5)
        if sync_version >= 5:
            refused = await services.send(sync, sync_version)
            assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            sync.protocol_type, sync.protocol_name = "consumer", "range"
        synced = await services.send(sync, sync_version)
        assert (synced.error_code, synced.assignment) == (0, b"mine")
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=response.member_id)
        assert (await services.send(beat, min(version, 4))).error_code == 0
        leave_version = min(version, 5)
        leave = LeaveGroupRequest(group_id="g")
        if leave_version >= 3:
            leave.members = [MemberIdentity(member_id=response.member_id)]
        else:
            leave.member_id = response.member_id
        assert (await services.send(leave, leave_version)).error_code == 0
        assert (await services.send(beat, min(version, 4))).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run()


def test_a_leave_request_needs_a_group_id() -> None:
    @with_services
    async def run(services: Services) -> None:
        request = LeaveGroupRequest(group_id="", members=[MemberIdentity(member_id="m")])
        assert (await services.send(request, 5)).error_code == ErrorCode.INVALID_GROUP_ID

    run()


def test_members_remain_in_the_group_while_it_is_loading() -> None:
    async def main() -> None:
        services = Services(with_topic=False)
        services.publish_metadata(CONSUMER_OFFSETS, UUID(int=1), OFFSETS_PARTITIONS)
        for partition in services.partitions:
            services.groups.on_leadership(partition, True)  # type: ignore[arg-type]
            services.groups.runtime.host(partition.topic_partition.partition).state = HostState.LOADING
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await services.send(beat, 4)).error_code == 0
        sync = SyncGroupRequest(group_id="g", generation_id=1, member_id="m")
        assert (await services.send(sync, 3)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert (await services.send(ListGroupsRequest(), 4)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert commit_code(await services.send(commit(), 9)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    asyncio.run(main())


# ---- groups


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_in_every_version(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        response = await join(services, 3)
        request = DescribeGroupsRequest(groups=["g", "missing"], include_authorized_operations=version >= 3)
        listed, missing = (await services.send(request, version)).groups
        assert (listed.group_state, listed.protocol_type) == ("CompletingRebalance", "consumer")
        assert [(m.member_id, m.client_id, m.client_host) for m in listed.members] == [
            (response.member_id, "client", "/10.0.0.1")
        ]
        assert missing.group_state == "Dead"
        assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
        if version >= 3:
            assert listed.authorized_operations == 328

    run()


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        await join(services, 3)
        request = commit(5)
        request.group_id = "simple"
        await services.send(request, 9)
        response = await services.send(ListGroupsRequest(), version)
        assert {(g.group_id, g.protocol_type) for g in response.groups} == {("g", "consumer"), ("simple", "")}
        if version >= 4:
            filtered = await services.send(ListGroupsRequest(states_filter=["EMPTY", "dead"]), version)
            assert [(g.group_id, g.group_state) for g in filtered.groups] == [("simple", "Empty")]
        if version >= 5:
            filtered = await services.send(ListGroupsRequest(types_filter=["Classic"]), version)
            assert {g.group_type for g in filtered.groups} == {"classic"}
            assert (await services.send(ListGroupsRequest(types_filter=["consumer"]), version)).groups == []

    run()


@pytest.mark.parametrize("version", range(3))
def test_empty_groups_are_deleted_in_every_version(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        await join(services, 3)
        request = commit(5)
        request.group_id = "simple"
        await services.send(request, 9)
        response = await services.send(DeleteGroupsRequest(groups_names=["g", "simple", "missing"]), version)
        assert {r.group_id: ErrorCode(r.error_code) for r in response.results} == {
            "g": ErrorCode.NON_EMPTY_GROUP,
            "simple": ErrorCode.NONE,
            "missing": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        assert [g.group_id for g in services.groups.list_groups((), ())] == ["g"]

    run()


# ---- finding the coordinator


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_a_group_is_the_leader_of_its_partition(version: int) -> None:
    @with_services
    async def run(services: Services) -> None:
        request = FindCoordinatorRequest()
        if version >= 4:
            request.coordinator_keys = ["g", "another"]
            response = await services.send(request, version)
            assert [(c.key, c.node_id, c.host, c.port, c.error_code) for c in response.coordinators] == [
                ("g", 4, "here", 9092, 0),
                ("another", 4, "here", 9092, 0),
            ]
        else:
            request.key = "g"
            response = await services.send(request, version)
            assert (response.node_id, response.host, response.port, response.error_code) == (4, "here", 9092, 0)

    run()


def test_the_offsets_topic_is_created_once_on_first_use() -> None:
    async def main() -> None:
        services = Services(with_topic=False)
        requests = [services.send(FindCoordinatorRequest(key="g"), 1) for _ in range(3)]
        responses = await asyncio.gather(*requests)
        assert [r.error_code for r in responses] == [0, 0, 0]
        ((name, partitions, replicas, configs),) = services.created
        assert (name, partitions, replicas) == ("__consumer_offsets", 50, 1)
        assert configs == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }
        assert commit_code(await services.send(commit(5), 9)) is ErrorCode.NONE

    asyncio.run(main())


def test_without_an_offsets_topic_there_is_no_coordinator() -> None:
    async def main() -> None:
        services = Services(with_topic=False)
        services.creation_error = KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "too few brokers")
        for version in (0, 3, 4):
            request = FindCoordinatorRequest()
            if version >= 4:
                request.coordinator_keys = ["g"]
            else:
                request.key = "g"
            response = await services.send(request, version)
            coordinator = response.coordinators[0] if version >= 4 else response
            assert (coordinator.error_code, coordinator.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)

    asyncio.run(main())


def test_an_unknown_coordinator_type_is_an_invalid_request() -> None:
    @with_services
    async def run(services: Services) -> None:
        response = await services.send(FindCoordinatorRequest(key="g", key_type=9), 2)
        assert response.error_code == ErrorCode.INVALID_REQUEST

    run()


def test_a_coordinator_without_the_clients_listener_is_not_available() -> None:
    @with_services
    async def run(services: Services) -> None:
        response = await services.send(FindCoordinatorRequest(key="g"), 2, listener="OTHER")
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    run()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -2147483648),
        ("größe", 98762257),
        ("😀", 1772899),
    ],
)
def test_hashes_match_java(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_the_smallest_hash_maps_to_partition_0() -> None:
    assert partition_for("polygenelubricants", 50) == 0


def test_all_versions_of_group_requests_are_supported() -> None:
    served = registry.load()
    for key in (
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
    ):
        api = served[int(key)]
        assert (api.min_version, api.max_version) == (api.request_class.MIN_VERSION, api.request_class.MAX_VERSION)
