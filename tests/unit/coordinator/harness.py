"""A group shard whose log is a list, and requests to it."""

from __future__ import annotations

from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group import records
from kavka.coordinator.group.config import GroupConfig
from kavka.coordinator.group.group import OffsetCommit
from kavka.coordinator.group.shard import GroupShard
from kavka.coordinator.operations import Outcome
from kavka.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kavka.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kavka.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitResponsePartition
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kavka.protocol.primitives import ZERO_UUID
from tests.unit.coordinator.fakes import NO_TOPICS, FakeClock, FakeTimers

GROUP = "a-group"
SESSION = 10_000
REBALANCE = 60_000
DELAY = 3_000


def subscription(*topics: str) -> bytes:
    return b"\x00\x00" + ConsumerProtocolSubscription(topics=list(topics)).to_bytes(0)


class Harness:
    """A group shard. With `failure`, appends fail. With `hold`, appends are not committed until
    `release`."""

    def __init__(self, **config: Any) -> None:
        self.clock = FakeClock()
        self.config = GroupConfig(**({"initial_rebalance_delay_ms": DELAY} | config))
        self.log: list[tuple[bytes, bytes | None]] = []
        self.failure: ErrorCode | None = None
        self.hold = False
        self.held: list[Outcome] = []
        self.timers = FakeTimers(self.clock, self.submit)
        self.shard = self.new_shard()

    def new_shard(self) -> GroupShard:
        return GroupShard(self.clock, self.timers, self.config, NO_TOPICS)

    def submit(self, outcome: Outcome) -> Any:
        if outcome.records and self.failure is not None:
            error = KafkaError(self.failure)
            if outcome.on_append is not None:
                outcome.on_append(error)
            raise error
        for record in outcome.records:
            self.log.append(records.encode(record))
            if outcome.replay:
                self.shard.replay(record)
        self.shard.journal.clear()
        if self.hold and outcome.records:
            self.held.append(outcome)
        elif outcome.on_append is not None:
            outcome.on_append(None)
        return outcome.response

    def release(self) -> None:
        held, self.held, self.hold = self.held, [], False
        for outcome in held:
            if outcome.on_append is not None:
                outcome.on_append(None)

    def restart(self) -> None:
        """Discard the shard, and load a new shard from the log."""
        self.timers.timers.clear()
        self.shard = self.new_shard()
        for key, value in self.log:
            decoded = records.decode(key, value)
            if decoded is not None:
                self.shard.replay(decoded)
        self.shard.journal.clear()
        for outcome in self.shard.on_loaded():
            self.submit(outcome)

    def advance(self, ms: float) -> None:
        self.timers.advance(ms)

    @property
    def group(self) -> Any:
        return self.shard.groups[GROUP]

    @property
    def state(self) -> str:
        return self.group.state_name

    # ---- requests

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 9,
        protocols: Any = (("range", subscription("t")),),
        instance_id: str | None = None,
        session: int = SESSION,
        rebalance: int = REBALANCE,
        protocol_type: str = "consumer",
        client: str = "client",
        group: str = GROUP,
    ) -> PendingResponse:
        pending = PendingResponse()
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session,
            rebalance_timeout_ms=rebalance,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
        )
        try:
            self.submit(self.shard.join(request, version, client, "/127.0.0.1", pending))
        except KafkaError as error:
            if pending.response is None:
                pending(JoinGroupResponse(error_code=int(error.code), member_id=member_id))
        return pending

    def join_new(self, **options: Any) -> PendingResponse:
        """Send both JoinGroup requests of a new dynamic member."""
        first = self.join(**options)
        assert first.code is ErrorCode.MEMBER_ID_REQUIRED, first.code
        return self.join(first.response.member_id, **options)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        version: int = 5,
        instance_id: str | None = None,
        protocol: tuple[str | None, str | None] = ("consumer", "range"),
        group: str = GROUP,
    ) -> PendingResponse:
        pending = PendingResponse()
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol[0],
            protocol_name=protocol[1],
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        )
        try:
            self.submit(self.shard.sync(request, version, pending))
        except KafkaError as error:
            if pending.response is None:
                pending(SyncGroupResponse(error_code=int(error.code)))
        return pending

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None = None, group: str = GROUP
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance_id
        )
        try:
            self.shard.heartbeat(request)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def leave(self, *members: tuple[str, str | None], version: int = 5, group: str = GROUP) -> Any:
        request = LeaveGroupRequest(group_id=group)
        if version >= 3:
            request.members = [MemberIdentity(member_id=m, group_instance_id=i) for m, i in members]
        else:
            request.member_id = members[0][0]
        return self.submit(self.shard.leave(request, version))

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        metadata: str | None = "",
        version: int = 9,
        retention_ms: int = -1,
        timestamp: int = -1,
        leader_epoch: int = -1,
        group: str = GROUP,
    ) -> dict[tuple[str, int], ErrorCode]:
        items = []
        for (topic, partition), offset in offsets.items():
            requested = OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_metadata=metadata,
                commit_timestamp=timestamp,
                committed_leader_epoch=leader_epoch,
            )
            items.append((topic, ZERO_UUID, requested, OffsetCommitResponsePartition(partition_index=partition)))
        try:
            commit = OffsetCommit(group, member_id, instance_id, generation, version, items, retention_ms)
            self.submit(Outcome(self.shard.commit_offsets(commit)))
        except KafkaError as error:
            return dict.fromkeys(offsets, error.code)
        return {(topic, response.partition_index): ErrorCode(response.error_code) for topic, _, _, response in items}

    def offset(self, topic: str, partition: int, group: str = GROUP) -> int | None:
        committed = self.shard.offsets.get(group, topic, partition)
        return None if committed is None else committed.offset

    # ---- groups

    def stable(self, count: int = 1, **options: Any) -> list[str]:
        """Join new members until the group is stable. The first member is the leader, and the
        assignment of each member is its number. Return the member ids."""
        pending_joins = [self.join_new(**options) for _ in range(count)]
        self.wait_for(pending_joins[0])
        return self.finish_sync(pending_joins)

    def wait_for(self, pending: PendingResponse) -> None:
        while pending.is_pending:
            self.advance(DELAY)

    def finish_sync(self, pending_joins: list[PendingResponse]) -> list[str]:
        ids = [pending.response.member_id for pending in pending_joins]
        assert all(pending.code is ErrorCode.NONE for pending in pending_joins), [a.code for a in pending_joins]
        generation = pending_joins[0].response.generation_id
        leader = pending_joins[0].response.leader
        protocol = (pending_joins[0].response.protocol_type, pending_joins[0].response.protocol_name)
        assignments = {member: str(number).encode() for number, member in enumerate(ids)}
        for member in ids:
            self.sync(member, generation, assignments if member == leader else None, protocol=protocol)
        assert self.state == "Stable"
        return ids


class PendingResponse:
    """The callback of a request. `response` is None until the coordinator responds."""

    def __init__(self) -> None:
        self.response: Any = None

    def __call__(self, response: Any) -> None:
        assert self.response is None, "the coordinator has responded twice"
        self.response = response

    @property
    def is_pending(self) -> bool:
        return self.response is None

    @property
    def code(self) -> ErrorCode:
        assert self.response is not None, "there is no response"
        return ErrorCode(self.response.error_code)
