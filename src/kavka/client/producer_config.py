"""The settings of the producer, and their aliases in older producers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kavka.client.config import COMMON, NOT_YET, Alias, ClientConfig, renamed
from kavka.client.security_config import UNSUPPORTED_PREFIXES
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
"""A broker stores the sequences of this many batches per producer and partition. With more batches
in flight it could not detect duplicates."""

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
    K("key.serializer", CLASS, None, "Serializer of keys; without one, the key's type decides.", importance=HIGH),
    K("value.serializer", CLASS, None, "Serializer of values; without one, the value's type decides.", importance=HIGH),
    K("acks", STRING, "all",
      "Acknowledgement to wait for: all (all in-sync replicas), 1 (the leader), 0 (none).",
      OneOf(("all", "-1", "0", "1")), LOW),
    K("batch.size", INT, 16_384,
      "Size of a batch of records of one partition; a batch of this size is sent immediately.", AtLeast(0)),
    K("batch.max.bytes", INT, 1_048_576,
      "Kavka only: while earlier batches of a partition are in flight, a batch may grow to this size (at most "
      "max.request.size). With a value up to batch.size, batches do not grow.", AtLeast(0), LOW),
    K("batch.num.messages", INT, INT_MAX, "Largest number of records in a batch.", AtLeast(1), LOW),
    K("linger.ms", LONG, 5, "Time that a batch waits for more records.", AtLeast(0)),
    K("buffer.memory", LONG, 33_554_432,
      "Memory for batches that are queued or in flight, in bytes.", AtLeast(0), HIGH),
    K("queue.buffering.max.messages", INT, INT_MAX, "Largest number of queued records.", AtLeast(1), LOW),
    K("buffer.full.policy", STRING, "block",
      "Kavka only: when the buffer is full, send waits up to max.block.ms (block), fails immediately (fail), or "
      "discards queued records that were never sent (clear).", OneOf(("block", "fail", "clear")), LOW),
    K("max.block.ms", LONG, 60_000, "Longest time that send waits for metadata and buffer memory.", AtLeast(0)),
    K("max.request.size", INT, 1_048_576, "Largest size of a request, and thus of a record, before compression.",
      AtLeast(0)),
    K("compression.type", STRING, "none", "Compression of batches.", OneOf(CODEC_NAMES), HIGH),
    K("compression.gzip.level", INT, -1, "Level of gzip, 1 (fast) to 9 (small); -1: default.", GZIP_LEVEL),
    K("compression.lz4.level", INT, 9, "Level of lz4.", Between(1, 17)),
    K("compression.zstd.level", INT, 3, "Level of zstd.", Between(-131_072, 22)),
    K("compressed.topics", LIST, (), "Topics to compress with compression.type; empty: all topics.",
      importance=LOW),
    K("partitioner.class", CLASS, None, "Partitioner of records without a partition; by default the key's hash, "
      "or sticky without a key."),
    K("partitioner.ignore.keys", BOOLEAN, False, "Ignore keys when choosing partitions."),
    K("partitioner.adaptive.partitioning.enable", BOOLEAN, True,
      "Send more records without a key to faster brokers.", importance=LOW, warning=NOT_YET),
    K("partitioner.availability.timeout.ms", LONG, 0,
      "Skip partitions whose broker has accepted no batch for this long.", AtLeast(0), LOW, warning=NOT_YET),
    K("interceptor.classes", LIST, (), "Interceptors of records before serialization, and of acknowledgements.",
      importance=LOW),
    K("retries", INT, INT_MAX, "Number of retries of a batch after a retriable error; prefer "
      "delivery.timeout.ms as the limit.", Between(0, INT_MAX), HIGH),
    K("delivery.timeout.ms", INT, 120_000, "Time limit from send to the acknowledgement of a record.", AtLeast(0)),
    K("max.in.flight.requests.per.connection", INT, 5, "Largest number of requests in flight per broker.",
      AtLeast(1), LOW),
    K("enable.idempotence", BOOLEAN, True, "Number records so that a retry neither duplicates nor reorders them.",
      importance=LOW),
    K("transactional.id", STRING, None, "Identity of a transactional producer across restarts.",
      NotEmpty(), LOW),
    K("transaction.timeout.ms", INT, 60_000, "The coordinator aborts a transaction that is open for longer.",
      AtLeast(1), LOW),
    K("transaction.two.phase.commit.enable", BOOLEAN, False, "Allow two-phase commit.", importance=LOW,
      warning=NOT_YET),
    K("metadata.max.idle.ms", LONG, 300_000, "Metadata of a topic that is unused for this long is dropped.",
      AtLeast(5_000), LOW),
    K("producer.type", STRING, "async", "sync: send waits for the acknowledgement and raises on failure.",
      OneOf(("async", "sync")), LOW),
), checks=(_rules,), unsupported_prefixes=UNSUPPORTED_PREFIXES)
# fmt: on


def _compression(value: Any) -> Mapping[str, Any]:
    """Convert `compression.codec`: the name or number of a codec, or the topics to compress. Some
    documents call it `compression.topic`."""
    text = str(value)
    if text.isdigit() and int(text) < len(CODEC_NAMES):
        return {"compression.type": CODEC_NAMES[int(text)]}
    if text in CODEC_NAMES:
        return {"compression.type": text}
    return {"compressed.topics": value}


def _enqueue_timeout(value: Any) -> Mapping[str, Any]:
    """Convert `queue.enqueue.timeout.ms`: 0 fails immediately, a negative value waits forever."""
    try:
        wait = int(value)
    except (TypeError, ValueError):
        raise ConfigError("queue.enqueue.timeout.ms", f"'{value}' is not allowed; it must be an integer") from None
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
    """Parse the producer's settings and apply the rules of idempotence.

    As in Kafka, idempotence requires acks=all, retries, and at most five requests in flight. If a
    setting of the user conflicts with these rules, idempotence is disabled; if it was enabled
    explicitly, ConfigError is raised.
    """
    parsed = ClientConfig(PRODUCER_CONFIGS, config, keywords, PRODUCER_ALIASES)
    if parsed["enable.idempotence"]:
        is_required = parsed.is_explicit("enable.idempotence") or parsed["transactional.id"] is not None
        for name, validator in (
            ("acks", Satisfies("all or -1 with enable.idempotence", lambda acks: acks in ("all", "-1"))),
            ("retries", AtLeast(1, "enable.idempotence")),
            ("max.in.flight.requests.per.connection", AtMost(MAX_IN_FLIGHT_IDEMPOTENT, "enable.idempotence")),
        ):
            if validator.accepts(parsed[name]):
                continue
            if is_required:
                PRODUCER_CONFIGS[name].check(parsed[name], validator)
            if parsed["enable.idempotence"]:
                parsed = parsed.replaced("enable.idempotence", False)
    return parsed
