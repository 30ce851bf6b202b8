"""The names and classes of the built-in connectors. Their modules are loaded on first use."""

from __future__ import annotations

from typing import NamedTuple


class Plugin(NamedTuple):
    """A connector class and its names."""

    name: str
    """The short name, for configurations: `FileStreamSource`."""
    where: str
    """module:Class."""
    java_names: tuple[str, ...] = ()
    """Class names of equivalent connectors of Kafka and other projects. The options are the
    same."""


_HERE = "kavka.pipeline.connect.connectors"
_KAFKA_FILE = "org.apache.kafka.connect.file"

PLUGINS: tuple[Plugin, ...] = (
    Plugin("FileStreamSource", f"{_HERE}.files:FileStreamSource", (f"{_KAFKA_FILE}.FileStreamSourceConnector",)),
    Plugin("FileStreamSink", f"{_HERE}.file_sink:FileStreamSink", (f"{_KAFKA_FILE}.FileStreamSinkConnector",)),
    Plugin("FolderSource", f"{_HERE}.files:FolderSource"),
    Plugin("JdbcSource", f"{_HERE}.jdbc_source:JdbcSource", ("io.confluent.connect.jdbc.JdbcSourceConnector",)),
    Plugin("JdbcSink", f"{_HERE}.jdbc_sink:JdbcSink", ("io.confluent.connect.jdbc.JdbcSinkConnector",)),
    Plugin("SparkSource", f"{_HERE}.spark_formats:SparkSource"),
    Plugin("SparkSink", f"{_HERE}.spark_formats:SparkSink"),
    Plugin("HttpSink", f"{_HERE}.http_sink:HttpSink", ("io.confluent.connect.http.HttpSinkConnector",)),
    Plugin("Datagen", f"{_HERE}.datagen:DatagenSource", ("io.confluent.kafka.connect.datagen.DatagenConnector",)),
)
