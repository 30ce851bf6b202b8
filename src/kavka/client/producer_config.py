"""Every setting of the producer, and the names that older producers had for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kavka.client.config import COMMON, FOREIGN, NOT_YET, Alias, ClientConfig, renamed
from kavka.common.config import (
    BOOLEAN,
    CLASS,
    HIGH,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    LOW,
    STRING,
    AtLeast,
    AtMost,
    Between,
    ConfigError,
    ConfigKey,
    ConfigTable,
    NotEmpty,
    OneOf,
    Satisfies,
    Validator,
)
from kavka.records.compression import CODEC_NAMES

K = ConfigKey

MAX_IN_FLIGHT_IDEMPOTENT = 5
"""A broker remembers that many batches of a producer: with more in flight it could not tell a repeated one."""

GZIP_LEVEL = Satisfies("-1, or between 1 and 9", lambda level: level == -1 or 1 <= level <= 9)


def _rules(values: Mapping[str, Any]) -> Iterator[tuple[str, Validator]]:
    if values["transactional.id"] is not None:
        yield "enable.idempotence", Satisfies("true with transactional.id", lambda on: on)
    yield (
        "delivery.timeout.ms",
        AtLeast(min(values["linger.ms"] + values["request.timeout.ms"], INT_MAX), "linger.ms + request.timeout.ms"),
    )


# fmt: off
PRODUCER_CONFIGS = ConfigTable("producer", (
    *COMMON,
    K("key.serializer", CLASS, None, "Turns keys into bytes; not set: by the key's type.", importance=HIGH),
    K("value.serializer", CLASS, None, "Turns values into bytes; not set: by the value's type.", importance=HIGH),
    K("acks", STRING, "all",
      "What a record must have been through to count as sent: all in-sync replicas, 1: the leader's log, 0: nothing.",
      OneOf(("all", "-1", "0", "1")), LOW),
    K("batch.size", INT, 16_384,
      "Records of a partition are sent together in batches; one of this many bytes is sent at once.", AtLeast(0)),
    K("batch.max.bytes", INT, 1_048_576,
      "Our own: while a partition's earlier batches wait for the broker, a batch may grow to this size (never above "
      "max.request.size). No more than batch.size means that batches do not grow.", AtLeast(0), LOW),
    K("batch.num.messages", INT, INT_MAX, "The most records in a batch.", AtLeast(1), LOW),
    K("linger.ms", LONG, 5, "How long a batch that is not full waits for more records.", AtLeast(0)),
    K("buffer.memory", LONG, 33_554_432,
      "The most memory for batches that wait to be sent or for their outcome, in bytes.", AtLeast(0), HIGH),
    K("queue.buffering.max.messages", INT, INT_MAX, "The most records that wait to be sent.", AtLeast(1), LOW),
    K("buffer.full.policy", STRING, "block",
      "Our own: when the buffer is full, send waits up to max.block.ms (block), fails at once (fail), or throws "
      "away what waits and was never sent (clear).", OneOf(("block", "fail", "clear")), LOW),
    K("max.block.ms", LONG, 60_000, "How long send may wait for metadata and for room in the buffer.", AtLeast(0)),
    K("max.request.size", INT, 1_048_576, "The largest request, and so the largest record, before compression.",
      AtLeast(0)),
    K("compression.type", STRING, "none", "How batches are compressed.", OneOf(CODEC_NAMES), HIGH),
    K("compression.gzip.level", INT, -1, "Level of gzip, 1 (fast) to 9 (small), -1 for the default.", GZIP_LEVEL),
    K("compression.lz4.level", INT, 9, "Level of lz4.", Between(1, 17)),
    K("compression.zstd.level", INT, 3, "Level of zstd.", Between(-131_072, 22)),
    K("compressed.topics", LIST, (), "With compression.type, only these topics are compressed; none given: all.",
      importance=LOW),
    K("partitioner.class", CLASS, None, "Chooses the partition of a record that names none; not set: by key, sticky "
      "without one."),
    K("partitioner.ignore.keys", BOOLEAN, False, "Choose partitions as if records had no keys."),
    K("partitioner.adaptive.partitioning.enable", BOOLEAN, True,
      "Give more records without keys to partitions whose brokers are faster.", importance=LOW, warning=NOT_YET),
    K("partitioner.availability.timeout.ms", LONG, 0, "Leave out partitions that could not be sent to for this long.",
      AtLeast(0), LOW, warning=NOT_YET),
    K("interceptor.classes", LIST, (), "Objects that see records before they are serialised, and their outcome.",
      importance=LOW),
    K("retries", INT, INT_MAX, "How often a batch is sent again after an error that may pass; delivery.timeout.ms "
      "is the better limit.", Between(0, INT_MAX), HIGH),
    K("delivery.timeout.ms", INT, 120_000, "How long a record may take from send to its outcome.", AtLeast(0)),
    K("max.in.flight.requests.per.connection", INT, 5, "Requests that one broker may have without having answered.",
      AtLeast(1), LOW),
    K("enable.idempotence", BOOLEAN, True, "Number the records so that none is stored twice or out of order.",
      importance=LOW),
    K("transactional.id", STRING, None, "The name under which this producer's transactions go on after a restart.",
      NotEmpty(), LOW),
    K("transaction.timeout.ms", INT, 60_000, "A transaction open for longer is ended by the coordinator.", AtLeast(1),
      LOW),
    K("transaction.two.phase.commit.enable", BOOLEAN, False, "Take part in two-phase commits.", importance=LOW,
      warning=NOT_YET),
    K("metadata.max.idle.ms", LONG, 300_000, "A topic not sent to for this long is left out of metadata.",
      AtLeast(5_000), LOW),
    K("producer.type", STRING, "async", "sync: send returns only when the broker has answered, and raises.",
      OneOf(("async", "sync")), LOW),
), checks=(_rules,), foreign=FOREIGN)
# fmt: on


def _compression(value: Any) -> Mapping[str, Any]:
    """`compression.codec` was a name or the codec's number; in some texts the setting is called compression.topic."""
    text = str(value)
    if text.isdigit() and int(text) < len(CODEC_NAMES):
        return {"compression.type": CODEC_NAMES[int(text)]}
    if text in CODEC_NAMES:
        return {"compression.type": text}
    return {"compressed.topics": value}


