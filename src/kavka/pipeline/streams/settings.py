"""What a streams application is configured with. Kafka's names; a name that nobody knows goes to
the clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.options import EARLIEST, LATEST
from kavka.pipeline.streams.serdes import Serde, Serdes, serde_of

logger = logging.getLogger(__name__)

CONTINUE, FAIL = "CONTINUE", "FAIL"
AT_LEAST_ONCE, EXACTLY_ONCE_V2 = "at_least_once", "exactly_once_v2"

Handler = Callable[[Any, Any, Exception], str]

# Names that the application itself reads, and those of Kafka that have no meaning here.
OWN = frozenset(
    {
        "application.id", "bootstrap.servers", "default.key.serde", "default.value.serde", "auto.offset.reset",
        "cache.max.bytes.buffering", "statestore.cache.max.bytes", "processing.guarantee", "state.dir",
        "num.stream.threads", "commit.interval.ms", "default.deserialization.exception.handler",
        "deserialization.exception.handler", "default.production.exception.handler", "production.exception.handler",
        "processing.exception.handler", "default.timestamp.extractor", "replication.factor", "max.records.per.batch",
        "spark.master", "application.server", "repartition.purge.interval.ms",
    }
)  # fmt: skip
WITHOUT_EFFECT = frozenset(
    {
        "num.standby.replicas", "topology.optimization", "buffered.records.per.partition", "poll.ms",
        "max.task.idle.ms", "rocksdb.config.setter", "state.cleanup.delay.ms", "task.timeout.ms",
        "acceptable.recovery.lag", "max.warmup.replicas", "probing.rebalance.interval.ms",
        "metrics.recording.level", "client.id",
    }
)  # fmt: skip


def _log_and_fail(where: Any, what: Any, error: Exception) -> str:
    return FAIL


def _log_and_continue(where: Any, what: Any, error: Exception) -> str:
    logger.warning("%s is left out: %s", where, error)
    return CONTINUE


_FAILING = frozenset(
    {"LogAndFailExceptionHandler", "LogAndFailProcessingExceptionHandler", "DefaultProductionExceptionHandler", "fail"}
)


def _handler(setting: Any, name: str) -> Handler:
    if setting is None:
        return _log_and_fail
    if callable(setting):
        return setting  # type: ignore[no-any-return]
    short = str(setting).rsplit(".", 1)[-1]
    if short in ("LogAndContinueExceptionHandler", "LogAndContinueProcessingExceptionHandler", "continue"):
        return _log_and_continue
    if short in _FAILING:
        return _log_and_fail
    raise StreamsException(f"{name}={setting}: give LogAndContinueExceptionHandler, LogAndFail… or a function")


def fails(handler: Handler) -> bool:
    """Whether a handler is the one that always says FAIL."""
    return handler is _log_and_fail


@dataclass(frozen=True)
class Settings:
    application_id: str
    bootstrap_servers: str
    key_serde: Serde
    value_serde: Serde
    reset: str = EARLIEST
    cache_bytes: int = 10 * 1024 * 1024
    exactly_once: bool = False
    state_dir: str = "/tmp/kafka-streams"
    threads: int = 1
    commit_interval: int = 30_000
    purge_interval: int = 30_000
    replication_factor: int = -1
    metadata_age: int = 300_000
    records_per_batch: int | None = None
    master: str | None = None
    deserialization_handler: Handler = _log_and_fail
    production_handler: Handler = _log_and_fail
    processing_handler: Handler | None = None
    max_request: int = 1024 * 1024
    timestamp_extractor: Callable[..., int] | None = None
    clients: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads_committed(self) -> bool:
        return self.exactly_once or self.clients.get("isolation.level") == "read_committed"


def _number(given: Mapping[str, Any], name: str, default: int, least: int) -> int:
    text = given.get(name, default)
    try:
        found = int(text)
    except (TypeError, ValueError):
        raise StreamsException(f"{name} must be a number, not {text!r}") from None
    if found < least:
        raise StreamsException(f"{name} must be at least {least}, not {found}")
    return found


def settings_of(config: Mapping[str, Any], need_servers: bool = True) -> Settings:
    given = {str(name): value for name, value in config.items()}
    for name in ("application.id", *(("bootstrap.servers",) if need_servers else ())):
        if not given.get(name):
            raise StreamsException(f'Missing required configuration "{name}" which has no default value.')
    reset = str(given.get("auto.offset.reset", EARLIEST))
    if reset not in (EARLIEST, LATEST):
        raise StreamsException(f"auto.offset.reset is earliest or latest, not {reset}")
    guarantee = str(given.get("processing.guarantee", AT_LEAST_ONCE))
    if guarantee not in (AT_LEAST_ONCE, EXACTLY_ONCE_V2):
        raise StreamsException(f"processing.guarantee is {AT_LEAST_ONCE} or {EXACTLY_ONCE_V2}, not {guarantee}")
    cache = "statestore.cache.max.bytes" if "statestore.cache.max.bytes" in given else "cache.max.bytes.buffering"
    for name in sorted(WITHOUT_EFFECT & set(given)):
        logger.warning("%s has no effect here", name)
    return Settings(
        application_id=str(given["application.id"]),
        bootstrap_servers=str(given.get("bootstrap.servers", "")),
        key_serde=serde_of(given.get("default.key.serde", Serdes.String()), "default.key.serde"),
        value_serde=serde_of(given.get("default.value.serde", Serdes.String()), "default.value.serde"),
        reset=reset,
        cache_bytes=_number(given, cache, 10 * 1024 * 1024, 0),
        exactly_once=guarantee == EXACTLY_ONCE_V2,
        state_dir=str(given.get("state.dir", "/tmp/kafka-streams")),
        threads=_number(given, "num.stream.threads", 1, 1),
        commit_interval=_number(given, "commit.interval.ms", 100, 0),
        purge_interval=_number(given, "repartition.purge.interval.ms", 30_000, 0),
        metadata_age=_number(given, "metadata.max.age.ms", 300_000, 1),
        replication_factor=_number(given, "replication.factor", -1, -1),
        records_per_batch=_number(given, "max.records.per.batch", 0, 1) if "max.records.per.batch" in given else None,
        master=given.get("spark.master"),
        deserialization_handler=_handler(
            given.get("deserialization.exception.handler", given.get("default.deserialization.exception.handler")),
            "default.deserialization.exception.handler",
        ),
        production_handler=_handler(
            given.get("production.exception.handler", given.get("default.production.exception.handler")),
            "default.production.exception.handler",
        ),
        processing_handler=(
            _handler(given["processing.exception.handler"], "processing.exception.handler")
            if given.get("processing.exception.handler") is not None
            else None
        ),
        max_request=_number(given, "max.request.size", 1024 * 1024, 0),
        timestamp_extractor=given.get("default.timestamp.extractor"),
        clients={
            name: str(value)
            for name, value in given.items()
            if name not in OWN and name not in WITHOUT_EFFECT and not name.startswith("spark.")
        },
        spark={name: str(value) for name, value in given.items() if name.startswith("spark.") and name not in OWN},
        given=given,
    )
