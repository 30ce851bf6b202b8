"""The settings of a streams application, with Kafka's names.

Names of the clients are passed to all clients that have them. The prefixes of `PREFIXES` restrict a
setting to one client, and take precedence. An unknown name is refused; under a prefix it is legal,
as serializers and interceptors have settings of any name, and has no effect.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kavka.client.admin_config import ADMIN_CONFIGS
from kavka.client.config import supported_settings
from kavka.client.consumer_config import CONSUMER_CONFIGS
from kavka.client.producer_config import PRODUCER_CONFIGS
from kavka.client.security_config import SECURITY_ALIASES
from kavka.common.config import ConfigTable
from kavka.common.topic_config import TOPIC_CONFIGS
from kavka.pipeline.streams.error_handlers import (
    DEAD_LETTER_TOPIC,
    DESERIALIZATION,
    PROCESSING,
    PRODUCTION,
    ErrorHandler,
    handler_of,
)
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.options import EARLIEST, LATEST, NONE
from kavka.pipeline.streams.serdes import Serde, Serdes, serde_of
from kavka.pipeline.streams.timestamps import Extractor, extractor_of

logger = logging.getLogger(__name__)

AT_LEAST_ONCE, EXACTLY_ONCE_V2 = "at_least_once", "exactly_once_v2"

# Names that the application itself reads.
OWN = frozenset(
    {
        "application.id", "bootstrap.servers", "default.key.serde", "default.value.serde", "auto.offset.reset",
        "cache.max.bytes.buffering", "statestore.cache.max.bytes", "processing.guarantee", "state.dir",
        "commit.interval.ms", "default.deserialization.exception.handler",
        "deserialization.exception.handler", "default.production.exception.handler", "production.exception.handler",
        "processing.exception.handler", "default.timestamp.extractor", "replication.factor", "max.records.per.batch",
        "max.bytes.per.batch",
        "spark.master", "application.server", "repartition.purge.interval.ms", "fail.on.data.loss",
        DEAD_LETTER_TOPIC, "metrics.listener", "status.topic",
    }
)  # fmt: skip
# Kafka's names that have no meaning here.
WITHOUT_EFFECT = frozenset(
    {
        "acceptable.recovery.lag", "allow.os.group.write.access", "buffered.records.per.partition",
        "built.in.metrics.version", "client.id", "default.client.supplier", "default.dsl.store", "dsl.store.format",
        "dsl.store.suppliers.class", "enable.metrics.push", "ensure.explicit.internal.resource.naming",
        "group.protocol", "log.summary.interval.ms", "max.task.idle.ms", "max.warmup.replicas", "metric.reporters",
        "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms", "num.standby.replicas",
        "num.stream.threads", "poll.ms", "probing.rebalance.interval.ms", "processing.exception.handler.global.enabled",
        "processor.wrapper.class", "rack.aware.assignment.non_overlap_cost", "rack.aware.assignment.strategy",
        "rack.aware.assignment.tags", "rack.aware.assignment.traffic_cost", "retries", "rocksdb.config.setter",
        "state.cleanup.delay.ms", "state.cleanup.dir.max.age.ms", "task.assignor.class", "task.timeout.ms",
        "topology.optimization", "upgrade.from", "window.size.ms", "windowed.inner.class.serde",
        "windowstore.changelog.additional.retention.ms",
    }
)  # fmt: skip
_CLIENTS = (CONSUMER_CONFIGS, PRODUCER_CONFIGS, ADMIN_CONFIGS)
# The longer of two prefixes first.
PREFIXES: Mapping[str, ConfigTable] = {
    "main.consumer.": CONSUMER_CONFIGS,
    "global.consumer.": CONSUMER_CONFIGS,
    "restore.consumer.": CONSUMER_CONFIGS,
    "consumer.": CONSUMER_CONFIGS,
    "producer.": PRODUCER_CONFIGS,
    "admin.": ADMIN_CONFIGS,
    "topic.": TOPIC_CONFIGS,
}
# The application decides these, whatever the settings of its clients are.
_DECIDED = frozenset(
    {
        "group.id", "group.instance.id", "enable.auto.commit", "key.deserializer", "value.deserializer",
        "key.serializer", "value.serializer", "interceptor.classes", "allow.auto.create.topics", "transactional.id",
        "enable.idempotence", "partition.assignment.strategy", "group.protocol", "group.remote.assignor",
        "partitioner.class",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    application_id: str
    bootstrap_servers: str
    key_serde: Serde
    value_serde: Serde
    deserialization_handler: ErrorHandler
    production_handler: ErrorHandler
    processing_handler: ErrorHandler | None = None
    reset: str = EARLIEST
    fail_on_data_loss: bool = False
    cache_bytes: int = 10 * 1024 * 1024
    exactly_once: bool = False
    state_dir: str = "/tmp/kafka-streams"
    commit_interval: int = 30_000
    purge_interval: int = 30_000
    replication_factor: int = -1
    metadata_age: int = 300_000
    records_per_batch: int | None = None
    bytes_per_batch: int = 256 * 1024 * 1024
    master: str | None = None
    max_request: int = 1024 * 1024
    timestamp_extractor: Extractor | None = None
    metrics_listener: str | None = None
    clients: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For all clients."""
    prefixed: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """By prefix."""
    spark: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def reads_committed(self) -> bool:
        return self.exactly_once or self.consumer().get("isolation.level") == "read_committed"

    def own_topic(self, name: str) -> str:
        """The full name of a topic of the application."""
        return f"{self.application_id}-{name}"

    def consumer(self, is_global: bool = False) -> dict[str, str]:
        own = "global.consumer." if is_global else "main.consumer."
        return self._of(CONSUMER_CONFIGS, "consumer.", own)

    @property
    def producer(self) -> dict[str, str]:
        return self._of(PRODUCER_CONFIGS, "producer.")

    @property
    def admin(self) -> dict[str, str]:
        return self._of(ADMIN_CONFIGS, "admin.")

    @property
    def topic(self) -> Mapping[str, str]:
        """The configuration of the application's topics."""
        return self.prefixed.get("topic.", {})

    def _of(self, table: ConfigTable, *prefixes: str) -> dict[str, str]:
        foreign = {name: value for name, value in self.clients.items() if _is_foreign(name)}
        shared = foreign | supported_settings(self.clients, table)
        settings = {"bootstrap.servers": self.bootstrap_servers, **shared}
        for prefix in prefixes:
            settings |= self.prefixed.get(prefix, {})
        return settings


