"""Every setting of a topic, and the broker settings that are its defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kavka.common.config import (
    BOOLEAN,
    DOUBLE,
    HOUR_MS,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    LOW,
    MINUTE_MS,
    STRING,
    AtLeast,
    AtMost,
    Between,
    ConfigKey,
    ConfigTable,
    EachOneOf,
    OneOf,
    Satisfies,
    Synonym,
    Validator,
)

K = ConfigKey

ONE_FORMAT = "has no effect: records are always written in format v2"

GZIP_LEVEL = Satisfies("-1, or between 1 and 9", lambda level: level == -1 or 1 <= level <= 9)

_THROTTLED = re.compile(r"([0-9]+:[0-9]+)?", re.ASCII)
THROTTLED_REPLICAS = Satisfies(
    "*, or a list of partition:broker",
    lambda items: "".join(items) == "*" or all(_THROTTLED.fullmatch(item) for item in items),
)


def _rules(values: Mapping[str, Any]) -> Iterator[tuple[str, Validator]]:
    yield "min.compaction.lag.ms", AtMost(values["max.compaction.lag.ms"], "max.compaction.lag.ms")


# fmt: off
TOPIC_CONFIGS = ConfigTable("topic", (
    K("cleanup.policy", LIST, ("delete",),
      "The cleanup policy of old segments: delete removes them by age and size, compact keeps the last record of each "
      "key. Both can be set; an empty list keeps everything.",
      EachOneOf(("compact", "delete"), may_be_empty=True), synonyms=(Synonym("log.cleanup.policy"),)),
    K("compression.gzip.level", INT, -1,
      "The level when the broker compresses with gzip: 1 (fast) to 9 (small), -1 for the library's default.",
      GZIP_LEVEL, synonyms=(Synonym("compression.gzip.level"),)),
    K("compression.lz4.level", INT, 9, "The level when the broker compresses with lz4: 1 to 17.",
      Between(1, 17), synonyms=(Synonym("compression.lz4.level"),)),
    K("compression.type", STRING, "producer", "The compression codec of the log; producer keeps the producer's codec.",
      OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")), synonyms=(Synonym("compression.type"),)),
    K("compression.zstd.level", INT, 3, "The level when the broker compresses with zstd: -131072 (fast) to 22 (small).",
      Between(-131072, 22), synonyms=(Synonym("compression.zstd.level"),)),
    K("delete.retention.ms", LONG, 86400000, "How long a tombstone is retained after compaction.", AtLeast(0),
      synonyms=(Synonym("log.cleaner.delete.retention.ms"),)),
    K("file.delete.delay.ms", LONG, 60000, "The delay before the files of a removed segment are deleted.",
      AtLeast(0), synonyms=(Synonym("log.segment.delete.delay.ms"),)),
    K("flush.messages", LONG, LONG_MAX,
      "The number of records after which the log is flushed (fsync); with 1 every acknowledgement waits for the fsync.",
      AtLeast(1), synonyms=(Synonym("log.flush.interval.messages"),)),
    K("flush.ms", LONG, LONG_MAX, "The maximum age of an unflushed record before the log is flushed (fsync).",
      AtLeast(0), synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms"))),
    K("flush.before.visible", BOOLEAN, False,
      "Whether a record becomes visible to consumers only after it is flushed (Kavka only)."),
    K("follower.replication.throttled.replicas", LIST, (),
      "The replicas (partition:broker, or *) whose fetches are throttled on the follower.", THROTTLED_REPLICAS),
    K("index.interval.bytes", INT, 4096, "The bytes of log between two entries of the offset index.",
      AtLeast(0), synonyms=(Synonym("log.index.interval.bytes"),)),
    K("leader.replication.throttled.replicas", LIST, (),
      "The replicas (partition:broker, or *) that are throttled on the leader.", THROTTLED_REPLICAS),
    K("max.compaction.lag.ms", LONG, LONG_MAX, "The maximum time that a record stays uncompacted.",
      AtLeast(1), synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),)),
    K("max.message.bytes", INT, 1048588, "The maximum size of a record batch, after compression.",
      AtLeast(0), synonyms=(Synonym("message.max.bytes"),)),
    K("message.downconversion.enable", BOOLEAN, True,
      "Whether records are down-converted for consumers that request an older format.",
      importance=LOW, synonyms=(Synonym("log.message.downconversion.enable"),)),
    K("message.format.version", STRING, "3.0-IV1", "The record format version of brokers before Kafka 3.0.",
      synonyms=(Synonym("log.message.format.version"),), warning=ONE_FORMAT),
    K("message.timestamp.after.max.ms", LONG, 3600000,
      "How far a record's timestamp may be after the broker's clock; ignored with LogAppendTime.",
      AtLeast(0), synonyms=(Synonym("log.message.timestamp.after.max.ms"),)),
    K("message.timestamp.before.max.ms", LONG, LONG_MAX,
      "How far a record's timestamp may be before the broker's clock; ignored with LogAppendTime.",
      AtLeast(0), synonyms=(Synonym("log.message.timestamp.before.max.ms"),)),
    K("message.timestamp.difference.max.ms", LONG, LONG_MAX,
      "How far a record's timestamp may differ from the broker's clock, in either direction.",
      AtLeast(0), synonyms=(Synonym("log.message.timestamp.difference.max.ms"),),
      warning="is deprecated: use message.timestamp.before.max.ms and message.timestamp.after.max.ms"),
    K("message.timestamp.type", STRING, "CreateTime",
      "The timestamp of a record: when it was created (CreateTime) or appended (LogAppendTime).",
      OneOf(("CreateTime", "LogAppendTime")), synonyms=(Synonym("log.message.timestamp.type"),)),
    K("min.cleanable.dirty.ratio", DOUBLE, 0.5,
      "The minimum ratio of dirty log to total log for a log to be compacted.",
      Between(0, 1), synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),)),
    K("min.compaction.lag.ms", LONG, 0, "The minimum time that a record stays uncompacted.",
      AtLeast(0), synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),)),
    K("min.insync.replicas", INT, 1,
      "The minimum number of in-sync replicas for a write with acks=all; with fewer the write fails.",
      AtLeast(1), synonyms=(Synonym("min.insync.replicas"),)),
    K("preallocate", BOOLEAN, False, "Whether the file of a new segment is preallocated.",
      synonyms=(Synonym("log.preallocate"),)),
    K("retention.bytes", LONG, -1,
      "The maximum size of a partition before its oldest segments are deleted; -1 for no limit.",
      synonyms=(Synonym("log.retention.bytes"),)),
    K("retention.ms", LONG, 604800000, "The age at which a segment is deleted; -1 for no limit.",
      AtLeast(-1), synonyms=(Synonym("log.retention.ms"), Synonym("log.retention.minutes", MINUTE_MS),
                             Synonym("log.retention.hours", HOUR_MS))),
    K("segment.bytes", INT, 1073741824, "The maximum size of a segment.",
      AtLeast(14), synonyms=(Synonym("log.segment.bytes"),)),
    K("segment.index.bytes", INT, 10485760,
      "The maximum size of a segment's offset index; a full index rolls the segment.",
      AtLeast(4), synonyms=(Synonym("log.index.size.max.bytes"),)),
    K("segment.jitter.ms", LONG, 0,
      "The maximum random jitter subtracted from segment.ms, so that partitions do not roll at the same time.",
      AtLeast(0), synonyms=(Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS))),
    K("segment.ms", LONG, 604800000, "The age at which a segment is rolled even if it is not full.",
      AtLeast(1), synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS))),
    K("unclean.leader.election.enable", BOOLEAN, False,
      "Whether a replica that is not in sync may become leader when no in-sync replica is alive; records can be lost.",
      synonyms=(Synonym("unclean.leader.election.enable"),)),
), checks=(_rules,))
# fmt: on
