"""The options of the source and the sink: those of Spark's Kafka source, and a few additions. No
I/O except warnings in the log.

Spark passes options as text with lower-case names. Options of `format("kafka")` have the same
meaning here. An unknown option is an error, so that a misspelt option is not silently ignored. The
message suggests the nearest name.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kavka.client.admin_config import ADMIN_CONFIGS
from kavka.client.config import supported_settings
from kavka.client.consumer_config import CONSUMER_CONFIGS
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.errors import OptionError

logger = logging.getLogger(__name__)

EARLIEST = -2
LATEST = -1

SOURCE_NAMES = (
    "assign", "subscribe", "subscribePattern",
    "startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp", "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp",
    "maxBytesPerTrigger", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
    "maxRecordsPerPartition", "maxPartitions", "failOnDataLoss", "dataLossReset", "includeHeaders", "textColumns",
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix",
    "groupIdCommit", "driverClaim", "keyFormat", "valueFormat", "keySubject", "valueSubject", "keySchemaVersion",
    "valueSchemaVersion", "keyMessage", "valueMessage",
)  # fmt: skip
SINK_NAMES = (
    "topic", "exactlyOnce", "transactionalIdPrefix", "decisionsTopic", "timestampColumn", "queryId", "runId", "batchId",
    "newTopics",
)  # fmt: skip
# Options that Spark adds to those of a query or a table.
SPARKS_OWN = ("checkpointLocation", "queryName", "path", "outputMode", "header", "mergeSchema", "sourceName", "name")

FORMATS = ("avro", "json-schema", "protobuf")
REGISTRY = "schema.registry."
REGISTRY_URL = "schema.registry.url"

_ALL = {name.lower(): name for name in (*SOURCE_NAMES, *SINK_NAMES)}
_IGNORED = {name.lower() for name in SPARKS_OWN}

# Options of Spark's Kafka source that name its consumer group.
_WITHOUT_EFFECT = ("groupIdPrefix", "kafka.group.id")
_REFUSED_BY_SOURCE = {
    "auto.offset.reset": "startingOffsets determines where reading starts",
    "key.deserializer": "keys are bytes, or text with textColumns=key",
    "value.deserializer": "values are bytes, or text with textColumns=value",
    "enable.auto.commit": "Spark stores the offsets in its checkpoint; groupIdCommit also commits them to a group",
    "interceptor.classes": "interceptors do not see data that is read as columns",
}
_REFUSED_BY_SINK = {
    "key.serializer": "keys are bytes or text: cast the column",
    "value.serializer": "values are bytes or text: cast the column",
    "transactional.id": "exactlyOnce=true uses transactions; transactionalIdPrefix names them",
    "enable.idempotence": "it is always on",
    "interceptor.classes": "interceptors do not see data that is written from columns",
}


@dataclass(frozen=True)
class ByOffset:
    """Offsets by partition. EARLIEST and LATEST are the first and the end offset."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class ByTime:
    """Milliseconds since 1970, by partition or for all partitions."""

    times: Mapping[TopicPartition, int] | int


@dataclass(frozen=True)
class ColumnFormat:
    """How the key or the value is decoded with a schema registry."""

    format: str
    subject: str
    version: int | None
    """The version of the subject that determines the columns; None: the latest."""
    message: str | None
    """The full name of a Protobuf message type; None: the first of the schema."""


