"""[pure] The alert rules and their findings in a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from kavka.console.state import Sample


class Kind(Enum):
    LAG = "lag"
    OFFLINE = "offline-partitions"
    UNDER_REPLICATED = "under-replicated"
    GONE = "brokers-gone"
    DISK = "disk"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class KindOfRule:
    """The defaults of a kind of rule."""

    help: str
    unit: str
    threshold: float
    subject: str
    """The type of its subject; "" without a subject."""
    severe: bool


KINDS: Mapping[Kind, KindOfRule] = {
    Kind.LAG: KindOfRule("A group is behind by more than the threshold", "messages", 10_000, "group", False),
    Kind.OFFLINE: KindOfRule("More partitions than the threshold have no leader", "partitions", 0, "", True),
    Kind.UNDER_REPLICATED: KindOfRule("More partitions than the threshold miss replicas", "partitions", 0, "", False),
    Kind.GONE: KindOfRule("A broker that was here, or has replicas, is not in the cluster", "", 0, "", True),
    Kind.DISK: KindOfRule("The disk of a log directory is fuller than the threshold", "%", 85, "broker", True),
    Kind.UNREACHABLE: KindOfRule("No broker of the cluster answers", "", 0, "", True),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert rule. `subject` is a name or a pattern with * and ?; `for_s` is how long a finding
    must last before the alert is raised."""

    id: int
    kind: Kind
    subject: str = "*"
    threshold: float = 0.0
    for_s: float = 0.0
    webhook: str = ""
    enabled: bool = True


def findings(rule: Rule, sample: Sample | None, error: str) -> dict[str, str] | None:
    """A line per violating subject; None if unknown, because the cluster did not respond."""
    if rule.kind is Kind.UNREACHABLE:
        return {"cluster": f"no broker answers: {error}"} if error else {}
    if sample is None or error:
        return None
    return _FINDERS[rule.kind](rule, sample)


def _lag(rule: Rule, sample: Sample) -> dict[str, str] | None:
    if not sample.groups_at:
        return None
    return {
        group.id: f"group {group.id} is {group.lag:,} messages behind (more than {rule.threshold:,.0f})"
        for group in sample.groups.values()
        if group.lag is not None and group.lag > rule.threshold and fnmatchcase(group.id, rule.subject)
    }


def _offline(rule: Rule, sample: Sample) -> dict[str, str]:
    count = len(sample.offline)
    if count <= rule.threshold:
        return {}
    first = sample.offline[0]
    return {"partitions": f"{count} partition{_s(count)} without a leader, {first.topic}-{first.id} for one"}


def _under_replicated(rule: Rule, sample: Sample) -> dict[str, str]:
    count = len(sample.under_replicated)
    if count <= rule.threshold:
        return {}
    first = sample.under_replicated[0]
    verb = "miss" if count > 1 else "misses"
    return {"partitions": f"{count} partition{_s(count)} {verb} replicas, {first.topic}-{first.id} for one"}


def _missing_brokers(rule: Rule, sample: Sample) -> dict[str, str]:
    return {str(broker): f"broker {broker} is gone" for broker in sample.missing_brokers}


def _disk(rule: Rule, sample: Sample) -> dict[str, str]:
    findings_by_disk = {}
    for broker, dirs in sample.dirs.items():
        for directory in dirs:
            share = directory.used_share
            if share is not None and share * 100 > rule.threshold and fnmatchcase(str(broker), rule.subject):
                findings_by_disk[f"{broker} {directory.path}"] = (
                    f"the disk of {directory.path} on broker {broker} is {share:.0%} full "
                    f"(more than {rule.threshold:g} %)"
                )
    return findings_by_disk


def _s(count: int) -> str:
    return "" if count == 1 else "s"


_FINDERS: Mapping[Kind, Callable[[Rule, Sample], dict[str, str] | None]] = {
    Kind.LAG: _lag,
    Kind.OFFLINE: _offline,
    Kind.UNDER_REPLICATED: _under_replicated,
    Kind.GONE: _missing_brokers,
    Kind.DISK: _disk,
}

# The initial rules of a cluster.
DEFAULTS = (
    Rule(0, Kind.OFFLINE),
    Rule(0, Kind.GONE),
    Rule(0, Kind.UNREACHABLE),
    Rule(0, Kind.UNDER_REPLICATED, for_s=300.0),
    Rule(0, Kind.DISK, threshold=85.0),
)
