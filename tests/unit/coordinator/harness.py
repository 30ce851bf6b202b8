"""A shard of groups with its records in a list, and members that talk to it as clients do."""

from __future__ import annotations

from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group import records
from kavka.coordinator.group.config import GroupConfig
from kavka.coordinator.group.shard import GroupShard
from kavka.coordinator.operations import Outcome
from kavka.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kavka.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kavka.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitResponsePartition
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kavka.protocol.primitives import ZERO_UUID
from tests.unit.coordinator.fakes import FakeClock, FakeTimers

GROUP = "a-group"
SESSION = 10_000
REBALANCE = 60_000
DELAY = 3_000


def subscription(*topics: str) -> bytes:
    return b"\x00\x00" + ConsumerProtocolSubscription(topics=list(topics)).to_bytes(0)


class Harness:
    """`failure` makes the appends that follow fail; `held` keeps them from being committed until
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
        return GroupShard(self.clock, self.timers, self.config)

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
        """The coordinator loses its state; another one loads the records."""
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
    ) -> Answer:
        answer = Answer()
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
            self.submit(self.shard.join(request, version, client, "/127.0.0.1", answer))
        except KafkaError as error:
            if answer.response is None:
                answer(JoinGroupResponse(error_code=int(error.code), member_id=member_id))
        return answer

    def join_new(self, **options: Any) -> Answer:
        """Both steps of a new dynamic member."""
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
    ) -> Answer:
        answer = Answer()
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
            self.submit(self.shard.sync(request, version, answer))
        except KafkaError as error:
            if answer.response is None:
                answer(SyncGroupResponse(error_code=int(error.code)))
        return answer

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
            commit = OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_metadata=metadata,
                commit_timestamp=timestamp,
                committed_leader_epoch=leader_epoch,
            )
            items.append((topic, ZERO_UUID, commit, OffsetCommitResponsePartition(partition_index=partition)))
        try:
            made = self.shard.commit_offsets(group, member_id, instance_id, generation, version, retention_ms, items)
            self.submit(Outcome(made))
        except KafkaError as error:
            return dict.fromkeys(offsets, error.code)
        return {(t, a.partition_index): ErrorCode(a.error_code) for t, _, _, a in items}

    def offset(self, topic: str, partition: int, group: str = GROUP) -> int | None:
        committed = self.shard.offsets.get(group, topic, partition)
        return None if committed is None else committed.offset

    # ---- whole groups

    def stable(self, count: int = 1, **options: Any) -> list[str]:
        """A stable group of new members; the first one leads, and each has its own number as
        assignment."""
        answers = [self.join_new(**options) for _ in range(count)]
        self.wait_for(answers[0])
        return self.finish_sync(answers)

    def wait_for(self, answer: Answer) -> None:
        while answer.waits:
            self.advance(DELAY)

    def finish_sync(self, answers: list[Answer]) -> list[str]:
        ids = [answer.response.member_id for answer in answers]
        assert all(answer.code is ErrorCode.NONE for answer in answers), [a.code for a in answers]
        generation = answers[0].response.generation_id
        leader = answers[0].response.leader
        named = (answers[0].response.protocol_type, answers[0].response.protocol_name)
        assignments = {member: str(number).encode() for number, member in enumerate(ids)}
        for member in ids:
            self.sync(member, generation, assignments if member == leader else None, protocol=named)
        assert self.state == "Stable"
        return ids


class Answer:
    """The response of a request that may have to wait."""

    def __init__(self) -> None:
        self.response: Any = None

    def __call__(self, response: Any) -> None:
        assert self.response is None, "answered twice"
        self.response = response

    @property
    def waits(self) -> bool:
        return self.response is None

    @property
    def code(self) -> ErrorCode:
        assert self.response is not None, "not answered"
        return ErrorCode(self.response.error_code)