Position = int | ByOffset | ByTime
"""EARLIEST, LATEST, offsets or times."""


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options of the source. Times are in seconds."""

    kind: str
    """assign, subscribe or subscribePattern."""
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    pattern: str
    starting: Position
    ending: Position
    no_such_time_is_latest: bool
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_delay: float
    min_partitions: int | None
    max_records_per_partition: int | None
    max_partitions: int | None
    """The number of Spark partitions that read the topic partitions in turn."""
    fail_on_data_loss: bool
    data_loss_reset: Mapping[str, str] | str
    """earliest, latest or none, by topic or for all: where a partition continues whose next record
    no longer exists. A topic that is not listed continues at its first record."""
    include_headers: bool
    text_columns: frozenset[str]
    """Which of key and value are strings."""
    poll_timeout: float
    retries: int
    retry_interval: float
    group_to_commit: str | None
    formats: Mapping[str, ColumnFormat] = field(default_factory=dict)
    """By key or value: the format of a column that is decoded."""
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The options schema.registry.*. They may contain secrets."""
    decoders: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """By key or value: the `ColumnDecoder`, which the driver creates when the query starts."""
    driver_claim: str | None = None
    """The claim of the driver (`fencing.py`), for a query of which only one may run."""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The options kafka.*, without the prefix. They may contain secrets."""

    @property
    def isolation_level(self) -> str:
        return self.client.get("isolation.level", "read_uncommitted")

    def reset_of(self, topic: str) -> str:
        reset = self.data_loss_reset
        return reset if isinstance(reset, str) else reset.get(topic, "earliest")


@dataclass(frozen=True)
class SinkOptions:
    """The parsed options of the sink."""

    topic: str | None
    exactly_once: bool
    id_prefix: str
    decisions_topic: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    timestamp_column: str | None = None
    batch_of: tuple[str, str, int] | None = None
    """(query id, run id, batch number) of a batch that may run again."""
    new_topics: str | None = None
    """Rules for creating topics, in the format of `new_topics.py`."""


def source_options(originals: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options of the source. Raises OptionError if an option is invalid, and warns of
    options without effect."""
    options = _Options(originals)
    kind, topics, partitions, pattern = _subscription(options)
    starting = _position(options, "starting", LATEST if streaming else EARLIEST)
    ending = _position(options, "ending", LATEST)
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if name in options:
                raise OptionError(f"{name} is for batches: a stream has no end")
    else:
        _check_batch(starting, ending, options)
    for position, prefix in ((starting, "startingOffsets"), (ending, "endingOffsets")):
        _check_partitions(position, prefix, kind, topics, partitions)
    client = options.client(_REFUSED_BY_SOURCE)
    _warn_of_options_without_effect(options, client)
    strategy = options.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    min_offsets, max_offsets = options.number("minOffsetsPerTrigger"), options.number("maxOffsetsPerTrigger")
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise OptionError(f"minOffsetsPerTrigger ({min_offsets}) is more than maxOffsetsPerTrigger ({max_offsets})")
    return SourceOptions(
        kind=kind,
        topics=topics,
        partitions=partitions,
        pattern=pattern,
        starting=starting,
        ending=ending,
        no_such_time_is_latest=strategy == "latest",
        max_offsets=max_offsets,
        max_bytes=options.number("maxBytesPerTrigger"),
        min_offsets=min_offsets,
        max_delay=options.duration("maxTriggerDelay", 900.0),
        min_partitions=options.number("minPartitions"),
        max_records_per_partition=options.number("maxRecordsPerPartition"),
        max_partitions=_max_partitions(options),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        data_loss_reset=_resets(options),
        include_headers=options.boolean("includeHeaders", False),
        text_columns=text_columns(options.get("textColumns")),
        poll_timeout=options.number_or("kafkaConsumer.pollTimeoutMs", 120_000, minimum=1) / 1000,
        retries=options.number_or("fetchOffset.numRetries", 3),
        retry_interval=options.number_or("fetchOffset.retryIntervalMs", 1000) / 1000,
        group_to_commit=_group(options, streaming),
        formats=_formats(options, topics),
        registry=options.registry(),
        driver_claim=options.get("driverClaim"),
        client=client,
    )


def _warn_of_options_without_effect(options: _Options, client: Mapping[str, str]) -> None:
    for name in _WITHOUT_EFFECT:
        if name in options:
            logger.warning("%s has no effect: the source needs no consumer group", name)
    supported = supported_settings(client, CONSUMER_CONFIGS).keys() | supported_settings(client, ADMIN_CONFIGS).keys()
    for name in client.keys() - supported:
        logger.warning("kafka.%s has no effect: it is not a setting of a consumer", name)


def _max_partitions(options: _Options) -> int | None:
    maximum = options.number("maxPartitions")
    splitting = [name for name in ("minPartitions", "maxRecordsPerPartition") if name in options]
    if maximum is not None and splitting:
        raise OptionError(f"maxPartitions and {splitting[0]} are mutually exclusive")
    return maximum


def column_formats(originals: Mapping[str, str]) -> tuple[dict[str, ColumnFormat], dict[str, str]]:
    """Return the formats of key and value, and the settings of the registry. Raises OptionError."""
    options = _Options(originals)
    return _formats(options, _subscription(options)[1]), options.registry()


def _formats(options: _Options, topics: tuple[str, ...]) -> dict[str, ColumnFormat]:
    formats: dict[str, ColumnFormat] = {}
    for side in ("key", "value"):
        names = (f"{side}Subject", f"{side}SchemaVersion", f"{side}Message")
        if f"{side}Format" not in options:
            if set_names := [name for name in names if name in options]:
                raise OptionError(f"{set_names[0]} requires {side}Format")
            continue
        if side in text_columns(options.get("textColumns")):
            raise OptionError(f"{side}Format and textColumns={side} cannot be set together")
        subject = options.get(f"{side}Subject") or (f"{topics[0]}-{side}" if len(topics) == 1 else None)
        if subject is None:
            raise OptionError(
                f"{side}Subject must be set unless a single topic is read: its schema defines the columns"
            )
        formats[side] = ColumnFormat(
            options.one_of(f"{side}Format", FORMATS, ""),
            subject,
            options.number(f"{side}SchemaVersion"),
            options.get(f"{side}Message"),
        )
    if formats and REGISTRY_URL not in options.registry():
        raise OptionError(f"{REGISTRY_URL} must be set with {next(iter(formats))}Format")
    return formats


