"""Compare the acknowledgements that the clients received with the final contents of the cluster.
No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.chaos.history import History, Id, Violation, decode

# An offset and a value.
Read = tuple[int, bytes | None]

# The producer whose duplicates are accepted in the case that `replicas.resent` describes.
MAY_RESEND = "rdkafka"
# Maximum number of violations of one kind that are listed. Further violations are counted.
MAX_LISTED = 5


def check(history: History, final: Mapping[int, Sequence[Read]]) -> list[Violation]:
    """Check the final records of every partition, in the order in which a consumer reads them."""
    violations = _first_of_each_kind(history.violations)
    for partition in range(history.partitions):
        violations += _check_partition(history, partition, final.get(partition, ()))
    return violations


def check_group(history: History, ends: Mapping[int, int]) -> list[Violation]:
    """Check a group that has read to the ends: it must have read every record, and must not have
    committed more."""
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
    offsets: dict[Id, int] = {}
    records: dict[int, Id] = {}
    last_counters: dict[str, int] = {}
    expected = 0
    for offset, value in final:
        if offset != expected:
            gaps.append(f"offset {offset} follows {expected - 1}")
        expected = offset + 1
        record = decode(value, partition)
        if record is None:
            foreign.append(f"offset {offset} has {value!r:.200}")
            continue
        if offset in records:
            changed.append(f"offset {offset} has two records: {records[offset]} and {record}")
        records[offset] = record
        if record in offsets and record.producer == MAY_RESEND and (partition, offset) in history.resent:
            offsets[record] = offset
            continue
        if record in offsets:
            doubled.append(f"{record} is at {offsets[record]} and at {offset}")
            continue
        offsets[record] = offset
        last_counter = last_counters.get(record.producer, -1)
        if record.counter < last_counter:
            reordered.append(f"{record} at {offset} follows #{last_counter}")
        last_counters[record.producer] = max(record.counter, last_counter)
    for (acked_partition, offset), record in history.acked.items():
        if acked_partition != partition or records.get(offset) == record:
            continue
        if record not in offsets:
            lost.append(f"{record} was acknowledged at {offset}, which has {records.get(offset, 'no record')}")
        else:
            changed.append(f"{record} was acknowledged at {offset} and is at {offsets[record]}")
    lost += [
        f"{record} was acknowledged" for record in sorted(history.acked_somewhere[partition]) if record not in offsets
    ]
    for place, record in history.shown.items():
        offset = place[1]
        if place[0] == partition and records.get(offset) != record and history.acked.get(place) != record:
            changed.append(f"offset {offset} was read as {record} and now has {records.get(offset, 'no record')}")
    lists = {"lost": lost, "doubled": doubled, "reordered": reordered, "changed": changed, "foreign": foreign}
    violations: list[Violation] = []
    for kind, texts in (lists | {"gap": gaps}).items():
        violations += report(kind, f"partition {partition}", texts)
    return violations


def _first_of_each_kind(violations: Sequence[Violation]) -> list[Violation]:
    """Return the first violations of each kind, and the number of further violations."""
    counts: Counter[str] = Counter()
    examples: list[Violation] = []
    for violation in list(violations):
        counts[violation.kind] += 1
        if counts[violation.kind] <= MAX_LISTED:
            examples.append(violation)
    more = {kind: count - MAX_LISTED for kind, count in counts.items() if count > MAX_LISTED}
    return examples + [Violation(kind, f"and {count} more during the load") for kind, count in more.items()]


def report(kind: str, where: str, texts: Sequence[str]) -> list[Violation]:
    violations = [Violation(kind, f"{where}: {text}") for text in texts[:MAX_LISTED]]
    if len(texts) > MAX_LISTED:
        violations.append(Violation(kind, f"{where}: and {len(texts) - MAX_LISTED} more"))
    return violations
