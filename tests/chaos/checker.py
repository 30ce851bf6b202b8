"""Compare the acknowledgements that the clients received with the final contents of the cluster.
No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.chaos.history import History, Id, Violation, decode

Read = tuple[int, bytes | None]
"""An offset and a value."""

MAY_RESEND = "rdkafka"
"""The producer that is forgiven for what `replicas.resent` describes."""
MANY = 5
"""Violations of a kind that are listed; the others are counted."""


def check(history: History, final: Mapping[int, Sequence[Read]]) -> list[Violation]:
    """`final` is every partition from its first record to its last, in the order of a reader."""
    violations = _some_of_each(history.violations)
    for partition in range(history.partitions):
        violations += _check_partition(history, partition, final.get(partition, ()))
    return violations


def check_group(history: History, ends: Mapping[int, int]) -> list[Violation]:
    """Once the group has read to the ends: it saw every record, and committed no further than
    that."""
    violations: list[Violation] = []
    for partition, end in ends.items():
        missing = sorted(set(range(end)) - history.group_read[partition])
        skipped = [f"the group never read offset {offset}" for offset in missing]
        violations += report("skipped", f"partition {partition}", skipped)
        if history.committed.get(partition, 0) > end:
            violations.append(
                Violation("committed", f"partition {partition} ends at {end}, committed is {history.committed}")
            )
    return violations


def _check_partition(history: History, partition: int, final: Sequence[Read]) -> list[Violation]:
    lost: list[str] = []
    doubled: list[str] = []
    reordered: list[str] = []
    changed: list[str] = []
    foreign: list[str] = []
    gaps: list[str] = []
    where: dict[Id, int] = {}
    at: dict[int, Id] = {}
    last: dict[str, int] = {}
    expected = 0
    for offset, value in final:
        if offset != expected:
            gaps.append(f"offset {offset} follows {expected - 1}")
        expected = offset + 1
        record = decode(value, partition)
        if record is None:
            foreign.append(f"offset {offset} has {value!r:.200}")
            continue
        if offset in at:
            changed.append(f"offset {offset} is there twice: {at[offset]} and {record}")
        at[offset] = record
        if record in where and record.producer == MAY_RESEND and (partition, offset) in history.resent:
            where[record] = offset
            continue
        if record in where:
            doubled.append(f"{record} is at {where[record]} and at {offset}")
            continue
        where[record] = offset
        if record.counter < last.get(record.producer, -1):
            reordered.append(f"{record} at {offset} comes after #{last[record.producer]}")
        last[record.producer] = max(record.counter, last.get(record.producer, -1))
    for (of, offset), record in history.acked.items():
        if of != partition or at.get(offset) == record:
            continue
        if record not in where:
            lost.append(f"{record} was acknowledged at {offset}; there is {at.get(offset, 'nothing')}")
        else:
            changed.append(f"{record} was acknowledged at {offset}, and is at {where[record]}")
    lost += [
        f"{record} was acknowledged" for record in sorted(history.acked_somewhere[partition]) if record not in where
    ]
    for (of, offset), record in history.shown.items():
        if of == partition and at.get(offset) != record and history.acked.get((of, offset)) != record:
            changed.append(f"offset {offset} was shown as {record}; now there is {at.get(offset, 'nothing')}")
    lists = {"lost": lost, "doubled": doubled, "reordered": reordered, "changed": changed, "foreign": foreign}
    violations: list[Violation] = []
    for kind, texts in (lists | {"gap": gaps}).items():
        violations += report(kind, f"partition {partition}", texts)
    return violations


def _some_of_each(violations: Sequence[Violation]) -> list[Violation]:
    """The first of each kind, and how many more there are."""
    counts: Counter[str] = Counter()
    examples: list[Violation] = []
    for violation in list(violations):
        counts[violation.kind] += 1
        if counts[violation.kind] <= MANY:
            examples.append(violation)
    more = {kind: count - MANY for kind, count in counts.items() if count > MANY}
    return examples + [Violation(kind, f"and {count} more while it went on") for kind, count in more.items()]


def report(kind: str, where: str, texts: Sequence[str]) -> list[Violation]:
    violations = [Violation(kind, f"{where}: {text}") for text in texts[:MANY]]
    if len(texts) > MANY:
        violations.append(Violation(kind, f"{where}: and {len(texts) - MANY} more"))
    return violations
