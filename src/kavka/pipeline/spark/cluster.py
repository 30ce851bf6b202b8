"""What the driver asks the cluster: which partitions there are, and their offsets."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import ListedOffset, OffsetSpec
from kavka.client.admin_config import ADMIN_CONFIGS
from kavka.client.cluster import Cluster
from kavka.client.consumer.offsets import OffsetLookup
from kavka.client.consumer_config import CONSUMER_CONFIGS, consumer_config
from kavka.client.io_thread import IoThread
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.errors import OptionError, PipelineError
from kavka.pipeline.spark.offsets import TopicIds, ids_of
from kavka.pipeline.spark.options import EARLIEST, LATEST, ByOffset, ByTime, SourceOptions, Where

log = logging.getLogger(__name__)

T = TypeVar("T")

ENDS_TIMEOUT = 5.0

_MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class SourceCluster:
    """Belongs to one thread of the driver. Connects with the first question. Each question is asked again after an
    error that may pass, `fetchOffset.numRetries` times."""

    look_for_partitions = 1.0
    """Seconds until `ends` looks whether there are new ones."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pattern = re.compile(options.pattern) if options.kind == "subscribePattern" else None
        self._connected: Admin | None = None
        self._ends: _Ends | None = None
        self.topic_ids: TopicIds = {}
        """Of the topics that the last look at the partitions saw."""
        self._known: list[TopicPartition] = []
        self._known_until = 0.0

    def close(self) -> None:
        if self._ends is not None:
            self._ends.close()
            self._ends = None
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    @property
    def admin(self) -> Admin:
        if self._connected is None:
            self._connected = Admin(admin_settings(self._options.client))
        return self._connected

    # --- partitions

    def partitions(self, *, missing_is_empty: bool = False) -> list[TopicPartition]:
        """All that is to be read, as it is now. A topic of `subscribe` or `assign` that is not there is an error, or
        has no partitions."""
        return self._retrying("finding the partitions", lambda: self.find_partitions(missing_is_empty))

    def find_partitions(self, missing_is_empty: bool) -> list[TopicPartition]:
        names: Collection[str] = self._options.topics
        if self._pattern is not None:
            names = [name for name in self.admin.list_topics() if self._pattern.fullmatch(name)]
            missing_is_empty = True
        if not names:
            return []
        try:
            described = self.admin.describe_topics(names)
        except AdminError as error:
            gone = sorted(str(name) for name, why in error.errors.items() if why.code in _MISSING)
            if len(gone) < len(error.errors):
                raise
            if not missing_is_empty:
                raise PipelineError(_no_topic(gone)) from None
            described = error.results
        self.topic_ids = ids_of(described.values())
        there = sorted(TopicPartition(t.name, p.partition) for t in described.values() for p in t.partitions)
        if self._options.kind != "assign":
            return there
        if not missing_is_empty:
            for tp in self._options.partitions:
                if tp not in there:
                    raise PipelineError(f"there is no partition {tp} in the cluster")
        return [tp for tp in self._options.partitions if tp in there]

    # --- offsets

    def ends(self, *, missing_is_empty: bool = False) -> dict[TopicPartition, int]:
        """All partitions and where they end, for who asks all the time: one request for each leader."""
        if time.monotonic() >= self._known_until:
            self._known = self.partitions(missing_is_empty=missing_is_empty)
            self._known_until = time.monotonic() + self.look_for_partitions
        if self._ends is None:
            self._ends = _Ends(self._options.client)
        try:
            return self._ends.of(self._known)
        except KafkaError as error:
            # Perhaps a topic was deleted; then this says so.
            log.info("Asking for the ends of partitions: %s", error)
            self._known_until = 0.0
            return self.latest(self.partitions(missing_is_empty=missing_is_empty))

    def look_again(self) -> None:
        """Let the next `ends` look for partitions, and at the ids of topics."""
        self._known_until = 0.0

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._edges(partitions, OffsetSpec.earliest())

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """With isolation.level=read_committed, up to the first transaction that is open."""
        return self._edges(partitions, OffsetSpec.latest())

    def leader_epochs(self, partitions: Collection[TopicPartition]) -> TopicIds:
        """In the form of `topic_ids`, from the leaders themselves: metadata may be behind."""
        epochs: dict[str, dict[str, int]] = {}
        for tp, listed in self._list(dict.fromkeys(partitions, OffsetSpec.latest())).items():
            epoch = -1 if listed.leader_epoch is None else listed.leader_epoch
            epochs.setdefault(tp.topic, {})[str(tp.partition)] = epoch
        return epochs

    def resolve(self, where: Where, partitions: Collection[TopicPartition], name: str) -> dict[TopicPartition, int]:
        """Offsets for what an option (`name`) says. Partitions that it does not name: an error, as in Spark."""
        if where in (EARLIEST, LATEST):
            return self.earliest(partitions) if where == EARLIEST else self.latest(partitions)
        if isinstance(where, ByTime):
            return self._by_time(where, partitions, name)
        assert isinstance(where, ByOffset)
        _check_complete(where.offsets, partitions, name)
        found = {tp: where.offsets[tp] for tp in partitions}
        for edge, ask in ((EARLIEST, self.earliest), (LATEST, self.latest)):
            wanted = [tp for tp, offset in found.items() if offset == edge]
            if wanted:
                found |= ask(wanted)
        return found

    def _by_time(self, where: ByTime, partitions: Collection[TopicPartition], name: str) -> dict[TopicPartition, int]:
        if isinstance(where.times, int):
            times: Mapping[TopicPartition, int] = dict.fromkeys(partitions, where.times)
        else:
            times = where.times
            _check_complete(times, partitions, f"{name}ByTimestamp")
        listed = self._list({tp: OffsetSpec.for_timestamp(times[tp]) for tp in partitions})
        found = {tp: one.offset for tp, one in listed.items()}
        late = sorted(tp for tp, offset in found.items() if offset < 0)
        if late:
            if name == "startingOffsets" and not self._options.no_such_time_is_latest:
                raise PipelineError(
                    f"{late[0]} has no record at {times[late[0]]} ms or later "
                    "(startingOffsetsByTimestampStrategy=latest begins at its end)"
                )
            found |= self.latest(late)
        return found

    def _edges(self, partitions: Collection[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        return {tp: one.offset for tp, one in self._list(dict.fromkeys(partitions, spec)).items()}

    def _list(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, ListedOffset]:
        if not specs:
            return {}
        level = self._options.isolation_level
        return self._retrying("asking for offsets", lambda: self.admin.list_offsets(specs, isolation_level=level))

    def _retrying(self, what: str, ask: Callable[[], T]) -> T:
        for attempt in range(self._options.retries + 1):
            try:
                return ask()
            except KafkaError as error:
                if attempt == self._options.retries or not (error.retriable or error.code in _MISSING):
                    gone = _gone(error)
                    raise PipelineError(_no_topic(gone) if gone else f"{what} failed: {error}") from None
                log.warning("%s failed, asking again: %s", what, error)
                time.sleep(self._options.retry_interval)
        raise AssertionError


class _Ends:
    """Connections and metadata that are kept from one question to the next."""

    def __init__(self, client: Mapping[str, str]) -> None:
        config = consumer_config(consumer_settings(client), {})
        self._io = IoThread("kavka-offsets")
        self._cluster = Cluster(config)
        self._lookup = OffsetLookup(config, self._cluster)
        self._io.run(self._cluster.start())

    def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        return self._io.run(self._ask(partitions))

    async def _ask(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self._cluster.set_topics({tp.topic for tp in partitions})
        found = await self._lookup.at_times(dict.fromkeys(partitions, LATEST), time.monotonic() + ENDS_TIMEOUT)
        return {tp: one.offset for tp, one in found.items()}

    def close(self) -> None:
        self._io.run(self._cluster.close())
        self._io.stop()


def _gone(error: KafkaError) -> list[str]:
    """The topics that an error is about, if it is that they are not there: a leader may know that before the metadata
    of others says so."""
    if not isinstance(error, AdminError) or any(why.code not in _MISSING for why in error.errors.values()):
        return []
    return sorted({one.topic for one in error.errors if isinstance(one, TopicPartition)})


def _no_topic(names: Sequence[str]) -> str:
    return f"there is no {'topic' if len(names) == 1 else 'topics'} {', '.join(names)} in the cluster"


def _check_complete(named: Collection[TopicPartition], partitions: Collection[TopicPartition], name: str) -> None:
    if set(named) != set(partitions):
        missing = sorted(set(partitions) - set(named))
        if missing:
            raise OptionError(f"{name} must have every partition that is read; {missing[0]} is not in it")
        raise OptionError(f"{name} has {min(set(named) - set(partitions))}, which is not there")


def admin_settings(client: Mapping[str, str]) -> dict[str, str]:
    """Of the settings for a consumer or producer, those that are for every client."""
    return {name: value for name, value in client.items() if ADMIN_CONFIGS.get(name) is not None}


def consumer_settings(client: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in client.items() if CONSUMER_CONFIGS.get(name) is not None}
    found.pop("group.id", None)
    return found
