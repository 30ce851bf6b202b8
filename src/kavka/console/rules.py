"""The alert rules, and the violations of a rule in a sample. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from kavka.console.formats import number_text
from kavka.console.state import Sample


class Kind(Enum):
    LAG = "lag"
    OFFLINE = "offline-partitions"
    UNDER_REPLICATED = "under-replicated"
    MISSING = "brokers-gone"
    DISK = "disk"
    UNREACHABLE = "unreachable"


class Format(Enum):
    """The format of the messages to a webhook. Slack's is also that of Mattermost and others."""

    JSON = "json"
    SLACK = "slack"


@dataclass(frozen=True, slots=True)
class KindDescription:
    """The description and the defaults of a kind of rule."""

    help: str
    unit: str
    threshold: float
    subject: str
    """The type of the rule's subject, "" if the rule has no subject."""
    severe: bool


KINDS: Mapping[Kind, KindDescription] = {
    Kind.LAG: KindDescription("The lag of a group exceeds the threshold", "messages", 10_000, "group", False),
    Kind.OFFLINE: KindDescription("More partitions than the threshold have no leader", "partitions", 0, "", True),
    Kind.UNDER_REPLICATED: KindDescription(
        "More partitions than the threshold are under-replicated", "partitions", 0, "", False
    ),
    Kind.MISSING: KindDescription(
        "A broker that was seen before, or has replicas, is not in the cluster", "", 0, "", True
    ),
    Kind.DISK: KindDescription("The disk of a log directory is fuller than the threshold", "%", 85, "broker", True),
    Kind.UNREACHABLE: KindDescription("No broker of the cluster responds", "", 0, "", True),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert rule. `subject` is a name or a pattern with * and ?. A violation must last `for_s`
    seconds before the alert is raised."""

    id: int
    kind: Kind
    subject: str = "*"
    threshold: float = 0.0
    for_s: float = 0.0
    webhook: str = ""
    enabled: bool = True
    format: Format = Format.JSON
    silenced_until: float = 0.0
    """No messages are sent to the webhook until this time. Alerts are raised as usual."""


def violations_of(rule: Rule, sample: Sample | None, error: str) -> dict[str, str] | None:
    """Return a message for each subject that violates the rule, or None if the rule cannot be
    evaluated because the cluster did not respond."""
    if rule.kind is Kind.UNREACHABLE:
        return {"cluster": f"no broker responds: {error}"} if error else {}
    if sample is None or error:
        return None
    return _CHECKS[rule.kind](rule, sample)


def _lag(rule: Rule, sample: Sample) -> dict[str, str] | None:
    if not sample.groups_at:
        return None
    return {
        group.id: f"group {group.id} has a lag of {number_text(group.lag)} messages "
        f"(threshold {number_text(rule.threshold)})"
        for group in sample.groups.values()
        if group.lag is not None and group.lag > rule.threshold and fnmatchcase(group.id, rule.subject)
    }


def _offline(rule: Rule, sample: Sample) -> dict[str, str]:
    count = len(sample.offline)
    if count <= rule.threshold:
        return {}
    first = sample.offline[0]
    return {"partitions": f"{count} partition{_s(count)} without a leader, for example {first.topic}-{first.id}"}


def _under_replicated(rule: Rule, sample: Sample) -> dict[str, str]:
    count = len(sample.under_replicated)
    if count <= rule.threshold:
        return {}
    first = sample.under_replicated[0]
    return {"partitions": f"{count} under-replicated partition{_s(count)}, for example {first.topic}-{first.id}"}


def _missing_brokers(rule: Rule, sample: Sample) -> dict[str, str]:
    return {str(broker): f"broker {broker} is not in the cluster" for broker in sample.missing_brokers}


def _disk(rule: Rule, sample: Sample) -> dict[str, str]:
    violations = {}
    for broker, dirs in sample.dirs.items():
        for directory in dirs:
            share = directory.used_share
            if share is not None and share * 100 > rule.threshold and fnmatchcase(str(broker), rule.subject):
                violations[f"{broker} {directory.path}"] = (
                    f"the disk of {directory.path} on broker {broker} is {share:.0%} full "
                    f"(threshold {rule.threshold:g}%)"
                )
    return violations


def _s(count: int) -> str:
    return "" if count == 1 else "s"


_CHECKS: Mapping[Kind, Callable[[Rule, Sample], dict[str, str] | None]] = {
    Kind.LAG: _lag,
    Kind.OFFLINE: _offline,
    Kind.UNDER_REPLICATED: _under_replicated,
    Kind.MISSING: _missing_brokers,
    Kind.DISK: _disk,
}

# The initial rules of a cluster.
DEFAULTS = (
    Rule(0, Kind.OFFLINE),
    Rule(0, Kind.MISSING),
    Rule(0, Kind.UNREACHABLE),
    Rule(0, Kind.UNDER_REPLICATED, for_s=300.0),
    Rule(0, Kind.DISK, threshold=85.0),
)
