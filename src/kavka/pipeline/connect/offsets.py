"""`GET`, `PATCH` and `DELETE …/offsets`: how far a connector is.

A sink's offsets are those of its group `connect-NAME`; an incremental source's are in the store; of a source that is a
stream of Spark those of its checkpoint are shown, which can be reset but not set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.connect.api import Connector, IncrementalSource, Sink
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.settings import client_settings
from kavka.pipeline.connect.tasks import Worker, checkpoint_of
from kavka.pipeline.spark.cluster import admin_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Entries = list[tuple[dict[str, Any], dict[str, Any] | None]]
"""(partition, offset); None: it is to be forgotten."""

_TOPIC, _PARTITION, _OFFSET = "kafka_topic", "kafka_partition", "kafka_offset"


def read_offsets(worker: Worker, name: str, cls: type[Connector]) -> dict[str, Any]:
    if issubclass(cls, Sink):
        found = [
            ({_TOPIC: tp.topic, _PARTITION: tp.partition}, {_OFFSET: offset})
            for tp, offset in sorted(_group_offsets(worker, name).items())
        ]
    elif issubclass(cls, IncrementalSource):
        found = worker.offsets.entries(name)
    else:
        found = _checkpoint_offsets(worker, name)
    return {"offsets": [{"partition": partition, "offset": offset} for partition, offset in found]}


def alter_offsets(worker: Worker, name: str, cls: type[Connector], entries: Entries) -> None:
    if issubclass(cls, Sink):
        _alter_sink(worker, name, entries)
    elif issubclass(cls, IncrementalSource):
        field = cls.partition_field
        for partition, _ in entries:
            if set(partition) != {field}:
                raise ConnectError(f'a partition of this connector is {{"{field}": …}}, not {json.dumps(partition)}')
        cls.check_offsets({str(partition[field]): offset for partition, offset in entries if offset is not None})
        worker.offsets.alter(name, entries)
    else:
        raise ConnectError(
            "the offsets of this connector are in Spark's checkpoint: they can be reset (DELETE), but not set"
        )


def reset_offsets(worker: Worker, name: str, cls: type[Connector]) -> None:
    if issubclass(cls, IncrementalSource):
        worker.offsets.reset(name)
    if issubclass(cls, Sink):
        with _admin(worker) as admin:
            try:
                admin.delete_consumer_groups([_group(name)])
            except AdminError as error:
                if any(why.code != ErrorCode.GROUP_ID_NOT_FOUND for why in error.errors.values()):
                    raise ConnectError(f"the offsets of {_group(name)} cannot be deleted: {error}") from None
    _remove_checkpoint(worker, name)


def _group(name: str) -> str:
    return f"connect-{name}"


def _admin(worker: Worker) -> Admin:
    return Admin(admin_settings(client_settings(worker.properties)))


def _group_offsets(worker: Worker, name: str) -> dict[TopicPartition, int]:
    with _admin(worker) as admin:
        try:
            found = admin.list_consumer_group_offsets(_group(name))
        except KafkaError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise ConnectError(f"the offsets of {_group(name)} cannot be read: {error}") from None
            return {}
    return {tp: one.offset for tp, one in found.items() if one is not None and one.offset >= 0}


def offset_entries(body: Any) -> Entries:
    """Of the body of `PATCH …/offsets`."""
    offsets = body.get("offsets") if isinstance(body, dict) else None
    if not isinstance(offsets, list) or not offsets:
        raise ConnectError("Partitions / offsets need to be provided for an alter offsets request")
    found = []
    for one in offsets:
        if not isinstance(one, dict) or not isinstance(one.get("partition"), dict):
            raise ConnectError('each of the offsets has the form {"partition": {…}, "offset": {…}}')
        offset = one.get("offset")
        if offset is not None and not isinstance(offset, dict):
            raise ConnectError("an offset is an object, or null")
        found.append((one["partition"], offset))
    return found


def _alter_sink(worker: Worker, name: str, entries: Entries) -> None:
    """A sink without a checkpoint begins where its group stands: the checkpoint goes, then the group is set. What a
    crash in between leaves begins where the group stood before."""
    wanted: dict[TopicPartition, int | None] = {}
    for partition, offset in entries:
        wanted[_sink_partition(partition)] = None if offset is None else _sink_offset(offset)
    with _admin(worker) as admin:
        before = _group_offsets(worker, name)
        _remove_checkpoint(worker, name)
        after = {**before, **{tp: at for tp, at in wanted.items() if at is not None}}
        try:
            gone = [tp for tp, at in wanted.items() if at is None and tp in before]
            if gone:
                admin.delete_consumer_group_offsets(_group(name), gone)
            keep = {tp: at for tp, at in after.items() if tp not in gone}
            if keep:
                admin.alter_consumer_group_offsets(_group(name), keep)
        except KafkaError as error:
            raise ConnectError(f"the offsets of {_group(name)} cannot be set: {error}") from None


def _sink_partition(partition: Mapping[str, Any]) -> TopicPartition:
    topic, number = partition.get(_TOPIC), partition.get(_PARTITION)
    if not isinstance(topic, str):
        raise ConnectError(
            f"The partition for a sink connector offset must contain the key '{_TOPIC}' and its value must be a string"
        )
    try:
        return TopicPartition(topic, int(str(number)))
    except ValueError:
        raise ConnectError(
            f"The partition for a sink connector offset must contain the key '{_PARTITION}' and its value must be a "
            "number"
        ) from None


def _sink_offset(offset: Mapping[str, Any]) -> int:
    try:
        found = int(str(offset[_OFFSET]))
    except (KeyError, ValueError):
        raise ConnectError(
            f"The offset for a sink connector should contain the key '{_OFFSET}' and its value must be a number"
        ) from None
    if found < 0:
        raise ConnectError("an offset is not negative")
    return found


# --- Spark's checkpoints, on any file system that it knows


def _files(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm: Any = spark.sparkContext._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    return where.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), where


def _remove_checkpoint(worker: Worker, name: str) -> None:
    files, where = _files(worker.spark(), f"{checkpoint_of(worker.checkpoints, name)}/query")
    files.delete(where, True)


def _checkpoint_offsets(worker: Worker, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of the last batch that was finished: the third line and on of its file in `offsets`, one for each source."""
    spark = worker.spark()
    folder = f"{checkpoint_of(worker.checkpoints, name)}/query"
    files, where = _files(spark, f"{folder}/commits")
    if not files.exists(where):
        return []
    numbers = [str(one.getPath().getName()) for one in files.listStatus(where)]
    done = max((int(number) for number in numbers if number.isdigit()), default=-1)
    files, where = _files(spark, f"{folder}/offsets/{done}")
    if done < 0 or not files.exists(where):
        return []
    stream = files.open(where)
    try:
        text = bytes(spark.sparkContext._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()  # type: ignore[union-attr]
    finally:
        stream.close()
    found = []
    for number, line in enumerate(line for line in text.splitlines()[2:] if line and line != "-"):
        try:
            offset = json.loads(line)
        except ValueError:
            offset = line
        found.append(({"source": number}, offset if isinstance(offset, dict) else {"offset": offset}))
    return found
