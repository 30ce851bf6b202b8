"""The topics that a query reads, and the offsets at which it starts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from kavka.client.admin import Admin
from kavka.client.admin.types import OffsetSpec
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.offsets import DONE_BY_JOB
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.options import EARLIEST, LATEST, NONE
from kavka.pipeline.streams.progress import end_offsets
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.topology import SourceNode, Subtopology, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kavka.pipeline.streams.workers import Job

_READ_ALL = -2
_READ_NEW = -1
_TIMEOUT = 30.0
# The default limit of records in a micro-batch, and that of records which are aggregated before
# the shuffle: tasks have all of their records in memory, but only parts of the latter.
_RECORDS, _MERGED_RECORDS = 500_000, 4_000_000


def source_frame(
    spark: SparkSession,
    job: Job,
    subs: tuple[Subtopology, ...],
    begin: Mapping[TopicPartition, int],
    form: str = "kavka",
) -> DataFrame:
    """A stream of the topics of these sub-topologies. Without state it starts at `begin`, and in
    other partitions by the policies of the topics. No record of the application's topics is
    skipped. The stream ends when another driver has a later claim."""
    plan, settings = job.plan, job.settings
    policies, is_global = policies_of(job.topology, settings), subs == plan.globals
    names = [topic for sub in subs for topic in sub.topics if topic not in plan.shuffled]
    topics = {job.full_name(topic): plan.partitions[topic] for topic in names}
    own = {job.full_name(topic) for topic in job.topology.internal_topics}
    options: dict[str, Any] = {
        "subscribe": ",".join(sorted(topics)),
        "includeHeaders": "true",
        "groupIdCommit": settings.application_id,
        "startingOffsets": _starting(topics, policies, begin),
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
        "dataLossReset": json.dumps({topic: policies[topic] for topic in sorted(topics) if topic not in own}),
        **{f"kafka.{name}": value for name, value in settings.consumer(is_global).items()},
    }
    if settings.exactly_once:
        options["kafka.isolation.level"] = "read_committed"
    if not is_global:
        default = _MERGED_RECORDS if job.merges_parts else _RECORDS
        options["maxOffsetsPerTrigger"] = settings.records_per_batch or default
        options["maxBytesPerTrigger"] = settings.bytes_per_batch
    if job.claim is not None:
        options["driverClaim"] = job.claim
    return spark.readStream.format(form).options(**options).load()


def _starting(topics: Mapping[str, int], policies: Mapping[str, str], begin: Mapping[TopicPartition, int]) -> str:
    chosen = {policies[topic] for topic in topics}
    if len(chosen) == 1 and not any(tp.topic in topics for tp in begin):
        return LATEST if chosen == {LATEST} else EARLIEST
    at = {EARLIEST: _READ_ALL, LATEST: _READ_NEW, NONE: _READ_ALL}
    return json.dumps(
        {
            topic: {str(n): begin.get(TopicPartition(topic, n), at[policies[topic]]) for n in range(count)}
            for topic, count in topics.items()
        }
    )


def check_reset(topics: Mapping[str, int], policies: Mapping[str, str], begin: Mapping[TopicPartition, int]) -> None:
    """For an application without state: its group must have an offset for every partition of a
    topic whose reset policy is none."""
    for topic, count in sorted(topics.items()):
        missing = [n for n in range(count) if TopicPartition(topic, n) not in begin]
        if policies[topic] == NONE and missing:
            raise StreamsException(
                f"No valid committed offset found for input topic {topic} (partition {missing[0]}) and no valid reset "
                "policy configured: set auto.offset.reset to earliest or latest, or set the group's offsets with "
                "kavka consumer-groups --reset-offsets"
            )


def check_partitions(
    counts: Mapping[str, int], read: Collection[TopicPartition], topics: Collection[str], settings: Settings
) -> None:
    """Refuse topics of stateful sub-topologies that have gained partitions since they were `read`:
    the same key is in another partition now, and its state in another task."""
    previous: dict[str, int] = {}
    for tp in read:
        previous[tp.topic] = max(previous.get(tp.topic, 0), tp.partition + 1)
    for topic in sorted(topics):
        if topic in previous and topic in counts and counts[topic] != previous[topic]:
            raise StreamsException(partitions_changed(topic, previous[topic], counts[topic], settings))


def partitions_changed(topic: str, before: int, now: int, settings: Settings) -> str:
    return (
        f"the topic {topic} had {before} partitions and has {now}, so keys have moved and the state must be rebuilt: "
        f"kavka streams-application-reset --bootstrap-server {settings.bootstrap_servers} --application-id "
        f"{settings.application_id} --input-topics {topic} (and the other input topics), then clean_up() or "
        "kavka pipeline run --clean-up"
    )


def _task_topics(topology: Topology) -> set[str]:
    """The user's topics that tasks read; global tables are read from the beginning."""
    topics = {topic for sub in topology.subtopologies() if not sub.global_ for topic in sub.topics}
    return topics - set(topology.internal_topics)


def set_by_others(admin: Admin, topology: Topology, settings: Settings) -> dict[TopicPartition, int]:
    """The offsets of the application's group in the topics that it reads, set by a reset tool or by
    Kafka Streams. Offsets that a job committed belong to a deleted state and are ignored."""
    topics = _task_topics(topology)
    committed = admin.list_consumer_group_offsets(settings.application_id, timeout=_TIMEOUT)
    offsets = {
        tp: position.offset
        for tp, position in committed.items()
        if position is not None and tp.topic in topics and position.metadata != DONE_BY_JOB
    }
    if not offsets:
        return {}
    read = {tp.topic for tp in offsets}
    first = admin.list_offsets(dict.fromkeys(offsets, OffsetSpec.earliest()), timeout=_TIMEOUT)
    last = end_offsets(admin, read, committed=False)
    # With read_committed, records after the first open transaction are not visible.
    visible = end_offsets(admin, read, committed=True) if settings.reads_committed else last
    # As for a consumer, an offset outside the log counts as not set.
    return {tp: min(at, visible[tp]) for tp, at in offsets.items() if first[tp].offset <= at <= last[tp]}


def offsets_of_time(admin: Admin, topology: Topology, timestamp: int, settings: Settings) -> dict[TopicPartition, int]:
    """By partition: the offset of the first record of this time or later, or the end."""
    last = end_offsets(admin, _task_topics(topology), settings.reads_committed)
    at = admin.list_offsets(dict.fromkeys(last, OffsetSpec.for_timestamp(timestamp)), timeout=_TIMEOUT)
    return {tp: end if at[tp].offset < 0 else min(at[tp].offset, end) for tp, end in last.items()}


def policies_of(topology: Topology, settings: Settings) -> dict[str, str]:
    """By topic: the reset policy without state. Records in the application's topics belong to a
    deleted state, and would count twice. Global tables are always read from the beginning, as in
    Kafka."""
    policies = {}
    global_sources = {source.name for sub in topology.subtopologies() if sub.global_ for source in sub.sources}
    for node in topology.nodes.values():
        if not isinstance(node, SourceNode):
            continue
        for topic in node.topics:
            if topic in topology.internal_topics:
                policies[settings.own_topic(topic)] = LATEST
            else:
                policies[topic] = EARLIEST if node.name in global_sources else node.reset_policy or settings.reset
    return policies
