"""[pure] A classic consumer group: its members, generations and states.

Rules:
- A generation has a set of members, one protocol (assignor) that all of them support, a leader
  among them, and the leader's assignment for each member. Generation numbers only increase.
- A change of the members, or of a member's protocols, starts a rebalance: every member must rejoin
  (`PREPARING_REBALANCE`). A dynamic member that has not rejoined within the longest rebalance
  timeout of the members is removed. A static member stays until its session expires.
- When all members have joined, or the timeout has passed, the next generation starts
  (`COMPLETING_REBALANCE`). The leader gets the metadata of all members. All members send SyncGroup,
  the leader with the assignments.
- The assignments are committed to the log before a member gets its assignment (`STABLE`). So an
  assignment that a member has received is never lost.
- A static member (`group.instance.id`) that rejoins without a member id replaces the previous
  member with this instance id. The old member id is fenced.
- Only the states between rebalances are durable (EMPTY and STABLE). A coordinator that takes over
  during a rebalance loads the previous generation, and its members rejoin.

    from \\ to      empty  preparing  completing  stable  dead
    empty            .        x          .         .      x     a member joined
    preparing        x        .          x         .      x     all joined, or timeout
    completing       .        x          .         x      x     the assignment is in the log
    stable           .        x          .         .      x     a member joined, left or changed
    dead             .        .          .         .      x     deleted, expired or unloaded
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from uuid import uuid4

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.consumer.embedded import read_subscription
from kavka.coordinator.group.group import JoinCallback, OffsetCommit, OffsetExpiry, SyncCallback
from kavka.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from kavka.protocol.messages.offsets_topic import GroupMetadataValue, MemberMetadata
from kavka.protocol.messages.sync_group import SyncGroupResponse
from kavka.protocol.primitives import MAX_STRING_LENGTH, ProtocolError

CONSUMER = "consumer"

Protocols = tuple[tuple[str, bytes], ...]


def new_member_id(prefix: str) -> str:
    """Return a member id that starts with the client id or the instance id. The prefix is truncated
    if the id would be too long for a response."""
    suffix = f"-{uuid4()}"
    max_bytes = MAX_STRING_LENGTH - len(suffix)
    if len(prefix) * 4 > max_bytes:
        prefix = prefix.encode()[:max_bytes].decode(errors="ignore")
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


@dataclass(slots=True, eq=False, repr=False)
class Member:
    """One member. `awaiting_join` and `awaiting_sync` are the callbacks that complete the pending
    JoinGroup and SyncGroup of the member."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    awaiting_join: JoinCallback | None = field(init=False, default=None)
    awaiting_sync: SyncCallback | None = field(init=False, default=None)
    # Whether the member waits for its first generation.
    is_new: bool = field(init=False, default=False)
    # Milliseconds of the monotonic clock: when the session expires, and when the session timer
    # fires next.
    deadline: float = field(init=False, default=0.0)
    timer_at: float | None = field(init=False, default=None)

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata for a protocol. Raises INCONSISTENT_GROUP_PROTOCOL if the member does
        not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {self.member_id} does not support {protocol}.")

    def vote(self, candidates: set[str]) -> str:
        """Return the member's most preferred protocol among the candidates."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


@dataclass(slots=True, eq=False, repr=False)
class ClassicGroup:
    """Owns the members and the state of one group. Only `ClassicProtocol` and `ConsumerGroups`
    (migrations) change the group."""

    type = "classic"

    group_id: str
    state_timestamp: int | None
    state: State = field(init=False, default=EMPTY)
    generation: int = field(init=False, default=0)
    protocol_type: str | None = field(init=False, default=None)
    protocol: str | None = field(init=False, default=None)
    leader_id: str | None = field(init=False, default=None)
    # Members by id. Only the methods below add members, change their protocols and change their
    # pending requests, because these methods update the counts.
    members: dict[str, Member] = field(init=False, default_factory=dict)
    awaiting_join_count: int = field(init=False, default=0)
    # Number of members that support a protocol, by protocol.
    _supporters: dict[str, int] = field(init=False, default_factory=dict)
    # Member id by group.instance.id.
    static_members: dict[str, str] = field(init=False, default_factory=dict)
    # Member ids from MEMBER_ID_REQUIRED responses with which no client has joined yet.
    pending_join: set[str] = field(init=False, default_factory=set)
    # Member ids of members that have not sent SyncGroup in this generation.
    pending_sync: set[str] = field(init=False, default_factory=set)
    # Whether a member has joined since the delay of the first rebalance was last set.
    new_member_added: bool = field(init=False, default=False)
    # How much longer the first rebalance of an empty group may be delayed. None if the rebalance is
    # not delayed.
    remaining_delay_ms: int | None = field(init=False, default=None)
    # The topics of all members. None if they are not consumers or their metadata cannot be parsed.
    subscribed_topics: frozenset[str] | None = field(init=False, default=None)

    # ---- records

    @classmethod
    def from_value(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        group = cls(group_id, None if value.current_state_timestamp < 0 else value.current_state_timestamp)
        protocol = value.protocol or ""
        for stored_member in value.members:
            member = Member(
                stored_member.member_id,
                stored_member.group_instance_id,
                stored_member.client_id,
                stored_member.client_host,
                # Version 0 has no rebalance timeout.
                stored_member.rebalance_timeout
                if stored_member.rebalance_timeout != -1
                else stored_member.session_timeout,
                stored_member.session_timeout,
                ((protocol, bytes(stored_member.subscription)),),
                bytes(stored_member.assignment),
            )
            group.add(member, value.protocol_type)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.leader_id = value.leader
        group.state = STABLE if group.members else EMPTY
        group.subscribed_topics = group.find_subscribed_topics()
        return group

    def to_value(self, assignments: dict[str, bytes] | None = None) -> GroupMetadataValue:
        """Return the record value with `assignments`, by default the current assignments."""
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

    def transition(self, new_state: State, now_ms: int) -> None:
        """Raises RuntimeError if the transition is not allowed."""
        if new_state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"group {self.group_id} cannot change from {self.state.value} to {new_state.value}")
        self.state = new_state
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
        return self.state is EMPTY and self.generation == 0 and self.protocol_type is None and not self.pending_join

    @property
    def is_removable(self) -> bool:
        return self.state is EMPTY and not self.pending_join

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
        """Change the member id of a static member. Pending requests with the old id are fenced."""
        member = self.members[old_id]
        self.respond_to_join(member, join_error(old_id, ErrorCode.FENCED_INSTANCE_ID))
        self.respond_to_sync(member, SyncGroupResponse(error_code=int(ErrorCode.FENCED_INSTANCE_ID)))
        # Keep the order of the members: listings and leader elections use it.
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
        """Return the member with these ids. Raises FENCED_INSTANCE_ID or UNKNOWN_MEMBER_ID."""
        if instance_id is not None:
            current_id = self.static_members.get(instance_id)
            if current_id is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current_id != member_id:
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
        """Keep the leader if it has joined, else elect the first member that has joined. Return
        False if no member has joined."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def await_join(self, member: Member, respond: JoinCallback) -> None:
        """Store the callback of a JoinGroup. An earlier pending JoinGroup of the member fails with
        REBALANCE_IN_PROGRESS."""
        self.respond_to_join(member, join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        self.awaiting_join_count += 1
        member.awaiting_join = respond

    def respond_to_join(self, member: Member, response: JoinGroupResponse) -> bool:
        """Complete the pending JoinGroup. Return False if there is none."""
        respond, member.awaiting_join = member.awaiting_join, None
        if respond is None:
            return False
        self.awaiting_join_count -= 1
        respond(response)
        return True

    def respond_to_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        """Complete the pending SyncGroup. Return False if there is none."""
        respond, member.awaiting_sync = member.awaiting_sync, None
        if respond is None:
            return False
        respond(response)
        return True

    # ---- protocols

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)

    def _count_protocols(self, member: Member, change: int) -> None:
        for name in {name for name, _ in member.protocols}:
            supporters = self._supporters.get(name, 0) + change
            if supporters:
                self._supporters[name] = supporters
            else:
                del self._supporters[name]

    def candidates(self) -> set[str]:
        """Return the protocols that every member supports."""
        return {name for name, count in self._supporters.items() if count == len(self.members)}

    def select_protocol(self) -> str:
        """Return the candidate with the most votes. On a tie, the candidate with the first vote
        wins."""
        candidates = self.candidates()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols may join: all members, including the new
        member, must support a common protocol."""
        if self.state is EMPTY or not self.members:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supporters.get(name) == len(self.members) for name, _ in protocols)

    def next_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.remaining_delay_ms = None
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
        try:
            subscriptions = [read_subscription(member.metadata(self.protocol)) for member in self.members.values()]
        except ProtocolError:
            return None
        return frozenset(topic for subscription in subscriptions for topic in subscription.topics)

    def subscribes_to(self, topic: str) -> bool:
        return self.subscribed_topics is not None and topic in self.subscribed_topics

    # ---- responses

    def join_response(self, member: Member) -> JoinGroupResponse:
        """Return the JoinGroup response for the current generation. The response to the leader has
        the metadata of all members."""
        protocol = self.protocol or ""
        response = JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=protocol,
            leader=self.leader_id or "",
            member_id=member.member_id,
        )
        if member.member_id == self.leader_id:
            response.members = [
                JoinGroupResponseMember(
                    member_id=other.member_id, group_instance_id=other.instance_id, metadata=other.metadata(protocol)
                )
                for other in self.members.values()
            ]
        return response

    def sync_response(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    # ---- checks of operations on offsets and on the group

    def check_commit(self, commit: OffsetCommit) -> Member | None:
        if self.state is DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if commit.generation < 0 and self.state is EMPTY:
            return None
        member: Member | None = None
        if commit.generation >= 0 or commit.member_id or commit.instance_id is not None:
            member = self.check_member(commit.member_id, commit.instance_id)
            if commit.generation != self.generation:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        elif not commit.is_transactional and self.state is not EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not commit.is_transactional and self.state is COMPLETING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        return member

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Allow every client to fetch the offsets of a classic group."""

    def check_offset_delete(self) -> None:
        if self.state is DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        # In a group of consumers, offsets of topics without subscribers may be deleted. For other
        # protocol types, the subscribed topics are unknown.
        if self.state is not EMPTY and self.protocol_type != CONSUMER:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if self.state is DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if self.state is not EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def offset_expiry(self) -> OffsetExpiry | None:
        if self.protocol_type is None:
            return OffsetExpiry()
        if self.state is EMPTY:
            return OffsetExpiry(since=self.state_timestamp)
        if self.protocol_type == CONSUMER and self.state is STABLE and self.subscribed_topics is not None:
            return OffsetExpiry(is_in_use=self.subscribes_to)
        return None


def join_error(member_id: str, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=int(code), member_id=member_id, protocol_name="")
