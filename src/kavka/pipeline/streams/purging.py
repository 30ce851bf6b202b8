"""What an application has read of its own topics is deleted there: nobody else reads them, and they
keep all else for ever.

Never more than what the checkpoint says is done: whatever dies when, the next start goes on at or
after that. What cannot be deleted now, is with what comes after it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from kavka.client.admin import Admin
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.files import AnyPath
from kavka.pipeline.streams.progress import done

logger = logging.getLogger(__name__)

_TIMEOUT = 30.0
_SHORTEST = 0.1


class Purge:
    """A thread that deletes every `interval` seconds what is done of `topics`, until it is
    stopped."""

    def __init__(
        self, admin: Callable[[], Admin], topics: Collection[str], checkpoint: AnyPath, interval: float
    ) -> None:
        self._admin = admin
        self._topics = frozenset(topics)
        self._checkpoint = checkpoint
        self._interval = max(interval, _SHORTEST)
        self._deleted: dict[TopicPartition, int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streams-purge", daemon=True)

    def start(self) -> None:
        if self._topics:
            self._thread.start()

    def stop(self) -> None:
        """It deletes nothing more, but for what it has asked the brokers for already."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self.once()

    def once(self) -> None:
        try:
            reached = done(self._checkpoint)
            wanted = {
                tp: offset
                for tp, offset in reached.items()
                if tp.topic in self._topics and offset > self._deleted.get(tp, 0)
            }
            if not wanted:
                return
            with self._admin() as admin:
                admin.delete_records(wanted, timeout=_TIMEOUT)
            self._deleted |= wanted
        except (KafkaError, PipelineError, OSError, ValueError) as error:
            logger.warning("what was read of the application's own topics was not deleted: %s", error)
