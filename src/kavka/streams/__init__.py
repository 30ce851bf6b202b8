"""Streams: the Kafka Streams API with Python names, on Spark Structured Streaming.

    from kavka.streams import KafkaStreams, Produced, Serdes, StreamsBuilder

`docs/streams.md` describes the API. Only `KafkaStreams.start()` needs Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams.builder import GlobalKTable, StreamsBuilder
from kavka.pipeline.streams.cogrouped import (
    CogroupedKStream,
    SessionWindowedCogroupedKStream,
    TimeWindowedCogroupedKStream,
)
from kavka.pipeline.streams.driver import TestInputTopic, TestOutputTopic, TestRecord, TopologyTestDriver
from kavka.pipeline.streams.error_handlers import ErrorHandlerContext, Response
from kavka.pipeline.streams.errors import (
    FailedProcessingException,
    InvalidStateStoreException,
    StreamsException,
    TopologyException,
)
from kavka.pipeline.streams.expressions import Expression, coalesce, col, lit, max_of, min_of, sum_of, when
from kavka.pipeline.streams.grouped import KGroupedStream, KGroupedTable, SessionWindowedKStream, TimeWindowedKStream
from kavka.pipeline.streams.kstream import BranchedKStream, KStream
from kavka.pipeline.streams.ktable import KTable
from kavka.pipeline.streams.metadata import (
    HostInfo,
    KeyQueryMetadata,
    StreamsMetadata,
    TaskMetadata,
    ThreadMetadata,
)
from kavka.pipeline.streams.options import (
    Branched,
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Named,
    Produced,
    Repartitioned,
    StreamJoined,
    TableJoined,
)
from kavka.pipeline.streams.processors import ProcessorContext, PunctuationType, Record, RecordMetadata
from kavka.pipeline.streams.queries import (
    QueryableStoreTypes,
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
    StoreQueryParameters,
)
from kavka.pipeline.streams.schema_serdes import SchemaSerdes
from kavka.pipeline.streams.serdes import Serde, Serdes, WindowedSerdes
from kavka.pipeline.streams.stores import StoreBuilder, Stores, ValueAndTimestamp
from kavka.pipeline.streams.topology import Topology, TopologyDescription
from kavka.pipeline.streams.versioned import VersionedRecord
from kavka.pipeline.streams.windows import (
    BufferConfig,
    EmitStrategy,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
    Window,
    Windowed,
)

if TYPE_CHECKING:
    from kavka.pipeline.streams.application import KafkaStreams as KafkaStreams
    from kavka.pipeline.streams.application import StreamThreadExceptionResponse as StreamThreadExceptionResponse
    from kavka.pipeline.streams.application_states import State as State

__all__ = [
    "Branched",
    "BranchedKStream",
    "BufferConfig",
    "CogroupedKStream",
    "Consumed",
    "EmitStrategy",
    "ErrorHandlerContext",
    "Expression",
    "FailedProcessingException",
    "GlobalKTable",
    "Grouped",
    "HostInfo",
    "InvalidStateStoreException",
    "JoinWindows",
    "Joined",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KafkaStreams",
    "KeyQueryMetadata",
    "Materialized",
    "Named",
    "ProcessorContext",
    "Produced",
    "PunctuationType",
    "QueryableStoreTypes",
    "ReadOnlyKeyValueStore",
    "ReadOnlySessionStore",
    "ReadOnlyVersionedStore",
    "ReadOnlyWindowStore",
    "Record",
    "RecordMetadata",
    "Repartitioned",
    "Response",
    "SchemaSerdes",
    "Serde",
    "Serdes",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
    "SlidingWindows",
    "State",
    "StoreBuilder",
    "StoreQueryParameters",
    "Stores",
    "StreamJoined",
    "StreamThreadExceptionResponse",
    "StreamsBuilder",
    "StreamsException",
    "StreamsMetadata",
    "Suppressed",
    "TableJoined",
    "TaskMetadata",
    "TestInputTopic",
    "TestOutputTopic",
    "TestRecord",
    "ThreadMetadata",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TimeWindows",
    "Topology",
    "TopologyDescription",
    "TopologyException",
    "TopologyTestDriver",
    "UnlimitedWindows",
    "ValueAndTimestamp",
    "VersionedRecord",
    "Window",
    "Windowed",
    "WindowedSerdes",
    "coalesce",
    "col",
    "lit",
    "max_of",
    "min_of",
    "sum_of",
    "when",
]


def __getattr__(name: str) -> Any:
    if name in ("KafkaStreams", "State", "StreamThreadExceptionResponse"):
        from kavka.pipeline.streams import application

        return getattr(application, name)
    raise AttributeError(name)
