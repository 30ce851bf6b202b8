"""Every setting of a broker. The rows of the logs, of groups and of security are in the files beside this one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kavka.common.broker_config_groups import GROUP_CONFIGS
from kavka.common.broker_config_log import LOG_CONFIGS
from kavka.common.broker_config_security import SECURITY_CONFIGS
from kavka.common.config import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    HIGH,
    INT,
    INT_MAX,
    LATER,
    LIST,
    LONG,
    LONG_MAX,
    LOW,
    MEDIUM,
    STRING,
    AtLeast,
    AtMost,
    Between,
    ConfigKey,
    ConfigTable,
    OneOf,
    Satisfies,
    Validator,
)
from kavka.common.topic_config import GZIP_LEVEL

K = ConfigKey

ONE_POOL = "has no effect: num.io.threads sizes the one pool of worker threads"
NO_PURGE = "has no effect: a waiting request is dropped as soon as it is done"
NO_JAVA = "has no effect: Java classes cannot be loaded"
NO_JMX = "has no effect: set metrics.listener and read /metrics"
NO_SAMPLES = "has no effect: Prometheus does the averaging"

_HTTP = re.compile(r"(http://([^/:\[\]]*|\[[0-9a-fA-F:]+\]):[0-9]{1,5}/?)?")
MINUS_ONE_OR_POSITIVE = Satisfies("-1 or at least 1", lambda v: v == -1 or v >= 1)
HTTP_ADDRESS = Satisfies(
    "empty, or an address as http://localhost:9405", lambda text: _HTTP.fullmatch(text) is not None
)

# fmt: off
GENERAL_CONFIGS: tuple[ConfigKey, ...] = (
    # Identity and metadata
    K("broker.id", INT, -1,
      "The number that names this broker in its cluster; -1 asks for a generated one (0 on a single node).",
      None, HIGH),
    K("node.id", INT, -1, "Another name for broker.id.", None, HIGH),
    K("broker.id.generation.enable", BOOLEAN, True,
      "Whether a broker without a broker.id gets the next free one from the cluster."),
    K("reserved.broker.max.id", INT, 1000, "The highest id that may be given by hand while ids are also generated.",
      AtLeast(0)),
    K("broker.rack", STRING, None,
      "Where the broker stands, so that replicas are spread over racks and consumers can read nearby."),
    K("metadata.dir", STRING, None,
      "Where a single node keeps its metadata; the first log directory when not set (Kavka's own)."),
    K("zookeeper.connect", STRING, None,
      "ZooKeeper's host:port list, with an optional /path at the end; left out, this is one node with its own "
      "metadata.",
      None, HIGH),
    K("zookeeper.session.timeout.ms", INT, 18000,
      "After this long without a sign of life ZooKeeper takes the broker for dead.", None, HIGH),
    K("zookeeper.connection.timeout.ms", INT, None,
      "How long to wait for a connection to ZooKeeper; the session timeout when not set.", None, HIGH),
    K("zookeeper.set.acl", BOOLEAN, False, "Whether znodes are written with access lists.",
      None, HIGH, warning=LATER),
    K("zookeeper.max.in.flight.requests", INT, 10, "Requests to ZooKeeper that may be unanswered at a time.",
      AtLeast(1), HIGH),
    # Listeners
    K("listeners", STRING, "PLAINTEXT://:9092",
      "Where the broker listens: name://host:port, separated by commas; an empty host means every interface.",
      None, HIGH),
    K("advertised.listeners", STRING, None, "The addresses that clients are told to use; the listeners when not set.",
      None, HIGH),
    K("listener.security.protocol.map", STRING,
      "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
      "The security protocol of each listener name, as name:protocol pairs.", None, LOW),
    K("inter.broker.listener.name", STRING, None, "The listener that brokers use among themselves."),
    K("control.plane.listener.name", STRING, None, "A listener of its own for the controller's requests.",
      None, HIGH, warning=LATER),
    K("security.inter.broker.protocol", STRING, "PLAINTEXT",
      "The protocol that brokers use among themselves, when inter.broker.listener.name is not set.",
      OneOf(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))),
    # Network
    K("num.network.threads", INT, 3, "Network threads in Kafka; here one event loop serves all connections.",
      AtLeast(1), HIGH, CLUSTER_WIDE, warning="has no effect: one event loop serves all connections"),
    K("num.io.threads", INT, 8, "Worker threads for what blocks: fsync, recovery, deleting files, decompression.",
      AtLeast(1), HIGH, CLUSTER_WIDE),
    K("queued.max.requests", INT, 500, "Requests that may wait in Kafka for a thread that handles them.",
      AtLeast(1), HIGH, warning="has no effect: requests are handled as they are read"),
    K("queued.max.request.bytes", LONG, -1,
      "Bytes of large requests that may be on their way before no other is begun; -1 for no limit."),
    K("request.timeout.ms", INT, 30000, "How long the broker waits for the answer to a request of its own.",
      None, HIGH),
    K("socket.request.max.bytes", INT, 104857600, "The largest request; a connection that announces more is closed.",
      AtLeast(1), HIGH),
    K("socket.send.buffer.bytes", INT, 102400,
      "The operating system's send buffer of a connection; left to the system where not set, or -1.", None, HIGH),
    K("socket.receive.buffer.bytes", INT, 102400,
      "The operating system's receive buffer of a connection; left to the system where not set, or -1.", None, HIGH),
    K("socket.listen.backlog.size", INT, 50, "Connections that may wait to be accepted.", AtLeast(1)),
    K("socket.connection.setup.timeout.ms", LONG, 10000,
      "How long the broker waits for a connection that it opens itself."),
    K("socket.connection.setup.timeout.max.ms", LONG, 30000,
      "The longest such wait, as it doubles with every failure."),
    K("max.connections", INT, INT_MAX, "Connections to this broker at a time.", AtLeast(0), MEDIUM, CLUSTER_WIDE),
    K("max.connections.per.ip", INT, INT_MAX, "Connections from one address at a time.",
      AtLeast(0), MEDIUM, CLUSTER_WIDE),
    K("max.connections.per.ip.overrides", STRING, "",
      "Other limits for some addresses: host:number, separated by commas.", None, MEDIUM, CLUSTER_WIDE),
    K("max.connection.creation.rate", INT, INT_MAX, "New connections per second, over all listeners.",
      AtLeast(0), MEDIUM, CLUSTER_WIDE),
    K("connections.max.idle.ms", LONG, 600000, "A connection that is silent for this long is closed."),
    K("fetch.max.bytes", INT, 57671680, "The most that one fetch answer holds, whatever the consumer asks for.",
      AtLeast(1024)),
    K("max.incremental.fetch.session.cache.slots", INT, 1000, "Incremental fetch sessions that are remembered.",
      AtLeast(0)),
    K("max.request.partition.size.limit", INT, 2000, "Partitions that one request may ask to be described.",
      AtLeast(1)),
    # Threads and background work
    K("background.threads", INT, 10, "Background threads in Kafka; here num.io.threads sizes the one pool.",
      AtLeast(1), HIGH, CLUSTER_WIDE, warning=ONE_POOL),
    K("producer.purgatory.purge.interval.requests", INT, 1000,
      "How often Kafka clears finished produce requests from its waiting list.", warning=NO_PURGE),
    K("fetch.purgatory.purge.interval.requests", INT, 1000,
      "How often Kafka clears finished fetch requests from its waiting list.", warning=NO_PURGE),
    K("delete.records.purgatory.purge.interval.requests", INT, 1,
      "How often Kafka clears finished delete-records requests from its waiting list.", warning=NO_PURGE),
    # Topics
    K("num.partitions", INT, 1, "Partitions of a topic that is created without saying how many.", AtLeast(1)),
    K("default.replication.factor", INT, 1, "Replicas of a topic that is created without saying how many."),
    K("auto.create.topics.enable", BOOLEAN, True, "Whether a topic is created when a client first asks for it.",
      None, HIGH),
    K("delete.topic.enable", BOOLEAN, True, "Whether topics may be deleted.", None, HIGH),
    K("min.insync.replicas", INT, 1,
      "How many replicas must have a record before acks=all is answered; a topic may have its own.",
      AtLeast(1), HIGH, CLUSTER_WIDE),
    K("unclean.leader.election.enable", BOOLEAN, False,
      "Whether a replica that is not in sync may lead when no other is left; a topic may have its own.",
      None, HIGH, CLUSTER_WIDE),
    K("message.max.bytes", INT, 1048588,
      "The largest record batch, as compressed, that is taken; a topic may have its own in max.message.bytes.",
      AtLeast(0), HIGH, CLUSTER_WIDE),
    K("compression.type", STRING, "producer",
      "Codec of the records on disk; producer keeps whatever the producer chose.",
      OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")), HIGH, CLUSTER_WIDE),
    K("compression.gzip.level", INT, -1,
      "Level used when the broker compresses with gzip, 1 (fast) to 9 (small), -1 for the library's default.",
      GZIP_LEVEL, MEDIUM, CLUSTER_WIDE),
    K("compression.lz4.level", INT, 9, "Level used when the broker compresses with lz4, 1 to 17.",
      Between(1, 17), MEDIUM, CLUSTER_WIDE),
    K("compression.zstd.level", INT, 3,
      "Level used when the broker compresses with zstd, -131072 (fast) to 22 (small).",
      Between(-131072, 22), MEDIUM, CLUSTER_WIDE),
    K("create.topic.policy.class.name", CLASS, None, "A Java class that decides whether a topic may be created.",
      None, LOW, warning=NO_JAVA),
    K("alter.config.policy.class.name", CLASS, None, "A Java class that decides whether a config may be changed.",
      None, LOW, warning=NO_JAVA),
    # Controller
    K("auto.leader.rebalance.enable", BOOLEAN, True,
      "Whether leadership goes back to the preferred replicas by itself.", None, HIGH),
    K("leader.imbalance.check.interval.seconds", LONG, 300, "How often the balance of leaders is looked at.",
      AtLeast(1), HIGH),
    K("leader.imbalance.per.broker.percentage", INT, 10,
      "The percentage of a broker's partitions that may be led elsewhere before leadership is moved back.",
      None, HIGH),
    K("controller.socket.timeout.ms", INT, 30000, "How long the controller waits for a broker's answer."),
    K("controlled.shutdown.enable", BOOLEAN, True, "Whether a stopping broker hands over its leaderships first."),
    K("controlled.shutdown.max.retries", INT, 3, "How often the hand-over is tried before the broker stops anyway."),
    K("controlled.shutdown.retry.backoff.ms", LONG, 5000, "The rest between two tries of the hand-over."),
    K("inter.broker.protocol.version", STRING, "3.9-IV0",
      "The version of the requests between brokers, during an upgrade of Kafka.",
      warning="has no effect: requests between brokers are those of Kafka 3.9"),
    # Replication
    K("num.replica.fetchers", INT, 1, "Connections per source broker over which followers fetch.",
      None, HIGH, CLUSTER_WIDE, warning="has no effect: one connection to each broker serves all its partitions"),
    K("replica.fetch.max.bytes", INT, 1048576,
      "Bytes that a follower asks for per partition; a larger batch still comes whole.", AtLeast(0)),
    K("replica.fetch.response.max.bytes", INT, 10485760, "Bytes that a follower asks for per request.", AtLeast(0)),
    K("replica.fetch.min.bytes", INT, 1, "Bytes that a follower waits for, up to replica.fetch.wait.max.ms.",
      None, HIGH),
    K("replica.fetch.wait.max.ms", INT, 500,
      "How long a leader may hold a follower's fetch; below replica.lag.time.max.ms.", None, HIGH),
    K("replica.fetch.backoff.ms", INT, 1000, "The rest after a failed fetch of a partition.", AtLeast(0)),
    K("replica.lag.time.max.ms", LONG, 30000,
      "A follower that has not caught up for this long leaves the in-sync replicas.", None, HIGH),
    K("replica.socket.timeout.ms", INT, 30000,
      "How long a follower waits for an answer; at least replica.fetch.wait.max.ms.", None, HIGH),
    K("replica.socket.receive.buffer.bytes", INT, 65536,
      "The operating system's receive buffer of a follower's connection.", None, HIGH,
      warning="has no effect: it is left to the operating system"),
    K("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, "How often high watermarks are saved to disk.",
      None, HIGH),
    K("replica.selector.class", STRING, None,
      "Who picks the replica a consumer reads from: org.apache.kafka.common.replica.RackAwareReplicaSelector one in "
      "its rack, anything else the leader."),
    K("num.replica.alter.log.dirs.threads", INT, None,
      "Threads that move replicas between log directories; one per directory when not set.", None, HIGH),
    K("leader.replication.throttled.rate", LONG, LONG_MAX,
      "Bytes per second that throttled replicas may send from this broker.",
      AtLeast(0), MEDIUM, CLUSTER_WIDE, internal=True),
    K("follower.replication.throttled.rate", LONG, LONG_MAX,
      "Bytes per second that throttled replicas may fetch to this broker.",
      AtLeast(0), MEDIUM, CLUSTER_WIDE, internal=True),
    K("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX,
      "Bytes per second for moving replicas between log directories.",
      AtLeast(0), MEDIUM, CLUSTER_WIDE, warning=LATER, internal=True),
    # Quotas
    K("quota.window.num", INT, 11, "Samples that client quotas remember.", AtLeast(1), LOW, warning=LATER),
    K("quota.window.size.seconds", INT, 1, "The time span of one such sample.", AtLeast(1), LOW, warning=LATER),
    K("replication.quota.window.num", INT, 11, "Samples that replication quotas remember.", AtLeast(1), LOW),
    K("replication.quota.window.size.seconds", INT, 1, "The time span of one such sample.", AtLeast(1), LOW),
    K("alter.log.dirs.replication.quota.window.num", INT, 11,
      "Samples that quotas for moves between log directories remember.", AtLeast(1), LOW, warning=LATER),
    K("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, "The time span of one such sample.",
      AtLeast(1), LOW, warning=LATER),
    K("controller.quota.window.num", INT, 11, "Samples that quotas for topic changes remember.",
      AtLeast(1), LOW, warning=LATER),
    K("controller.quota.window.size.seconds", INT, 1, "The time span of one such sample.",
      AtLeast(1), LOW, warning=LATER),
    K("client.quota.callback.class", CLASS, None, "A Java class that decides about quotas.",
      None, LOW, warning=NO_JAVA),
    # Metrics
    K("metrics.listener", STRING, "",
      "Where Prometheus reads the metrics, as http://localhost:9405; empty for nowhere (Kavka's own).", HTTP_ADDRESS),
    K("metrics.num.samples", INT, 2, "Samples that Kafka's own averages remember.",
      AtLeast(1), LOW, warning=NO_SAMPLES),
    K("metrics.sample.window.ms", LONG, 30000, "The time span of one such sample.",
      AtLeast(1), LOW, warning=NO_SAMPLES),
    K("metrics.recording.level", STRING, "INFO", "How detailed Kafka's own metrics are.",
      None, LOW, warning="has no effect: everything is counted"),
    K("metric.reporters", LIST, (), "Java classes that Kafka's metrics are handed to.",
      None, LOW, CLUSTER_WIDE, warning=NO_JMX),
    K("auto.include.jmx.reporter", BOOLEAN, True, "Whether Kafka's metrics are shown over JMX.",
      None, LOW, warning=NO_JMX),
    K("kafka.metrics.reporters", LIST, (), "Java classes that Kafka's older metrics are handed to.",
      None, LOW, warning=NO_JMX),
    K("kafka.metrics.polling.interval.secs", INT, 10, "How often those classes are called.",
      AtLeast(1), LOW, warning=NO_JMX),
    K("config.providers", LIST, (), "Java classes that values are looked up with.",
      None, LOW, CLUSTER_WIDE, warning=NO_JAVA),
)
# fmt: on

_LISTENER_PREFIX = re.compile(r"listener\.name\.[^.]*\.(.*)")
# Of these a listener may have one per SASL mechanism: listener.name.<listener>.<mechanism>.<name>.
_PER_MECHANISM = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)


def base_name(name: str) -> str:
    """The name without the `listener.name.<listener>.` that makes a setting one listener's own."""
    match = _LISTENER_PREFIX.fullmatch(name)
    if match is None:
        return name
    rest = match[1]
    return next((own for own in _PER_MECHANISM if rest.endswith(own)), rest)


