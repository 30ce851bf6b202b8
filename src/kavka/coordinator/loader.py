"""Loading of a shard: a worker thread replays the partition's log from its start to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.operations import Journal, Outcome
from kavka.protocol.primitives import ProtocolError
from kavka.records.batch import batches
from kavka.records.control import parse_end_marker
from kavka.records.reader import batch_records
from kavka.replication.partition import Partition, RunInWorker
from kavka.storage.file_slice import FileSlice

logger = logging.getLogger(__name__)


class Shard(Protocol):
    """A state machine, as the runtime sees it. `producer_id` in `replay` is -1 unless the record is
    in a transactional batch."""

    journal: Journal

    def encode(self, record: Any) -> tuple[bytes, bytes | None]: ...

    def decode(self, key: Any, value: Any) -> Any | None: ...

    def replay(self, record: Any, producer_id: int = -1) -> None: ...

    def replay_end_of_transaction(self, producer_id: int, commit: bool) -> None: ...

    def on_loaded(self) -> Iterator[Outcome]:
        """Yield the outcomes of the loaded state. The host continues it over several turns of the
        event loop, and submits the outcomes at the end."""

    def on_unloaded(self, code: ErrorCode) -> Iterator[None]:
        """Fail the pending requests with `code`, and free the state, over several turns of the
        event loop."""


@dataclass(eq=False, repr=False)
class ShardLoader:
    """Replays a partition's log into a new shard. A worker thread replays one chunk per job.

    The worker thread owns the shard until the loader calls `on_finished` on the event loop, with
    the error if the load failed. A cancelled loader does not call `on_finished`.
    """

    _partition: Partition
    _shard: Shard
    _run_in_worker: RunInWorker
    _chunk_bytes: int
    _on_finished: Callable[[BaseException | None], None]
    _is_cancelled: bool = field(init=False, default=False)
    position: int = field(init=False, default=0)  # Offset after the last replayed batch.

    def start(self) -> None:
        log = self._partition.log
        if log is not None:
            self.position = log.start_offset
            if log.end_offset > log.start_offset:
                tp = self._partition.topic_partition
                logger.info("Loading %s from offset %d to %d", tp, log.start_offset, log.end_offset)
        self._load_next()

    def cancel(self) -> None:
        self._is_cancelled = True

    def _load_next(self) -> None:
        log = self._partition.log
        if log is None:
            self._on_finished(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
            return
        position = max(self.position, log.start_offset)
        try:
            chunk = log.read(position, self._chunk_bytes, limit=log.end_offset, min_one_batch=True)
        except Exception as error:
            self._on_finished(error)
            return
        if chunk is None:
            self._on_finished(None)
        else:
            self._run_in_worker(partial(self._replay, chunk.slice, position), self._on_chunk)

    def _on_chunk(self, error: BaseException | None) -> None:
        if self._is_cancelled:
            return
        if error is not None:
            self._on_finished(error)
        else:
            self._load_next()

    def _replay(self, chunk: FileSlice, position: int) -> None:
        """Replay the batches from `position` on. Runs in a worker thread."""
        shard = self._shard
        for batch in batches(chunk.read()):
            if batch.last_offset < position:
                continue
            position = batch.last_offset + 1
            if batch.is_control:
                marker = parse_end_marker(batch)
                if marker is not None:
                    shard.replay_end_of_transaction(batch.producer_id, marker.commit)
                continue
            producer_id = batch.producer_id if batch.is_transactional else -1
            for record in batch_records(batch):
                if record.key is None:
                    continue
                try:
                    decoded = shard.decode(record.key, record.value)
                except ProtocolError as error:
                    tp = self._partition.topic_partition
                    logger.warning(
                        "Skipped the record at offset %d of %s: cannot decode it: %s", record.offset, tp, error
                    )
                    continue
                if decoded is not None:
                    shard.replay(decoded, producer_id)
        shard.journal.clear()
        if position <= self.position:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The log has no complete batch at offset {position}.")
        self.position = position