def _resets(options: _Options) -> Mapping[str, str] | str:
    text = (options.get("dataLossReset") or "earliest").strip()
    resets: Any = _json("dataLossReset", text, '{"topic":"latest"}') if text.startswith("{") else {"": text.lower()}
    if not all(reset in ("earliest", "latest", "none") for reset in resets.values()):
        raise OptionError(f"dataLossReset must be earliest, latest or none, or these by topic as JSON, not '{text}'")
    by_topic: Mapping[str, str] = resets
    return by_topic.get("") or by_topic


def text_columns(text: str | None) -> frozenset[str]:
    columns = frozenset(name.strip().lower() for name in (text or "").split(",") if name.strip())
    if not columns <= {"key", "value"}:
        raise OptionError(f"textColumns must be key, value, or both with a comma between, not '{text}'")
    return columns


def sink_options(originals: Mapping[str, str]) -> SinkOptions:
    """Parse the options of the sink. Raises OptionError if an option is invalid."""
    options = _Options(originals)
    topic = options.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("topic is empty")
    client = options.client(_REFUSED_BY_SINK)
    exactly_once = options.boolean("exactlyOnce", False)
    if exactly_once and client.get("acks", "all") not in ("all", "-1"):
        raise OptionError("kafka.acks must be all with exactlyOnce=true")
    return SinkOptions(
        topic=topic.strip() if topic else None,
        exactly_once=exactly_once,
        id_prefix=options.get("transactionalIdPrefix") or "kavka-",
        decisions_topic=options.get("decisionsTopic") or "__kavka_pipeline_decisions",
        client=client,
        timestamp_column=options.get("timestampColumn"),
        batch_of=_batch_of(options),
        new_topics=options.get("newTopics"),
    )


def _batch_of(options: _Options) -> tuple[str, str, int] | None:
    query, run, number = options.get("queryId"), options.get("runId"), options.number("batchId", minimum=0)
    if query is None and run is None and number is None:
        return None
    if not query or not run or number is None:
        raise OptionError("queryId, runId and batchId must be set together")
    return query, run, number


# --- single options


