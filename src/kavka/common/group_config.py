"""Every setting that a single group may have of its own, with the broker settings that it falls back to.

The broker says how far each may go: `group.consumer.min.X` and `group.consumer.max.X` are the bounds of `consumer.X`.
"""

from __future__ import annotations

from kavka.common.config import INT, AtLeast, ConfigKey, ConfigTable, Synonym

K = ConfigKey

SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"

_SHARE = "it belongs to share groups, which Kavka has not"
_STREAMS = "it belongs to streams groups, which Kavka has not"

# fmt: off
SINGLE_GROUP_CONFIGS = ConfigTable("group", (
    K(SESSION_TIMEOUT, INT, 45000, "After this long without a heartbeat a member of the group is thrown out.",
      AtLeast(1), synonyms=(Synonym(f"group.{SESSION_TIMEOUT}"),)),
    K(HEARTBEAT_INTERVAL, INT, 5000, "How often the group's members are to send a heartbeat.",
      AtLeast(1), synonyms=(Synonym(f"group.{HEARTBEAT_INTERVAL}"),)),
    K(ASSIGNMENT_INTERVAL, INT, 1000, "The least time between two assignments of the group.",
      AtLeast(0), synonyms=(Synonym(f"group.{ASSIGNMENT_INTERVAL}"),)),
), foreign={"share.": _SHARE, "streams.": _STREAMS})
# fmt: on


def bounds(name: str) -> tuple[str, str]:
    """The broker settings that say between what the group's own may be."""
    quantity = name.removeprefix("consumer.")
    return f"group.consumer.min.{quantity}", f"group.consumer.max.{quantity}"
