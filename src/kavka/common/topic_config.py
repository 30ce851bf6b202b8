"""Every setting of a topic, with the broker settings that it falls back to."""

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

ONE_FORMAT = "has no effect: records are always written in today's format"

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
      "What happens to old segments: delete drops them by age and size, compact keeps the last record of each key; "
      "both may be given, an empty list keeps everything.",
      EachOneOf(("compact", "delete"), may_be_empty=True), synonyms=(Synonym("log.cleanup.policy"),)),
    K("compression.gzip.level", INT, -1,
      "Level used when the broker compresses with gzip, 1 (fast) to 9 (small), -1 for the library's default.",
      GZIP_LEVEL, synonyms=(Synonym("compression.gzip.level"),)),
    K("compression.lz4.level", INT, 9, "Level used when the broker compresses with lz4, 1 to 17.",
      Between(1, 17), synonyms=(Synonym("compression.lz4.level"),)),
    K("compression.type", STRING, "producer",
      "Codec of the records on disk; producer keeps whatever the producer chose.",
      OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")), synonyms=(Synonym("compression.type"),)),
    K("compression.zstd.level", INT, 3,
      "Level used when the broker compresses with zstd, -131072 (fast) to 22 (small).",
      Between(-131072, 22), synonyms=(Synonym("compression.zstd.level"),)),
    K("delete.retention.ms", LONG, 86400000,
      "How long a tombstone stays readable in a compacted topic after it was cleaned.",
      AtLeast(0), synonyms=(Synonym("log.cleaner.delete.retention.ms"),)),
    K("file.delete.delay.ms", LONG, 60000, "How long a removed file stays on disk before it is deleted.",
      AtLeast(0), synonyms=(Synonym("log.segment.delete.delay.ms"),)),
    K("flush.messages", LONG, LONG_MAX,
      "Write to disk (fsync) after this many records; 1 makes every acknowledgement wait for the disk.",
      AtLeast(1), synonyms=(Synonym("log.flush.interval.messages"),)),
    K("flush.ms", LONG, LONG_MAX, "Write to disk (fsync) when the oldest unflushed record is this old.",
      AtLeast(0), synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms"))),
    K("flush.before.visible", BOOLEAN, False, "Whether consumers see a record only once it is on disk (Kavka's own)."),
    K("follower.replication.throttled.replicas", LIST, (),
      "Replicas (partition:broker, or *) whose fetching from the leader is throttled.", THROTTLED_REPLICAS),
    K("index.interval.bytes", INT, 4096, "Bytes of log between two entries of the offset index.",
      AtLeast(0), synonyms=(Synonym("log.index.interval.bytes"),)),
    K("leader.replication.throttled.replicas", LIST, (),
      "Replicas (partition:broker, or *) that are throttled on the leader's side.", THROTTLED_REPLICAS),
    K("max.compaction.lag.ms", LONG, LONG_MAX, "A record is compacted at the latest this long after it was written.",
      AtLeast(1), synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),)),
    K("max.message.bytes", INT, 1048588, "The largest record batch, as compressed, that a producer may send.",
      AtLeast(0), synonyms=(Synonym("message.max.bytes"),)),
    K("message.downconversion.enable", BOOLEAN, True,
      "Whether records are converted to an older format for consumers that ask for one.",
      importance=LOW, synonyms=(Synonym("log.message.downconversion.enable"),)),
    K("message.format.version", STRING, "3.0-IV1", "The record format of old brokers; not used any more.",
      synonyms=(Synonym("log.message.format.version"),), warning=ONE_FORMAT),
    K("message.timestamp.after.max.ms", LONG, 3600000,
      "How far a record's own time may be ahead of the broker's clock; ignored with LogAppendTime.",
      AtLeast(0), synonyms=(Synonym("log.message.timestamp.after.max.ms"),)),
    K("message.timestamp.before.max.ms", LONG, LONG_MAX,
      "How far a record's own time may be behind the broker's clock; ignored with LogAppendTime.",
      AtLeast(0), synonyms=(Synonym("log.message.timestamp.before.max.ms"),)),
    K("message.timestamp.difference.max.ms", LONG, LONG_MAX,
      "How far a record's own time may be from the broker's clock, in either direction.",
      AtLeast(0), synonyms=(Synonym("log.message.timestamp.difference.max.ms"),),
      warning="is deprecated: use message.timestamp.before.max.ms and message.timestamp.after.max.ms"),
    K("message.timestamp.type", STRING, "CreateTime",
      "Whether a record carries the time it was made (CreateTime) or the time it was appended (LogAppendTime).",
      OneOf(("CreateTime", "LogAppendTime")), synonyms=(Synonym("log.message.timestamp.type"),)),
    K("min.cleanable.dirty.ratio", DOUBLE, 0.5, "The uncompacted share of a log that makes it worth compacting.",
      Between(0, 1), synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),)),
    K("min.compaction.lag.ms", LONG, 0, "A record is left alone by compaction for at least this long.",
      AtLeast(0), synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),)),
    K("min.insync.replicas", INT, 1,
      "How many replicas must have a record before acks=all is answered; with fewer in sync the write is refused.",
      AtLeast(1), synonyms=(Synonym("min.insync.replicas"),)),
    K("preallocate", BOOLEAN, False, "Whether a new segment's file gets its full size at once.",
      synonyms=(Synonym("log.preallocate"),)),
    K("retention.bytes", LONG, -1,
      "The size a partition may grow to before its oldest segments are deleted; -1 for no limit.",
      synonyms=(Synonym("log.retention.bytes"),)),
    K("retention.ms", LONG, 604800000, "The age at which a segment is deleted; -1 for never.",
      AtLeast(-1), synonyms=(Synonym("log.retention.ms"), Synonym("log.retention.minutes", MINUTE_MS),
                             Synonym("log.retention.hours", HOUR_MS))),
    K("segment.bytes", INT, 1073741824, "The size at which a new segment is begun.",
      AtLeast(14), synonyms=(Synonym("log.segment.bytes"),)),
    K("segment.index.bytes", INT, 10485760,
      "The space set aside for a segment's offset index; a full index begins a new segment.",
      AtLeast(4), synonyms=(Synonym("log.index.size.max.bytes"),)),
    K("segment.jitter.ms", LONG, 0,
      "At most this much is taken at random from segment.ms, so that partitions do not all roll at once.",
      AtLeast(0), synonyms=(Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS))),
    K("segment.ms", LONG, 604800000, "The age at which a new segment is begun even when the old one is not full.",
      AtLeast(1), synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS))),
    K("unclean.leader.election.enable", BOOLEAN, False,
      "Whether a replica that is not in sync may lead when no other is left; records can be lost.",
      synonyms=(Synonym("unclean.leader.election.enable"),)),
), checks=(_rules,))
# fmt: on