def _enqueue_timeout(value: Any) -> Mapping[str, Any]:
    """0: fail at once; negative: wait for ever."""
    try:
        wait = int(value)
    except (TypeError, ValueError):
        raise ConfigError("queue.enqueue.timeout.ms", f"'{value}' is not allowed, it must be a whole number") from None
    return {"max.block.ms": LONG_MAX if wait < 0 else wait}


PRODUCER_ALIASES: dict[str, Alias] = {
    "metadata.broker.list": renamed("bootstrap.servers"),
    "request.required.acks": renamed("acks"),
    "queue.buffering.max.ms": renamed("linger.ms"),
    "queue.buffering.max.message": renamed("queue.buffering.max.messages"),
    "message.send.max.retries": renamed("retries"),
    "topic.metadata.refresh.interval.ms": renamed("metadata.max.age.ms"),
    "queue.enqueue.timeout.ms": _enqueue_timeout,
    "compression.codec": _compression,
    "compression.topic": _compression,
    "serializer.class": renamed("value.serializer"),
    "key.serializer.class": renamed("key.serializer"),
    "send.buffer": renamed("send.buffer.bytes"),
}


def producer_config(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientConfig:
    """The producer's settings, with what follows from one another.

    As in Kafka: idempotence asks for acks=all, retries and no more than five requests in flight. Where the user has
    set one of these otherwise but not idempotence, it is off; where both were set, that is an error.
    """
    found = ClientConfig(PRODUCER_CONFIGS, config, keywords, PRODUCER_ALIASES)
    if found["enable.idempotence"]:
        wanted = found.given("enable.idempotence") or found["transactional.id"] is not None
        for name, validator in (
            ("acks", Satisfies("all or -1 with enable.idempotence", lambda acks: acks in ("all", "-1"))),
            ("retries", AtLeast(1, "enable.idempotence")),
            ("max.in.flight.requests.per.connection", AtMost(MAX_IN_FLIGHT_IDEMPOTENT, "enable.idempotence")),
        ):
            if validator.accepts(found[name]):
                continue
            if wanted:
                PRODUCER_CONFIGS[name].check(found[name], validator)
            if found["enable.idempotence"]:
                found = found.replaced("enable.idempotence", False)
    return found
