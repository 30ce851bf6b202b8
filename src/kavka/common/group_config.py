"""Every setting of a single group, and the broker settings that are its defaults.

The broker settings `group.consumer.min.X` and `group.consumer.max.X` are the bounds of
`consumer.X`.
"""

from __future__ import annotations

from kavka.common.config import INT, AtLeast, ConfigKey, ConfigTable, Synonym

K = ConfigKey

SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"

_SHARE = "share groups are not supported"
_STREAMS = "streams groups are not supported"

# fmt: off
SINGLE_GROUP_CONFIGS = ConfigTable("group", (
    K(SESSION_TIMEOUT, INT, 45000, "A member that sends no heartbeat for this long is removed from the group.",
      AtLeast(1), synonyms=(Synonym(f"group.{SESSION_TIMEOUT}"),)),
    K(HEARTBEAT_INTERVAL, INT, 5000, "The heartbeat interval of the group's members.",
      AtLeast(1), synonyms=(Synonym(f"group.{HEARTBEAT_INTERVAL}"),)),
    K(ASSIGNMENT_INTERVAL, INT, 1000, "The minimum interval between two assignments of the group.",
      AtLeast(0), synonyms=(Synonym(f"group.{ASSIGNMENT_INTERVAL}"),)),
), unsupported_prefixes={"share.": _SHARE, "streams.": _STREAMS})
# fmt: on


def bounds(name: str) -> tuple[str, str]:
    """Return the names of the broker settings with the minimum and the maximum of a group
    setting."""
    quantity = name.removeprefix("consumer.")
    return f"group.consumer.min.{quantity}", f"group.consumer.max.{quantity}"
