"""[pure] Assignors of classic groups: the leader of a group runs an assignor that all members
support.

A custom assignor is any object with `name` and `assign`; the other methods of `Assignor` are
optional. An item of `partition.assignment.strategy` is an assignor, its class, or the dotted name
of its class. Kafka's assignors can be named by their Java class or by their protocol name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kavka.client import classes
from kavka.common.config import ConfigError
from kavka.common.types import TopicPartition

SETTING = "partition.assignment.strategy"
_PACKAGE = "kavka.client.consumer.assignors"
_BY_CLASS = {
    "RangeAssignor": f"{_PACKAGE}.range:RangeAssignor",
    "RoundRobinAssignor": f"{_PACKAGE}.round_robin:RoundRobinAssignor",
    "StickyAssignor": f"{_PACKAGE}.sticky:StickyAssignor",
    "CooperativeStickyAssignor": f"{_PACKAGE}.sticky:CooperativeStickyAssignor",
}
ASSIGNORS = {
    **_BY_CLASS,
    "range": _BY_CLASS["RangeAssignor"],
    "roundrobin": _BY_CLASS["RoundRobinAssignor"],
    "sticky": _BY_CLASS["StickyAssignor"],
    "cooperative-sticky": _BY_CLASS["CooperativeStickyAssignor"],
}


class Subscription(NamedTuple):
    """A member's metadata in JoinGroup. Only members that keep partitions while they rejoin send
    `owned`. A `generation` of -1 is unknown."""

    topics: frozenset[str]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None


class Assignment(NamedTuple):
    """The partitions of a member, and data that the assignor sends to the member."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


class Assignor:
    """The base class of assignors. A custom assignor does not have to inherit from it.

    `name` is the protocol name in JoinGroup. With `cooperative`, members keep their partitions
    while they rejoin, and `assign` must not assign a partition that another member still owns
    (`check_cooperative`).
    """

    name = ""
    cooperative = False

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        """Return data that this member sends to the `assign` method of the leader."""
        return None

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Any]:
        """Return an `Assignment` or a list of partitions for each member id. `partitions` has the
        partition count of each existing topic to which a member subscribes."""
        raise NotImplementedError

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """Called in each member with its assignment."""


def load(values: Any, configs: Mapping[str, Any]) -> list[Any]:
    """Create the assignors of the setting, in the order of the setting. Raises ConfigError."""
    items = values if isinstance(values, (list, tuple)) else (values,)
    loaded = [classes.make(SETTING, item, ASSIGNORS, "an assignor", configs) for item in items]
    if not loaded:
        raise ConfigError(SETTING, "must name an assignor")
    names = [getattr(assignor, "name", None) for assignor in loaded]
    for assignor, name in zip(loaded, names, strict=True):
        if not isinstance(name, str) or not name or not callable(getattr(assignor, "assign", None)):
            raise ConfigError(
                SETTING, f"{type(assignor).__name__} is not an assignor: it needs a name and a method assign"
            )
        if names.count(name) > 1:
            raise ConfigError(SETTING, f"two assignors have the name {name}")
    return loaded


def members_in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Return the member ids: first static members by instance id, which does not change on a
    restart, then dynamic members by member id."""
    return sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m, m))


def check_cooperative(members: Mapping[str, Subscription], assignments: Mapping[str, Assignment]) -> str | None:
    """Describe a partition that is assigned to a member while another member owns it; None if there
    is no such partition."""
    owners = {tp: member_id for member_id, subscription in members.items() for tp in subscription.owned}
    for member_id, assignment in assignments.items():
        for tp in assignment.partitions:
            owner = owners.get(tp)
            if owner is not None and owner != member_id:
                return f"{tp} is assigned to {member_id} while {owner} still owns it"
    return None


def as_assignments(returned: Mapping[str, Any], members: Iterable[str]) -> dict[str, Assignment]:
    """Convert the result of an assignor. Members without an entry get an empty assignment."""
    result: dict[str, Assignment] = {}
    for member_id in members:
        assignment = returned.get(member_id, ())
        if not isinstance(assignment, Assignment):
            assignment = Assignment(tuple(TopicPartition(*tp) for tp in assignment))
        result[member_id] = assignment
    return result
