"""The storage settings of the broker. The settings of topics are in log_config.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kavka.storage.cleaner import CleanerSettings
from kavka.storage.log_config import MAX_LONG


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The storage settings of the broker, with the defaults of Kafka 3.9."""

    recovery_threads_per_data_dir: int = 1
    retention_check_interval_ms: int = 300_000
    flush_scheduler_interval_ms: int = MAX_LONG
    flush_offset_checkpoint_interval_ms: int = 60_000
    flush_start_offset_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    cleaner: CleanerSettings = field(default_factory=CleanerSettings)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> StorageSettings:
        """Create the settings from parsed broker settings, keyed by Kafka's names. Missing settings
        have their defaults."""

        def options(names: Mapping[str, str]) -> dict[str, Any]:
            return {field: values[name] for field, name in names.items() if values.get(name) is not None}

        return cls(**options(_KAFKA_NAMES), cleaner=CleanerSettings(**options(_CLEANER_KAFKA_NAMES)))


_KAFKA_NAMES = {
    "recovery_threads_per_data_dir": "num.recovery.threads.per.data.dir",
    "retention_check_interval_ms": "log.retention.check.interval.ms",
    "flush_scheduler_interval_ms": "log.flush.scheduler.interval.ms",
    "flush_offset_checkpoint_interval_ms": "log.flush.offset.checkpoint.interval.ms",
    "flush_start_offset_checkpoint_interval_ms": "log.flush.start.offset.checkpoint.interval.ms",
    "high_watermark_checkpoint_interval_ms": "replica.high.watermark.checkpoint.interval.ms",
    "producer_id_expiration_ms": "producer.id.expiration.ms",
    "producer_id_expiration_check_interval_ms": "producer.id.expiration.check.interval.ms",
}
_CLEANER_KAFKA_NAMES = {
    "enable": "log.cleaner.enable",
    "threads": "log.cleaner.threads",
    "dedupe_buffer_size": "log.cleaner.dedupe.buffer.size",
    "io_buffer_size": "log.cleaner.io.buffer.size",
    "io_buffer_load_factor": "log.cleaner.io.buffer.load.factor",
    "io_max_bytes_per_second": "log.cleaner.io.max.bytes.per.second",
    "backoff_ms": "log.cleaner.backoff.ms",
}
