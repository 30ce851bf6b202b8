"""[pure] Who reads what in a classic group: its leader runs the assignor that all members know.

An assignor of one's own is any object like `Assignor`; `partition.assignment.strategy` takes it, its class, or its
dotted name. Kafka's own are known by Java's class names and by the names that they go by in the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kavka.client import classes
from kavka.common.config import ConfigError
from kavka.common.types import TopicPartition

NAME = "partition.assignment.strategy"
_HERE = "kavka.client.consumer.assignors"
_BY_CLASS = {
    "RangeAssignor": f"{_HERE}.range:RangeAssignor",
    "RoundRobinAssignor": f"{_HERE}.round_robin:RoundRobinAssignor",
    "StickyAssignor": f"{_HERE}.sticky:StickyAssignor",
    "CooperativeStickyAssignor": f"{_HERE}.sticky:CooperativeStickyAssignor",
}
ASSIGNORS = {
    **_BY_CLASS,
    "range": _BY_CLASS["RangeAssignor"],
    "roundrobin": _BY_CLASS["RoundRobinAssignor"],
    "sticky": _BY_CLASS["StickyAssignor"],
    "cooperative-sticky": _BY_CLASS["CooperativeStickyAssignor"],
}


class Subscription(NamedTuple):
    """What a member says of itself when it joins. `owned` and `generation` are only there from members that do not give
    everything up before; -1 is a generation that is not known."""

    topics: frozenset[str]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None


class Assignment(NamedTuple):
    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


class Assignor:
    """The base of assignors; one's own need not inherit from it.

    `name` is the same in all members of a group. With `cooperative`, members keep reading what they have while they
    rejoin, and `assign` must leave out what has another owner until that one has given it up; `check_cooperative`
    tells.
    """

    name = ""
    cooperative = False

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        """What this member tells the leader's `assign`, beside its topics."""
        return None

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Any]:
        """For each member id an `Assignment`, or just partitions. `partitions` are counts by topic, of the topics that
        exist among those that any member subscribes to."""
        raise NotImplementedError

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """What this member was given."""


def load(values: Any, configs: Mapping[str, Any]) -> list[Any]:
    """The assignors of the setting, in its order."""
    items = values if isinstance(values, (list, tuple)) else (values,)
    found = [classes.make(NAME, item, ASSIGNORS, "an assignor", configs) for item in items]
    if not found:
        raise ConfigError(NAME, "it must name an assignor")
    names = [getattr(assignor, "name", None) for assignor in found]
    for assignor, name in zip(found, names, strict=True):
        if not isinstance(name, str) or not name or not callable(getattr(assignor, "assign", None)):
            raise ConfigError(NAME, f"a {type(assignor).__name__} is no assignor: it needs a name and a method assign")
        if names.count(name) > 1:
            raise ConfigError(NAME, f"there are two assignors with the name {name}")
    return found


def members_in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Static members first, by instance id, since that stays the same over restarts; then the others by member id."""
    return sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m, m))


def check_cooperative(members: Mapping[str, Subscription], assignments: Mapping[str, Assignment]) -> str | None:
    """What is wrong with an assignment for members that have not given up what they own; None if nothing."""
    owners = {tp: member_id for member_id, one in members.items() for tp in one.owned}
    for member_id, assignment in assignments.items():
        for tp in assignment.partitions:
            owner = owners.get(tp)
            if owner is not None and owner != member_id:
                return f"{tp} is given to {member_id} while {owner} still has it"
    return None


def as_assignments(found: Mapping[str, Any], members: Iterable[str]) -> dict[str, Assignment]:
    """What an assignor returned, whole: members that it left out get nothing."""
    result: dict[str, Assignment] = {}
    for member_id in members:
        given = found.get(member_id, ())
        if not isinstance(given, Assignment):
            given = Assignment(tuple(TopicPartition(*tp) for tp in given))
        result[member_id] = given
    return result
