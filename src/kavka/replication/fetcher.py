"""Copies the partitions that one other broker leads (Kafka's ReplicaFetcherThread).

One request is in flight at a time, for all partitions together, in a fetch session
(`fetcher_session.py`). The leader holds the request until there are records. The records of a
response are views of its frame and are appended without a copy, with one write for each log. The
next request is sent in the same turn of the loop.

`fetcher_states.py` has the states of the fetcher and of its partitions. A crash at any point leaves
a log that is a prefix of the records sent. The next fetch starts at the end of that log. From the
epoch of the last record the leader detects whether the logs diverge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kavka.common.errors import ErrorCode, KafkaError, known_code
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.fetch import FetchRequest, FetchResponse, ReplicaState
from kavka.replication.fetcher_session import INITIAL_EPOCH
from kavka.replication.fetcher_states import FETCHER_TRANSITIONS, FetcherState
from kavka.replication.followed_partitions import LOOKUP_CHANNEL, FollowedPartitions
from kavka.replication.partition import Partition
from kavka.replication.shared import Shared

if TYPE_CHECKING:
    from kavka.client.connection import Connection
    from kavka.replication.peers import Peers
    from kavka.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

CHANNEL = "fetch"
# How long to wait for the first bytes of a response before the request is abandoned.
RESPONSE_START_TIMEOUT_S = 0.02
MAX_FETCH_VERSION = 17
# Later Fetch versions identify topics by id.
MAX_TOPIC_NAME_VERSION = 12


class ReplicaFetcher:
    """Owns the connection to one broker, its request in flight, and the `followed` partitions. Only
    the loop thread uses it. Partitions may be added and removed at any time; a response for a
    removed partition is ignored."""

    def __init__(
        self,
        broker_id: int,
        leader_id: int,
        peers: Peers,
        log_manager: LogManager,
        shared: Shared,
        broker_epoch: Callable[[], int],
        on_failure: Callable[[Partition, BaseException], None],
    ) -> None:
        self.leader_id = leader_id
        self.state = FetcherState.IDLE
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._peers = peers
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self.followed = FollowedPartitions(
            broker_id, leader_id, peers, log_manager, shared, on_failure, self._fetch_partition
        )
        self._session = self.followed.session
        self._connection: Connection | None = None
        self._connect_task: asyncio.Task[None] | None = None
        self._in_flight: _InFlight | None = None
        self._backoff_timer: asyncio.TimerHandle | None = None
        self._attempts = 0

    def _move_to(self, state: FetcherState) -> None:
        """Change the state, and drop the request or the timer of the previous state. Raises
        ValueError if the table does not have the transition."""
        if (self.state, state) not in FETCHER_TRANSITIONS:
            raise ValueError(f"no transition from {self.state.name} to {state.name}")
        self.state = state
        self._in_flight = None
        if self._backoff_timer is not None:
            self._backoff_timer.cancel()
            self._backoff_timer = None

    # ---- partitions

    def add(self, partition: Partition) -> None:
        """Copy the partition from the end of its log on, in its current leader epoch."""
        if not self.followed.add(partition):
            return
        if self.state is FetcherState.BACKING_OFF:
            # The controller has just elected the broker as a leader, so it is alive.
            self._move_to(FetcherState.IDLE)
        # Send one request for all partitions that this order adds.
        self._loop.call_soon(self._fetch)
        self._abandon_held_request()

    @property
    def max_lag(self) -> int:
        """The largest lag of a partition, in records."""
        return max((role.lag for role in list(self.followed.by_partition.values())), default=0)

    async def close(self) -> None:
        await asyncio.gather(*self.start_close(), return_exceptions=True)

    def start_close(self) -> list[asyncio.Task[None]]:
        """Close without waiting for tasks. Returns the cancelled tasks."""
        self._move_to(FetcherState.CLOSED)
        tasks = self.followed.clear()
        if self._connect_task is not None:
            self._connect_task.cancel()
            tasks.append(self._connect_task)
        self._peers.close_channel(self.leader_id, CHANNEL)
        self._peers.close_channel(self.leader_id, LOOKUP_CHANNEL)
        return tasks

    # ---- the connection

    def _fetch_partition(self, is_urgent: bool) -> None:
        self._fetch()
        if is_urgent:
            self._abandon_held_request()

    def _abandon_held_request(self) -> None:
        """A request that the leader holds would delay a new partition. Replace it with a request on
        a new connection, unless its response is arriving. The first request of a session is not
        abandoned: its response has the session id."""
        request, connection = self._in_flight, self._connection
        if self._session.epoch == INITIAL_EPOCH:
            return
        if request is not None and connection is not None and not request.is_abandon_scheduled:
            request.is_abandon_scheduled = True
            self._loop.call_later(RESPONSE_START_TIMEOUT_S, self._abandon, request, connection, connection.bytes_in)

    def _abandon(self, request: _InFlight, connection: Connection, bytes_in: int) -> None:
        if self._in_flight is not request:
            return
        request.is_abandon_scheduled = False
        if self._session.changed and connection.bytes_in == bytes_in:
            self._move_to(FetcherState.IDLE)
            self._drop_connection()
            self._fetch()

    def _drop_connection(self) -> None:
        self._connection = None
        self._peers.close_channel(self.leader_id, CHANNEL)
        self._session.restart()

    def _fetch(self) -> None:
        """Send the next request, if the state permits it and there are partitions to fetch."""
        if self.state is not FetcherState.IDLE or self.followed.flushes:
            return
        if not self._session.in_session and not self._session.changed:
            return
        connection = self._connection
        if connection is None or connection.closed:
            self._move_to(FetcherState.CONNECTING)
            self._connect_task = self._loop.create_task(self._connect(), name=f"fetch-from-{self.leader_id}")
            return
        self._move_to(FetcherState.FETCHING)
        try:
            self._send(connection)
        except Exception as error:
            self._on_failure(error)

    async def _connect(self) -> None:
        try:
            connection = await self._peers.connection(self.leader_id, CHANNEL)
        except Exception as error:
            self._on_failure(error)
            return
        finally:
            self._connect_task = None
        self._move_to(FetcherState.IDLE)
        self._connection = connection
        self._session.restart()
        self._fetch()

    def _on_failure(self, error: BaseException) -> None:
        """Retry after the backoff, in a new session."""
        if self.state in (FetcherState.CLOSED, FetcherState.BACKING_OFF):
            return
        logger.info("Cannot fetch from broker %d: %s", self.leader_id, error)
        if not isinstance(error, (KafkaError, OSError)):
            logger.error("Unexpected error in a fetch from broker %d", self.leader_id, exc_info=error)
        self._move_to(FetcherState.BACKING_OFF)
        self._drop_connection()
        self._backoff_timer = self._loop.call_later(self.followed.backoff_s(self._attempts), self._retry)
        self._attempts += 1

    def _retry(self) -> None:
        self._move_to(FetcherState.IDLE)
        self._fetch()

    # ---- requests

    def _send(self, connection: Connection) -> None:
        session = self._session
        session.choose_topic_ids_or_names()
        settings = self._shared.settings
        api_version = connection.version_of(
            ApiKey.FETCH, MAX_FETCH_VERSION if session.uses_topic_ids else MAX_TOPIC_NAME_VERSION
        )
        if api_version <= MAX_TOPIC_NAME_VERSION:
            session.use_topic_names()
        self.followed.delay_throttled()
        in_flight = self._in_flight = _InFlight(self)
        request = FetchRequest(
            replica_id=self._broker_id if api_version < 15 else -1,
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=self._broker_epoch()),
            max_wait_ms=settings.fetch_wait_max_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_response_max_bytes,
            session_id=session.id,
            session_epoch=session.epoch,
            topics=session.take_changed(settings.fetch_max_bytes),
            forgotten_topics_data=session.take_forgotten(),
        )
        connection.send_with_handler(request, api_version, in_flight, settings.socket_timeout_s)

    # ---- responses

    def _on_response(self, response: FetchResponse) -> None:
        self._attempts = 0
        if response.error_code:
            self._on_session_error(known_code(response.error_code))
        else:
            self.followed.process(response)
            self._fetch()

    def _on_session_error(self, code: ErrorCode) -> None:
        self._session.restart()
        if code in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            self._session.id = 0
            self._fetch()
        else:
            self._on_failure(KafkaError(code, "the leader refused the fetch"))


class _InFlight:
    """Handles the response to the request in flight. Implements the part of a future's interface
    that the connection uses."""

    __slots__ = ("_fetcher", "is_abandon_scheduled")

    def __init__(self, fetcher: ReplicaFetcher) -> None:
        self.is_abandon_scheduled = False
        self._fetcher = fetcher

    def done(self) -> bool:
        return self._fetcher._in_flight is not self

    def set_result(self, response: Any, /) -> None:
        fetcher = self._fetcher
        fetcher._move_to(FetcherState.IDLE)
        try:
            fetcher._on_response(response)
        except Exception as error:
            fetcher._on_failure(error)

    def set_exception(self, error: BaseException, /) -> None:
        self._fetcher._on_failure(error)
