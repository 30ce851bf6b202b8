"""KafkaStreams: a topology, compiled to one query of Spark Structured Streaming and run.

The folder `state.dir`/`application.id`, on any file system that Spark supports, has Spark's
checkpoint (offsets, state) and `topology.json` (`layout.py`). After a crash the next start
continues from there, on any machine. The folder belongs to one running application: the last that
started (`fencing.py`).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kavka.client.admin import Admin
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.cluster import admin_settings
from kavka.pipeline.spark.errors import cause_in
from kavka.pipeline.spark.fencing import Claim, Fenced, claim
from kavka.pipeline.spark.files import AnyPath, delete, path_of
from kavka.pipeline.spark.session import build_session, is_local, running_session
from kavka.pipeline.spark.versions import remedy_for
from kavka.pipeline.streams import application_states
from kavka.pipeline.streams.application_states import ACTIVE, ENDED, TRANSITIONS, State
from kavka.pipeline.streams.errors import InvalidStateStoreException, RetryProductionException, StreamsException
from kavka.pipeline.streams.layout import Layout, fit, read_layout, write_layout
from kavka.pipeline.streams.local_state import executor_folder
from kavka.pipeline.streams.measures import Totals, of_batches, of_the_last
from kavka.pipeline.streams.metadata import KeyQueryMetadata, Metadata, StreamsMetadata, ThreadMetadata
from kavka.pipeline.streams.own_topics import Purge, create_own, partitions_of
from kavka.pipeline.streams.plan import Plan, check_copartitioned, has_users, internal_topics, make_plan, source_topics
from kavka.pipeline.streams.progress import done, end_offsets, has_begun
from kavka.pipeline.streams.queries import StateReader, StoreQueryParameters, check_type, read_only
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.sources import check_partitions, check_reset, offsets_of_time, policies_of, set_by_others
from kavka.pipeline.streams.state_folder import check_own_folder, create_own_folder
from kavka.pipeline.streams.status import Status, serve_status
from kavka.pipeline.streams.stores import Store
from kavka.pipeline.streams.task_reports import TaskReports
from kavka.pipeline.streams.topology import Topology, TopologyDescription
from kavka.web.listener import Listener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from kavka.pipeline.streams.workers import Job

logger = logging.getLogger(__name__)

_ADMIN_TIMEOUT = 30.0
_RESTART_DELAY_S = 1.0
_BATCH_ENDS = 5.0
_OWN_ERRORS = (
    "FailedProcessingException:", "RetryProductionException:", "StreamsException:", "PipelineError:", "OptionError:",
    "DataLoss:", "Fenced:", "TopologyException:",
)  # fmt: skip


class StreamThreadExceptionResponse:
    """The responses of a handler of uncaught exceptions: continue from the last completed
    micro-batch, or end."""

    REPLACE_THREAD = "REPLACE_THREAD"
    SHUTDOWN_CLIENT = "SHUTDOWN_CLIENT"
    SHUTDOWN_APPLICATION = "SHUTDOWN_APPLICATION"


class KafkaStreams:
    """`config` has Kafka's names. `spark` is the session to run in. The default is the running
    session, or a new one."""

    State = State

    def __init__(self, topology: Topology, config: Mapping[str, Any], spark: SparkSession | None = None) -> None:
        self._topology = topology
        self._settings = settings_of(config)
        self._spark = spark
        self._state = State.CREATED
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._listener: Callable[[str, str], Any] | None = None
        self._handler: Callable[[BaseException], Any] | None = None
        self._query: StreamingQuery | None = None
        self._planned_as: tuple[Topology, Plan] | None = None
        self._reader: StateReader | None = None
        self._job: Job | None = None
        self._swapping = threading.RLock()
        self._paused = False
        # Whether `pause` stopped the query. The watcher resets it when it starts the next one.
        self._held = False
        self._error: StreamsException | None = None
        self._lock_of_session = threading.Lock()
        self._claim: Claim | None = None
        self._from_timestamp: int | None = None
        self._pages: Listener | None = None
        self._starter: threading.Thread | None = None
        self._watcher: threading.Thread | None = None
        # Refuse an invalid topology now, as far as that needs no cluster.
        make_plan(topology, dict.fromkeys(source_topics(topology), 1))
        interval = self._settings.purge_interval / 1000
        self._totals = Totals(self._checkpoint)
        self._reports = TaskReports()
        self._status = Status(self._settings, self._reports)
        self._purge = Purge(self._admin, self._own_topics(), self._checkpoint, interval)

    # --- Kafka's names

    def start(self, from_timestamp: int | None = None) -> None:
        """Compile and start. Returns when the query runs, or when `close` was called meanwhile.
        With `from_timestamp` (ms) a new application reads the records of that time and later."""
        starter, self._starter = self._starter, threading.current_thread()
        if not self._to(State.REBALANCING):
            self._starter = starter
            raise StreamsException(f"The client is {self._state}: it can be started once, when it is CREATED")
        try:
            create_own_folder(self.folder)
            if from_timestamp is not None and has_begun(self._checkpoint):
                raise StreamsException(
                    f"the application {self._settings.application_id} has state, and continues from its offsets: a "
                    "start at a timestamp needs a new application.id, or clean_up() (kavka pipeline run --clean-up)"
                )
            self._from_timestamp = from_timestamp
            self._totals.begin()
            self._pages = serve_status(self, self._settings)
            with self._swapping:
                self._query = self._start_query()
            if self._to(State.RUNNING):
                self._purge.start()
        except BaseException as error:
            if not self._to(State.NOT_RUNNING):
                self._fail(error)
            raise
        finally:
            self._starter = None
        name = f"{self._settings.application_id}-watch"
        self._watcher = threading.Thread(target=self._watch, name=name, daemon=True)
        self._watcher.start()
        if self._error is not None:
            raise self._error

    def close(self, timeout: float | None = None) -> bool:
        """Stop, and return whether the application has ended within `timeout` seconds. The next
        start completes an unfinished micro-batch. A listener or handler that calls it gets False:
        the application ends after it returns."""
        deadline = None if timeout is None else time.monotonic() + timeout
        was_created = self._state == State.CREATED
        self._to(State.PENDING_SHUTDOWN)
        if was_created:
            self._to(State.NOT_RUNNING)
        with self._swapping:
            if self._query is not None:
                _stop(self._query, timeout)
        if self._state not in ENDED and threading.current_thread() in (self._starter, self._watcher):
            return False
        return self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def clean_up(self) -> None:
        """Delete the state. The next start begins at the offsets that a tool has set for the group
        `application.id` (see `kavka streams-application-reset`), otherwise as `auto.offset.reset`
        says."""
        if self._state in ACTIVE or self._state == State.PENDING_SHUTDOWN:
            raise StreamsException("Cannot clean up while running.")
        check_own_folder(self.folder)
        delete(self.folder)

    def state(self) -> str:
        return self._state

    def set_state_listener(self, listener: Callable[[str, str], Any]) -> None:
        """`listener(new, old)` is called by the thread that changes the state."""
        self._only_before_start()
        self._listener = listener

    def set_uncaught_exception_handler(self, handler: Callable[[BaseException], Any]) -> None:
        """`handler(error)` returns REPLACE_THREAD to continue, after a second. Any other response
        ends the application."""
        self._only_before_start()
        self._handler = handler

    def pause(self) -> None:
        """Stop processing until `resume`. The state stays RUNNING, and stores can be read."""
        with self._swapping:
            if self._state == State.RUNNING and self._query is not None and not self._paused:
                self._paused = self._held = True
                _stop(self._query)

    def resume(self) -> None:
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def is_paused(self) -> bool:
        return self._paused

    def describe(self) -> TopologyDescription:
        return self._topology.describe()

    def store(self, parameters: StoreQueryParameters) -> Any:
        """A store for queries. Each query reads the state of the last completed micro-batch."""
        name = parameters.name
        check_type(self._topology, name, parameters.type)
        self._readable(parameters)
        if self._job is None:
            raise InvalidStateStoreException(f"the application {self._settings.application_id} was not started yet")
        reader = self._reader
        if reader is None:
            reader = self._reader = StateReader(self._session(), self.folder, self._job)
        reader.check(name, parameters.partition)

        def read() -> Store:
            self._readable(parameters)
            return reader.read(name, parameters.partition)

        return read_only(name, parameters.type, read)

    def metadata_for_all_streams_clients(self) -> list[StreamsMetadata]:
        """A list of one client: all tasks belong to this driver."""
        return [self._metadata().client()]

    def streams_metadata_for_store(self, store: str) -> list[StreamsMetadata]:
        return [client for client in self.metadata_for_all_streams_clients() if store in client.state_store_names]

    all_metadata = metadata_for_all_streams_clients
    all_metadata_for_store = streams_metadata_for_store

    def query_metadata_for_key(
        self, store: str, key: Any, key_serde_or_partitioner: Serde | Callable[..., int | None] | None = None
    ) -> KeyQueryMetadata:
        """The partition whose task has a key, if the topic's writers choose partitions as Kafka's
        producer does, or as `partitioner(topic, key, None, partitions)` says."""
        return self._metadata().for_key(store, key, key_serde_or_partitioner)

    def metadata_for_local_threads(self) -> list[ThreadMetadata]:
        """A list of one thread with all tasks, which Spark assigns to its workers."""
        name = f"{self._settings.application_id}-StreamThread-1"
        return [ThreadMetadata(name, self._state, self._metadata().tasks())]

    def metrics(self) -> dict[str, float]:
        """Numbers by name, of the application, its micro-batches, the lag of partitions and the
        state."""
        metrics: dict[str, float] = {
            "client-state": list(State).index(self._state),
            "alive-stream-threads": int(self._state in ACTIVE),
            "failed-stream-threads": self._totals.failures,
        }
        query = self._query
        if query is None or self._planned_as is None:
            return metrics
        progress = query.recentProgress
        metrics |= {"active-tasks": len(self._metadata().tasks()), **self._totals.metrics()}
        return {**metrics, **of_batches(progress), **of_the_last(progress)}

    # --- beyond Kafka's

    def clients(self) -> dict[str, str]:
        """Settings of clients of the application's cluster."""
        return {"bootstrap.servers": self._settings.bootstrap_servers, **self._settings.clients}

    def status(self) -> dict[str, Any]:
        """The application, its partitions and its tasks as plain data, for JSON. Lag in seconds is
        read at most every five seconds."""
        return self._status.snapshot(self._query, self._state, self.metrics)

    @property
    def folder(self) -> AnyPath:
        return path_of(self._settings.state_dir, self._session) / self._settings.application_id

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's handle of the running query."""
        return self._query

    def exception(self) -> StreamsException | None:
        """The error that ended the application, if its state is ERROR."""
        return self._error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the application. Returns whether it has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state in ENDED, timeout)

    def process_all_available(self) -> None:
        """Wait until all records that the topics have now are processed, and all that result from
        them in the application's topics; for tests. Returns early if the application is closed."""
        if self._query is None:
            raise StreamsException("it is not started")
        own = self._own_topics()
        committed = self._settings.reads_committed
        with self._admin() as admin:
            read = self._topology if self._planned_as is None else self._planned_as[0]
            offsets = end_offsets(admin, source_topics(read) | own, committed)
            # The application's topics may feed one another.
            for _ in range(len(own) + 1):
                if not self._reached(offsets):
                    return
                offsets = end_offsets(admin, own, committed)
        if not has_users(self._topology):
            # The query is idle after this. With punctuators it never is.
            self._query.processAllAvailable()

    def _reached(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Wait for these offsets. False if the application is closed before."""
        while any(done(self._checkpoint).get(tp, 0) < offset for tp, offset in offsets.items()):
            if self.wait(0.05):
                if self._error is not None:
                    raise self._error
                return False
        return True

    def __enter__(self) -> KafkaStreams:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside

    def _metadata(self) -> Metadata:
        if self._planned_as is None:
            raise StreamsException(f"the application {self._settings.application_id} was not started yet")
        return Metadata(*self._planned_as, self._settings)

    def _readable(self, parameters: StoreQueryParameters) -> None:
        if self._state not in ACTIVE and not parameters.stale:
            raise InvalidStateStoreException(
                f"Cannot get state store {parameters.name} because the application is {self._state}, not RUNNING"
            )

    def _only_before_start(self) -> None:
        if self._state != State.CREATED:
            raise StreamsException(f"Can only set this in CREATED state. Current state is: {self._state}")

    @property
    def _checkpoint(self) -> AnyPath:
        return self.folder / "checkpoint"

    def _own_topics(self) -> set[str]:
        return set(map(self._settings.own_topic, internal_topics(self._topology)[1]))

    def _to(self, state: application_states.State) -> bool:
        """Change the state. False if the current state does not allow it."""
        with self._changed:
            old = self._state
            if state not in TRANSITIONS[old]:
                return False
            self._state = state
            self._changed.notify_all()
        if state not in ACTIVE:
            self._purge.stop()
        if state in ENDED:
            self._reports.close()
            if self._pages is not None:
                self._pages.close()
        listener = self._listener
        if listener is not None:
            try:
                listener(state, old)
            except Exception as error:
                self._listener = None
                self._end(StreamsException(f"the state listener failed: {type(error).__name__}: {error}"))
        return True

    def _end(self, error: StreamsException) -> None:
        """End the application with this error. The watcher stops the query."""
        if self._to(State.PENDING_ERROR):
            self._error = error
            logger.error("%s stops: %s", self._settings.application_id, error)
            if self._query is not None:
                self._query.stop()
            self._to(State.ERROR)

    def _fail(self, error: BaseException, may_continue: bool = False) -> bool:
        """Call the handler of uncaught exceptions. Returns whether the application has ended: it
        continues only if it may, and the handler says so."""
        failure = error if isinstance(error, StreamsException) else StreamsException(_one_line(error))
        self._totals.failures += 1
        response = None
        if self._handler is not None:
            try:
                response = self._handler(failure)
            except Exception as raised:
                failure = StreamsException(
                    f"the handler of uncaught exceptions failed: {type(raised).__name__}: {raised}; it was called for: "
                    f"{failure}"
                )
        # Spark's exception contains the name and the message of the source's.
        is_fenced = f"{Fenced.__name__}: another driver" in str(error)
        if may_continue and not is_fenced and response == StreamThreadExceptionResponse.REPLACE_THREAD:
            logger.warning("%s restarts after: %s", self._settings.application_id, failure)
            return False
        self._end(failure)
        return True

    def _watch(self) -> None:
        error: Exception | None = None
        while self._state in ACTIVE:
            try:
                if error is not None:
                    if _is_retry(error):
                        logger.warning("%s restarts after: %s", self._settings.application_id, _one_line(error))
                    elif self._fail(error, may_continue=True):
                        return
                    error = None
                    self._closing(_RESTART_DELAY_S)
                    self._start_again()
                elif self._ended():
                    if not self._paused_until_resumed():
                        break
                    self._start_again()
                elif self._topics_changed():
                    self._start_again()
            except Exception as raised:
                error = raised
        if self._query is not None:
            self._query.stop()
        self._to(State.NOT_RUNNING)

    def _closing(self, timeout: float | None) -> bool:
        """Wait until the application is being closed. Returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state not in ACTIVE, timeout)

    def _paused_until_resumed(self) -> bool:
        """Wait for `resume`, if `pause` stopped the query. Returns whether it must start again."""
        with self._changed:
            if not self._held:
                return False
            self._changed.wait_for(lambda: not self._paused or self._state not in ACTIVE)
            self._held = False
            return self._state in ACTIVE

    def _ended(self) -> bool:
        """Wait for the end of the query, for `metadata.max.age.ms` at most. Returns whether it has
        ended."""
        query = self._query
        assert query is not None
        while not self._totals.has_begin():
            if query.awaitTermination(1):
                return True
        return bool(query.awaitTermination(max(1, self._settings.metadata_age // 1000)))

    def _topics_changed(self) -> bool:
        """Whether a pattern matches a new topic. A deleted source topic ends the application."""
        assert self._planned_as is not None
        read = source_topics(self._planned_as[0])
        try:
            with self._admin() as admin:
                topology = self._with_topics(admin)
                missing = sorted(read - set(partitions_of(admin, read)))
        except KafkaError as error:
            logger.warning("the topics could not be listed: %s", error)
            return False
        if missing:
            raise StreamsException(f"Missing source topics: {', '.join(missing)}")
        return bool(source_topics(topology) - read)

    def _start_again(self) -> None:
        """Start a query with the topics that exist now. It completes an unfinished
        micro-batch."""
        with self._swapping:
            if self._state not in ACTIVE or self._query is None:
                return
            self._to(State.REBALANCING)
            _stop(self._query)
            self._query = self._start_query()
        if not self._to(State.RUNNING):
            self._query.stop()

    def _start_query(self) -> StreamingQuery:
        from kavka.pipeline.streams.compiler import compile_query
        from kavka.pipeline.streams.workers import Job

        settings = self._settings
        spark = self._session()
        self._check_shared(str(spark.sparkContext.master))
        with self._admin() as admin:
            if self._claim is None:
                self._claim = claim(admin, settings.application_id)
            topology = self._with_topics(admin)
            plan, partitions, layout = self._planned(topology, admin)
            begin = {}
            if not has_begun(self._checkpoint):
                begin = set_by_others(admin, topology, settings)
                if self._from_timestamp is not None:
                    begin = offsets_of_time(admin, topology, self._from_timestamp, settings)
                counts = {topic: plan.partitions[topic] for topic in source_topics(topology)}
                check_reset(counts, policies_of(topology, settings), begin)
        caching = settings.cache_bytes > 0
        run = uuid.uuid4().hex
        folder = self._local_folder() if is_local(str(spark.sparkContext.master)) else None
        claimed = None if self._claim is None else self._claim.to_text()
        due_path = self._reports.due_path if has_users(topology) else None
        job = Job(topology, settings, plan, partitions, run, caching, layout["id"], folder, claimed, due_path)
        if plan.stateful:
            self._reports.follow(spark, job.query_name)
        query = compile_query(spark, job, self.folder, begin)
        self._planned_as, self._job, self._reader = (topology, plan), job, None
        return query

    def _local_folder(self) -> Path:
        """Where tasks have their state if all run on this machine."""
        return self.folder if isinstance(self.folder, Path) else executor_folder()

    def _check_shared(self, master: str) -> None:
        """Raise StreamsException if the executors are on other machines and the state would be on
        this one. `file:` says that the folder is on a disk that all machines share."""
        if not is_local(master) and isinstance(self.folder, Path) and not self._settings.state_dir.startswith("file:"):
            raise StreamsException(
                f"the executors of {master} cannot read state.dir={self._settings.state_dir} on this machine: set "
                "state.dir to s3a://…, hdfs://…, or file:///… for a folder that all machines share"
            )

    def _admin(self) -> Admin:
        return Admin(admin_settings(self._settings.admin))

    def _with_topics(self, admin: Admin) -> Topology:
        """The topology with the topics that its patterns match now."""
        if not self._topology.patterns():
            return self._topology
        own = set(map(self._settings.own_topic, self._topology.internal_topics))
        return self._topology.with_topics(set(admin.list_topics(timeout=_ADMIN_TIMEOUT)) - own)

    def _session(self) -> SparkSession:
        settings = self._settings
        with self._lock_of_session:
            if self._spark is None:
                config = {"spark.python.daemon.module": "kavka.pipeline.streams.daemon", **settings.spark}
                self._spark = running_session() or build_session(
                    settings.application_id, config, settings.master, error=StreamsException
                )
        return self._spark

    def _planned(self, topology: Topology, admin: Admin) -> tuple[Plan, dict[str, int], Layout]:
        settings = self._settings
        for node in topology.patterns():
            if not node.topics:
                raise StreamsException(f"Missing source topics: none matches the pattern {node.subscription()}")
        topics = source_topics(topology)
        counts = partitions_of(admin, topics)
        missing = sorted(topics - set(counts))
        if missing:
            raise StreamsException(f"Missing source topics: {', '.join(missing)}")
        stored = read_layout(self.folder)
        if stored is None and has_begun(self._checkpoint):
            raise StreamsException(
                f"{self.folder}/checkpoint is of another query, because there is no topology.json: give another "
                "state.dir or application.id, or call clean_up()"
            )
        # The number of tasks stays, even if a pattern matches new topics with more partitions.
        stored_counts = (stored or {}).get("patterns", {})
        fixed = [node for node in topology.patterns() if node.name in stored_counts]
        planned_counts = counts | {topic: int(stored_counts[node.name]) for node in fixed for topic in node.topics}
        plan = make_plan(topology, planned_counts, None if stored is None else int(stored["width"]))
        with_state = {topic for sub in (*plan.feeding, *plan.stateful) for topic in sub.topics}
        check_partitions(counts, done(self._checkpoint), with_state, settings)
        check_copartitioned(topology, {**plan.partitions, **counts})
        plan, layout = fit(topology, plan, stored)
        write_layout(self.folder, layout)
        _, real = internal_topics(topology)
        own = {settings.own_topic(name): plan.partitions[name] for name in real}
        create_own(admin, own, settings.replication_factor, settings.topic)
        return plan, own, layout


def _stop(query: StreamingQuery, timeout: float | None = None) -> None:
    """Stop between two micro-batches, if the current one ends soon. The next start repeats an
    unfinished micro-batch, and without exactly-once writes its records again."""
    limit = time.monotonic() + min(_BATCH_ENDS, _BATCH_ENDS if timeout is None else timeout)
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < limit:
        time.sleep(0.01)
    query.stop()


def _is_retry(error: BaseException) -> bool:
    """Whether the production exception handler said RETRY."""
    return f"{RetryProductionException.__name__}:" in str(error)


def _one_line(error: BaseException) -> str:
    """The message of the error of Kavka inside an exception of Spark."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    remedy = remedy_for(lines)
    if remedy is not None:
        return remedy
    return cause_in(lines, _OWN_ERRORS) if lines else type(error).__name__
