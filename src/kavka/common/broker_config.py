"""All settings of a broker. The settings of logs, groups and security are in
`broker_config_log.py`, `broker_config_groups.py` and `broker_config_security.py`.
"""

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
    LIST,
    LONG,
    LONG_MAX,
    LOW,
    MEDIUM,
    NOT_IMPLEMENTED,
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

ONE_POOL = "has no effect: the broker has one pool of worker threads, sized by num.io.threads"
NO_PURGE = "has no effect: a completed request leaves the purgatory at once"
NO_JAVA = "has no effect: the broker cannot load Java classes"
NO_JMX = "has no effect: set metrics.listener and read /metrics"
NO_SAMPLES = "has no effect: Prometheus computes averages"

_HTTP = re.compile(r"(http://([^/:\[\]]*|\[[0-9a-fA-F:]+\]):[0-9]{1,5}/?)?")
MINUS_ONE_OR_POSITIVE = Satisfies("-1 or at least 1", lambda v: v == -1 or v >= 1)
HTTP_ADDRESS = Satisfies(
    "empty, or an address such as http://localhost:9405", lambda text: _HTTP.fullmatch(text) is not None
)

# fmt: off
GENERAL_CONFIGS: tuple[ConfigKey, ...] = (
    # Identity and metadata
    K("broker.id", INT, -1, "The id of this broker, unique in the cluster; -1 generates an id (0 on a single node).",
      None, HIGH),
    K("node.id", INT, -1, "Another name for broker.id.", None, HIGH),
    K("broker.id.generation.enable", BOOLEAN, True, "Whether a broker without broker.id gets a generated id."),
    K("reserved.broker.max.id", INT, 1000, "The highest broker.id that may be configured; generated ids are above it.",
      AtLeast(0)),
    K("broker.rack", STRING, None,
      "The rack of the broker. Replicas are spread over racks, and consumers can fetch from their own rack."),
    K("metadata.dir", STRING, None,
      "The directory of a single node's metadata; the first log directory when not set (Kavka only)."),
    K("zookeeper.connect", STRING, None,
      "The host:port list of the ZooKeeper ensemble, with an optional /path at the end. Without it the broker is a "
      "single node that stores its own metadata.", None, HIGH),
    K("zookeeper.session.timeout.ms", INT, 18000,
      "ZooKeeper expires the broker's session after this long without a heartbeat.", None, HIGH),
    K("zookeeper.connection.timeout.ms", INT, None,
      "How long the broker waits for a connection to ZooKeeper; zookeeper.session.timeout.ms when not set.",
      None, HIGH),
    K("zookeeper.set.acl", BOOLEAN, False,
      "Whether znodes are created with ACLs, so that only the brokers' certificate or login may change them.",
      None, HIGH),
    K("zookeeper.max.in.flight.requests", INT, 10, "The maximum number of requests in flight to ZooKeeper.",
      AtLeast(1), HIGH),
    # Listeners
    K("listeners", STRING, "PLAINTEXT://:9092",
      "The addresses to listen on: name://host:port, separated by commas. An empty host means every interface.",
      None, HIGH),
    K("advertised.listeners", STRING, None,
      "The addresses that the broker publishes to clients; listeners when not set.", None, HIGH),
    K("listener.security.protocol.map", STRING,
      "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
      "The security protocol of each listener name, as name:protocol pairs.", None, LOW),
    K("inter.broker.listener.name", STRING, None, "The listener for communication between brokers."),
    K("early.start.listeners", STRING, None,
      "Listeners that Kafka starts before its authorizer; all listeners start together here.",
      warning="has no effect: the authorizer is ready before any listener starts"),
    K("control.plane.listener.name", STRING, None, "A separate listener for the controller's requests.",
      None, HIGH, warning=NOT_IMPLEMENTED),
    K("security.inter.broker.protocol", STRING, "PLAINTEXT",
      "The security protocol between brokers, when inter.broker.listener.name is not set.",
      OneOf(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))),
    # Network
    K("num.network.threads", INT, 3, "The number of network threads in Kafka.",
      AtLeast(1), HIGH, CLUSTER_WIDE, warning="has no effect: one event loop serves all connections"),
    K("num.io.threads", INT, 8,
      "The number of worker threads for blocking work: fsync, recovery, file deletion, decompression.",
      AtLeast(1), HIGH, CLUSTER_WIDE),
    K("queued.max.requests", INT, 500, "The number of requests that Kafka queues for its request handlers.",
      AtLeast(1), HIGH, warning="has no effect: requests are handled as they are read"),
    K("queued.max.request.bytes", LONG, -1,
      "The maximum bytes of large requests being received; further large requests wait. -1 for no limit."),
    K("request.timeout.ms", INT, 30000, "How long the broker waits for the response to a request that it sends.",
      None, HIGH),
    K("socket.request.max.bytes", INT, 104857600,
      "The maximum size of a request; the broker closes a connection that sends a larger one.", AtLeast(1), HIGH),
    K("socket.send.buffer.bytes", INT, 102400,
      "The send buffer of a connection (SO_SNDBUF); the operating system's default when not set or -1.", None, HIGH),
    K("socket.receive.buffer.bytes", INT, 102400,
      "The receive buffer of a connection (SO_RCVBUF); the operating system's default when not set or -1.", None, HIGH),
    K("socket.listen.backlog.size", INT, 50, "The maximum number of connections that wait to be accepted.", AtLeast(1)),
    K("socket.connection.setup.timeout.ms", LONG, 10000,
      "How long the broker waits for a connection to another broker."),
    K("socket.connection.setup.timeout.max.ms", LONG, 30000,
      "The upper limit of socket.connection.setup.timeout.ms when it grows with every failure.",
      warning="has no effect: the timeout of connections between brokers does not grow"),
    K("max.connections", INT, INT_MAX,
      "The maximum number of connections to this broker.", AtLeast(0), MEDIUM, CLUSTER_WIDE),
    K("max.connections.per.ip", INT, INT_MAX, "The maximum number of connections from one IP address.",
      AtLeast(0), MEDIUM, CLUSTER_WIDE),
    K("max.connections.per.ip.overrides", STRING, "",
      "Limits for single addresses in place of max.connections.per.ip: host:number, separated by commas.",
      None, MEDIUM, CLUSTER_WIDE),
    K("max.connection.creation.rate", INT, INT_MAX,
      "The maximum number of new connections per second, over all listeners.", AtLeast(0), MEDIUM, CLUSTER_WIDE),
    K("connections.max.idle.ms", LONG, 600000, "The broker closes a connection that is idle for this long."),
    K("fetch.max.bytes", INT, 57671680, "The maximum size of a fetch response, whatever the consumer requests.",
      AtLeast(1024)),
    K("max.incremental.fetch.session.cache.slots", INT, 1000, "The maximum number of incremental fetch sessions.",
      AtLeast(0)),
    K("max.request.partition.size.limit", INT, 2000,
      "The maximum number of partitions in one DescribeTopicPartitions response.", AtLeast(1)),
    # Threads and background work
    K("background.threads", INT, 10, "The number of background threads in Kafka.",
      AtLeast(1), HIGH, CLUSTER_WIDE, warning=ONE_POOL),
    K("producer.purgatory.purge.interval.requests", INT, 1000,
      "The purge interval of Kafka's produce purgatory, in requests.", warning=NO_PURGE),
    K("fetch.purgatory.purge.interval.requests", INT, 1000,
      "The purge interval of Kafka's fetch purgatory, in requests.", warning=NO_PURGE),
    K("delete.records.purgatory.purge.interval.requests", INT, 1,
      "The purge interval of Kafka's delete-records purgatory, in requests.", warning=NO_PURGE),
    # Topics
    K("num.partitions", INT, 1, "The number of partitions of a topic that is created without one.", AtLeast(1)),
    K("default.replication.factor", INT, 1, "The replication factor of a topic that is created without one."),
    K("auto.create.topics.enable", BOOLEAN, True,
      "Whether the broker creates a topic when a client first requests its metadata.", None, HIGH),
    K("delete.topic.enable", BOOLEAN, True, "Whether topics may be deleted.", None, HIGH),
    K("min.insync.replicas", INT, 1,
      "The minimum number of in-sync replicas for a write with acks=all; a topic can override it.",
      AtLeast(1), HIGH, CLUSTER_WIDE),
    K("unclean.leader.election.enable", BOOLEAN, False,
      "Whether a replica that is not in sync may become leader when no in-sync replica is alive; records can be lost. "
      "A topic can override it.", None, HIGH, CLUSTER_WIDE),
    K("message.max.bytes", INT, 1048588,
      "The maximum size of a record batch, after compression; a topic can override it with max.message.bytes.",
      AtLeast(0), HIGH, CLUSTER_WIDE),
    K("compression.type", STRING, "producer", "The compression codec of the log; producer keeps the producer's codec.",
      OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")), HIGH, CLUSTER_WIDE),
    K("compression.gzip.level", INT, -1,
      "The level when the broker compresses with gzip: 1 (fast) to 9 (small), -1 for the library's default.",
      GZIP_LEVEL, MEDIUM, CLUSTER_WIDE),
    K("compression.lz4.level", INT, 9, "The level when the broker compresses with lz4: 1 to 17.",
      Between(1, 17), MEDIUM, CLUSTER_WIDE),
    K("compression.zstd.level", INT, 3, "The level when the broker compresses with zstd: -131072 (fast) to 22 (small).",
      Between(-131072, 22), MEDIUM, CLUSTER_WIDE),
    K("create.topic.policy.class.name", CLASS, None, "A Java class that validates topic creation.",
      None, LOW, warning=NO_JAVA),
    K("alter.config.policy.class.name", CLASS, None, "A Java class that validates configuration changes.",
      None, LOW, warning=NO_JAVA),
    # Controller
    K("auto.leader.rebalance.enable", BOOLEAN, True,
      "Whether the controller moves leadership back to the preferred replicas periodically.", None, HIGH),
    K("leader.imbalance.check.interval.seconds", LONG, 300, "How often the controller checks the balance of leaders.",
      AtLeast(1), HIGH),
    K("leader.imbalance.per.broker.percentage", INT, 10,
      "The percentage of a broker's partitions that other brokers may lead before the controller moves "
      "leadership back.", None, HIGH),
    K("controller.socket.timeout.ms", INT, 30000, "How long the controller waits for a broker's response."),
    K("broker.failure.detection", STRING, "connection",
      "How failures of brokers are detected: connection (by connections that break and are refused, before the "
      "ZooKeeper session expires) or session (only by ZooKeeper sessions, as in Kafka).",
      OneOf(("connection", "session"))),
    K("broker.failure.timeout.ms", INT, 9000,
      "How long the controller tries to connect to a broker before it treats the broker as failed. A refused "
      "connection does not wait. Only with broker.failure.detection=connection.", AtLeast(100)),
    K("controlled.shutdown.enable", BOOLEAN, True,
      "Whether a broker moves its leaderships to other brokers before it stops."),
    K("controlled.shutdown.max.retries", INT, 3,
      "How often a controlled shutdown is retried before the broker stops anyway."),
    K("controlled.shutdown.retry.backoff.ms", LONG, 5000, "The delay before a controlled shutdown is retried."),
    K("inter.broker.protocol.version", STRING, "3.9-IV0",
      "The version of the inter-broker protocol during a rolling upgrade of Kafka.",
      warning="has no effect: brokers speak the inter-broker protocol of Kafka 3.9"),
    # Replication
    K("num.replica.fetchers", INT, 1, "The number of fetcher threads per source broker in Kafka.",
      None, HIGH, CLUSTER_WIDE, warning="has no effect: one fetcher per source broker fetches all partitions"),
    K("replica.fetch.max.bytes", INT, 1048576,
      "The bytes that a follower requests per partition; a larger batch is still returned whole.", AtLeast(0)),
    K("replica.fetch.response.max.bytes", INT, 10485760, "The bytes that a follower requests per fetch.", AtLeast(0)),
    K("replica.fetch.min.bytes", INT, 1,
      "The minimum bytes of a follower's fetch response; the leader waits for them up to replica.fetch.wait.max.ms.",
      None, HIGH),
    K("replica.fetch.wait.max.ms", INT, 500,
      "The maximum wait of a follower's fetch at the leader; at most replica.lag.time.max.ms.", None, HIGH),
    K("replica.fetch.backoff.ms", INT, 1000, "The delay after a failed fetch of a partition.", AtLeast(0)),
    K("replica.lag.time.max.ms", LONG, 30000,
      "A follower that has not caught up for this long is removed from the ISR.", None, HIGH),
    K("replica.socket.timeout.ms", INT, 30000,
      "How long a follower waits for a response; at least replica.fetch.wait.max.ms.", None, HIGH),
    K("replica.socket.receive.buffer.bytes", INT, 65536, "The receive buffer of a follower's connection (SO_RCVBUF).",
      None, HIGH, warning="has no effect: the operating system sizes the buffer"),
    K("replica.high.watermark.checkpoint.interval.ms", LONG, 5000,
      "How often the broker writes the high watermark checkpoint.", None, HIGH),
    K("replica.selector.class", STRING, None,
      "How the replica for a consumer's fetch is chosen: org.apache.kafka.common.replica.RackAwareReplicaSelector "
      "chooses a replica in the consumer's rack; otherwise consumers fetch from the leader."),
    K("num.replica.alter.log.dirs.threads", INT, None,
      "The number of threads that move replicas between log directories in Kafka.", None, HIGH,
      warning="has no effect: the worker threads of num.io.threads move replicas"),
    K("leader.replication.throttled.rate", LONG, LONG_MAX,
      "The limit for throttled replicas that this broker leads, in bytes per second.",
      AtLeast(0), MEDIUM, CLUSTER_WIDE, internal=True),
    K("follower.replication.throttled.rate", LONG, LONG_MAX,
      "The limit for throttled replicas that this broker fetches, in bytes per second.",
      AtLeast(0), MEDIUM, CLUSTER_WIDE, internal=True),
    K("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX,
      "The limit for moving replicas between log directories, in bytes per second.",
      AtLeast(0), MEDIUM, CLUSTER_WIDE, warning=NOT_IMPLEMENTED, internal=True),
    # Quotas
    K("quota.window.num", INT, 11, "The number of samples of client quotas.", AtLeast(1), LOW),
    K("quota.window.size.seconds", INT, 1, "The time span of a sample of client quotas.", AtLeast(1), LOW),
    K("max.auto.create.topics.rate.per.connection", INT, 100,
      "The topics per second that one connection may create by auto.create.topics.enable, with a burst of ten "
      "seconds. Beyond it, the client retries and the connection is throttled (Kavka only).",
      AtLeast(1), MEDIUM, CLUSTER_WIDE),
    K("max.producer.id.rate.per.connection", INT, 100,
      "The producer ids per second that one connection may request, with a burst of ten seconds. Beyond it, the "
      "connection is throttled (Kavka only).",
      AtLeast(1), MEDIUM, CLUSTER_WIDE),
    K("replication.quota.window.num", INT, 11, "The number of samples of replication quotas.", AtLeast(1), LOW),
    K("replication.quota.window.size.seconds", INT, 1,
      "The time span of a sample of replication quotas.", AtLeast(1), LOW),
    K("alter.log.dirs.replication.quota.window.num", INT, 11,
      "The number of samples of quotas for moves between log directories.", AtLeast(1), LOW, warning=NOT_IMPLEMENTED),
    K("alter.log.dirs.replication.quota.window.size.seconds", INT, 1,
      "The time span of a sample of quotas for moves between log directories.", AtLeast(1), LOW,
      warning=NOT_IMPLEMENTED),
    K("controller.quota.window.num", INT, 11,
      "The number of samples of controller_mutation_rate; the burst is the rate over all samples.", AtLeast(1), LOW),
    K("controller.quota.window.size.seconds", INT, 1,
      "The time span of a sample of controller_mutation_rate.", AtLeast(1), LOW),
    K("client.quota.callback.class", CLASS, None, "A Java class that computes client quotas.",
      None, LOW, warning=NO_JAVA),
    # Metrics
    K("metrics.listener", STRING, "",
      "The address of /metrics for Prometheus, such as http://localhost:9405; empty for no listener (Kavka only).",
      HTTP_ADDRESS),
    K("metrics.num.samples", INT, 2, "The number of samples of Kafka's metrics.", AtLeast(1), LOW, warning=NO_SAMPLES),
    K("metrics.sample.window.ms", LONG, 30000, "The time span of a sample of Kafka's metrics.",
      AtLeast(1), LOW, warning=NO_SAMPLES),
    K("metrics.recording.level", STRING, "INFO", "The recording level of Kafka's metrics.",
      None, LOW, warning="has no effect: the broker records all metrics"),
    K("metric.reporters", LIST, (), "Java classes that report Kafka's metrics.",
      None, LOW, CLUSTER_WIDE, warning=NO_JMX),
    K("auto.include.jmx.reporter", BOOLEAN, True, "Whether Kafka exposes its metrics over JMX.",
      None, LOW, warning=NO_JMX),
    K("kafka.metrics.reporters", LIST, (), "Java classes that report Kafka's Yammer metrics.",
      None, LOW, warning=NO_JMX),
    K("kafka.metrics.polling.interval.secs", INT, 10, "The polling interval of kafka.metrics.reporters.",
      AtLeast(1), LOW, warning=NO_JMX),
    K("config.providers", LIST, (), "Java classes that resolve configuration values.",
      None, LOW, CLUSTER_WIDE, warning=NO_JAVA),
)
# fmt: on

