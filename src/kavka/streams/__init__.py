"""Streams: Kafka Streams' API in Python's spelling, run by Spark Structured Streaming.

    from kavka.streams import KafkaStreams, Produced, Serdes, StreamsBuilder

`docs/streams.md` has what there is. Nothing here needs Spark until `KafkaStreams.start()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams.builder import GlobalKTable, StreamsBuilder
from kavka.pipeline.streams.driver import TestInputTopic, TestOutputTopic, TestRecord, TopologyTestDriver
from kavka.pipeline.streams.engine import ProcessorContext, PunctuationType, Record, RecordMetadata
from kavka.pipeline.streams.errors import InvalidStateStoreException, StreamsException, TopologyException
from kavka.pipeline.streams.grouped import KGroupedStream, KGroupedTable, SessionWindowedKStream, TimeWindowedKStream
from kavka.pipeline.streams.kstream import BranchedKStream, KStream
from kavka.pipeline.streams.ktable import KTable
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
)
from kavka.pipeline.streams.serdes import Serde, Serdes, WindowedSerdes
from kavka.pipeline.streams.stores import StoreBuilder, Stores, ValueAndTimestamp
from kavka.pipeline.streams.topology import Topology, TopologyDescription
from kavka.pipeline.streams.windows import (
    BufferConfig,
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
    from kavka.pipeline.streams.application import State as State

__all__ = [
    "Branched",
    "BranchedKStream",
    "BufferConfig",
    "Consumed",
    "GlobalKTable",
    "Grouped",
    "InvalidStateStoreException",
    "JoinWindows",
    "Joined",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KafkaStreams",
    "Materialized",
    "Named",
    "ProcessorContext",
    "Produced",
    "PunctuationType",
    "Record",
    "RecordMetadata",
    "Repartitioned",
    "Serde",
    "Serdes",
    "SessionWindowedKStream",
    "SessionWindows",
    "SlidingWindows",
    "State",
    "StoreBuilder",
    "Stores",
    "StreamJoined",
    "StreamsBuilder",
    "StreamsException",
    "Suppressed",
    "TestInputTopic",
    "TestOutputTopic",
    "TestRecord",
    "TimeWindowedKStream",
    "TimeWindows",
    "Topology",
    "TopologyDescription",
    "TopologyException",
    "TopologyTestDriver",
    "UnlimitedWindows",
    "ValueAndTimestamp",
    "Window",
    "Windowed",
    "WindowedSerdes",
]


def __getattr__(name: str) -> Any:
    if name in ("KafkaStreams", "State"):
        from kavka.pipeline.streams import application

        return getattr(application, name)
    raise AttributeError(name)