def _is_foreign(name: str) -> bool:
    """Whether the clients know a name only to say why it is not supported."""
    return any(table.hint(name).startswith(" (") for table in _CLIENTS)


# --- names


def _sorted_out(config: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The settings of all clients, and those by prefix. Raises StreamsException for an unknown
    name, and warns of names without effect."""
    clients: dict[str, str] = {}
    prefixed: dict[str, dict[str, str]] = {}
    for name, value in config.items():
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)
        if name in OWN or name.startswith("spark."):
            continue
        if prefix is not None:
            bare = name.removeprefix(prefix)
            if _has_effect(name, bare, prefix):
                prefixed.setdefault(prefix, {})[bare] = str(value)
        elif name in WITHOUT_EFFECT or name in _DECIDED or name.startswith("client.tag."):
            logger.warning("%s has no effect here", name)
        elif any(table.get(name) for table in _CLIENTS) or name in SECURITY_ALIASES or _is_foreign(name):
            clients[name] = str(value)
        else:
            raise StreamsException(f"{name} is not a setting of Streams{_suggestion(name, _names())}")
    return clients, prefixed


def _has_effect(name: str, bare: str, prefix: str) -> bool:
    table = PREFIXES[prefix]
    if bare in _DECIDED or bare == "auto.offset.reset" or prefix == "restore.consumer.":
        if bare != "auto.offset.reset":
            logger.warning("%s has no effect here", name)
        return False
    if table.get(bare) is not None or bare in SECURITY_ALIASES or _is_foreign(bare):
        return True
    suggestion = _suggestion(bare, [key.name for key in table], prefix)
    if suggestion or prefix == "topic.":
        raise StreamsException(f"{name} is not a setting of Streams{suggestion}")
    logger.warning("%s has no effect here: serializers and interceptors do not see the records of Streams", name)
    return False


def _names() -> list[str]:
    return [*OWN, *WITHOUT_EFFECT, *(key.name for table in _CLIENTS for key in table)]


def _suggestion(name: str, names: list[str], prefix: str = "") -> str:
    matches = difflib.get_close_matches(name, names, 1, 0.75)
    return f"; did you mean {prefix}{matches[0]}?" if matches else ""


# --- values


def _number(config: Mapping[str, Any], name: str, default: int, least: int) -> int:
    text = config.get(name, default)
    try:
        number = int(text)
    except (TypeError, ValueError):
        raise StreamsException(f"{name} must be a number, not {text!r}") from None
    if number < least:
        raise StreamsException(f"{name} must be at least {least}, not {number}")
    return number


def _boolean(config: Mapping[str, Any], name: str, default: bool) -> bool:
    text = str(config.get(name, default)).strip().lower()
    if text not in ("true", "false"):
        raise StreamsException(f"{name} must be true or false, not {config[name]!r}")
    return text == "true"


def _reset(config: Mapping[str, Any]) -> str:
    names = ("main.consumer.auto.offset.reset", "consumer.auto.offset.reset", "auto.offset.reset")
    name = next((name for name in names if name in config), "auto.offset.reset")
    reset = str(config.get(name, EARLIEST))
    if reset not in (EARLIEST, LATEST, NONE):
        raise StreamsException(f"{name} is earliest, latest or none, not {reset}")
    return reset


def _handler(config: Mapping[str, Any], kind: str) -> ErrorHandler:
    name = f"{kind}.exception.handler"
    older = f"default.{name}"
    return handler_of(kind, config.get(name, config.get(older)), name if name in config else older, config)


def settings_of(config: Mapping[str, Any], need_servers: bool = True) -> Settings:
    config = {str(name): value for name, value in config.items()}
    clients, prefixed = _sorted_out(config)
    for name in ("application.id", *(("bootstrap.servers",) if need_servers else ())):
        if not config.get(name):
            raise StreamsException(f'Missing required configuration "{name}" which has no default value.')
    guarantee = str(config.get("processing.guarantee", AT_LEAST_ONCE))
    if guarantee not in (AT_LEAST_ONCE, EXACTLY_ONCE_V2):
        raise StreamsException(f"processing.guarantee is {AT_LEAST_ONCE} or {EXACTLY_ONCE_V2}, not {guarantee}")
    cache = "statestore.cache.max.bytes" if "statestore.cache.max.bytes" in config else "cache.max.bytes.buffering"
    largest = {**config, **prefixed.get("producer.", {})}
    has_processing_handler = config.get("processing.exception.handler") is not None
    return Settings(
        application_id=str(config["application.id"]),
        bootstrap_servers=str(config.get("bootstrap.servers", "")),
        key_serde=serde_of(config.get("default.key.serde", Serdes.String()), "default.key.serde"),
        value_serde=serde_of(config.get("default.value.serde", Serdes.String()), "default.value.serde"),
        deserialization_handler=_handler(config, DESERIALIZATION),
        production_handler=_handler(config, PRODUCTION),
        processing_handler=_handler(config, PROCESSING) if has_processing_handler else None,
        reset=_reset(config),
        fail_on_data_loss=_boolean(config, "fail.on.data.loss", False),
        cache_bytes=_number(config, cache, 10 * 1024 * 1024, 0),
        exactly_once=guarantee == EXACTLY_ONCE_V2,
        state_dir=str(config.get("state.dir", "/tmp/kafka-streams")),
        commit_interval=_number(config, "commit.interval.ms", 100, 0),
        purge_interval=_number(config, "repartition.purge.interval.ms", 30_000, 0),
        metadata_age=_number(config, "metadata.max.age.ms", 300_000, 1),
        replication_factor=_number(config, "replication.factor", -1, -1),
        bytes_per_batch=_number(config, "max.bytes.per.batch", 256 * 1024 * 1024, 1),
        records_per_batch=_number(config, "max.records.per.batch", 0, 1) if "max.records.per.batch" in config else None,
        master=config.get("spark.master"),
        max_request=_number(largest, "max.request.size", 1024 * 1024, 0),
        timestamp_extractor=extractor_of(config.get("default.timestamp.extractor"), "default.timestamp.extractor"),
        metrics_listener=config.get("metrics.listener") or None,
        clients=clients,
        prefixed=prefixed,
        spark={name: str(value) for name, value in config.items() if name.startswith("spark.") and name not in OWN},
        config=config,
    )