_LISTENER_PREFIX = re.compile(r"listener\.name\.[^.]*\.(.*)")
# Settings per SASL mechanism of a listener: listener.name.<listener>.<mechanism>.<name>.
_PER_MECHANISM = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)


def base_name(name: str) -> str:
    """Return the name without the prefix of a single listener, `listener.name.<listener>.`, and of
    a SASL mechanism."""
    match = _LISTENER_PREFIX.fullmatch(name)
    if match is None:
        return name
    suffix = match[1]
    return next((setting for setting in _PER_MECHANISM if suffix.endswith(setting)), suffix)


def _rules(values: Mapping[str, Any]) -> Iterator[tuple[str, Validator]]:
    """Yield the rules that depend on other settings, or that do not apply to the default None."""
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

    low = "group.min.session.timeout.ms"
    yield "group.max.session.timeout.ms", AtLeast(values[low], low)
    for quantity in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"):
        low, high = f"group.consumer.min.{quantity}", f"group.consumer.max.{quantity}"
        yield high, AtLeast(values[low], low)
        yield f"group.consumer.{quantity}", Between(values[low], values[high])


_KRAFT = "KRaft is not supported"
_TIERED = "tiered storage is not supported"
_SHARE = "share groups are not supported"
_STREAMS = "streams groups are not supported"

BROKER_CONFIGS = ConfigTable(
    "broker",
    (*GENERAL_CONFIGS, *LOG_CONFIGS, *GROUP_CONFIGS, *SECURITY_CONFIGS),
    checks=(_rules,),
    base_name=base_name,
    unsupported_prefixes={
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

# Defaults of a single node: its id, and internal topics with one replica.
SINGLE_NODE_DEFAULTS: Mapping[str, Any] = {
    "broker.id": 0,
    "node.id": 0,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}
