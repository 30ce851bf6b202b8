"""[pure] The interface of a group and of the protocol that serves it.

A group type (classic, consumer) has a `Group` class for its state and a `GroupProtocol` for its
operations. The shard calls both without knowing the type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kavka.common.errors import ErrorCode
from kavka.coordinator.operations import Journal, Outcome
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kavka.protocol.messages.leave_group import LeaveGroupRequest
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

# A partition of a commit: topic, topic id, its part of the request and its part of the response.
CommitItem = tuple[str, Any, Any, Any]

JoinCallback = Callable[[JoinGroupResponse], None]
SyncCallback = Callable[[SyncGroupResponse], None]


class OffsetExpiry(NamedTuple):
    """Which offsets of a group may expire. Retention starts at `since`, or at the commit if None.
    Offsets of topics for which `is_in_use` is true do not expire."""

    since: int | None = None
    is_in_use: Callable[[str], bool] | None = None


class Group(Protocol):
    """The state of one group. The checks raise KafkaError."""

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

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        transactional: bool,
        items: Sequence[CommitItem],
    ) -> Any:
        """The committing member, or None for a commit from outside the group."""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    def check_offset_delete(self) -> None: ...

    def check_delete(self) -> None: ...

    def subscribes_to(self, topic: str) -> bool: ...

    def offset_expiry(self) -> OffsetExpiry | None:
        """None: no offset of the group may expire now."""
        ...


class GroupProtocol(Protocol):
    """The operations on groups of one type, with requests of the classic protocol."""

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

    def leave(self, group: Any, request: LeaveGroupRequest, version: int) -> Outcome: ...

    def on_commit(self, group: Any, member: Any) -> None:
        """A member has committed offsets, which counts as a heartbeat in some protocols."""
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
