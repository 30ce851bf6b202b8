"""[pure] The interface of a group and of the protocol that serves it.

A group type (classic, consumer) has a `Group` class for its state and a `GroupProtocol` class for
its operations. The shard calls both without depending on the type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kavka.common.errors import ErrorCode
from kavka.coordinator.operations import Journal, Outcome
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kavka.protocol.messages.leave_group import MemberIdentity
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

# One partition of a commit: topic, topic id, the partition's struct in the request, and its struct
# in the response.
CommitItem = tuple[str, Any, Any, Any]

JoinCallback = Callable[[JoinGroupResponse], None]
SyncCallback = Callable[[SyncGroupResponse], None]


class OffsetCommit(NamedTuple):
    """A request to commit offsets. `generation` is the generation id or the member epoch. `version`
    is the version of OffsetCommit whose rules apply."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    version: int
    items: Sequence[CommitItem]
    retention_ms: int = -1
    is_transactional: bool = False


class OffsetExpiry(NamedTuple):
    """Which offsets of a group may expire. Their retention starts at `since`, or at their commit if
    `since` is None. Offsets of topics for which `is_in_use` is true do not expire."""

    since: int | None = None
    is_in_use: Callable[[str], bool] | None = None


class Group(Protocol):
    """The state of one group. A `check_` method raises KafkaError if the operation is not
    allowed."""

    type: str
    group_id: str
    protocol_type: str | None

    @property
    def state_name(self) -> str: ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def is_simple(self) -> bool:
        """Whether the group only stores offsets: no member has ever joined."""
        ...

    @property
    def is_removable(self) -> bool:
        """Whether the group may be removed when it has no offsets."""
        ...

    def check_commit(self, commit: OffsetCommit) -> Any:
        """Return the committing member, or None for a commit from outside the group."""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    def check_offset_delete(self) -> None: ...

    def check_delete(self) -> None: ...

    def subscribes_to(self, topic: str) -> bool: ...

    def offset_expiry(self) -> OffsetExpiry | None:
        """Return which offsets of the group may expire, or None if no offset may expire now."""
        ...


class GroupProtocol(Protocol):
    """The operations on groups of one type: the requests of the classic protocol, and the life
    cycle of groups."""

    def join(
        self,
        group: Any,
        request: JoinGroupRequest,
        version: int,
        client_id: str,
        client_host: str,
        respond: JoinCallback,
    ) -> Outcome: ...

    def sync(self, group: Any, request: SyncGroupRequest, version: int, respond: SyncCallback) -> Outcome: ...

    def heartbeat(self, group: Any, request: HeartbeatRequest) -> None: ...

    def leave(self, group: Any, leaving_members: Sequence[MemberIdentity]) -> Outcome:
        """Remove members. The response of the outcome is a list of MemberResponse."""
        ...

    def on_commit(self, group: Any, member: Any) -> None:
        """Called when a member has committed offsets. In some protocols a commit extends the
        session."""
        ...

    def remove(self, group: Any) -> Outcome:
        """Remove an empty group."""
        ...

    def on_loaded(self, group: Any) -> Outcome: ...

    def on_unloaded(self, group: Any, code: ErrorCode) -> None: ...


class Groups(Protocol):
    """The part of the shard that a group protocol uses."""

    groups: dict[str, Any]
    journal: Journal

    def add_replay(self, record_type: type, replay: Callable[[Any], None]) -> None: ...
