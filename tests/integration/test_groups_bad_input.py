"""Wrong requests about groups get the code that Apache Kafka gives, and change nothing. Runs
against either."""

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
# Name of the topic and consumer's assignor data in the simplest form: version 0, one topic, no user
# data.
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x05known\xff\xff\xff\xff"


@pytest.fixture(scope="module")
def broker(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    overrides = {"group.initial.rebalance.delay.ms": 0, "group.max.size": 2}
    started = start_target(target_name, tmp_path_factory.mktemp("bad-input"), overrides)
    try:
        wire.create_topic(started.address, TOPIC, 2)
        yield started
    finally:
        started.close()


class Caller:
    """A connection that speaks the newest versions without flexible fields."""

    def __init__(self, broker: Target) -> None:
        self._wire = wire.Wire(broker.address, timeout=20)
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        wait_until(self._is_coordinated, timeout=30, what="a coordinator", interval=0.1)

    def call(self, request: Any, response: Any, version: int) -> Any:
        answer = self._wire.call(request.API_KEY, version, request.to_bytes(version))
        data = answer.data[answer.position :]
        return response.decode(data, 0, version)[0]

    def _is_coordinated(self) -> bool:
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
        """A new group with one member in it, in generation 1, between join and sync."""
        answer = self.join(version=3, **options)
        assert (answer.error_code, answer.generation_id) == (0, 1)
        return str(answer.member_id)

    def sync(
        self, member_id: str, generation: int = 1, assignments: dict[str, bytes] | None = None, **more: Any
    ) -> Any:
        request = SyncGroupRequest(
            group_id=more.get("group", self.group),
            generation_id=generation,
            member_id=member_id,
            group_instance_id=more.get("instance_id"),
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
def caller(broker: Target) -> Iterator[Caller]:
    made = Caller(broker)
    yield made
    made.close()


def test_bad_joins(caller: Caller) -> None:
    assert caller.join(group="").error_code == ErrorCode.INVALID_GROUP_ID
    assert caller.join(session=5_999).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert caller.join(session=1_800_001).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert caller.join("unknown").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.join(protocols=()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert caller.join(protocol_type="").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    required = caller.join()
    assert required.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert required.member_id.startswith("wire-")
    member = caller.member()
    assert caller.join(protocols=("sticky",)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert caller.join(protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert caller.join("unknown").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.join(member, instance_id="mine").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.heartbeat(member) is ErrorCode.NONE


def test_bad_syncs(caller: Caller) -> None:
    member = caller.member()
    assert caller.sync("unknown").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.sync(member, 0).error_code == ErrorCode.ILLEGAL_GENERATION
    assert caller.sync(member, 2).error_code == ErrorCode.ILLEGAL_GENERATION
    assert caller.sync(member, group="").error_code == ErrorCode.INVALID_GROUP_ID
    assert caller.sync(member, group="missing").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.sync(member, instance_id="other").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    done = caller.sync(member, 1, {member: b"mine", "stranger": b"not yours"})
    assert (done.error_code, done.assignment) == (0, b"mine")


def test_bad_heartbeats(caller: Caller) -> None:
    member = caller.member()
    caller.sync(member, 1, {member: b""})
    assert caller.heartbeat("unknown") is ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.heartbeat(member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert caller.heartbeat(member, 7) is ErrorCode.ILLEGAL_GENERATION
    assert caller.heartbeat(member, 1, "other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.heartbeat(member, group="") is ErrorCode.INVALID_GROUP_ID
    assert caller.heartbeat(member, group="missing") is ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.heartbeat(member) is ErrorCode.NONE


def test_bad_leaves(caller: Caller) -> None:
    member = caller.member()
    answers = caller.leave(("unknown", None), ("", "no-instance"), (member, "no-instance")).members
    assert [ErrorCode(a.error_code) for a in answers] == [ErrorCode.UNKNOWN_MEMBER_ID] * 3
    assert caller.leave((member, None), group="").error_code == ErrorCode.INVALID_GROUP_ID
    missing = caller.leave((member, None), group="missing")
    assert (missing.error_code, missing.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    assert caller.heartbeat(member) is ErrorCode.NONE


def test_a_fenced_static_member(caller: Caller) -> None:
    first = caller.join(instance_id="static")
    assert first.error_code == 0
    caller.sync(first.member_id, 1, {first.member_id: b"x"}, instance_id="static")
    second = caller.join(instance_id="static")
    assert (second.error_code, second.generation_id) == (0, 1)
    assert caller.heartbeat(first.member_id, 1, "static") is ErrorCode.FENCED_INSTANCE_ID
    assert caller.sync(first.member_id, 1, instance_id="static").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert caller.join(first.member_id, instance_id="static").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert caller.commit(first.member_id, 1, instance_id="static") is ErrorCode.FENCED_INSTANCE_ID
    assert caller.leave((first.member_id, "static")).members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert caller.heartbeat(second.member_id, 1, "static") is ErrorCode.NONE
    assert caller.sync(second.member_id, 1, instance_id="static").assignment == b"x"


def test_a_full_group(caller: Caller, broker: Target) -> None:
    first = caller.join(instance_id="one")
    other = Caller(broker)
    other.group = caller.group
    try:
        caller.sync(first.member_id, 1, {}, instance_id="one")
        pending = other._wire.send_request(11, 5, _join_bytes(caller.group, "two"))
        assert pending
        time.sleep(0.5)
        rejoined = caller.join(first.member_id, instance_id="one")
        assert rejoined.generation_id == 2
        caller.sync(first.member_id, 2, {}, instance_id="one")
        third = caller.join(instance_id="three")
        assert (third.error_code, third.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    finally:
        other.close()


def _join_bytes(group: str, instance_id: str) -> bytes:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    ).to_bytes(5)


def test_bad_commits(caller: Caller) -> None:
    assert caller.commit("m", 3) is ErrorCode.ILLEGAL_GENERATION
    assert caller.commit(topic="missing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert caller.commit(partition=2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert caller.commit(metadata="x" * 4_097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert caller.fetch() == (-1, ErrorCode.NONE)
    # In Kafka 3.9 a commit that is refused leaves an empty group behind.
    assert caller.describe(caller.group).group_state in ("Dead", "Empty")
    member = caller.member()
    assert caller.commit(member, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    caller.sync(member, 1, {member: b""})
    assert caller.commit("unknown", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.commit(member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert caller.commit(member, 2) is ErrorCode.ILLEGAL_GENERATION
    assert caller.commit() is ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.commit(member, 1, instance_id="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.fetch() == (-1, ErrorCode.NONE)
    assert caller.commit(member, 1, metadata="x" * 4_096) is ErrorCode.NONE
    assert caller.fetch() == (5, ErrorCode.NONE)


def test_fetches_of_what_is_not_there(caller: Caller) -> None:
    assert caller.fetch("missing") == (-1, ErrorCode.NONE)
    assert caller.fetch(partition=9) == (-1, ErrorCode.NONE)
    assert caller.fetch("missing", version=1) == (-1, ErrorCode.NONE)


def test_deletions_of_what_must_stay(caller: Caller) -> None:
    member = caller.member()
    assert caller.delete(caller.group, "missing") == {
        caller.group: ErrorCode.NON_EMPTY_GROUP,
        "missing": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    caller.sync(member, 1, {member: b""})
    assert caller.commit(member, 1) is ErrorCode.NONE
    assert caller.delete_offset(caller.group) == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    assert caller.delete_offset("missing")[0] is ErrorCode.GROUP_ID_NOT_FOUND
    assert caller.delete_offset(caller.group, "missing")[1] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert caller.fetch() == (5, ErrorCode.NONE)
    assert caller.leave((member, None)).error_code == 0
    assert caller.delete(caller.group) == {caller.group: ErrorCode.NONE}
    assert caller.fetch() == (-1, ErrorCode.NONE)


def test_invalid_describe_and_list_requests(caller: Caller) -> None:
    assert caller.describe("missing").group_state == "Dead"
    assert caller.commit() is ErrorCode.NONE
    described = caller.describe(caller.group)
    assert (described.group_state, described.protocol_type, described.members) == ("Empty", "", [])
    listed = caller.call(ListGroupsRequest(), ListGroupsResponse, 2)
    assert (caller.group, "") in {(g.group_id, g.protocol_type) for g in listed.groups}


def test_a_coordinator_of_a_kind_that_does_not_exist(caller: Caller) -> None:
    assert caller.find(9) is ErrorCode.INVALID_REQUEST
