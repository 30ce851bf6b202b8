"""`GET`, `PATCH` and `DELETE …/offsets`: the offsets of a connector.

A sink's offsets are those of its group `connect-NAME`. The offsets of an incremental source are in
the store. For a source that is a Spark stream, `GET` returns the offsets of its checkpoint. They
can be reset but not set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.connect.api import Connector, IncrementalSource, Sink
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.recorded_types import FILE as TYPES_FILE
from kavka.pipeline.connect.settings import client_settings
from kavka.pipeline.connect.tasks import Worker, checkpoint_of
from kavka.pipeline.spark.cluster import admin_settings
from kavka.pipeline.spark.files import HadoopPath

Entries = list[tuple[dict[str, Any], dict[str, Any] | None]]
"""(partition, offset). An offset of None deletes the offset of the partition."""

_TOPIC, _PARTITION, _OFFSET = "kafka_topic", "kafka_partition", "kafka_offset"


def read_offsets(worker: Worker, name: str, cls: type[Connector]) -> dict[str, Any]:
    if issubclass(cls, Sink):
        with _admin(worker) as admin:
            offsets = group_offsets(admin, name)
        entries = [
            ({_TOPIC: tp.topic, _PARTITION: tp.partition}, {_OFFSET: offset}) for tp, offset in sorted(offsets.items())
        ]
    elif issubclass(cls, IncrementalSource):
        entries = worker.offsets.entries(name)
    else:
        entries = _checkpoint_offsets(worker, name)
    return {"offsets": [{"partition": partition, "offset": offset} for partition, offset in entries]}


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
                admin.delete_consumer_groups([group_of(name)])
            except AdminError as error:
                if any(cause.code != ErrorCode.GROUP_ID_NOT_FOUND for cause in error.errors.values()):
                    raise ConnectError(f"cannot delete the offsets of {group_of(name)}: {error}") from None
    _remove_checkpoint(worker, name)
    HadoopPath(f"{checkpoint_of(worker.checkpoints, name)}/{TYPES_FILE}", worker.spark).delete()


def group_of(name: str) -> str:
    """Returns the name of a sink's consumer group."""
    return f"connect-{name}"


def _admin(worker: Worker) -> Admin:
    return Admin(admin_settings(client_settings(worker.properties)))


def group_offsets(admin: Admin, name: str) -> dict[TopicPartition, int]:
    """Returns the committed offsets of a sink's group. Raises ConnectError if they cannot be
    read."""
    try:
        committed = admin.list_consumer_group_offsets(group_of(name))
    except KafkaError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise ConnectError(f"cannot read the offsets of {group_of(name)}: {error}") from None
        return {}
    return {tp: item.offset for tp, item in committed.items() if item is not None and item.offset >= 0}


def offset_entries(body: Any) -> Entries:
    """Returns the entries in the body of `PATCH …/offsets`. Raises ConnectError if the body is
    invalid."""
    offsets = body.get("offsets") if isinstance(body, dict) else None
    if not isinstance(offsets, list) or not offsets:
        raise ConnectError("Partitions / offsets need to be provided for an alter offsets request")
    entries = []
    for entry in offsets:
        if not isinstance(entry, dict) or not isinstance(entry.get("partition"), dict):
            raise ConnectError('each offset has the form {"partition": {…}, "offset": {…}}')
        offset = entry.get("offset")
        if offset is not None and not isinstance(offset, dict):
            raise ConnectError("an offset is an object or null")
        entries.append((entry["partition"], offset))
    return entries


def _alter_sink(worker: Worker, name: str, entries: Entries) -> None:
    """Removes the checkpoint, then sets the offsets of the group: a sink without a checkpoint
    starts at the offsets of its group. After a crash in between, the sink starts at the group's
    previous offsets."""
    requested: dict[TopicPartition, int | None] = {}
    for partition, offset in entries:
        requested[_sink_partition(partition)] = None if offset is None else _sink_offset(offset)
    with _admin(worker) as admin:
        committed = group_offsets(admin, name)
        _remove_checkpoint(worker, name)
        deleted = [tp for tp, offset in requested.items() if offset is None and tp in committed]
        offsets = {tp: offset for tp, offset in {**committed, **requested}.items() if offset is not None}
        try:
            if deleted:
                admin.delete_consumer_group_offsets(group_of(name), deleted)
            if offsets:
                admin.alter_consumer_group_offsets(group_of(name), offsets)
        except KafkaError as error:
            raise ConnectError(f"cannot set the offsets of {group_of(name)}: {error}") from None


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
        number = int(str(offset[_OFFSET]))
    except (KeyError, ValueError):
        raise ConnectError(
            f"The offset for a sink connector should contain the key '{_OFFSET}' and its value must be a number"
        ) from None
    if number < 0:
        raise ConnectError("an offset must not be negative")
    return number


# --- Spark's checkpoints, on any file system that Spark supports


def _checkpoint(worker: Worker, name: str) -> HadoopPath:
    return HadoopPath(f"{checkpoint_of(worker.checkpoints, name)}/query", worker.spark)


def _remove_checkpoint(worker: Worker, name: str) -> None:
    _checkpoint(worker, name).delete()


def _checkpoint_offsets(worker: Worker, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns the offsets of the last committed batch. The batch's file in the folder `offsets` has
    a line for each source, from the third line on."""
    folder = _checkpoint(worker, name)
    try:
        last_batch = max((int(file.name) for file in (folder / "commits").iterdir() if file.name.isdigit()), default=-1)
        text = (folder / "offsets" / str(last_batch)).read_text()
    except FileNotFoundError:
        return []
    entries = []
    for number, line in enumerate(line for line in text.splitlines()[2:] if line and line != "-"):
        try:
            offset = json.loads(line)
        except ValueError:
            offset = line
        entries.append(({"source": number}, offset if isinstance(offset, dict) else {"offset": offset}))
    return entries
