"""Kavka: an event-streaming platform that is compatible with Kafka's protocol and file format.

    from kavka import Admin, Consumer, NewTopic, Producer

The first use of a name imports its module, so `import kavka` alone is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kavka.client.admin import Admin as Admin
    from kavka.client.admin.acls import AclOperation as AclOperation
    from kavka.client.admin.acls import AclPermission as AclPermission
    from kavka.client.admin.acls import AclResourceType as AclResourceType
    from kavka.client.admin.base import AdminError as AdminError
    from kavka.client.admin.resets import BadReset as BadReset
    from kavka.client.admin.resets import NoSuchPartitions as NoSuchPartitions
    from kavka.client.admin.types import AbortTransactionSpec as AbortTransactionSpec
    from kavka.client.admin.types import AlterConfigOp as AlterConfigOp
    from kavka.client.admin.types import ApiVersionRange as ApiVersionRange
    from kavka.client.admin.types import ClusterDescription as ClusterDescription
    from kavka.client.admin.types import ConfigEntry as ConfigEntry
    from kavka.client.admin.types import ConfigResource as ConfigResource
    from kavka.client.admin.types import ConfigSource as ConfigSource
    from kavka.client.admin.types import ConfigSynonym as ConfigSynonym
    from kavka.client.admin.types import ConsumerGroupDescription as ConsumerGroupDescription
    from kavka.client.admin.types import CreatedTopic as CreatedTopic
    from kavka.client.admin.types import DelegationToken as DelegationToken
    from kavka.client.admin.types import ElectionType as ElectionType
    from kavka.client.admin.types import FeatureMetadata as FeatureMetadata
    from kavka.client.admin.types import GroupListing as GroupListing
    from kavka.client.admin.types import ListedOffset as ListedOffset
    from kavka.client.admin.types import LogDirDescription as LogDirDescription
    from kavka.client.admin.types import MemberDescription as MemberDescription
    from kavka.client.admin.types import MemberToRemove as MemberToRemove
    from kavka.client.admin.types import MovedOffset as MovedOffset
    from kavka.client.admin.types import NewPartitions as NewPartitions
    from kavka.client.admin.types import NewTopic as NewTopic
    from kavka.client.admin.types import OffsetReset as OffsetReset
    from kavka.client.admin.types import OffsetSpec as OffsetSpec
    from kavka.client.admin.types import OpenTransaction as OpenTransaction
    from kavka.client.admin.types import OpType as OpType
    from kavka.client.admin.types import PartitionReassignment as PartitionReassignment
    from kavka.client.admin.types import ProducerState as ProducerState
    from kavka.client.admin.types import ReplicaInfo as ReplicaInfo
    from kavka.client.admin.types import ReplicaLogDirInfo as ReplicaLogDirInfo
    from kavka.client.admin.types import ResourceType as ResourceType
    from kavka.client.admin.types import ScramPassword as ScramPassword
    from kavka.client.admin.types import TopicDescription as TopicDescription
    from kavka.client.admin.types import TopicListing as TopicListing
    from kavka.client.admin.types import TopicPartitionInfo as TopicPartitionInfo
    from kavka.client.admin.types import TopicPartitionReplica as TopicPartitionReplica
    from kavka.client.admin.types import TransactionDescription as TransactionDescription
    from kavka.client.admin.types import TransactionListing as TransactionListing
    from kavka.client.consumer.arguments import RebalanceListener as RebalanceListener
    from kavka.client.consumer.assignors import Assignment as Assignment
    from kavka.client.consumer.assignors import Assignor as Assignor
    from kavka.client.consumer.assignors import Subscription as Subscription
    from kavka.client.consumer.consumer import Consumer as Consumer
    from kavka.client.consumer.errors import CommitFailed as CommitFailed
    from kavka.client.consumer.errors import ConcurrentAccess as ConcurrentAccess
    from kavka.client.consumer.errors import LogTruncation as LogTruncation
    from kavka.client.consumer.errors import NoOffsetForPartition as NoOffsetForPartition
    from kavka.client.consumer.errors import OffsetOutOfRange as OffsetOutOfRange
    from kavka.client.consumer.errors import RebalanceInProgress as RebalanceInProgress
    from kavka.client.consumer.errors import RecordDeserializationError as RecordDeserializationError
    from kavka.client.consumer.errors import UnreadableBatch as UnreadableBatch
    from kavka.client.consumer.errors import Wakeup as Wakeup
    from kavka.client.consumer.records import ConsumerRecord as ConsumerRecord
    from kavka.client.consumer.records import Records as Records
    from kavka.client.errors import AuthenticationFailed as AuthenticationFailed
    from kavka.client.errors import BufferExhausted as BufferExhausted
    from kavka.client.errors import ClientClosed as ClientClosed
    from kavka.client.errors import Disconnected as Disconnected
    from kavka.client.errors import IllegalState as IllegalState
    from kavka.client.errors import KafkaTimeout as KafkaTimeout
    from kavka.client.errors import Purged as Purged
    from kavka.client.errors import SchemaRegistryError as SchemaRegistryError
    from kavka.client.errors import SchemaRegistryUnavailable as SchemaRegistryUnavailable
    from kavka.client.errors import SerializationError as SerializationError
    from kavka.client.errors import UnsupportedVersion as UnsupportedVersion
    from kavka.client.metadata import Node as Node
    from kavka.client.metadata import PartitionMetadata as PartitionMetadata
    from kavka.client.metadata import TopicMetadata as TopicMetadata
    from kavka.client.producer._append import RecordFuture as RecordFuture
    from kavka.client.producer.producer import Producer as Producer
    from kavka.client.producer.record import ProducerRecord as ProducerRecord
    from kavka.client.producer.record import RecordMetadata as RecordMetadata
    from kavka.client.producer.send_batch import BatchFuture as BatchFuture
    from kavka.client.schemas.registry import RegisteredSchema as RegisteredSchema
    from kavka.client.schemas.registry import Schema as Schema
    from kavka.client.schemas.registry import SchemaReference as SchemaReference
    from kavka.client.schemas.registry import SchemaRegistry as SchemaRegistry
    from kavka.client.schemas.serializers import JsonSchemaDeserializer as JsonSchemaDeserializer
    from kavka.client.schemas.serializers import JsonSchemaSerializer as JsonSchemaSerializer
    from kavka.client.serializers import AutoSerializer as AutoSerializer
    from kavka.client.serializers import BooleanDeserializer as BooleanDeserializer
    from kavka.client.serializers import BooleanSerializer as BooleanSerializer
    from kavka.client.serializers import BytesDeserializer as BytesDeserializer
    from kavka.client.serializers import BytesSerializer as BytesSerializer
    from kavka.client.serializers import Deserializer as Deserializer
    from kavka.client.serializers import DoubleDeserializer as DoubleDeserializer
    from kavka.client.serializers import DoubleSerializer as DoubleSerializer
    from kavka.client.serializers import FloatDeserializer as FloatDeserializer
    from kavka.client.serializers import FloatSerializer as FloatSerializer
    from kavka.client.serializers import IntegerDeserializer as IntegerDeserializer
    from kavka.client.serializers import IntegerSerializer as IntegerSerializer
    from kavka.client.serializers import JsonDeserializer as JsonDeserializer
    from kavka.client.serializers import JsonSerializer as JsonSerializer
    from kavka.client.serializers import LongDeserializer as LongDeserializer
    from kavka.client.serializers import LongSerializer as LongSerializer
    from kavka.client.serializers import Serializer as Serializer
    from kavka.client.serializers import ShortDeserializer as ShortDeserializer
    from kavka.client.serializers import ShortSerializer as ShortSerializer
    from kavka.client.serializers import StringDeserializer as StringDeserializer
    from kavka.client.serializers import StringSerializer as StringSerializer
    from kavka.client.serializers import UUIDDeserializer as UUIDDeserializer
    from kavka.client.serializers import UUIDSerializer as UUIDSerializer
    from kavka.client.serializers import VoidDeserializer as VoidDeserializer
    from kavka.client.serializers import VoidSerializer as VoidSerializer
    from kavka.client.serializers_extra import AvroDeserializer as AvroDeserializer
    from kavka.client.serializers_extra import AvroSerializer as AvroSerializer
    from kavka.client.serializers_extra import ProtobufDeserializer as ProtobufDeserializer
    from kavka.client.serializers_extra import ProtobufSerializer as ProtobufSerializer
    from kavka.client.settings import AdminSettings as AdminSettings
    from kavka.client.settings import ConsumerSettings as ConsumerSettings
    from kavka.client.settings import ProducerSettings as ProducerSettings
    from kavka.client.types import ConsumerGroupMetadata as ConsumerGroupMetadata
    from kavka.client.types import OffsetAndMetadata as OffsetAndMetadata
    from kavka.client.types import OffsetAndTimestamp as OffsetAndTimestamp
    from kavka.client.types import PreparedTransaction as PreparedTransaction
    from kavka.common.config import ConfigError as ConfigError
    from kavka.common.errors import ErrorCode as ErrorCode
    from kavka.common.errors import KafkaError as KafkaError
    from kavka.common.types import TopicPartition as TopicPartition
    from kavka.security.acls import Acl as Acl
    from kavka.security.acls import AclBinding as AclBinding
    from kavka.security.acls import AclFilter as AclFilter
    from kavka.security.acls import PatternFilter as PatternFilter
    from kavka.security.acls import PatternType as PatternType
    from kavka.security.acls import ResourcePattern as ResourcePattern
    from kavka.security.quotas import QuotaEntity as QuotaEntity

_NAMES = {
    "kavka.client.admin": ("Admin",),
    "kavka.client.admin.acls": ("AclOperation", "AclPermission", "AclResourceType"),
    "kavka.client.admin.base": ("AdminError",),
    "kavka.client.admin.resets": ("BadReset", "NoSuchPartitions"),
    "kavka.client.admin.types": (
        "AbortTransactionSpec",
        "AlterConfigOp",
        "ApiVersionRange",
        "ClusterDescription",
        "ConfigEntry",
        "ConfigResource",
        "ConfigSource",
        "ConfigSynonym",
        "ConsumerGroupDescription",
        "CreatedTopic",
        "DelegationToken",
        "ElectionType",
        "FeatureMetadata",
        "GroupListing",
        "ListedOffset",
        "LogDirDescription",
        "MemberDescription",
        "MemberToRemove",
        "MovedOffset",
        "NewPartitions",
        "NewTopic",
        "OffsetReset",
        "OffsetSpec",
        "OpType",
        "OpenTransaction",
        "PartitionReassignment",
        "ProducerState",
        "ReplicaInfo",
        "ReplicaLogDirInfo",
        "ResourceType",
        "ScramPassword",
        "TopicDescription",
        "TopicListing",
        "TopicPartitionInfo",
        "TopicPartitionReplica",
        "TransactionDescription",
        "TransactionListing",
    ),
    "kavka.client.consumer.arguments": ("RebalanceListener",),
    "kavka.client.consumer.assignors": ("Assignment", "Assignor", "Subscription"),
    "kavka.client.consumer.consumer": ("Consumer",),
    "kavka.client.consumer.errors": (
        "CommitFailed",
        "ConcurrentAccess",
        "LogTruncation",
        "NoOffsetForPartition",
        "OffsetOutOfRange",
        "RebalanceInProgress",
        "RecordDeserializationError",
        "UnreadableBatch",
        "Wakeup",
    ),
    "kavka.client.consumer.records": ("ConsumerRecord", "Records"),
    "kavka.client.errors": (
        "AuthenticationFailed",
        "BufferExhausted",
        "ClientClosed",
        "Disconnected",
        "IllegalState",
        "KafkaTimeout",
        "Purged",
        "SchemaRegistryError",
        "SchemaRegistryUnavailable",
        "SerializationError",
        "UnsupportedVersion",
    ),
    "kavka.client.metadata": ("Node", "PartitionMetadata", "TopicMetadata"),
    "kavka.client.producer._append": ("RecordFuture",),
    "kavka.client.producer.producer": ("Producer",),
    "kavka.client.producer.record": ("ProducerRecord", "RecordMetadata"),
    "kavka.client.producer.send_batch": ("BatchFuture",),
    "kavka.client.schemas.registry": ("RegisteredSchema", "Schema", "SchemaReference", "SchemaRegistry"),
    "kavka.client.schemas.serializers": ("JsonSchemaDeserializer", "JsonSchemaSerializer"),
    "kavka.client.serializers": (
        "AutoSerializer",
        "BooleanDeserializer",
        "BooleanSerializer",
        "BytesDeserializer",
        "BytesSerializer",
        "Deserializer",
        "DoubleDeserializer",
        "DoubleSerializer",
        "FloatDeserializer",
        "FloatSerializer",
        "IntegerDeserializer",
        "IntegerSerializer",
        "JsonDeserializer",
        "JsonSerializer",
        "LongDeserializer",
        "LongSerializer",
        "Serializer",
        "ShortDeserializer",
        "ShortSerializer",
        "StringDeserializer",
        "StringSerializer",
        "UUIDDeserializer",
        "UUIDSerializer",
        "VoidDeserializer",
        "VoidSerializer",
    ),
    "kavka.client.serializers_extra": (
        "AvroDeserializer",
        "AvroSerializer",
        "ProtobufDeserializer",
        "ProtobufSerializer",
    ),
    "kavka.client.settings": ("AdminSettings", "ConsumerSettings", "ProducerSettings"),
    "kavka.client.types": ("ConsumerGroupMetadata", "OffsetAndMetadata", "OffsetAndTimestamp", "PreparedTransaction"),
    "kavka.common.config": ("ConfigError",),
    "kavka.common.errors": ("ErrorCode", "KafkaError"),
    "kavka.common.types": ("TopicPartition",),
    "kavka.security.quotas": ("QuotaEntity",),
    "kavka.security.acls": ("Acl", "AclBinding", "AclFilter", "PatternFilter", "PatternType", "ResourcePattern"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*sorted(_MODULES), "__version__"]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'kavka' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
