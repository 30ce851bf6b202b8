"""The settings of the consumer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kavka.client.config import COMMON, Alias, ClientConfig, renamed
from kavka.client.security_config import UNSUPPORTED_PREFIXES
from kavka.common.config import (
    BOOLEAN,
    CLASS,
    HIGH,
    INT,
    LIST,
    LOW,
    STRING,
    AtLeast,
    AtMost,
    ConfigKey,
    ConfigTable,
    NotEmpty,
    OneOf,
    Satisfies,
    Validator,
)

K = ConfigKey

_DURATION = re.compile(r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", re.ASCII | re.IGNORECASE)
OFFSET_RESET = Satisfies(
    "one of latest, earliest, none, by_duration:PnDTnHnMn.nS",
    lambda value: value in ("latest", "earliest", "none") or _DURATION.fullmatch(value) is not None,
)


def _rules(values: Mapping[str, Any]) -> Iterator[tuple[str, Validator]]:
    if values["group.protocol"].lower() == "classic":
        yield "heartbeat.interval.ms", AtMost(values["session.timeout.ms"] - 1, "below session.timeout.ms")


# fmt: off
CONSUMER_CONFIGS = ConfigTable("consumer", (
    *COMMON,
    K("key.deserializer", CLASS, None, "Deserializer of keys; without one, keys are bytes.", importance=HIGH),
    K("value.deserializer", CLASS, None, "Deserializer of values; without one, values are bytes.", importance=HIGH),
    K("group.id", STRING, None, "Consumer group. Its members share the partitions of their topics.", NotEmpty(),
      HIGH),
    K("group.instance.id", STRING, None, "Id of a static member: it may restart within the session timeout "
      "without a rebalance.", NotEmpty()),
    K("group.protocol", STRING, "classic", "classic: a member assigns partitions; consumer: the broker does.",
      OneOf(("classic", "consumer"), ignore_case=True), HIGH),
    K("group.remote.assignor", STRING, None, "Assignor of the broker, for group.protocol=consumer."),
    K("session.timeout.ms", INT, 45_000, "A member that sends no heartbeat for this long is removed from the group.",
      AtLeast(1), HIGH),
    K("heartbeat.interval.ms", INT, 3_000, "Interval of heartbeats.", AtLeast(1), HIGH),
    K("max.poll.interval.ms", INT, 300_000, "A member that does not poll for this long leaves the group.", AtLeast(1)),
    K("max.poll.records", INT, 500, "Largest number of records per poll.", AtLeast(1)),
    K("partition.assignment.strategy", LIST, ("range", "cooperative-sticky"),
      "Assignors of a classic group in the order of preference."),
    K("enable.auto.commit", BOOLEAN, True, "Commit consumed positions periodically."),
    K("auto.commit.interval.ms", INT, 5_000, "Interval of automatic commits.", AtLeast(0), LOW),
    K("auto.offset.reset", STRING, "latest",
      "Start position if there is no committed offset, or if the offset is out of range.",
      OFFSET_RESET),
    K("isolation.level", STRING, "read_uncommitted", "read_committed: skip records of open and aborted transactions.",
      OneOf(("read_uncommitted", "read_committed"))),
    K("fetch.min.bytes", INT, 1, "A fetch waits until this many bytes are available.", AtLeast(0), HIGH),
    K("fetch.max.wait.ms", INT, 500, "Longest time that a fetch waits for fetch.min.bytes.", AtLeast(0), LOW),
    K("fetch.max.bytes", INT, 52_428_800, "Largest size of a fetch response.", AtLeast(0)),
    K("max.partition.fetch.bytes", INT, 1_048_576, "Largest size per partition of a fetch response. If it is not set, "
      "it grows up to 2 MB while the application waits for records.", AtLeast(0), HIGH),
    K("check.crcs", BOOLEAN, True, "Verify the CRC of fetched batches.", importance=LOW),
    K("client.rack", STRING, "", "Rack of this client; it fetches from a replica in the same rack."),
    K("allow.auto.create.topics", BOOLEAN, True, "Allow the broker to create a subscribed topic that does not exist."),
    K("exclude.internal.topics", BOOLEAN, True, "Exclude internal topics from subscriptions by pattern."),
    K("default.api.timeout.ms", INT, 60_000, "Timeout of calls that pass no timeout.",
      AtLeast(0)),
    K("interceptor.classes", LIST, (), "Interceptors of polled records and commits.",
      importance=LOW),
), checks=(_rules,), unsupported_prefixes=UNSUPPORTED_PREFIXES)
# fmt: on

CONSUMER_ALIASES: dict[str, Alias] = {
    "metadata.broker.list": renamed("bootstrap.servers"),
    "auto.commit.enable": renamed("enable.auto.commit"),
    "fetch.message.max.bytes": renamed("max.partition.fetch.bytes"),
    "fetch.wait.max.ms": renamed("fetch.max.wait.ms"),
}


def consumer_config(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientConfig:
    return ClientConfig(CONSUMER_CONFIGS, config, keywords, CONSUMER_ALIASES)
