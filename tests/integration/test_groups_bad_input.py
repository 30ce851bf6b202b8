"""Invalid group requests get the error code of Apache Kafka and change nothing. The tests also pass
on Apache Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kavka.common.errors import ErrorCode
from kavka.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kavka.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kavka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kavka.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from kavka.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kavka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kavka.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from kavka.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.support import wire
from tests.support.processes import wait_until
from tests.support.targets import Target, start_target

pytestmark = pytest.mark.timeout(120)

TOPIC = "known"
# The subscription of a consumer: version 0, one topic, no user data.
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x05known\xff\xff\xff\xff"


@pytest.fixture(scope="module")
def broker(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    overrides = {"group.initial.rebalance.delay.ms": 0, "group.max.size": 2}
    target = start_target(target_name, tmp_path_factory.mktemp("bad-input"), overrides)
    try:
        wire.create_topic(target.address, TOPIC, 2)
        yield target
    finally:
        target.close()


class GroupClient:
    """Sends group requests, in their newest versions without flexible fields, for a new group."""

    def __init__(self, broker: Target) -> None:
        self._wire = wire.Wire(broker.address, timeout=20)
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        wait_until(self._has_coordinator, timeout=30, what="a coordinator", interval=0.1)

    def call(self, request: Any, response_class: Any, version: int) -> Any:
        frame = self._wire.call(request.API_KEY, version, request.to_bytes(version))
        data = frame.data[frame.position :]
        return response_class.decode(data, 0, version)[0]

    def _has_coordinator(self) -> bool:
        return self.find() is ErrorCode.NONE and self.describe(self.group).error_code == 0

    def close(self) -> None:
        self._wire.close()

    def find(self, key_type: int = 0) -> ErrorCode:
        request = FindCoordinatorRequest(key=self.group, key_type=key_type)
        return ErrorCode(self.call(request, FindCoordinatorResponse, 2).error_code)

    def join(
        self,
        member_id: str = "",
        *,
        group: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        protocol_type: str = "consumer",
        session: int = 10_000,
        instance_id: str | None = None,
        version: int = 5,
    ) -> Any:
        request = JoinGroupRequest(
            group_id=self.group if group is None else group,
            session_timeout_ms=session,
            rebalance_timeout_ms=10_000,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=SUBSCRIPTION) for name in protocols],
        )
        return self.call(request, JoinGroupResponse, version)

    def member(self, **options: Any) -> str:
        """Join a new group as its only member. The group is in generation 1, between join and sync.
        Return the member id."""
        response = self.join(version=3, **options)
        assert (response.error_code, response.generation_id) == (0, 1)
        return str(response.member_id)

    def sync(
        self, member_id: str, generation: int = 1, assignments: dict[str, bytes] | None = None, **options: Any
    ) -> Any:
        request = SyncGroupRequest(
            group_id=options.get("group", self.group),
            generation_id=generation,
            member_id=member_id,
            group_instance_id=options.get("instance_id"),
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        )
        return self.call(request, SyncGroupResponse, 3)

    def heartbeat(
        self, member_id: str, generation: int = 1, instance_id: str | None = None, group: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group if group is None else group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
        )
        return ErrorCode(self.call(request, HeartbeatResponse, 3).error_code)

    def leave(self, *members: tuple[str, str | None], group: str | None = None) -> Any:
        request = LeaveGroupRequest(
            group_id=self.group if group is None else group,
            members=[MemberIdentity(member_id=m, group_instance_id=i) for m, i in members],
        )
        return self.call(request, LeaveGroupResponse, 3)

    def commit(
        self,
        member_id: str = "",
        generation: int = -1,
        *,
        topic: str = TOPIC,
        partition: int = 0,
        metadata: str | None = "",
        instance_id: str | None = None,
        offset: int = 5,
        version: int = 7,
    ) -> ErrorCode:
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
            ],
        )
        return ErrorCode(self.call(request, OffsetCommitResponse, version).topics[0].partitions[0].error_code)

    def fetch(self, topic: str = TOPIC, partition: int = 0, version: int = 5) -> tuple[int, ErrorCode]:
        request = OffsetFetchRequest(
            group_id=self.group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])]
        )
        response = self.call(request, OffsetFetchResponse, version)
        (result,) = response.topics[0].partitions
        return result.committed_offset, ErrorCode(result.error_code)

    def describe(self, group: str) -> Any:
        return self.call(DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse, 4).groups[0]

    def delete(self, *groups: str) -> dict[str, ErrorCode]:
        response = self.call(DeleteGroupsRequest(groups_names=list(groups)), DeleteGroupsResponse, 1)
        return {result.group_id: ErrorCode(result.error_code) for result in response.results}

    def delete_offset(self, group: str, topic: str = TOPIC) -> tuple[ErrorCode, list[ErrorCode]]:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])],
        )
        response = self.call(request, OffsetDeleteResponse, 0)
        codes = [ErrorCode(p.error_code) for t in response.topics for p in t.partitions]
        return ErrorCode(response.error_code), codes


@pytest.fixture
def client(broker: Target) -> Iterator[GroupClient]:
    client = GroupClient(broker)
    yield client
    client.close()


def test_invalid_joins_are_rejected(client: GroupClient) -> None:
    assert client.join(group="").error_code == ErrorCode.INVALID_GROUP_ID
    assert client.join(session=5_999).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert client.join(session=1_800_001).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert client.join("unknown").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.join(protocols=()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.join(protocol_type="").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    response = client.join()
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert response.member_id.startswith("wire-")
    member = client.member()
    assert client.join(protocols=("sticky",)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.join(protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.join("unknown").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.join(member, instance_id="other").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.heartbeat(member) is ErrorCode.NONE


def test_invalid_syncs_are_rejected(client: GroupClient) -> None:
    member = client.member()
    assert client.sync("unknown").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.sync(member, 0).error_code == ErrorCode.ILLEGAL_GENERATION
    assert client.sync(member, 2).error_code == ErrorCode.ILLEGAL_GENERATION
    assert client.sync(member, group="").error_code == ErrorCode.INVALID_GROUP_ID
    assert client.sync(member, group="missing").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.sync(member, instance_id="other").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    response = client.sync(member, 1, {member: b"assignment", "unknown": b"ignored"})
    assert (response.error_code, response.assignment) == (0, b"assignment")


def test_invalid_heartbeats_are_rejected(client: GroupClient) -> None:
    member = client.member()
    client.sync(member, 1, {member: b""})
    assert client.heartbeat("unknown") is ErrorCode.UNKNOWN_MEMBER_ID
    assert client.heartbeat(member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert client.heartbeat(member, 7) is ErrorCode.ILLEGAL_GENERATION
    assert client.heartbeat(member, 1, "other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert client.heartbeat(member, group="") is ErrorCode.INVALID_GROUP_ID
    assert client.heartbeat(member, group="missing") is ErrorCode.UNKNOWN_MEMBER_ID
    assert client.heartbeat(member) is ErrorCode.NONE


def test_invalid_leaves_are_rejected(client: GroupClient) -> None:
    member = client.member()
    results = client.leave(("unknown", None), ("", "no-instance"), (member, "no-instance")).members
    assert [ErrorCode(result.error_code) for result in results] == [ErrorCode.UNKNOWN_MEMBER_ID] * 3
    assert client.leave((member, None), group="").error_code == ErrorCode.INVALID_GROUP_ID
    response = client.leave((member, None), group="missing")
    assert (response.error_code, response.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    assert client.heartbeat(member) is ErrorCode.NONE


def test_requests_of_a_fenced_static_member_are_rejected(client: GroupClient) -> None:
    first = client.join(instance_id="static")
    assert first.error_code == 0
    client.sync(first.member_id, 1, {first.member_id: b"x"}, instance_id="static")
    second = client.join(instance_id="static")
    assert (second.error_code, second.generation_id) == (0, 1)
    assert client.heartbeat(first.member_id, 1, "static") is ErrorCode.FENCED_INSTANCE_ID
    assert client.sync(first.member_id, 1, instance_id="static").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert client.join(first.member_id, instance_id="static").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert client.commit(first.member_id, 1, instance_id="static") is ErrorCode.FENCED_INSTANCE_ID
    assert client.leave((first.member_id, "static")).members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert client.heartbeat(second.member_id, 1, "static") is ErrorCode.NONE
    assert client.sync(second.member_id, 1, instance_id="static").assignment == b"x"


def test_a_full_group_accepts_no_member(client: GroupClient, broker: Target) -> None:
    first = client.join(instance_id="one")
    second_client = GroupClient(broker)
    second_client.group = client.group
    try:
        client.sync(first.member_id, 1, {}, instance_id="one")
        pending = second_client._wire.send_request(11, 5, _join_bytes(client.group, "two"))
        assert pending
        time.sleep(0.5)
        rejoined = client.join(first.member_id, instance_id="one")
        assert rejoined.generation_id == 2
        client.sync(first.member_id, 2, {}, instance_id="one")
        third = client.join(instance_id="three")
        assert (third.error_code, third.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    finally:
        second_client.close()


def _join_bytes(group: str, instance_id: str) -> bytes:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    ).to_bytes(5)


def test_invalid_commits_are_rejected(client: GroupClient) -> None:
    assert client.commit("m", 3) is ErrorCode.ILLEGAL_GENERATION
    assert client.commit(topic="missing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.commit(partition=2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.commit(metadata="x" * 4_097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert client.fetch() == (-1, ErrorCode.NONE)
    # In Kafka 3.9 a rejected commit leaves an empty group.
    assert client.describe(client.group).group_state in ("Dead", "Empty")
    member = client.member()
    assert client.commit(member, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    client.sync(member, 1, {member: b""})
    assert client.commit("unknown", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert client.commit(member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert client.commit(member, 2) is ErrorCode.ILLEGAL_GENERATION
    assert client.commit() is ErrorCode.UNKNOWN_MEMBER_ID
    assert client.commit(member, 1, instance_id="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert client.fetch() == (-1, ErrorCode.NONE)
    assert client.commit(member, 1, metadata="x" * 4_096) is ErrorCode.NONE
    assert client.fetch() == (5, ErrorCode.NONE)


def test_the_offset_of_an_unknown_partition_is_minus_one(client: GroupClient) -> None:
    assert client.fetch("missing") == (-1, ErrorCode.NONE)
    assert client.fetch(partition=9) == (-1, ErrorCode.NONE)
    assert client.fetch("missing", version=1) == (-1, ErrorCode.NONE)


def test_groups_and_offsets_in_use_are_not_deleted(client: GroupClient) -> None:
    member = client.member()
    assert client.delete(client.group, "missing") == {
        client.group: ErrorCode.NON_EMPTY_GROUP,
        "missing": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    client.sync(member, 1, {member: b""})
    assert client.commit(member, 1) is ErrorCode.NONE
    assert client.delete_offset(client.group) == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    assert client.delete_offset("missing")[0] is ErrorCode.GROUP_ID_NOT_FOUND
    assert client.delete_offset(client.group, "missing")[1] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.fetch() == (5, ErrorCode.NONE)
    assert client.leave((member, None)).error_code == 0
    assert client.delete(client.group) == {client.group: ErrorCode.NONE}
    assert client.fetch() == (-1, ErrorCode.NONE)


def test_missing_and_empty_groups_are_described_and_listed(client: GroupClient) -> None:
    assert client.describe("missing").group_state == "Dead"
    assert client.commit() is ErrorCode.NONE
    description = client.describe(client.group)
    assert (description.group_state, description.protocol_type, description.members) == ("Empty", "", [])
    response = client.call(ListGroupsRequest(), ListGroupsResponse, 2)
    assert (client.group, "") in {(g.group_id, g.protocol_type) for g in response.groups}


def test_an_unknown_coordinator_type_is_rejected(client: GroupClient) -> None:
    assert client.find(9) is ErrorCode.INVALID_REQUEST
