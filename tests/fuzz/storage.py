"""Files of a log directory: checkpoints, indexes, producer snapshots, and the recovery of a
partition."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

from crc32c import crc32c

from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.storage.checkpoint import CheckpointError, decode_offsets, encode_offsets
from kavka.storage.index_file import CorruptIndexError
from kavka.storage.leader_epochs import LeaderEpochs
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.log_dir import LogDirError, MetaProperties, decode_meta, encode_meta
from kavka.storage.offset_index import OffsetIndex
from kavka.storage.partition_metadata import read_topic_id
from kavka.storage.producer_snapshot import CorruptSnapshotError, decode_snapshot
from kavka.storage.time_index import TimeIndex
from kavka.storage.transaction_index import TransactionIndex
from tests.fuzz.engine import Target
from tests.support.logs import TP, FakeClock, append, append_marker, contents

RECOVERED_FILES = (
    "00000000000000000000.log",
    "00000000000000000000.index",
    "00000000000000000000.timeindex",
    "00000000000000000000.txnindex",
    "00000000000000000006.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
)


@cache
def _folder() -> Path:
    """Return a temporary folder, in memory if possible, because recovery writes and syncs files."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="kavka-fuzz-", dir=shared if shared.is_dir() else None))
    import atexit

    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _file(data: bytes, name: str = "file") -> Iterator[str]:
    path = _folder() / name
    path.write_bytes(data)
    yield str(path)
    path.unlink(missing_ok=True)


# --- checkpoints


def _offset_seeds() -> Sequence[bytes]:
    offsets = {TopicPartition("orders", 0): 1234, TopicPartition("a.b_c-d", 7): 0, TopicPartition("x", 1): 2**63 - 1}
    return [b"", encode_offsets({}), encode_offsets(offsets)]


def _run_offset_checkpoint(data: bytes) -> None:
    try:
        offsets = decode_offsets(data, "checkpoint")
    except CheckpointError:
        return
    assert decode_offsets(encode_offsets(offsets), "checkpoint") == offsets


def _run_leader_epochs(data: bytes) -> None:
    with _file(data) as path:
        try:
            epochs = LeaderEpochs.load(path)
        except CheckpointError:
            return
        entries = epochs.entries
        assert entries == sorted(entries)
        epochs.end_offset_for(3, 5000)
        epochs.epoch_for(7)


def _run_partition_metadata(data: bytes) -> None:
    with _file(data, "partition.metadata") as path:
        try:
            read_topic_id(os.path.dirname(path))
        except KafkaError:
            return


def _run_meta_properties(data: bytes) -> None:
    try:
        decode_meta(data.decode(errors="surrogateescape"), "meta.properties")
    except LogDirError:
        return


# --- indexes and snapshots


def _run_index(kind: type[OffsetIndex] | type[TimeIndex], data: bytes) -> None:
    with _file(data) as path:
        index = kind(path, 100, 1 << 20, len(data))
        try:
            index.check()
            index.lookup(105)
            index.truncate_to(103)
        except CorruptIndexError:
            return
        finally:
            index.close()


def _run_transaction_index(data: bytes) -> None:
    with _file(data) as path:
        index = TransactionIndex(path, 100, exists=True)
        try:
            index.check()
            index.aborted_between(100, 110)
            index.truncate_to(105)
        except CorruptIndexError:
            return


def _run_snapshot(data: bytes) -> None:
    """Decode the input, unchanged and with a corrected checksum."""
    for snapshot in (data, data[:2] + crc32c(data[6:]).to_bytes(4, "big") + data[6:]):
        try:
            decode_snapshot(snapshot)
        except CorruptSnapshotError:
            continue


# --- partitions


@cache
def _partition_files() -> dict[str, bytes]:
    """Return the files of a small log with keys, producers, an aborted transaction and two
    epochs."""
    folder = _folder() / str(TP)
    log = Log.open(folder, TP, LogConfig(index_interval_bytes=1), FakeClock())
    append(log, [(b"k", b"v" * 20)])
    append(log, [(b"a", b"1"), (b"b", None)], epoch=2)
    append(log, [(b"t", b"2")], epoch=2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    append_marker(log, 7, commit=False)
    append(log, [(b"k", b"w" * 20)], epoch=2, codec=4)
    log.close()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    return files


def _file_seeds(suffix: str) -> Sequence[bytes]:
    return [b"", *(data for name, data in _partition_files().items() if name.endswith(suffix))]


def _recovery_seeds() -> Sequence[bytes]:
    return [bytes((index,)) + _partition_files().get(name, b"") for index, name in enumerate(RECOVERED_FILES)]


def _run_recovery(data: bytes) -> None:
    """Open a log in which the input replaces one file. The first byte selects the file. Opening the
    log after an unclean or a clean stop succeeds or raises KafkaError. A recovered log can be read
    and accepts appends."""
    if not data:
        return
    for is_clean in (False, True):
        folder = _folder() / str(TP)
        folder.mkdir()
        for name, original in _partition_files().items():
            (folder / name).write_bytes(original)
        (folder / RECOVERED_FILES[data[0] % len(RECOVERED_FILES)]).write_bytes(data[1:])
        log = None
        try:
            log = Log.open(folder, TP, LogConfig(), FakeClock(), clean_shutdown=is_clean)
            if not is_clean:
                contents(log)
                append(log, [(b"k", b"v")], epoch=9)
        except KafkaError:
            pass
        finally:
            if log is not None:
                log.abandon()
            shutil.rmtree(folder)


def _target(name: str, run: Callable[[bytes], None], suffix: str, inputs: int) -> Target:
    return Target(name, run, partial(_file_seeds, suffix), inputs)


TARGETS = [
    Target("offset-checkpoint", _run_offset_checkpoint, _offset_seeds, 8_000),
    _target("leader-epochs", _run_leader_epochs, "leader-epoch-checkpoint", 4_000),
    Target(
        "partition-metadata",
        _run_partition_metadata,
        lambda: [b"", b"version: 0\ntopic_id: nPc0b5lqTUO4oXKO9Hqeow"],
        2_000,
    ),
    Target(
        "meta-properties",
        _run_meta_properties,
        lambda: [encode_meta(MetaProperties(3, "AAAAAAAAAAAAAAAAAAAAAA")).encode()],
        4_000,
    ),
    _target("offset-index", partial(_run_index, OffsetIndex), ".index", 4_000),
    _target("time-index", partial(_run_index, TimeIndex), ".timeindex", 4_000),
    _target("transaction-index", _run_transaction_index, ".txnindex", 3_000),
    _target("producer-snapshot", _run_snapshot, ".snapshot", 6_000),
    Target("recovery", _run_recovery, _recovery_seeds, 1_000, cpu_seconds=1.0),
]
