"""The driver's view of the cluster: the partitions to read, and their offsets."""

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
from kavka.client.config import supported_settings
from kavka.client.consumer.offsets import OffsetLookup
from kavka.client.consumer_config import CONSUMER_CONFIGS, consumer_config
from kavka.client.io_thread import IoThread
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.errors import OptionError, PipelineError
from kavka.pipeline.spark.fencing import Claim, check
from kavka.pipeline.spark.offsets import TopicIds, ids_of
from kavka.pipeline.spark.options import EARLIEST, LATEST, ByOffset, ByTime, Position, SourceOptions

logger = logging.getLogger(__name__)

T = TypeVar("T")

ENDS_TIMEOUT = 5.0
_SIZES_AGE = 60.0

_MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class SourceCluster:
    """The cluster that a source reads. Only one thread of the driver may call it. It connects on
    first use and retries each request after a retriable error, `fetchOffset.numRetries` times."""

    refresh_interval = 1.0
    """Seconds after which `ends` refreshes the partitions."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pattern = re.compile(options.pattern) if options.kind == "subscribePattern" else None
        self._connected: Admin | None = None
        self._ends: _Ends | None = None
        self.topic_ids: TopicIds = {}
        """The ids of the topics at the last refresh of the partitions."""
        self._partitions: list[TopicPartition] = []
        self._partitions_expire = 0.0
        self._sizes: dict[TopicPartition, float] = {}
        self._sizes_expire = 0.0

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

    def check_claim(self, claim: Claim) -> None:
        """Raise Fenced if another driver has claimed the application."""
        self._with_retries("checking for another driver", lambda: check(self.admin, claim))

    # --- partitions

    def partitions(self, *, missing_is_empty: bool = False) -> list[TopicPartition]:
        """Return all partitions to read at this time. Raises PipelineError if a topic or partition
        of `subscribe` or `assign` does not exist, unless `missing_is_empty`."""
        return self._with_retries("listing the partitions", lambda: self.find_partitions(missing_is_empty))

    def find_partitions(self, missing_is_empty: bool) -> list[TopicPartition]:
        names: Collection[str] = self._options.topics
        if self._pattern is not None:
            names = [name for name in self.admin.list_topics() if self._pattern.fullmatch(name)]
            missing_is_empty = True
        if not names:
            return []
        try:
            descriptions = self.admin.describe_topics(names)
        except AdminError as error:
            missing = sorted(str(name) for name, cause in error.errors.items() if cause.code in _MISSING)
            if len(missing) < len(error.errors):
                raise
            if not missing_is_empty:
                raise PipelineError(_no_topic(missing)) from None
            descriptions = error.results
        self.topic_ids = ids_of(descriptions.values())
        existing = sorted(TopicPartition(t.name, p.partition) for t in descriptions.values() for p in t.partitions)
        if self._options.kind != "assign":
            return existing
        if not missing_is_empty:
            for tp in self._options.partitions:
                if tp not in existing:
                    raise PipelineError(f"the cluster has no partition {tp}")
        return [tp for tp in self._options.partitions if tp in existing]

    # --- offsets

    def ends(self, *, missing_is_empty: bool = False) -> dict[TopicPartition, int]:
        """Return all partitions and their end offsets. The method is for frequent calls and sends
        one request per leader."""
        if time.monotonic() >= self._partitions_expire:
            self._partitions = self.partitions(missing_is_empty=missing_is_empty)
            self._partitions_expire = time.monotonic() + self.refresh_interval
        if self._ends is None:
            self._ends = _Ends(self._options.client)
        try:
            return self._ends.of(self._partitions)
        except KafkaError as error:
            # If a topic was deleted, listing the partitions reports that.
            logger.info("Cannot list the end offsets: %s", error)
            self._partitions_expire = 0.0
            return self.latest(self.partitions(missing_is_empty=missing_is_empty))

    def expire_partitions(self) -> None:
        """Let the next call of `ends` refresh the partitions and the topic ids."""
        self._partitions_expire = 0.0

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._edges(partitions, OffsetSpec.earliest())

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offsets. With isolation.level=read_committed they are the last stable
        offsets."""
        return self._edges(partitions, OffsetSpec.latest())

    def of_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets of the first records with these timestamps or later, -1 where there
        are none."""
        listed = self._list({tp: OffsetSpec.for_timestamp(timestamp) for tp, timestamp in times.items()})
        return {tp: item.offset for tp, item in listed.items()}

    def bytes_per_offset(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Return the mean size of an offset in the logs of partitions, computed every minute. A
        partition without a known size is missing."""
        if time.monotonic() >= self._sizes_expire:
            self._sizes_expire = time.monotonic() + _SIZES_AGE
            try:
                first = self.earliest(ends)
                dirs = self.admin.describe_log_dirs(partitions=ends, timeout=ENDS_TIMEOUT)
            except KafkaError as error:
                logger.warning("Cannot list the sizes of partitions, so batches are not limited by bytes: %s", error)
                return self._sizes
            sizes: dict[TopicPartition, int] = {}
            for log_dir in (log_dir for by_path in dirs.values() for log_dir in by_path.values()):
                for tp, replicas in log_dir.replicas.items():
                    sizes[tp] = max([sizes.get(tp, 0), *(replica.size for replica in replicas)])
            offsets = {tp: ends[tp] - first[tp] for tp in sizes if tp in first}
            self._sizes = {tp: sizes[tp] / count for tp, count in offsets.items() if count > 0}
        return self._sizes

    def leader_epochs(self, partitions: Collection[TopicPartition]) -> TopicIds:
        """Return the leader epochs in the format of `topic_ids`. The leaders return them, because
        the metadata of other brokers may be stale."""
        epochs: dict[str, dict[str, int]] = {}
        for tp, listed in self._list(dict.fromkeys(partitions, OffsetSpec.latest())).items():
            epoch = -1 if listed.leader_epoch is None else listed.leader_epoch
            epochs.setdefault(tp.topic, {})[str(tp.partition)] = epoch
        return epochs

    def resolve(
        self, position: Position, partitions: Collection[TopicPartition], name: str
    ) -> dict[TopicPartition, int]:
        """Return the offsets that the option `name` specifies. As in Spark the option must specify
        every partition, otherwise OptionError is raised."""
        if position in (EARLIEST, LATEST):
            return self.earliest(partitions) if position == EARLIEST else self.latest(partitions)
        if isinstance(position, ByTime):
            return self._by_time(position, partitions, name)
        assert isinstance(position, ByOffset)
        _check_complete(position.offsets, partitions, name)
        offsets = {tp: position.offsets[tp] for tp in partitions}
        for edge, lookup in ((EARLIEST, self.earliest), (LATEST, self.latest)):
            partitions_at_edge = [tp for tp, offset in offsets.items() if offset == edge]
            if partitions_at_edge:
                offsets |= lookup(partitions_at_edge)
        return offsets

    def _by_time(
        self, position: ByTime, partitions: Collection[TopicPartition], name: str
    ) -> dict[TopicPartition, int]:
        if isinstance(position.times, int):
            times: Mapping[TopicPartition, int] = dict.fromkeys(partitions, position.times)
        else:
            times = position.times
            _check_complete(times, partitions, f"{name}ByTimestamp")
        offsets = self.of_times({tp: times[tp] for tp in partitions})
        without_record = sorted(tp for tp, offset in offsets.items() if offset < 0)
        if without_record:
            if name == "startingOffsets" and not self._options.no_such_time_is_latest:
                raise PipelineError(
                    f"{without_record[0]} has no record at {times[without_record[0]]} ms or later "
                    "(startingOffsetsByTimestampStrategy=latest starts at its end)"
                )
            offsets |= self.latest(without_record)
        return offsets

    def _edges(self, partitions: Collection[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        return {tp: item.offset for tp, item in self._list(dict.fromkeys(partitions, spec)).items()}

    def _list(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, ListedOffset]:
        if not specs:
            return {}
        level = self._options.isolation_level
        return self._with_retries("listing offsets", lambda: self.admin.list_offsets(specs, isolation_level=level))

    def _with_retries(self, action: str, call: Callable[[], T]) -> T:
        for attempt in range(self._options.retries + 1):
            try:
                return call()
            except KafkaError as error:
                if attempt == self._options.retries or not (error.retriable or error.code in _MISSING):
                    missing = _missing_topics(error)
                    raise PipelineError(_no_topic(missing) if missing else f"{action} failed: {error}") from None
                logger.warning("%s failed, retrying: %s", action, error)
                time.sleep(self._options.retry_interval)
        raise AssertionError


class _Ends:
    """Looks up end offsets. The connections and the metadata are reused for the next lookup."""

    def __init__(self, client: Mapping[str, str]) -> None:
        config = consumer_config(consumer_settings(client), {})
        self._io = IoThread("kavka-offsets")
        self._cluster = Cluster(config)
        self._lookup = OffsetLookup(config, self._cluster)
        self._io.run(self._cluster.start())

    def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        return self._io.run(self._list_offsets(partitions))

    async def _list_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self._cluster.set_topics({tp.topic for tp in partitions})
        listed = await self._lookup.offsets_for_times(
            dict.fromkeys(partitions, LATEST), time.monotonic() + ENDS_TIMEOUT
        )
        return {tp: item.offset for tp, item in listed.items()}

    def close(self) -> None:
        self._io.run(self._cluster.close())
        self._io.stop()


def _missing_topics(error: KafkaError) -> list[str]:
    """Return the topics that do not exist according to an error. A leader may learn of a deletion
    before the metadata of other brokers is updated."""
    if not isinstance(error, AdminError) or any(cause.code not in _MISSING for cause in error.errors.values()):
        return []
    return sorted({tp.topic for tp in error.errors if isinstance(tp, TopicPartition)})


def _no_topic(names: Sequence[str]) -> str:
    return f"the cluster has no {'topic' if len(names) == 1 else 'topics'} {', '.join(names)}"


def _check_complete(specified: Collection[TopicPartition], partitions: Collection[TopicPartition], name: str) -> None:
    if set(specified) != set(partitions):
        missing = sorted(set(partitions) - set(specified))
        if missing:
            raise OptionError(f"{name} must specify every partition that is read; {missing[0]} is missing")
        raise OptionError(f"{name} specifies {min(set(specified) - set(partitions))}, which does not exist")


def admin_settings(client: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a consumer or producer that apply to every client."""
    return supported_settings(client, ADMIN_CONFIGS)


def consumer_settings(client: Mapping[str, str]) -> dict[str, str]:
    settings = supported_settings(client, CONSUMER_CONFIGS)
    settings.pop("group.id", None)
    return settings
