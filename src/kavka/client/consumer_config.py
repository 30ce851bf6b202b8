"""Every setting of the consumer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kavka.client.config import COMMON, FOREIGN, Alias, ClientConfig, renamed
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
    K("key.deserializer", CLASS, None, "Makes keys from bytes; not set: bytes.", importance=HIGH),
    K("value.deserializer", CLASS, None, "Makes values from bytes; not set: bytes.", importance=HIGH),
    K("group.id", STRING, None, "The group that this consumer shares the partitions of its topics with.", NotEmpty(),
      HIGH),
    K("group.instance.id", STRING, None, "A name that stays over restarts: a member that returns in time causes no "
      "rebalance.", NotEmpty()),
    K("group.protocol", STRING, "classic", "classic: the members assign; consumer: the broker does.",
      OneOf(("classic", "consumer"), ignore_case=True), HIGH),
    K("group.remote.assignor", STRING, None, "With group.protocol=consumer, the broker's assignor to use."),
    K("session.timeout.ms", INT, 45_000, "A member not heard of for this long is thrown out.", AtLeast(1), HIGH),
    K("heartbeat.interval.ms", INT, 3_000, "How often a member is heard of.", AtLeast(1), HIGH),
    K("max.poll.interval.ms", INT, 300_000, "A member that does not poll for this long leaves its group.", AtLeast(1)),
    K("max.poll.records", INT, 500, "The most records that one poll returns.", AtLeast(1)),
    K("partition.assignment.strategy", LIST, ("range", "cooperative-sticky"),
      "How a classic group's leader assigns partitions, the preferred first."),
    K("enable.auto.commit", BOOLEAN, True, "Commit what was polled in the background."),
    K("auto.commit.interval.ms", INT, 5_000, "How often that is done.", AtLeast(0), LOW),
    K("auto.offset.reset", STRING, "latest", "Where to begin without a committed offset, or with one out of range.",
      OFFSET_RESET),
    K("isolation.level", STRING, "read_uncommitted", "read_committed: only what committed transactions wrote.",
      OneOf(("read_uncommitted", "read_committed"))),
    K("fetch.min.bytes", INT, 1, "A fetch waits until there are so many bytes.", AtLeast(0), HIGH),
    K("fetch.max.wait.ms", INT, 500, "But no longer than this.", AtLeast(0), LOW),
    K("fetch.max.bytes", INT, 52_428_800, "The most bytes of one fetch.", AtLeast(0)),
    K("max.partition.fetch.bytes", INT, 1_048_576, "The most bytes of one partition in one fetch; where it is not set, "
      "it grows to 2 MB while the program waits for records.", AtLeast(0), HIGH),
    K("check.crcs", BOOLEAN, True, "Check the CRC of what was fetched.", importance=LOW),
    K("client.rack", STRING, "", "Where this client is: it fetches from a replica in the same rack."),
    K("allow.auto.create.topics", BOOLEAN, True, "Subscribing to a topic that is not there may create it."),
    K("exclude.internal.topics", BOOLEAN, True, "A pattern does not match the cluster's own topics."),
    K("default.api.timeout.ms", INT, 60_000, "How long a call may take when it gives no timeout of its own.",
      AtLeast(0)),
    K("interceptor.classes", LIST, (), "Objects that see records before the program does, and commits.",
      importance=LOW),
), checks=(_rules,), foreign=FOREIGN)
# fmt: on

CONSUMER_ALIASES: dict[str, Alias] = {
    "metadata.broker.list": renamed("bootstrap.servers"),
    "auto.commit.enable": renamed("enable.auto.commit"),
    "fetch.message.max.bytes": renamed("max.partition.fetch.bytes"),
    "fetch.wait.max.ms": renamed("fetch.max.wait.ms"),
}


def consumer_config(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientConfig:
    return ClientConfig(CONSUMER_CONFIGS, config, keywords, CONSUMER_ALIASES)
