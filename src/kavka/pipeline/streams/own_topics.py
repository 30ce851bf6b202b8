"""The repartition topics of an application: their creation, and the deletion of records that it has
processed. No other application reads these topics, and retention deletes nothing there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import NewTopic
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.files import AnyPath
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.progress import done

logger = logging.getLogger(__name__)

_TIMEOUT = 30.0
_SHORTEST_INTERVAL = 0.1
# As Kafka Streams creates repartition topics: retention never deletes records before they are read.
_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": str(50 * 1024 * 1024)}


def partitions_of(admin: Admin, topics: set[str]) -> dict[str, int]:
    """The partitions of those topics that exist."""
    if not topics:
        return {}
    try:
        described = admin.describe_topics(sorted(topics), timeout=_TIMEOUT)
    except AdminError as error:
        if any(reason.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for reason in error.errors.values()):
            raise
        described = error.results
    return {topic.name: len(topic.partitions) for topic in described.values()}


def create_own(admin: Admin, topics: Mapping[str, int], replication: int, configs: Mapping[str, str]) -> None:
    """Create the topics that do not exist. `configs` are the settings `topic.`."""
    existing = partitions_of(admin, set(topics))
    factor = None if replication < 0 else replication
    for topic, count in topics.items():
        if topic not in existing:
            new_topic = NewTopic(topic, count, factor, configs={**_SETTINGS, **configs})
            try:
                admin.create_topics([new_topic], timeout=_TIMEOUT)
            except AdminError as error:
                if any(reason.code != ErrorCode.TOPIC_ALREADY_EXISTS for reason in error.errors.values()):
                    raise
        elif existing[topic] != count:
            raise StreamsException(
                f"the application's topic {topic} has {existing[topic]} partitions and should have {count}: delete "
                "it, and call clean_up()"
            )


class Purge:
    """A thread that deletes the completed records of `topics` every `interval` seconds, until it is
    stopped. It deletes only records before the offsets of the checkpoint, at which the next start
    continues. A deletion that fails is repeated with the next."""

    def __init__(
        self, admin: Callable[[], Admin], topics: Collection[str], checkpoint: AnyPath, interval: float
    ) -> None:
        self._admin = admin
        self._topics = frozenset(topics)
        self._checkpoint = checkpoint
        self._interval = max(interval, _SHORTEST_INTERVAL)
        self._deleted: dict[TopicPartition, int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streams-purge", daemon=True)

    def start(self) -> None:
        if self._topics:
            self._thread.start()

    def stop(self) -> None:
        """Start no further deletion."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self.once()

    def once(self) -> None:
        try:
            completed = {tp: offset for tp, offset in done(self._checkpoint).items() if tp.topic in self._topics}
            offsets = {tp: offset for tp, offset in completed.items() if offset > self._deleted.get(tp, 0)}
            if not offsets:
                return
            with self._admin() as admin:
                admin.delete_records(offsets, timeout=_TIMEOUT)
            self._deleted |= offsets
        except (KafkaError, PipelineError, OSError, ValueError) as error:
            logger.warning("processed records of the application's topics were not deleted: %s", error)
