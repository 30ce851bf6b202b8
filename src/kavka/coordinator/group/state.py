"""[pure] A classic consumer group: its members, its generations, and the states between them.

The rules
- A generation is a set of members, one protocol (assignor) that all of them support, a leader among them, and an
  assignment for each that the leader made. The number of generations only goes up.
- A change of the members, or of what one of them asks for, begins a rebalance: every member has to join again
  (`PREPARING_REBALANCE`). Who has not when the longest rebalance timeout of the members is over is out, except static
  members, whose session has to run out.
- When all have joined, or the time is up, the next generation begins (`COMPLETING_REBALANCE`): members are told who
  leads, the leader what everybody asked for; all send SyncGroup, the leader with the assignments.
- The assignments are in the log before anyone is told (`STABLE`). So a generation that a member knows is never lost.
- A static member (`group.instance.id`) that comes back without a member id takes over the place of the one before it,
  and the old member id is fenced.
- Only what a group is between rebalances is durable (EMPTY or STABLE). A coordinator that takes over in the middle of a
  rebalance finds the generation before it, and its members join again.

    from \\ to      empty  preparing  completing  stable  dead
    empty            .        x          .         .      x     preparing: a member joined
    preparing        x        .          x         .      x     completing: all joined, or time is up; empty: nobody
    completing       .        x          .         x      x     stable: the leader's assignment is in the log
    stable           .        x          .         .      x     preparing: a member came, went or changed
    dead             .        .          .         .      x     deleted, expired or moved to another coordinator
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from uuid import uuid4

from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from kavka.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from kavka.protocol.messages.offsets_topic import GroupMetadataValue, MemberMetadata
from kavka.protocol.messages.sync_group import SyncGroupResponse
from kavka.protocol.primitives import MAX_STRING_LENGTH, ProtocolError

CONSUMER = "consumer"

AnswerJoin = Callable[[JoinGroupResponse], None]
AnswerSync = Callable[[SyncGroupResponse], None]
Protocols = tuple[tuple[str, bytes], ...]


def new_member_id(prefix: str) -> str:
    """A member id that begins with the client id or the instance id. One that were too long for a response would make
    the whole group impossible to describe: it has only the beginning of the prefix."""
    suffix = f"-{uuid4()}"
    room = MAX_STRING_LENGTH - len(suffix)
    if len(prefix) * 4 > room:
        prefix = prefix.encode()[:room].decode(errors="ignore")
    return prefix + suffix


class State(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY = State.EMPTY
PREPARING = State.PREPARING_REBALANCE
COMPLETING = State.COMPLETING_REBALANCE
STABLE = State.STABLE
DEAD = State.DEAD

TRANSITIONS: dict[State, frozenset[State]] = {
    EMPTY: frozenset({PREPARING, DEAD}),
    PREPARING: frozenset({EMPTY, COMPLETING, DEAD}),
    COMPLETING: frozenset({PREPARING, STABLE, DEAD}),
    STABLE: frozenset({PREPARING, DEAD}),
    DEAD: frozenset({DEAD}),
}


class Member:
    """One member. `awaiting_join` and `awaiting_sync` answer the request that it waits for, if there is one."""

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "deadline",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "timer_at",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.awaiting_join: AnswerJoin | None = None
        self.awaiting_sync: AnswerSync | None = None
        self.is_new = False
        # Milliseconds of the monotonic clock: when the session is over, and when the timer looks at it next.
        self.deadline = 0.0
        self.timer_at: float | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata(self, protocol: str) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {self.member_id} does not support {protocol}.")

    def vote(self, candidates: set[str]) -> str:
        """The first of its protocols, in the order that it prefers, that all members support."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