class _Options:
    """Options by their names in Spark's spelling. The constructor rejects unknown ones."""

    def __init__(self, originals: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in originals.items()}
        for name in self._values:
            if name not in _ALL and name not in _IGNORED and not name.startswith(("kafka.", REGISTRY)):
                raise OptionError(f"{name} is not an option of kavka{_nearest(name, _ALL)}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def number(self, name: str, minimum: int = 1) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise OptionError(f"{name} must be a whole number of at least {minimum}, not '{text}'")
        return value

    def number_or(self, name: str, default: int, minimum: int = 0) -> int:
        number = self.number(name, minimum)
        return default if number is None else number

    def boolean(self, name: str, default: bool) -> bool:
        return self.one_of(name, ("true", "false"), "true" if default else "false") == "true"

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        text = self.get(name)
        if text is None:
            return default
        if text.strip().lower() not in allowed:
            raise OptionError(f"{name} must be {' or '.join(allowed)}, not '{text}'")
        return text.strip().lower()

    def duration(self, name: str, default: float) -> float:
        """Return the seconds of a duration in Spark's format: 500ms, 30s, 15m, 2h. A number without
        a unit is in milliseconds."""
        text = self.get(name)
        if text is None:
            return default
        match = re.fullmatch(r"(\d+)\s*(us|ms|s|m|min|h|d)?", text.strip().lower())
        if match is None:
            raise OptionError(f"{name} must be a duration like 500ms, 30s, 15m or 2h, not '{text}'")
        unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
        return int(match[1]) * unit[match[2] or "ms"]

    def registry(self) -> dict[str, str]:
        return {name: value for name, value in self._values.items() if name.startswith(REGISTRY)}

    def client(self, refused: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of the client. Raises OptionError if a setting in `refused` is set or
        bootstrap.servers is missing."""
        settings = {name[6:]: value for name, value in self._values.items() if name.startswith("kafka.")}
        for name, reason in refused.items():
            if name in settings:
                raise OptionError(f"kafka.{name} cannot be set: {reason}")
        if not settings.get("bootstrap.servers", "").strip():
            matches = difflib.get_close_matches("bootstrap.servers", settings, 1, 0.8)
            hint = f" (kafka.{matches[0]} is not an option)" if matches else ""
            raise OptionError(f"kafka.bootstrap.servers must be set: host:port of one broker or more{hint}")
        return settings


def _nearest(name: str, names: Mapping[str, str]) -> str:
    matches = difflib.get_close_matches(name, names, 1, 0.6)
    if matches:
        return f"; the nearest is {names[matches[0]]}"
    return "; settings of the client start with kafka." if "." in name else ""


def _group(options: _Options, streaming: bool) -> str | None:
    group = options.get("groupIdCommit")
    if group is None:
        return None
    if not streaming:
        raise OptionError("groupIdCommit is for streams: Spark does not notify the source that a batch is complete")
    if not group.strip():
        raise OptionError("groupIdCommit must be the name of a consumer group")
    return group


# --- the subscription


def _subscription(options: _Options) -> tuple[str, tuple[str, ...], tuple[TopicPartition, ...], str]:
    kinds = [name for name in ("assign", "subscribe", "subscribePattern") if name in options]
    if len(kinds) != 1:
        problem = " and ".join(kinds) if kinds else "none of them"
        raise OptionError(f"exactly one of subscribe, subscribePattern and assign must be set, not {problem}")
    text = options.get(kinds[0]) or ""
    if kinds[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
        if not topics:
            raise OptionError("subscribe must be the names of topics, separated by commas")
        return "subscribe", topics, (), ""
    if kinds[0] == "subscribePattern":
        if not text.strip():
            raise OptionError("subscribePattern is empty")
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern '{text}' is not a regular expression: {error}") from None
        return "subscribePattern", (), (), text
    assignment = _json("assign", text, '{"topic":[0,1]}')
    partitions: list[TopicPartition] = []
    for topic, numbers in assignment.items():
        if not isinstance(numbers, list) or not all(_is_number(number) and number >= 0 for number in numbers):
            raise OptionError(f"assign must be like {{\"topic\":[0,1]}}, not '{text}'")
        partitions += [TopicPartition(topic, number) for number in numbers]
    if not partitions:
        raise OptionError("assign names no partitions")
    return "assign", tuple(sorted({tp.topic for tp in partitions})), tuple(sorted(set(partitions))), ""


def _position(options: _Options, side: str, default: int) -> Position:
    """Return the position of a side, "starting" or "ending". The timestamp for all partitions takes
    precedence over timestamps by partition, which take precedence over offsets."""
    time_for_all = options.number(f"{side}Timestamp", minimum=0)
    if time_for_all is not None:
        return ByTime(time_for_all)
    name = f"{side}OffsetsByTimestamp"
    text = options.get(name)
    if text is not None:
        return ByTime(offsets_from_json(name, text, minimum=0))
    name = f"{side}Offsets"
    text = options.get(name)
    if text is None:
        return default
    edge = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    return edge if edge is not None else ByOffset(offsets_from_json(name, text, minimum=EARLIEST))


def _check_batch(starting: Position, ending: Position, options: _Options) -> None:
    if starting == LATEST:
        raise OptionError("startingOffsets cannot be latest for a batch: nothing would be read")
    if ending == EARLIEST:
        raise OptionError("endingOffsets cannot be earliest for a batch: nothing would be read")
    for position, edge, name in ((starting, LATEST, "startingOffsets"), (ending, EARLIEST, "endingOffsets")):
        if isinstance(position, ByOffset):
            for tp, offset in position.offsets.items():
                if offset == edge:
                    raise OptionError(f"{name} of {tp} cannot be {edge} for a batch: nothing would be read")


def _check_partitions(
    position: Position, name: str, kind: str, topics: tuple[str, ...], partitions: tuple[TopicPartition, ...]
) -> None:
    """Raise OptionError for an offset or time of a partition that is not read. With
    subscribePattern the topics are not known yet, so nothing is checked."""
    specified = (
        position.offsets if isinstance(position, ByOffset) else position.times if isinstance(position, ByTime) else {}
    )
    if isinstance(specified, int) or kind == "subscribePattern":
        return
    for tp in specified:
        if tp not in partitions if kind == "assign" else tp.topic not in topics:
            raise OptionError(f"{name} has {tp}, which is not read")


def offsets_from_json(name: str, text: str, minimum: int) -> dict[TopicPartition, int]:
    """Parse offsets in Spark's format {"topic":{"0":23,"1":-1}}. Raises OptionError if they are
    invalid or less than `minimum`."""
    example = '{"topic":{"0":23,"1":45}}'
    offsets: dict[TopicPartition, int] = {}
    for topic, by_partition in _json(name, text, example).items():
        if not isinstance(by_partition, dict):
            raise OptionError(f"{name} must be like {example}, not '{text}'")
        for partition, offset in by_partition.items():
            if not partition.isascii() or not partition.isdigit() or not _is_number(offset):
                raise OptionError(f"{name} must be like {example}, not '{text}'")
            if offset < minimum:
                raise OptionError(f"{name} of {topic}-{partition} cannot be {offset}")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise OptionError(f"{name} must be like {example}, not '{text}'")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
