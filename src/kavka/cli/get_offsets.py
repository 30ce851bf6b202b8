"""`kavka get-offsets` (`kafka-get-offsets`): print the earliest, latest or other offsets of
partitions."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kavka.cli.connecting import JSON, admin_for, connection_options
from kavka.cli.names import INTERNAL_TOPICS, TopicFilter
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.tool import ToolError, reason, run

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.common.types import TopicPartition

Filter = Callable[[str, int], bool]

TIMESTAMPS_BY_NAME = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
_TIME_HELP = " / ".join(f"{number} or {name}" for name, number in list(TIMESTAMPS_BY_NAME.items())[:5])
_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")

COMMAND = Command(
    "get-offsets",
    "Print the offsets of partitions as topic:partition:offset.",
    (
        Option("topic", "The topics: a regular expression for the whole name.", "topic", completes="topic"),
        Option("partitions", "The partitions, separated by commas; by default all.", "numbers"),
        Option(
            "topic-partitions",
            "Topics with partitions, separated by commas: topic, topic:1, topic:0-3 (without 3), topic:5-, topic:-3. "
            "A topic is a regular expression.",
            "rules",
        ),
        Option(
            "time",
            f"The offset: {_TIME_HELP}; or the offset of the first record at or after a time, in milliseconds since "
            "1970.",
            "time",
            default="latest",
        ),
        Option("exclude-internal-topics", "Exclude internal topics."),
        JSON,
        *connection_options(),
    ),
    error="Error occurred: ",
    examples=("kavka get-offsets --bootstrap-server localhost:9092 --topic orders",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, get_offsets)


def get_offsets(args: Arguments) -> None:
    matches = _filter(args)
    time = _parse_time(args["time"])
    with admin_for(args, client_id="GetOffsetShell") as admin:
        partitions = _partitions(admin, matches, exclude_internal=args["exclude-internal-topics"])
        if not partitions:
            raise ToolError("Could not match any topic-partitions with the specified filters")
        offsets = _offsets(admin, partitions, time)
    if args["json"]:
        print_json([{"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in offsets])
    elif at_terminal():
        print_table(
            ("TOPIC", "PARTITION", "OFFSET"),
            [(tp.topic, tp.partition, offset) for tp, offset in offsets],
            right_aligned=("PARTITION", "OFFSET"),
        )
    else:
        sys.stdout.write("".join(f"{tp.topic}:{tp.partition}:{offset}\n" for tp, offset in offsets))


def _partitions(admin: Admin, matches: Filter, *, exclude_internal: bool) -> list[TopicPartition]:
    from kavka.common.types import TopicPartition

    names = [name for name in admin.list_topics(True) if not (exclude_internal and name in INTERNAL_TOPICS)]
    described = admin.describe_topics(sorted(names)) if names else {}
    return [
        TopicPartition(str(name), partition.partition)
        for name, topic in described.items()
        for partition in topic.partitions
        if matches(str(name), partition.partition)
    ]


def _offsets(admin: Admin, partitions: list[TopicPartition], time: int) -> list[tuple[TopicPartition, int]]:
    """Return the offset of each partition that has one. Print the errors of single partitions on
    standard error. Raise AdminError if all partitions timed out."""
    from kavka.client.admin.base import AdminError
    from kavka.client.admin.types import OffsetSpec
    from kavka.client.errors import KafkaTimeout

    spec = OffsetSpec(time)
    try:
        offsets = admin.list_offsets(dict.fromkeys(partitions, spec))
    except AdminError as error:
        all_failed = len(error.errors) == len(partitions)
        if all_failed and all(isinstance(cause, KafkaTimeout) for cause in error.errors.values()):
            raise
        offsets = dict(error.results)
        for tp, cause in sorted(error.errors.items()):
            print(f"Skip getting offsets for topic-partition {tp} due to error: {reason(cause)}", file=sys.stderr)
    return [(tp, offsets[tp].offset) for tp in sorted(offsets) if offsets[tp].offset >= 0]


def _parse_time(text: str) -> int:
    if text in TIMESTAMPS_BY_NAME:
        return TIMESTAMPS_BY_NAME[text]
    try:
        return int(text)
    except ValueError:
        raise ToolError(
            f"Malformed time argument {text}. Please use {_TIME_HELP}, or a specified long format timestamp"
        ) from None


def _filter(args: Arguments) -> Filter:
    if "topic-partitions" in args:
        if "topic" in args or "partitions" in args:
            raise ToolError("--topic-partitions cannot be used with --topic or --partitions")
        rules = [_parse_rule(text) for text in args["topic-partitions"].split(",")]
        return lambda topic, partition: any(rule(topic, partition) for rule in rules)
    names = TopicFilter(args["topic"] or ".*")
    partition_ids = _parse_partition_ids(args["partitions"].split(",")) if "partitions" in args else None
    return lambda topic, partition: names.allows(topic) and (partition_ids is None or partition in partition_ids)


def _parse_partition_ids(texts: Iterable[str]) -> frozenset[int]:
    try:
        return frozenset(int(text) for text in texts)
    except ValueError:
        raise ToolError(
            "--partitions expects a comma separated list of numeric partition ids, but received: " + ",".join(texts)
        ) from None


def _parse_rule(text: str) -> Filter:
    match = _RULE.fullmatch(text)
    if match is None:
        raise ToolError(f"Invalid rule specification: {text}")
    topic, number, lower, upper = match.groups()
    names = TopicFilter(topic or ".*")
    if number:
        expected = int(number)
        return lambda name, partition: names.allows(name) and partition == expected
    start = int(lower) if lower else 0
    end = int(upper) if upper else 1 << 31
    return lambda name, partition: names.allows(name) and start <= partition < end
