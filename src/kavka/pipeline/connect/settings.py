"""The options of all connectors and of workers: Kafka Connect's names, and a few additions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kavka.common.config import AtLeast, ConfigType, EachOneOf, Importance, NotEmpty, OneOf, Satisfies
from kavka.pipeline.connect.api import SINK, Connector
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.loading import (
    CONVERTERS,
    HEADER_CONVERTERS,
    NO_PLUGINS,
    Declared,
    check_overrides,
    load_converter,
    options_under,
)
from kavka.pipeline.connect.options import Option, parse
from kavka.pipeline.connect.plugins import FILES_DISABLED
from kavka.pipeline.connect.session_keys import ALGORITHMS
from kavka.pipeline.connect.topic_creation import rules as topic_rules

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
STRING, LIST, INT, LONG, BOOLEAN = (
    ConfigType.STRING,
    ConfigType.LIST,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.BOOLEAN,
)
CLASS, SHORT = ConfigType.CLASS, ConfigType.SHORT

PROCESSING_TIME, AVAILABLE_NOW = "processing-time", "available-now"
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NO_CONTROL = Satisfies(
    "non-empty, without control characters",
    lambda name: bool(name.strip()) and all(ord(char) >= 32 and ord(char) != 127 for char in name),
)

COMMON = (
    Option("name", doc="The name of the connector, unique in the group of workers.", importance=HIGH,
           validator=_NO_CONTROL, group="Common", width="MEDIUM", display_name="Connector name"),
    Option("connector.class", doc="Kafka's class name of the connector, a short name, or `module.Class` of a custom "
           "one (see `plugin.path`).", importance=HIGH, group="Common", width="LONG", display_name="Connector class"),
    Option("tasks.max", INT, 1, "The maximum number of tasks, which read and write in parallel. A sink has at most "
           "one task per topic partition.", HIGH, AtLeast(1), "Common", "SHORT", "Tasks max"),
    Option("tasks.max.enforce", BOOLEAN, True, "Whether a connector that needs more tasks than `tasks.max` fails. "
           "Otherwise the worker logs a warning and runs them.", LOW, None, "Common",
           "SHORT", "Enforce tasks max"),
    Option("key.converter", CLASS, None, "The converter of keys; the default is the worker's converter.", LOW, None,
           "Common", "SHORT", "Key converter class", tuple(sorted(CONVERTERS))),
    Option("value.converter", CLASS, None, "The converter of values; the default is the worker's converter.", LOW,
           None, "Common", "SHORT", "Value converter class", tuple(sorted(CONVERTERS))),
    Option("header.converter", CLASS, None, "Has no effect: a header is text, or stays as bytes.", LOW,
           None, "Common", "SHORT", "Header converter class", HEADER_CONVERTERS),
    Option("transforms", LIST, (), "Aliases of the transformations, in their order; each is configured with "
           "`transforms.NAME.…`.", LOW, None, "Transforms", "LONG", "Transforms"),
    Option("predicates", LIST, (), "Aliases of the predicates; each is configured with `predicates.NAME.…`.", LOW, None,
           "Predicates", "LONG", "Predicates"),
    Option("config.action.reload", default="restart", doc="Has no effect: the providers here do not report when a "
           "value expires. Restart the connector after a change.", importance=LOW,
           validator=OneOf(("none", "restart"), ignore_case=True), group="Common", width="MEDIUM",
           display_name="Reload Action", recommended=("none", "restart")),
    Option("errors.retry.timeout", LONG, 0, "How long to retry after transient errors, in ms; -1: forever.",
           MEDIUM, AtLeast(-1), "Error Handling", "MEDIUM", "Retry Timeout for Errors"),
    Option("errors.retry.delay.max.ms", LONG, 60_000, "The maximum delay between two attempts, in ms.", MEDIUM,
           AtLeast(0), "Error Handling", "MEDIUM", "Maximum Delay Between Retries for Errors"),
    Option("errors.tolerance", default="none", doc="`none`: a record that cannot be converted or transformed fails the "
           "task; `all`: the record is dropped.", importance=MEDIUM, validator=OneOf(("none", "all")),
           group="Error Handling", width="SHORT", display_name="Error Tolerance", recommended=("none", "all")),
    Option("errors.log.enable", BOOLEAN, False, "Whether to log every tolerated failure.", MEDIUM,
           None, "Error Handling", "SHORT", "Log Errors"),
    Option("errors.log.include.messages", BOOLEAN, False, "Whether to log the failed record as well.", MEDIUM, None,
           "Error Handling", "SHORT", "Log Error Details"),
    Option("trigger", default=PROCESSING_TIME, doc="`processing-time`: run continuously; `available-now`: process the "
           "data available at the start, then end. (Kavka only.)", importance=MEDIUM,
           validator=OneOf((PROCESSING_TIME, AVAILABLE_NOW)), group="Spark", width="SHORT", display_name="Trigger",
           recommended=(PROCESSING_TIME, AVAILABLE_NOW)),
    Option("trigger.interval", default=None, doc="The interval of micro-batches: `500ms`, `10s`, `1m`. Without it a "
           "micro-batch starts when the previous one ends. (Kavka only.)", importance=MEDIUM,
           validator=Satisfies("a time like 500ms, 10s, 1m or 2h", lambda text: _DURATION.fullmatch(text) is not None),
           group="Spark", width="SHORT", display_name="Trigger interval"),
)  # fmt: skip

SOURCE_OPTIONS = (
    Option("topic.creation.groups", LIST, (), "Names of topic groups, in their order; each is configured with "
           "`topic.creation.NAME.include`, `.exclude` (regular expressions, separated by commas), `.partitions`, "
           "`.replication.factor`, and any topic setting.", LOW, None, "Topic Creation", "LONG",
           "Topic Creation Groups"),
    Option("topic.creation.default.partitions", INT, None, "The partitions of created topics that match no group; -1: "
           "the broker's default. Required with any other `topic.creation.…`. Without these settings the "
           "broker creates the topics, if it has auto-creation enabled.", LOW, None, "Topic Creation", "SHORT",
           "Default partitions"),
    Option("topic.creation.default.replication.factor", SHORT, None, "The replicas of these topics; -1: the broker's "
           "default. Also required with any other `topic.creation.…`. `topic.creation.default.…` accepts any topic "
           "setting.", LOW, None, "Topic Creation", "SHORT", "Default replication factor"),
    Option("exactly.once.support", default="requested", doc="`required`: the configuration is rejected unless "
           "the worker has `exactly.once.source.support=enabled`.", importance=MEDIUM,
           validator=OneOf(("requested", "required"), ignore_case=True), group="Exactly Once Support", width="SHORT",
           display_name="Exactly once support", recommended=("requested", "required")),
    Option("transaction.boundary", default="poll", doc="Has no effect: a transaction is a micro-batch.",
           importance=MEDIUM, validator=OneOf(("poll", "interval", "connector"), ignore_case=True),
           group="Exactly Once Support", width="SHORT", display_name="Transaction Boundary",
           recommended=("interval", "poll", "connector")),
    Option("transaction.boundary.interval.ms", LONG, None, "Has no effect: a transaction is a micro-batch.", LOW,
           AtLeast(0), "Exactly Once Support", "SHORT", "Transaction boundary interval"),
    Option("offsets.storage.topic", default=None, doc="Has no effect: all offsets are stored in the worker's topic.",
           importance=LOW, group="offsets.topic", width="LONG", display_name="Offsets topic"),
)  # fmt: skip

SINK_OPTIONS = (
    Option("topics", LIST, (), "The topics to read.", HIGH, None, "Common", "LONG", "Topics"),
    Option("topics.regex", default="", doc="A regular expression of the topics to read, instead of `topics`.",
           importance=HIGH, group="Common", width="LONG", display_name="Topics regex"),
    Option("errors.deadletterqueue.topic.name", default="", doc="The topic for failed records, in their original form, "
           "with headers that describe the error.", importance=MEDIUM, group="Error Handling", width="MEDIUM",
           display_name="Dead Letter Queue Topic Name"),
    Option("errors.deadletterqueue.topic.replication.factor", SHORT, 3, "The replicas of that topic.",
           MEDIUM, None, "Error Handling", "MEDIUM", "Dead Letter Queue Topic Replication Factor"),
    Option("errors.deadletterqueue.context.headers.enable", BOOLEAN, False, "Whether to add the headers "
           "`__connect.errors.…`.", MEDIUM, None, "Error Handling", "MEDIUM", "Enable Error Context Headers"),
    Option("exactly.once", BOOLEAN, False, "Whether each record must be delivered exactly once, across failures of any "
           "process: for sinks that support it. (Kavka only.)", MEDIUM, None, "Spark", "SHORT", "Exactly once"),
    Option("max.records.per.batch", INT, 500_000, "The maximum number of records of a micro-batch. (Kavka only.)", LOW,
           AtLeast(1), "Spark", "SHORT", "Maximum records per batch"),
    Option("max.bytes.per.batch", LONG, 256 * 1024 * 1024, "The maximum size of a micro-batch in the logs of the "
           "topics, estimated from the mean size of their records. (Kavka only.)", LOW, AtLeast(1), "Spark", "SHORT",
           "Maximum bytes per batch"),
    Option("fail.on.data.loss", BOOLEAN, False, "Whether the task fails if records were deleted before it read them. "
           "(Kavka only.)", LOW, None, "Spark", "SHORT", "Fail on data loss"),
)  # fmt: skip

WORKER = (
    Option("bootstrap.servers", LIST, ("localhost:9092",), "Brokers for the initial connection.", HIGH, NotEmpty()),
    Option("key.converter", CLASS, doc="The default converter of keys.", importance=HIGH),
    Option("value.converter", CLASS, doc="The default converter of values.", importance=HIGH),
    Option("header.converter", CLASS, "SimpleHeaderConverter", "Has no effect: a header is text, or stays as bytes.",
           LOW),
    Option("listeners", LIST, ("http://localhost:8083",), "The addresses of the REST interface: `http://host:port` "
           "and `https://host:port`. The default is reachable from this machine only. (Kafka's default, "
           "`http://:8083`, is reachable from any machine.) Workers of a group on several machines need an address "
           "that the other workers can reach. `listeners.https.ssl.…` has the certificates; if no setting has this "
           "prefix, `ssl.…` has them.", LOW),
    Option("rest.advertised.listener", default=None, doc="The protocol that other workers use for this worker: "
           "`http` or `https`. The default is `http` if there is such a listener.", importance=LOW,
           validator=OneOf(("http", "https"), ignore_case=True)),
    Option("rest.advertised.host.name", default=None, doc="The host name that other workers use for this worker.",
           importance=LOW),
    Option("rest.advertised.port", INT, None, "The port that other workers use for this worker.", LOW),
    Option("rest.extension.classes", LIST, (), "`org.apache.kafka.connect.rest.basic.auth.extension."
           "BasicAuthSecurityRestExtension` enables basic authentication. No other class is supported.", LOW),
    Option("rest.extension.jaas.config", default=None, doc="The login module of basic authentication, with the file of "
           "its users: `org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule required "
           "file=\"/etc/kavka/connect-users.properties\";`. (Kavka only; Kafka reads a JAAS file.)",
           importance=LOW),
    Option("access.control.allow.origin", LIST, (), "Origins of web pages that may use the REST interface: "
           "`https://ui.example`, `https://*.example` or `*`. Requests of all other pages are rejected.", LOW),
    Option("access.control.allow.methods", LIST, (), "Methods that these pages may use; the default is GET, POST and "
           "HEAD.", LOW),
    Option("plugin.path", LIST, (), "Folders with plugin modules: custom connectors, converters, transformations, "
           "predicates and configuration providers. The folders are added to Python's path. Configurations may name "
           "the modules that exist when the worker starts.", LOW),
    Option("plugin.modules", LIST, (), "Further modules and packages on Python's path that configurations may name. No "
           "other modules are imported. (Kavka only.)", LOW),
    Option("file.connectors.enable", BOOLEAN, False, "Enables the connectors that open files named in their "
           "configurations: FileStreamSource, FileStreamSink, FolderSource, SparkSource, SparkSink, and JDBC with "
           "an embedded database. Any client of the REST interface can then read and write all files that the worker "
           "can. (Kavka only.)", LOW),
    Option("config.providers", LIST, (), "Names of configuration providers; each is configured with "
           "`config.providers.NAME.class` and `config.providers.NAME.param.…`.", LOW),
    Option("checkpoint.dir", default="connect-checkpoints", doc="The folder of Spark's checkpoints. All workers must "
           "be able to access it. (Kavka only.)", importance=HIGH),
    Option("exactly.once.source.support", default="disabled", doc="`enabled`: sources write each record exactly "
           "once, in transactions.", importance=HIGH,
           validator=OneOf(("disabled", "preparing", "enabled"), ignore_case=True)),
    Option("task.shutdown.graceful.timeout.ms", LONG, 5000, "How long a task may take to stop.", LOW),
    Option("offset.flush.interval.ms", LONG, 60_000, "Has no effect: offsets are stored with every batch.", LOW),
    Option("offset.flush.timeout.ms", LONG, 5000, "Has no effect: offsets are stored with every batch.", LOW),
    Option("topic.creation.enable", BOOLEAN, True, "Whether `topic.creation.…` of sources has an effect.", LOW),
)  # fmt: skip

STANDALONE = (
    *WORKER,
    Option("offset.storage.file.filename", doc="The file for the offsets of sources.", importance=HIGH),
)

DISTRIBUTED = (
    *WORKER,
    Option("group.id", doc="The name of the group of workers.", importance=HIGH),
    Option("config.storage.topic", doc="The topic for configurations.", importance=HIGH),
    Option("offset.storage.topic", doc="The topic for the offsets of sources.", importance=HIGH),
    Option("status.storage.topic", doc="The topic for states.", importance=HIGH),
    Option("config.storage.replication.factor", SHORT, 3, "The topic's replicas; -1: the broker's default.", LOW),
    Option("offset.storage.replication.factor", SHORT, 3, "The topic's replicas; -1: the broker's default.", LOW),
    Option("status.storage.replication.factor", SHORT, 3, "The topic's replicas; -1: the broker's default.", LOW),
    Option("offset.storage.partitions", INT, 25, "The topic's partitions.", LOW, AtLeast(1)),
    Option("status.storage.partitions", INT, 5, "The topic's partitions.", LOW, AtLeast(1)),
    Option("session.timeout.ms", INT, 10_000, "A worker that sends no heartbeat for this long is removed from the "
           "group, and others take over its connectors.", HIGH),
    Option("heartbeat.interval.ms", INT, 3000, "The interval of a worker's heartbeats.", HIGH),
    Option("rebalance.timeout.ms", INT, 60_000, "How long workers may take to rejoin in a rebalance.", HIGH),
    Option("inter.worker.key.generation.algorithm", default="HmacSHA256", doc="The algorithm of the key that signs "
           "internal requests.", importance=LOW, validator=OneOf(ALGORITHMS, ignore_case=True)),
    Option("inter.worker.key.size", INT, None, "The size of this key in bits; the default is that of the algorithm.",
           LOW, AtLeast(40)),
    Option("inter.worker.key.ttl.ms", INT, 3_600_000, "The leader replaces the key after this time; 0: never.", LOW,
           AtLeast(0)),
    Option("inter.worker.signature.algorithm", default="HmacSHA256", doc="The algorithm that signs internal requests. "
           "It must be among the verification algorithms of all workers.", importance=LOW,
           validator=OneOf(ALGORITHMS, ignore_case=True)),
    Option("inter.worker.verification.algorithms", LIST, ("HmacSHA256",), "The algorithms of signatures that the "
           "worker accepts.", LOW, EachOneOf(ALGORITHMS)),
)  # fmt: skip

# Prefixes of a worker's settings that apply to clients of the cluster.
_CLIENT_PREFIXES = (
    "security.", "ssl.", "sasl.", "enable.ssl.", "client.dns", "request.timeout", "retry.backoff", "reconnect.",
)  # fmt: skip


def seconds(text: str | None) -> float | None:
    """Returns the seconds of a duration like 500ms, 10s, 1m; None for None. A number without a unit
    is in milliseconds. Raises ConnectError for another text."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConnectError(f"{text} is not a duration like 500ms, 10s, 1m or 2h")
    return int(match[1]) * _UNITS[match[2] or "ms"]


