"""Kavka: an event-streaming platform that speaks Kafka's protocol and keeps Kafka's files.

    from kavka import Admin, Consumer, NewTopic, Producer

What a name stands for is loaded when it is first used: `import kavka` alone costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kavka.client.admin import Admin as Admin
    from kavka.client.admin.types import AlterConfigOp as AlterConfigOp
    from kavka.client.admin.types import ConfigResource as ConfigResource
    from kavka.client.admin.types import NewPartitions as NewPartitions
    from kavka.client.admin.types import NewTopic as NewTopic
    from kavka.client.admin.types import OffsetSpec as OffsetSpec
    from kavka.client.consumer._decode import ConsumerRecord as ConsumerRecord
    from kavka.client.consumer.arguments import RebalanceListener as RebalanceListener
    from kavka.client.consumer.consumer import Consumer as Consumer
    from kavka.client.consumer.errors import CommitFailed as CommitFailed
    from kavka.client.consumer.errors import ConcurrentAccess as ConcurrentAccess
    from kavka.client.consumer.errors import LogTruncation as LogTruncation
    from kavka.client.consumer.errors import NoOffsetForPartition as NoOffsetForPartition
    from kavka.client.consumer.errors import OffsetOutOfRange as OffsetOutOfRange
    from kavka.client.consumer.errors import RebalanceInProgress as RebalanceInProgress
    from kavka.client.consumer.errors import RecordDeserializationError as RecordDeserializationError
    from kavka.client.consumer.errors import Wakeup as Wakeup
    from kavka.client.consumer.records import Records as Records
    from kavka.client.errors import KafkaTimeout as KafkaTimeout
    from kavka.client.errors import SerializationError as SerializationError
    from kavka.client.producer.producer import Producer as Producer
    from kavka.client.producer.record import ProducerRecord as ProducerRecord
    from kavka.client.producer.record import RecordMetadata as RecordMetadata
    from kavka.client.types import ConsumerGroupMetadata as ConsumerGroupMetadata
    from kavka.client.types import OffsetAndMetadata as OffsetAndMetadata
    from kavka.client.types import OffsetAndTimestamp as OffsetAndTimestamp
    from kavka.common.config import ConfigError as ConfigError
    from kavka.common.errors import ErrorCode as ErrorCode
    from kavka.common.errors import KafkaError as KafkaError
    from kavka.common.types import TopicPartition as TopicPartition

_WHERE = {
    "Admin": "kavka.client.admin",
    "AlterConfigOp": "kavka.client.admin.types",
    "CommitFailed": "kavka.client.consumer.errors",
    "ConcurrentAccess": "kavka.client.consumer.errors",
    "ConfigError": "kavka.common.config",
    "ConfigResource": "kavka.client.admin.types",
    "Consumer": "kavka.client.consumer.consumer",
    "ConsumerGroupMetadata": "kavka.client.types",
    "ConsumerRecord": "kavka.client.consumer._decode",
    "ErrorCode": "kavka.common.errors",
    "KafkaError": "kavka.common.errors",
    "KafkaTimeout": "kavka.client.errors",
    "LogTruncation": "kavka.client.consumer.errors",
    "NewPartitions": "kavka.client.admin.types",
    "NewTopic": "kavka.client.admin.types",
    "NoOffsetForPartition": "kavka.client.consumer.errors",
    "OffsetAndMetadata": "kavka.client.types",
    "OffsetAndTimestamp": "kavka.client.types",
    "OffsetOutOfRange": "kavka.client.consumer.errors",
    "OffsetSpec": "kavka.client.admin.types",
    "Producer": "kavka.client.producer.producer",
    "ProducerRecord": "kavka.client.producer.record",
    "RebalanceInProgress": "kavka.client.consumer.errors",
    "RebalanceListener": "kavka.client.consumer.arguments",
    "RecordDeserializationError": "kavka.client.consumer.errors",
    "RecordMetadata": "kavka.client.producer.record",
    "Records": "kavka.client.consumer.records",
    "SerializationError": "kavka.client.errors",
    "TopicPartition": "kavka.common.types",
    "Wakeup": "kavka.client.consumer.errors",
}

__all__ = [*sorted(_WHERE), "__version__"]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'kavka' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(where), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
