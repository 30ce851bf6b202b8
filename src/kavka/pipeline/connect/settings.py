"""The options of all connectors and of workers: Kafka Connect's names, and a few of our own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kavka.common.config import AtLeast, ConfigType, Importance, NotEmpty, OneOf, Satisfies
from kavka.pipeline.connect.api import SINK, Connector
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.loading import (
    CONVERTERS,
    HEADER_CONVERTERS,
    NOTHING,
    Declared,
    check_overrides,
    load_converter,
    options_under,
)
from kavka.pipeline.connect.options import Option, parse
from kavka.pipeline.connect.plugins import FILES_DISABLED
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

PROCESSING, AVAILABLE_NOW = "processing-time", "available-now"
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NO_CONTROL = Satisfies(
    "non-empty, without control characters",
    lambda name: bool(name.strip()) and all(ord(char) >= 32 and ord(char) != 127 for char in name),
)

COMMON = (
    Option("name", doc="A name that no other connector of the workers has.", importance=HIGH, validator=_NO_CONTROL,
           group="Common", width="MEDIUM", display_name="Connector name"),
    Option("connector.class", doc="Kafka's name of the connector's class, a short one, or `module.Class` of your own "
           "(see `plugin.path`).", importance=HIGH, group="Common", width="LONG", display_name="Connector class"),
    Option("tasks.max", INT, 1, "Kafka's limit on tasks. Here a connector is one task; files and Datagen are read by "
           "so many of Spark's.", HIGH, AtLeast(1), "Common", "SHORT", "Tasks max"),
    Option("tasks.max.enforce", BOOLEAN, True, "Has no effect: there is never more than one task.", LOW, None, "Common",
           "SHORT", "Enforce tasks max"),
    Option("key.converter", CLASS, None, "How keys are bytes; the worker's converter unless this is given.", LOW, None,
           "Common", "SHORT", "Key converter class", tuple(sorted(CONVERTERS))),
    Option("value.converter", CLASS, None, "How values are bytes; the worker's converter unless this is given.", LOW,
           None, "Common", "SHORT", "Value converter class", tuple(sorted(CONVERTERS))),
    Option("header.converter", CLASS, None, "How headers are bytes. Here they are text, or the bytes they were.", LOW,
           None, "Common", "SHORT", "Header converter class", HEADER_CONVERTERS),
    Option("transforms", LIST, (), "Names for the transformations, in their order; each is configured as "
           "`transforms.NAME.…`.", LOW, None, "Transforms", "LONG", "Transforms"),
    Option("predicates", LIST, (), "Names for predicates; each is configured as `predicates.NAME.…`.", LOW, None,
           "Predicates", "LONG", "Predicates"),
    Option("config.action.reload", default="restart", doc="Has no effect: the providers here do not say for how long a "
           "value holds. Restart the connector after a change.", importance=LOW,
           validator=OneOf(("none", "restart"), ignore_case=True), group="Common", width="MEDIUM",
           display_name="Reload Action", recommended=("none", "restart")),
    Option("errors.retry.timeout", LONG, 0, "How long, in ms, what failed and may pass is tried again; -1: for ever.",
           MEDIUM, AtLeast(-1), "Error Handling", "MEDIUM", "Retry Timeout for Errors"),
    Option("errors.retry.delay.max.ms", LONG, 60_000, "The longest pause between two such attempts, in ms.", MEDIUM,
           AtLeast(0), "Error Handling", "MEDIUM", "Maximum Delay Between Retries for Errors"),
    Option("errors.tolerance", default="none", doc="`none`: a record that cannot be converted or transformed fails the "
           "task; `all`: it is left out.", importance=MEDIUM, validator=OneOf(("none", "all")), group="Error Handling",
           width="SHORT", display_name="Error Tolerance", recommended=("none", "all")),
    Option("errors.log.enable", BOOLEAN, False, "Whether the log tells of every failure that is tolerated.", MEDIUM,
           None, "Error Handling", "SHORT", "Log Errors"),
    Option("errors.log.include.messages", BOOLEAN, False, "Whether it tells what the record was, too.", MEDIUM, None,
           "Error Handling", "SHORT", "Log Error Details"),
    Option("trigger", default=PROCESSING, doc="`processing-time`: for ever; `available-now`: what is there when it "
           "starts, and the task is done. (Ours.)", importance=MEDIUM, validator=OneOf((PROCESSING, AVAILABLE_NOW)),
           group="Spark", width="SHORT", display_name="Trigger", recommended=(PROCESSING, AVAILABLE_NOW)),
    Option("trigger.interval", default=None, doc="How often there is a micro-batch: `500ms`, `10s`, `1m`; without it "
           "as soon as the last is done. (Ours.)", importance=MEDIUM,
           validator=Satisfies("a time like 500ms, 10s, 1m or 2h", lambda text: _DURATION.fullmatch(text) is not None),
           group="Spark", width="SHORT", display_name="Trigger interval"),
)  # fmt: skip

SOURCE_OPTIONS = (
    Option("topic.creation.groups", LIST, (), "Names for groups of topics, in their order; each is configured as "
           "`topic.creation.NAME.include`, `.exclude` (regular expressions, separated by commas), `.partitions`, "
           "`.replication.factor`, and any setting of topics.", LOW, None, "Topic Creation", "LONG",
           "Topic Creation Groups"),
    Option("topic.creation.default.partitions", INT, None, "How many partitions a topic has that has to be made and is "
           "of no group; -1: the broker's default. Required with any other `topic.creation.…`; without all of them the "
           "broker makes topics, if it does so.", LOW, None, "Topic Creation", "SHORT", "Default partitions"),
    Option("topic.creation.default.replication.factor", SHORT, None, "And how many replicas; -1: the broker's "
           "default. Required likewise. `topic.creation.default.…` with any setting of topics sets that.", LOW, None,
           "Topic Creation", "SHORT", "Default replication factor"),
    Option("exactly.once.support", default="requested", doc="`required`: refused unless the worker has "
           "`exactly.once.source.support=enabled`.", importance=MEDIUM,
           validator=OneOf(("requested", "required"), ignore_case=True), group="Exactly Once Support", width="SHORT",
           display_name="Exactly once support", recommended=("requested", "required")),
    Option("transaction.boundary", default="poll", doc="Has no effect: a transaction is a micro-batch.",
           importance=MEDIUM, validator=OneOf(("poll", "interval", "connector"), ignore_case=True),
           group="Exactly Once Support", width="SHORT", display_name="Transaction Boundary",
           recommended=("interval", "poll", "connector")),
    Option("transaction.boundary.interval.ms", LONG, None, "Has no effect.", LOW, AtLeast(0), "Exactly Once Support",
           "SHORT", "Transaction boundary interval"),
    Option("offsets.storage.topic", default=None, doc="Has no effect: all offsets are in the worker's topic.",
           importance=LOW, group="offsets.topic", width="LONG", display_name="Offsets topic"),
)  # fmt: skip

SINK_OPTIONS = (
    Option("topics", LIST, (), "The topics to read.", HIGH, None, "Common", "LONG", "Topics"),
    Option("topics.regex", default="", doc="A regular expression of the topics to read, in place of `topics`.",
           importance=HIGH, group="Common", width="LONG", display_name="Topics regex"),
    Option("errors.deadletterqueue.topic.name", default="", doc="The topic for records that failed, as they were, with "
           "headers that tell why.", importance=MEDIUM, group="Error Handling", width="MEDIUM",
           display_name="Dead Letter Queue Topic Name"),
    Option("errors.deadletterqueue.topic.replication.factor", SHORT, 3, "How many replicas it has when it is made.",
           MEDIUM, None, "Error Handling", "MEDIUM", "Dead Letter Queue Topic Replication Factor"),
    Option("errors.deadletterqueue.context.headers.enable", BOOLEAN, False, "Whether it gets the headers "
           "`__connect.errors.…`.", MEDIUM, None, "Error Handling", "MEDIUM", "Enable Error Context Headers"),
    Option("exactly.once", BOOLEAN, False, "Whether each record is to arrive once, whatever dies in between: for sinks "
           "that can do that. (Ours.)", MEDIUM, None, "Spark", "SHORT", "Exactly once"),
    Option("max.records.per.batch", INT, None, "The most records of a micro-batch. (Ours.)", LOW, AtLeast(1), "Spark",
           "SHORT", "Most records of a batch"),
    Option("fail.on.data.loss", BOOLEAN, False, "Whether offsets that are gone before they were read fail the task. "
           "(Ours.)", LOW, None, "Spark", "SHORT", "Fail on data loss"),
)  # fmt: skip

WORKER = (
    Option("bootstrap.servers", LIST, ("localhost:9092",), "Brokers to begin with.", HIGH, NotEmpty()),
    Option("key.converter", CLASS, doc="How keys are bytes, for connectors that do not say.", importance=HIGH),
    Option("value.converter", CLASS, doc="How values are bytes, for connectors that do not say.", importance=HIGH),
    Option("header.converter", CLASS, "SimpleHeaderConverter", "How headers are bytes.", LOW),
    Option("listeners", LIST, ("http://localhost:8083",), "Where the REST interface listens. The default is reached "
           "from this machine alone (Kafka's, `http://:8083`, from anywhere): workers of a group on several machines "
           "need an address that the others reach.", LOW),
    Option("rest.advertised.host.name", default=None, doc="What other workers call this one.", importance=LOW),
    Option("rest.advertised.port", INT, None, "And at which port.", LOW),
    Option("access.control.allow.origin", LIST, (), "Origins of web pages that may use the REST interface: "
           "`https://ui.example`, `https://*.example` or `*`. Requests of all other pages are refused.", LOW),
    Option("access.control.allow.methods", LIST, (), "Methods that these pages may use; without it GET, POST and HEAD.",
           LOW),
    Option("plugin.path", LIST, (), "Folders with modules of plugins: connectors, converters, transformations, "
           "predicates and configuration providers of your own. They are added to Python's path; the modules that "
           "are there when the worker starts may be named in configurations.", LOW),
    Option("plugin.modules", LIST, (), "Modules and packages on Python's path that may be named in configurations, "
           "too. Nothing else is imported. (Ours.)", LOW),
    Option("file.connectors.enable", BOOLEAN, False, "Whether there are the connectors that open files which their "
           "configurations name: FileStreamSource, FileStreamSink, FolderSource, SparkSource, SparkSink, and JDBC with "
           "a database that is no server. Whoever reaches the REST interface can then read and write all files that "
           "the worker can. (Ours.)", LOW),
    Option("config.providers", LIST, (), "Names for configuration providers; each is configured as "
           "`config.providers.NAME.class` and `config.providers.NAME.param.…`.", LOW),
    Option("checkpoint.dir", default="connect-checkpoints", doc="Where Spark's checkpoints are: a folder that all "
           "workers see. (Ours.)", importance=HIGH),
    Option("exactly.once.source.support", default="disabled", doc="`enabled`: what sources write is in transactions, "
           "each record once.", importance=HIGH,
           validator=OneOf(("disabled", "preparing", "enabled"), ignore_case=True)),
    Option("task.shutdown.graceful.timeout.ms", LONG, 5000, "How long a task may take to stop.", LOW),
    Option("offset.flush.interval.ms", LONG, 60_000, "Has no effect: offsets are kept with every batch.", LOW),
    Option("offset.flush.timeout.ms", LONG, 5000, "Has no effect.", LOW),
    Option("topic.creation.enable", BOOLEAN, True, "Whether `topic.creation.…` of sources counts.", LOW),
)  # fmt: skip

STANDALONE = (
    *WORKER,
    Option("offset.storage.file.filename", doc="The file with sources' offsets.", importance=HIGH),
)

DISTRIBUTED = (
    *WORKER,
    Option("group.id", doc="The name of this group of workers.", importance=HIGH),
    Option("config.storage.topic", doc="The topic with configurations.", importance=HIGH),
    Option("offset.storage.topic", doc="The topic with sources' offsets.", importance=HIGH),
    Option("status.storage.topic", doc="The topic with states.", importance=HIGH),
    Option("config.storage.replication.factor", SHORT, 3, "Of that topic, when it is made; -1: the broker's.", LOW),
    Option("offset.storage.replication.factor", SHORT, 3, "Of that topic, when it is made; -1: the broker's.", LOW),
    Option("status.storage.replication.factor", SHORT, 3, "Of that topic, when it is made; -1: the broker's.", LOW),
    Option("offset.storage.partitions", INT, 25, "Of that topic, when it is made.", LOW, AtLeast(1)),
    Option("status.storage.partitions", INT, 5, "Of that topic, when it is made.", LOW, AtLeast(1)),
    Option("session.timeout.ms", INT, 10_000, "After so long without a sign of life a worker counts as dead, and "
           "others take over its connectors.", HIGH),
    Option("heartbeat.interval.ms", INT, 3000, "How often a worker gives a sign of life.", HIGH),
    Option("rebalance.timeout.ms", INT, 60_000, "How long workers may take to join again.", HIGH),
)  # fmt: skip

# Of a worker's file, what is for clients of the cluster.
_CLIENT_PREFIXES = ("security.", "ssl.", "sasl.", "client.dns", "request.timeout", "retry.backoff", "reconnect.")


def seconds(text: str | None) -> float | None:
    """Of a time like 500ms, 10s, 1m; a bare number is milliseconds."""
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ConnectError(f"{text} is no time like 500ms, 10s, 1m or 2h")
    return int(found[1]) * _UNITS[found[2] or "ms"]


def options_of(cls: type[Connector]) -> tuple[Option, ...]:
    """All that a connector of this class can be configured with, but for what is named by prefixes."""
    more = SINK_OPTIONS if cls.kind == SINK else SOURCE_OPTIONS
    own = {option.name for option in cls.options}
    return (*(one for one in (*COMMON, *more) if one.name not in own), *cls.options)


def client_settings(worker: Mapping[str, str]) -> dict[str, str]:
    """What all clients of the cluster have in common."""
    found = {name: value for name, value in worker.items() if name.startswith(_CLIENT_PREFIXES)}
    return {"bootstrap.servers": worker.get("bootstrap.servers", "localhost:9092"), **found}


def converter_config(given: Mapping[str, str], worker: Mapping[str, str], side: str) -> tuple[str, dict[str, str], str]:
    """(name of the class, the settings it is among, their prefix): the connector's own, else the worker's."""
    option = f"{side}.converter"
    source = given if given.get(option) else worker
    return source.get(option, ""), dict(source), f"{option}."


def check_connector(
    cls: type[Connector],
    given: Mapping[str, str],
    worker: Mapping[str, str],
    exactly_once: bool,
    declared: Declared = NOTHING,
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """(all options parsed, errors by name): everything that `config/validate` looks at."""
    options = options_of(cls)
    values, errors = parse(options, given)
    for name, message in cls.check(values, given).items():
        errors.setdefault(name, []).append(message)
    if cls.kind == SINK:
        _check_sink(cls, values, errors)
    elif str(values["exactly.once.support"]).lower() == "required" and not exactly_once:
        wrong = "exactly-once support is required, and this worker has exactly.once.source.support=disabled"
        errors.setdefault("exactly.once.support", []).append(wrong)
    if cls.kind != SINK:
        for name, messages in topic_rules(given, worker)[1].items():
            errors.setdefault(name, messages)
    for side in ("key", "value"):
        _check_converter(given, worker, side, errors, declared)
    from kavka.pipeline.connect.transforms.chain import compiled

    for name, messages in (*compiled(given, declared)[1].items(), *check_overrides(given, declared).items()):
        errors.setdefault(name, []).extend(messages)
    if cls.opens_files(given) and not declared.file_connectors:
        errors.setdefault("connector.class", []).append(f"The connector is not enabled: {FILES_DISABLED}")
    return values, errors


def _check_sink(cls: Any, values: Mapping[str, Any], errors: dict[str, list[str]]) -> None:
    topics, regex = values["topics"], values["topics.regex"]
    if topics and regex:
        wrong = "topics and topics.regex are mutually exclusive options, but both are set."
        for name in ("topics", "topics.regex"):
            errors.setdefault(name, []).append(wrong)
    if not topics and not regex:
        for name in ("topics", "topics.regex"):
            errors.setdefault(name, []).append("Must configure one of topics or topics.regex")
    if regex:
        try:
            re.compile(regex)
        except re.error as error:
            wrong = f"Invalid value {regex} for configuration topics.regex: {error}"
            errors.setdefault("topics.regex", []).append(wrong)
    dead = values["errors.deadletterqueue.topic.name"]
    if dead and dead in (topics or ()):
        wrong = f"The DLQ topic '{dead}' may not be included in the list of topics ('topics={','.join(topics)}')"
        errors.setdefault("topics", []).append(f"{wrong} consumed by the connector")
    if values["exactly.once"] and not cls.exactly_once:
        errors.setdefault("exactly.once", []).append(f"{cls.__name__} cannot write each record once")


def _check_converter(
    given: Mapping[str, str],
    worker: Mapping[str, str],
    side: str,
    errors: dict[str, list[str]],
    declared: Declared,
) -> None:
    name, among, prefix = converter_config(given, worker, side)
    option = f"{side}.converter"
    if not name:
        errors.setdefault(option, []).append(f'Missing required configuration "{option}" which has no default value.')
        return
    try:
        cls = load_converter(name, option, declared)
    except ConfigErrors as error:
        errors.setdefault(option, []).extend(error.errors[option])
        return
    for key, messages in options_under(cls, prefix, among)[1].items():
        errors.setdefault(key, []).extend(messages)