def _rules(values: Mapping[str, Any]) -> Iterator[tuple[str, Validator]]:
    yield "log.roll.ms", AtLeast(1)
    yield "log.roll.jitter.ms", AtLeast(0)
    for unit in ("ms", "minutes", "hours"):
        yield f"log.retention.{unit}", MINUS_ONE_OR_POSITIVE

    if values["log.cleaner.enable"]:
        threads = max(values["log.cleaner.threads"], 1)
        yield "log.cleaner.dedupe.buffer.size", AtLeast((1024 * 1024 + 1) * threads, "1 MiB for each cleaner thread")

    for limit in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        yield "replica.fetch.wait.max.ms", AtMost(values[limit], limit)

    yield "offsets.commit.required.acks", Between(-1, values["offsets.topic.replication.factor"])
    yield "offsets.topic.compression.codec", Between(0, 4)

    yield (
        "group.max.session.timeout.ms",
        AtLeast(values["group.min.session.timeout.ms"], "group.min.session.timeout.ms"),
    )
    for quantity in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"):
        low, high = f"group.consumer.min.{quantity}", f"group.consumer.max.{quantity}"
        yield high, AtLeast(values[low], low)
        yield f"group.consumer.{quantity}", Between(values[low], values[high])


_KRAFT = "it belongs to KRaft, which Kavka has not"
_TIERED = "it belongs to tiered storage, which Kavka has not"
_SHARE = "it belongs to share groups, which Kavka has not"
_STREAMS = "it belongs to streams groups, which Kavka has not"

BROKER_CONFIGS = ConfigTable(
    "broker",
    (*GENERAL_CONFIGS, *LOG_CONFIGS, *GROUP_CONFIGS, *SECURITY_CONFIGS),
    checks=(_rules,),
    base_name=base_name,
    foreign={
        "process.roles": _KRAFT,
        "controller.quorum.": _KRAFT,
        "controller.listener.names": _KRAFT,
        "metadata.log.": _KRAFT,
        "metadata.max.": _KRAFT,
        "broker.heartbeat.": _KRAFT,
        "broker.session.": _KRAFT,
        "initial.broker.registration.": _KRAFT,
        "zookeeper.metadata.migration.": _KRAFT,
        "remote.": _TIERED,
        "log.local.retention.": _TIERED,
        "group.share.": _SHARE,
        "share.": _SHARE,
        "group.streams.": _STREAMS,
    },
)

# What a node that is alone has instead of the table's defaults: its id, and internal topics that need no other node.
SINGLE_NODE_DEFAULTS: Mapping[str, Any] = {
    "broker.id": 0,
    "node.id": 0,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}
