"""Plans of offset resets, with all strategies of Kafka's kafka-consumer-groups tool."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Mapping

from kavka.client.admin.base import AdminError
from kavka.client.admin.groups import Groups
from kavka.client.admin.records import Records
from kavka.client.admin.topics import Topics
from kavka.client.admin.types import MovedOffset, OffsetReset, OffsetSpec
from kavka.common.errors import ErrorCode
from kavka.common.times import duration_ms, milliseconds_of
from kavka.common.types import TopicPartition

Offsets = dict[TopicPartition, int]

WAYS = (
    "to-offset",
    "to-datetime",
    "by-duration",
    "to-earliest",
    "to-latest",
    "shift-by",
    "from-file",
    "to-current",
)
INACTIVE = ("Empty", "Dead")
"""The states of groups whose offsets may be set."""


class BadReset(ValueError):
    """A reset is impossible: a partition does not exist, a shift has no committed offset, or a
    value or a line in a file is invalid."""


class NoSuchPartitions(BadReset):
    pass


class Resets(Topics, Groups, Records):
    async def plan_offset_reset(
        self,
        group: str,
        way: str,
        partitions: Iterable[TopicPartition] | None = None,
        value: int | str | Mapping[TopicPartition, int] | None = None,
        *,
        timeout: float | None = None,
    ) -> OffsetReset:
        """Plan a reset of the group's offsets, for `alter_consumer_group_offsets`. Changes nothing.

        `way` is a strategy of Kafka's tool: to-earliest, to-latest and to-current have no value,
        to-offset and shift-by have a number, to-datetime and by-duration a string, and from-file
        offsets by partition. Without `partitions`, the plan has all partitions with a committed
        offset. Raises BadReset for an impossible reset."""
        plan = OffsetReset()
        if way == "from-file":
            assert isinstance(value, Mapping)
            await self._set_within(plan, value, timeout)
            return plan
        if partitions is None:
            partitions = await self.list_consumer_group_offsets(group, timeout=timeout)
        requested = sorted(partitions)
        await self._check_exist(requested, timeout)
        match way:
            case "to-earliest":
                plan.offsets = await self._at(requested, OffsetSpec.earliest(), timeout)
            case "to-latest":
                plan.offsets = await self._at(requested, OffsetSpec.latest(), timeout)
            case "to-offset":
                await self._set_within(plan, dict.fromkeys(requested, _number(value)), timeout)
            case "to-datetime":
                await self._set_at_time(plan, requested, milliseconds_of(str(value)), timeout)
            case "by-duration":
                await self._set_at_time(plan, requested, int(time.time() * 1000) - duration_ms(str(value)), timeout)
            case "shift-by":
                await self._set_within(plan, await self._shifted(group, requested, _number(value), timeout), timeout)
            case "to-current":
                plan.offsets = await self._current(group, requested, timeout)
            case _:
                raise BadReset(f"'{way}' is not a reset strategy; the strategies are {', '.join(WAYS)}")
        return plan

    async def group_state(self, group: str, *, timeout: float | None = None) -> str:
        """Return the state of the group. With any broker version, the state is Dead if the group
        does not exist."""
        try:
            return (await self.describe_consumer_groups([group], timeout=timeout))[group].state
        except AdminError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return "Dead"
            raise

    async def _check_exist(self, partitions: Iterable[TopicPartition], timeout: float | None) -> None:
        requested = sorted(partitions)
        names = sorted({tp.topic for tp in requested})
        if not names:
            return
        try:
            described = await self.describe_topics(names, timeout=timeout)
        except AdminError as error:
            described = error.results
        existing = {
            TopicPartition(str(name), info.partition)
            for name, description in described.items()
            for info in description.partitions
        }
        missing = [tp for tp in requested if tp not in existing]
        if missing:
            raise NoSuchPartitions(f'The partitions "{",".join(map(str, missing))}" do not exist')

    async def _at(self, partitions: Iterable[TopicPartition], spec: OffsetSpec, timeout: float | None) -> Offsets:
        specs = dict.fromkeys(partitions, spec)
        listed = await self.list_offsets(specs, timeout=timeout) if specs else {}
        return {tp: listed_offset.offset for tp, listed_offset in listed.items()}

    async def _set_at_time(
        self, plan: OffsetReset, partitions: list[TopicPartition], timestamp: int, timeout: float | None
    ) -> None:
        offsets = await self._at(partitions, OffsetSpec.for_timestamp(max(0, timestamp)), timeout)
        plan.later = [tp for tp in partitions if offsets[tp] < 0]
        plan.offsets = offsets | await self._at(plan.later, OffsetSpec.latest(), timeout)

    async def _shifted(
        self, group: str, partitions: list[TopicPartition], shift: int, timeout: float | None
    ) -> Offsets:
        committed = await self.list_consumer_group_offsets(group, partitions, timeout=timeout)
        shifted = {}
        for tp in partitions:
            committed_offset = committed.get(tp)
            if committed_offset is None:
                raise BadReset(f"Cannot shift offset for partition {tp} since there is no current committed offset")
            shifted[tp] = committed_offset.offset + shift
        return shifted

    async def _current(self, group: str, partitions: list[TopicPartition], timeout: float | None) -> Offsets:
        """Return the committed offsets or, for partitions without a committed offset, the log end
        offsets."""
        committed = await self.list_consumer_group_offsets(group, partitions, timeout=timeout)
        offsets = {tp: offset.offset for tp, offset in committed.items() if offset is not None}
        without_offset = [tp for tp in partitions if tp not in offsets]
        return {tp: offsets[tp] for tp in partitions if tp in offsets} | await self._at(
            without_offset, OffsetSpec.latest(), timeout
        )

    async def _set_within(
        self, plan: OffsetReset, requested: Mapping[TopicPartition, int], timeout: float | None
    ) -> None:
        """Set these offsets, limited to the range from the earliest to the latest offset."""
        await self._check_exist(requested, timeout)
        earliest = await self._at(requested, OffsetSpec.earliest(), timeout)
        latest = await self._at(requested, OffsetSpec.latest(), timeout)
        for tp, offset in requested.items():
            plan.offsets[tp] = min(max(offset, earliest[tp]), latest[tp])
            if plan.offsets[tp] != offset:
                plan.moved.append(MovedOffset(tp, offset, plan.offsets[tp]))


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise BadReset(f"'{value}' is not a number") from None


def read_offsets_csv(lines: Iterable[str], groups: list[str], name: str) -> dict[str, Offsets]:
    """Parse lines of topic,partition,offset for one group, or group,topic,partition,offset for
    several groups. `name` is the file name for error messages. Raises BadReset for an invalid
    line."""
    columns = 3 if len(groups) == 1 else 4
    expected = "topic,partition,offset" if columns == 3 else "group,topic,partition,offset"
    plan: dict[str, Offsets] = {}
    reader = csv.reader(lines)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return plan
        except csv.Error as error:
            raise BadReset(f"{name}: line {reader.line_num}: {error}") from None
        if not row:
            continue
        location = f"{name}: line {reader.line_num}"
        if len(row) not in (3, 4) or (len(row) == 3 and columns == 4):
            raise BadReset(f"{location}: {expected} is expected")
        group = groups[0] if len(row) == 3 else row[0]
        try:
            partition, offset = int(row[-2]), int(row[-1])
        except ValueError:
            raise BadReset(f"{location}: {expected} is expected, with numbers in the last two") from None
        plan.setdefault(group, {})[TopicPartition(row[-3], partition)] = offset