class ClassicGroup:
    type = "classic"

    __slots__ = (
        "_supporters",
        "awaiting_join_count",
        "generation",
        "group_id",
        "initial_delay_left",
        "leader_id",
        "members",
        "new_member_added",
        "pending_join",
        "pending_sync",
        "previous_state",
        "protocol",
        "protocol_type",
        "state",
        "state_timestamp",
        "static_members",
        "subscribed_topics",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.previous_state = EMPTY
        self.state_timestamp: int | None = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        # Members, requests and protocols are changed through the methods below, which keep the counts.
        self.members: dict[str, Member] = {}
        self.awaiting_join_count = 0
        self._supporters: dict[str, int] = {}  # by protocol: how many members support it
        self.static_members: dict[str, str] = {}  # group.instance.id -> member id
        self.pending_join: set[str] = set()  # were given a member id and have not joined with it yet
        self.pending_sync: set[str] = set()  # have not sent SyncGroup in this generation
        self.new_member_added = False
        # While the first rebalance of an empty group waits for more members: how long it may still be put off.
        self.initial_delay_left: int | None = None
        # None: cannot be told, as the group is not one of consumers or its metadata cannot be read.
        self.subscribed_topics: frozenset[str] | None = None

    # ---- as a record

    @classmethod
    def from_value(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        group = cls(group_id, value.current_state_timestamp)
        group.state_timestamp = None if value.current_state_timestamp < 0 else value.current_state_timestamp
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.leader_id = value.leader
        protocol = value.protocol or ""
        for saved in value.members:
            member = Member(
                saved.member_id,
                saved.group_instance_id,
                saved.client_id,
                saved.client_host,
                # Before version 1 there was no rebalance timeout of its own.
                saved.rebalance_timeout if saved.rebalance_timeout != -1 else saved.session_timeout,
                saved.session_timeout,
                ((protocol, bytes(saved.subscription)),),
                bytes(saved.assignment),
            )
            group.members[member.member_id] = member
            group._count_protocols(member, 1)
            if member.instance_id is not None:
                group.static_members[member.instance_id] = member.member_id
        group.state = STABLE if group.members else EMPTY
        group.subscribed_topics = group.find_subscribed_topics()
        return group

    def to_value(self, assignments: dict[str, bytes] | None = None) -> GroupMetadataValue:
        """The group as it would be with `assignments` (by default: with those that its members have)."""
        protocol = self.protocol
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=protocol,
            leader=self.leader_id,
            current_state_timestamp=-1 if self.state_timestamp is None else self.state_timestamp,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(protocol or ""),
                    assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )

    # ---- states

    def transition(self, to: State, now_ms: int) -> None:
        if to not in TRANSITIONS[self.state]:
            raise RuntimeError(f"group {self.group_id} cannot go from {self.state.value} to {to.value}")
        self.previous_state, self.state = self.state, to
        self.state_timestamp = now_ms

    @property
    def can_rebalance(self) -> bool:
        return PREPARING in TRANSITIONS[self.state]

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_simple(self) -> bool:
        """Used for nothing but its offsets: nobody ever joined."""
        return self.state is EMPTY and self.protocol_type is None and not self.pending_join

    # ---- members

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.pending_join.discard(member.member_id)

    def remove(self, member_id: str) -> Member | None:
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count_protocols(member, -1)
        if member.awaiting_join is not None:
            member.awaiting_join = None
            self.awaiting_join_count -= 1
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_join.discard(member_id)
        self.pending_sync.discard(member_id)
        return member

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """The static member goes on under a new member id; requests that wait under the old one are fenced."""
        member = self.members[old_id]
        if member.awaiting_join is not None:
            self.answer_join(member, join_error(old_id, ErrorCode.FENCED_INSTANCE_ID))
        if member.awaiting_sync is not None:
            self.answer_sync(member, SyncGroupResponse(error_code=int(ErrorCode.FENCED_INSTANCE_ID)))
        # Members are listed, and leaders elected, in the order in which they came: it keeps its place.
        members = {(new_id if key == old_id else key): value for key, value in self.members.items()}
        self.members.clear()
        self.members.update(members)
        member.member_id = new_id
        self.static_members[instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        if old_id in self.pending_sync:
            self.pending_sync.discard(old_id)
            self.pending_sync.add(new_id)
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member, where the ids are one's own; else FENCED_INSTANCE_ID or UNKNOWN_MEMBER_ID."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    @property
    def has_all_joined(self) -> bool:
        return not self.pending_join and self.awaiting_join_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Keep the leader where it has joined, else make one of those that have; False where none has."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def await_join(self, member: Member, answer: AnswerJoin) -> None:
        """A member that joins again before its first request was answered has given that one up."""
        self.answer_join(member, join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        self.awaiting_join_count += 1
        member.awaiting_join = answer

    def answer_join(self, member: Member, response: JoinGroupResponse) -> None:
        answer, member.awaiting_join = member.awaiting_join, None
        if answer is not None:
            self.awaiting_join_count -= 1
            answer(response)

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        answer, member.awaiting_sync = member.awaiting_sync, None
        if answer is None:
            return False
        answer(response)
        return True

    # ---- protocols

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)

    def _count_protocols(self, member: Member, change: int) -> None:
        for name in {name for name, _ in member.protocols}:
            left = self._supporters.get(name, 0) + change
            if left:
                self._supporters[name] = left
            else:
                del self._supporters[name]

    def candidates(self) -> set[str]:
        """The protocols that every member supports."""
        everyone = len(self.members)
        return {name for name, count in self._supporters.items() if count == everyone}

    def select_protocol(self) -> str:
        """The candidate with the most votes; of equals the one that was voted for first."""
        candidates = self.candidates()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these may join: one protocol must be left that all can use."""
        if self.state is EMPTY or not self.members:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        everyone = len(self.members)
        return any(self._supporters.get(name) == everyone for name, _ in protocols)

    def next_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.initial_delay_left = None
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.transition(COMPLETING, now_ms)
        else:
            self.protocol = None
            self.leader_id = None
            self.transition(EMPTY, now_ms)
        self.subscribed_topics = self.find_subscribed_topics()

    def find_subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            found = subscribed_topics(member.metadata(self.protocol))
            if found is None:
                return None
            topics.update(found)
        return frozenset(topics)

    def subscribes_to(self, topic: str) -> bool:
        return self.subscribed_topics is not None and topic in self.subscribed_topics

    # ---- answers

    def join_answer(self, member: Member) -> JoinGroupResponse:
        """What a member is told of the generation that it is in; the leader also what everybody asked for."""
        protocol = self.protocol or ""
        is_leader = member.member_id == self.leader_id
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=protocol,
            leader=self.leader_id or "",
            member_id=member.member_id,
            members=self.metadata_of_members() if is_leader else [],
        )

    def metadata_of_members(self) -> list[JoinGroupResponseMember]:
        protocol = self.protocol or ""
        return [
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata(protocol)
            )
            for member in self.members.values()
        ]

    def sync_answer(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    # ---- may offsets be committed, fetched, deleted, forgotten?

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, transactional: bool = False
    ) -> Member | None:
        """The member that commits, None for whoever is not one (and may commit, as the group is empty)."""
        if self.state is DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and self.state is EMPTY:
            return None
        member: Member | None = None
        if generation >= 0 or member_id or instance_id is not None:
            member = self.check_member(member_id, instance_id)
            if generation != self.generation:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional and self.state is not EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is COMPLETING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        return member

    def check_offset_delete(self) -> None:
        if self.state is DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        # While consumers are there, offsets of topics that they do not subscribe to may go; of other kinds of groups
        # nobody can tell what is in use.
        if self.state is not EMPTY and self.protocol_type != CONSUMER:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if self.state is DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if self.state is not EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)


def join_error(member_id: str, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=int(code), member_id=member_id, protocol_name="")


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """The topics of a consumer's subscription; None where the bytes are not one."""
    if len(metadata) < 2:
        return None
    version = int.from_bytes(metadata[:2], "big", signed=True)
    if version < 0:
        return None
    # A newer version begins with the fields of the one that is known.
    version = min(version, ConsumerProtocolSubscription.MAX_VERSION)
    try:
        subscription, _ = ConsumerProtocolSubscription.decode(metadata, 2, version)
    except ProtocolError:
        return None
    return list(subscription.topics)