def options_of(cls: type[Connector]) -> tuple[Option, ...]:
    """Returns all options of a connector class, except those named by prefixes."""
    kind_options = SINK_OPTIONS if cls.kind == SINK else SOURCE_OPTIONS
    own_names = {option.name for option in cls.options}
    return (*(option for option in (*COMMON, *kind_options) if option.name not in own_names), *cls.options)


def client_settings(worker: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of clients of the cluster, from the worker's settings."""
    settings = {
        name: value for name, value in worker.items() if name.startswith(_CLIENT_PREFIXES) and name != "ssl.client.auth"
    }
    return {"bootstrap.servers": worker.get("bootstrap.servers", "localhost:9092"), **settings}


def converter_config(
    originals: Mapping[str, str], worker: Mapping[str, str], side: str
) -> tuple[str, dict[str, str], str]:
    """Returns (name of the class, the settings that configure it, their prefix). They come from the
    connector if it names a converter, otherwise from the worker."""
    option = f"{side}.converter"
    source = originals if originals.get(option) else worker
    return source.get(option, ""), dict(source), f"{option}."


def check_connector(
    cls: type[Connector],
    originals: Mapping[str, str],
    worker: Mapping[str, str],
    exactly_once: bool,
    declared: Declared = NO_PLUGINS,
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Returns (parsed values of all options, errors by name), with all checks of
    `config/validate`."""
    options = options_of(cls)
    values, errors = parse(options, originals)
    for name, message in cls.check(values, originals).items():
        errors.setdefault(name, []).append(message)
    if cls.kind == SINK:
        _check_sink(cls, values, errors)
    elif str(values["exactly.once.support"]).lower() == "required" and not exactly_once:
        message = "exactly-once support is required, but this worker has exactly.once.source.support=disabled"
        errors.setdefault("exactly.once.support", []).append(message)
    if cls.kind != SINK:
        for name, messages in topic_rules(originals, worker)[1].items():
            errors.setdefault(name, messages)
    for side in ("key", "value"):
        _check_converter(originals, worker, side, errors, declared)
    from kavka.pipeline.connect.transforms.chain import compile_steps

    for name, messages in (
        *compile_steps(originals, declared)[1].items(),
        *check_overrides(originals, declared).items(),
    ):
        errors.setdefault(name, []).extend(messages)
    if cls.opens_files(originals) and not declared.file_connectors:
        errors.setdefault("connector.class", []).append(f"The connector is not enabled: {FILES_DISABLED}")
    return values, errors


def _check_sink(cls: Any, values: Mapping[str, Any], errors: dict[str, list[str]]) -> None:
    topics, regex = values["topics"], values["topics.regex"]
    if topics and regex:
        message = "topics and topics.regex are mutually exclusive options, but both are set."
        for name in ("topics", "topics.regex"):
            errors.setdefault(name, []).append(message)
    if not topics and not regex:
        for name in ("topics", "topics.regex"):
            errors.setdefault(name, []).append("Must configure one of topics or topics.regex")
    if regex:
        try:
            re.compile(regex)
        except re.error as error:
            message = f"Invalid value {regex} for configuration topics.regex: {error}"
            errors.setdefault("topics.regex", []).append(message)
    topic = values["errors.deadletterqueue.topic.name"]
    if topic and topic in (topics or ()):
        message = f"The DLQ topic '{topic}' may not be included in the list of topics ('topics={','.join(topics)}')"
        errors.setdefault("topics", []).append(f"{message} consumed by the connector")
    if values["exactly.once"] and not cls.exactly_once:
        errors.setdefault("exactly.once", []).append(f"{cls.__name__} does not support exactly once")


def _check_converter(
    originals: Mapping[str, str],
    worker: Mapping[str, str],
    side: str,
    errors: dict[str, list[str]],
    declared: Declared,
) -> None:
    name, settings, prefix = converter_config(originals, worker, side)
    option = f"{side}.converter"
    if not name:
        errors.setdefault(option, []).append(f'Missing required configuration "{option}" which has no default value.')
        return
    try:
        cls = load_converter(name, option, declared)
    except ConfigErrors as error:
        errors.setdefault(option, []).extend(error.errors[option])
        return
    for key, messages in options_under(cls, prefix, settings)[1].items():
        errors.setdefault(key, []).extend(messages)
