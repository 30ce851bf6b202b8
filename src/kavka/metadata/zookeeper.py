"""The metadata tree of a cluster in ZooKeeper, accessed with kazoo.

Threads: kazoo has one thread, which owns the connection, sends pings and reads responses. This
thread only calls `_post` and, under `_connection_lock`, sets the number of the current connection.
Short-lived threads restart and stop the kazoo client, because these calls block. All other state
belongs to the event loop, which processes responses, watches and connection changes in the order in
which the server sent them.

Operations are sent in the order of the calls, at most `max_in_flight` at a time. When the
connection breaks, all pending operations wait, and are sent in the same order after the reconnect.
A write that was already sent may have been applied. The store checks this first
(`zookeeper_recovery`), so that no write is applied twice and no caller gets an error caused by its
own write. There are three exceptions:
- A sequential znode may be created twice.
- If a later write of the session changed the same znode, the outcome is unknown and the caller gets
  `StoreUnavailable`.
- If another client has since changed or deleted the znode, an applied write is not visible and is
  sent again. Without a version it may be applied twice; with a version it fails (`BadVersion`,
  `NoNode`).

When the server reports after a reconnect that the session expired, all pending operations fail with
`StoreUnavailable`, and it is unknown whether pending writes were applied. Later operations wait for
the next session, which kazoo opens.

ZooKeeper drops the watches of a client with its connection. After the reconnect every registered
watch fires once, as CHANGED or CHILDREN, so that its owner reads again and misses no change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import Callback, EventType, KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from kavka.metadata import zookeeper_recovery
from kavka.metadata.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    SetData,
    Stat,
    StoreError,
    StoreUnavailable,
    Watch,
    WatchEvent,
    WatchType,
    check_path,
)
from kavka.metadata.watches import Watches
from kavka.metadata.zookeeper_recovery import Verdict

logger = logging.getLogger(__name__)
# kazoo logs every connection attempt; this module logs the relevant events.
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.ERROR)

# A server closes the connection after a request larger than its jute.maxbuffer. Without this limit
# the request would be retried forever.
MAX_REQUEST_BYTES = 0xFFFFF - 1024
# How long `close` waits for pending operations, and then for kazoo's thread.
CLOSE_TIMEOUT_S = 5.0
RESTART_DELAY_S = 1.0
# kazoo wakes its thread with a byte per request in a socket pair, whose buffer is full after about
# 270 sends. The next send would block the event loop.
MAX_IN_FLIGHT = 200

# Only brokers may read these znodes: they contain credentials.
SENSITIVE_PATHS = ("/config/users", "/config/brokers", "/delegation_token/tokens")
# Consumers before Kafka 0.9 create znodes below this one, so every client may.
OPEN_PATH = "/consumers"

_EPHEMERAL, _SEQUENTIAL = 1, 2

_ERRORS: dict[type[BaseException], type[StoreError]] = {
    kazoo_errors.NoNodeError: NoNode,
    kazoo_errors.NodeExistsError: NodeExists,
    kazoo_errors.BadVersionError: BadVersion,
    kazoo_errors.NotEmptyError: NotEmpty,
    kazoo_errors.NoChildrenForEphemeralsError: NoChildrenForEphemerals,
}
_WATCH_TYPES = {
    EventType.CREATED: WatchType.CREATED,
    EventType.CHANGED: WatchType.CHANGED,
    EventType.DELETED: WatchType.DELETED,
    EventType.CHILD: WatchType.CHILDREN,
}
_REFUSED = "ZooKeeper did not accept the credentials (zookeeper.sasl.jaas.config), or has no SASL"
_SESSION_ENDED = (
    kazoo_errors.SessionExpiredError,
    kazoo_errors.ConnectionClosedError,
    kazoo_errors.AuthFailedError,
)


@dataclass(slots=True, eq=False, repr=False)
class _Operation:
    """A request to the server. `path` is the path in errors; `ops` are the operations of a write.

    `register` registers the watch, just before the future completes. `zxid_before_send` is the last
    zxid that the session had seen when a write was first sent, or None if the write was not sent.
    An operation with `cancel_on_loss` is cancelled when the connection breaks.
    """

    path: str
    request: Any
    future: asyncio.Future[Any]
    register: Callable[[], None] | None = None
    ops: Sequence[Op] = ()
    _: KW_ONLY
    cancel_on_loss: bool = False
    zxid_before_send: int | None = field(init=False, default=None)


@dataclass(slots=True, eq=False, repr=False)
class _AsyncResult:
    """The result of a request, which kazoo completes in its thread."""

    store: ZooKeeperStore
    operation: _Operation

    def set(self, value: Any = None) -> None:
        self.store._post(self.store._on_response, self.operation, value, None)

    def set_exception(self, error: BaseException) -> None:
        self.store._post(self.store._on_response, self.operation, None, error)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """A handler without kazoo's two worker threads. The thread that reads responses also delivers
    the watches, which keeps their order. `context` is the TLS context of connections, or None."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self._context = context

    def create_connection(self, address: tuple[str, int], *, hostname: str, timeout: float, **options: Any) -> Any:
        sock = socket.create_connection(address, timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock if self._context is None else self._context.wrap_socket(sock, server_hostname=hostname)
        except BaseException:
            sock.close()
            raise

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Callback) -> None:
        callback.func(*callback.args)


class Credentials(NamedTuple):
    """A user of ZooKeeper's SASL mechanism DIGEST-MD5."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.username!r})"


class ZooKeeperStore(MetadataStore):
    """Owns a ZooKeeper session, the pending operations and the watches. Created by `open`.

    The callback lists may be changed at any time; callbacks run on the event loop.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        max_in_flight: int,
        context: ssl.SSLContext | None = None,
        sets_acls: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        self._sets_acls = sets_acls
        servers, slash, path = hosts.partition("/")
        self.hosts = hosts
        self._chroot = (slash + path).rstrip("/")
        if self._chroot:
            check_path(self._chroot)
        self._loop = asyncio.get_running_loop()
        self._max_in_flight = min(max_in_flight, MAX_IN_FLIGHT)
        self.on_session_lost: list[Callable[[], Any]] = []
        self.on_new_session: list[Callable[[], Any]] = []
        self.on_reconnected: list[Callable[[], Any]] = []
        self._session_id = 0
        self._closed = False
        self._is_refused = False
        self._connected = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._pending: deque[_Operation] = deque()
        self._in_flight: dict[_Operation, None] = {}
        self._interrupted: list[_Operation] = []
        self._watches = Watches()
        self._recovery: asyncio.Task[None] | None = None
        # The number of the current connection, or 0: `_connection` is the loop's value,
        # `_live_connection` is the value of kazoo's thread.
        self._connection = 0
        self._connection_lock = threading.Lock()
        self._live_connection = 0
        self._connection_count = 0
        self._posted: deque[tuple[Any, ...]] = deque()
        self._is_wake_scheduled = False
        self._client = KazooClient(
            hosts=servers,
            timeout=session_timeout_ms / 1000,
            handler=_Handler(context),
            sasl_options=credentials and {"mechanism": "DIGEST-MD5", **credentials._asdict()},
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, max_jitter=0.4),
            logger=_kazoo_logger,
        )
        self._client.add_listener(self._on_state_change)

    @classmethod
    async def open(
        cls,
        hosts: str,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        max_in_flight: int = 10,
        context: ssl.SSLContext | None = None,
        sets_acls: bool = False,
        credentials: Credentials | None = None,
    ) -> ZooKeeperStore:
        """Connect, and create the chroot in `hosts` if it does not exist. `context` is for TLS,
        `credentials` for SASL. With `sets_acls` only the owner of this session's certificate or
        credentials may change new znodes. Raises `StoreUnavailable` after the connection timeout,
        or if ZooKeeper does not accept the credentials."""
        store = cls(hosts, session_timeout_ms, max_in_flight, context, sets_acls, credentials)
        store._client.start_async()
        try:
            async with asyncio.timeout(connection_timeout_ms / 1000):
                await store._connected.wait()
                if credentials is not None:
                    await store._check_credentials()
                await store._make_chroot()
        except TimeoutError:
            await store.close()
            raise StoreUnavailable(hosts, f"no ZooKeeper server responded in {connection_timeout_ms} ms") from None
        except BaseException:
            await store.close()
            raise
        return store

    def _acl(self, path: str) -> list[ACL]:
        """The ACL of a new znode, as Kafka's brokers set it."""
        if not self._sets_acls or path == OPEN_PATH:
            return list(OPEN_ACL_UNSAFE)
        if path.startswith(SENSITIVE_PATHS):
            return list(CREATOR_ALL_ACL)
        return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]

    async def _check_credentials(self) -> None:
        """Wait for the response to a request. kazoo reports a connection before it authenticates,
        and sends requests afterwards."""
        try:
            await self._submit("/", wire.Exists("/", None), None)
        except StoreUnavailable:
            if self._is_refused:
                raise StoreUnavailable(self.hosts, _REFUSED) from None
            raise

    async def _make_chroot(self) -> None:
        chroot, self._chroot = self._chroot, ""
        try:
            if chroot:
                await self.ensure(chroot)
        finally:
            self._chroot = chroot

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    # ---- operations

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, Stat]:
        request = wire.GetData(self._full(path), self._on_watch if watch is not None else None)
        data, stat = await self._submit(path, request, _registration(self._watches.add_data, path, watch))
        return data, _stat(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        request = wire.Exists(self._full(path), self._on_watch if watch is not None else None)
        stat = await self._submit(path, request, _registration(self._watches.add_data, path, watch))
        return _stat(stat) if stat is not None else None

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        request = wire.GetChildren(self._full(path), self._on_watch if watch is not None else None)
        return sorted(await self._submit(path, request, _registration(self._watches.add_children, path, watch)))

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        request = wire.Transaction([self._wire_op(op) for op in ops])
        if (size := sum(map(_size, ops))) > MAX_REQUEST_BYTES:
            raise StoreError(ops[0].path, f"a write of {size} bytes exceeds ZooKeeper's limit of 1 MiB")
        results = await self._submit(ops[0].path if ops else "/", request, None, ops)
        return [self._op_result(op, result) for op, result in zip(ops, results, strict=True)]

    async def _submit(
        self, path: str, request: Any, register: Callable[[], None] | None, ops: Sequence[Op] = ()
    ) -> Any:
        if self._closed:
            raise StoreUnavailable(self.hosts, "the session is closed")
        operation = _Operation(path, request, self._loop.create_future(), register, ops)
        self._pending.append(operation)
        self._idle.clear()
        self._send_pending()
        return await operation.future

    def _full(self, path: str) -> str:
        check_path(path)
        if not self._chroot:
            return path
        return self._chroot if path == "/" else self._chroot + path

    def _wire_op(self, op: Op) -> Any:
        path = self._full(op.path)
        match op:
            case Create():
                flags = (_EPHEMERAL if op.ephemeral else 0) | (_SEQUENTIAL if op.sequential else 0)
                return wire.Create(path, op.data, self._acl(op.path), flags)
            case SetData():
                return wire.SetData(path, op.data, op.version)
            case Delete():
                return wire.Delete(path, op.version)
            case Check():
                return wire.CheckVersion(path, op.version)

    def _op_result(self, op: Op, result: Any) -> OpResult:
        if isinstance(op, Create):
            return str(result)[len(self._chroot) :]
        if isinstance(op, SetData):
            return result if isinstance(result, Stat) else _stat(result)
        return None

    # ---- the queue (on the event loop)

    def _send_pending(self) -> None:
        if self._recovery is not None:
            return
        while self._pending and len(self._in_flight) < self._max_in_flight:
            operation = self._pending[0]
            if not operation.future.done() and not self._send(operation):
                return
            self._pending.popleft()
        if not self._pending and not self._in_flight:
            self._idle.set()

    def _send(self, operation: _Operation) -> bool:
        """Send an operation. Returns False if there is no connection; the operation then stays in
        the queue."""
        with self._connection_lock:
            if not self._connection or self._connection != self._live_connection:
                return False
            self._in_flight[operation] = None
            if operation.ops and operation.zxid_before_send is None:
                operation.zxid_before_send = self._client.last_zxid
            self._client._call(operation.request, _AsyncResult(self, operation))
        return True

    def _on_response(self, operation: _Operation, value: Any, error: BaseException | None) -> None:
        if self._in_flight.pop(operation, False) is False:
            return
        if error is None and operation.ops:
            error = next((result for result in value if _is_cause(result)), None)
        if isinstance(error, kazoo_errors.ConnectionLoss):
            if operation.cancel_on_loss:
                operation.future.cancel()
            else:
                # Interrupted operations arrive in the order in which they were sent.
                self._interrupted.append(operation)
            return
        self._resolve(operation, value, error)
        self._send_pending()

    def _resolve(self, operation: _Operation, value: Any, error: BaseException | None) -> None:
        if error is None and operation.register is not None:
            operation.register()
        if operation.future.done():
            return
        if error is None:
            operation.future.set_result(value)
        else:
            operation.future.set_exception(self._translate(operation, value, error))

    def _translate(self, operation: _Operation, value: Any, error: BaseException) -> StoreError:
        if isinstance(error, _SESSION_ENDED):
            return StoreUnavailable(operation.path, "the session ended, and the operation may have been applied")
        if isinstance(error, kazoo_errors.ConnectionLoss):
            return StoreUnavailable(operation.path, "the connection was lost, and the operation may have been applied")
        path = operation.path
        if operation.ops and isinstance(value, list):
            failed = next((index for index, result in enumerate(value) if result is error), 0)
            path = operation.ops[failed].path
        error_class = _ERRORS.get(type(error))
        return error_class(path) if error_class is not None else StoreError(path, type(error).__name__)

    # ---- events from kazoo's thread

    def _post(self, *call: Any) -> None:
        """Run `call` on the event loop, after earlier calls. Called in any thread."""
        self._posted.append(call)
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            # The loop is closed if the program ends without closing the store.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._run_posted)

    def _run_posted(self) -> None:
        """Run the calls posted so far. Calls that are posted meanwhile run in a later iteration, so
        that they do not block the event loop."""
        self._is_wake_scheduled = False
        for _ in range(len(self._posted)):
            function, *arguments = self._posted.popleft()
            function(*arguments)

    def _on_watch(self, event: WatchedEvent) -> None:
        """Called in kazoo's thread. Events about the connection are ignored here;
        `_on_state_change` handles them."""
        if event.type in _WATCH_TYPES:
            path = event.path[len(self._chroot) :] or "/"
            self._post(self._watches.fire, WatchEvent(_WATCH_TYPES[event.type], path))

    def _on_state_change(self, state: str) -> None:
        """Called in kazoo's thread. Nothing is sent until the event loop has processed the
        change."""
        with self._connection_lock:
            self._connection_count += state == KazooState.CONNECTED
            self._live_connection = self._connection_count if state == KazooState.CONNECTED else 0
        if state == KazooState.SUSPENDED:
            # kazoo has already failed the requests in flight; this fails the requests sent since.
            self._client._notify_pending(KeeperState.CONNECTING)
        handle = {
            KazooState.CONNECTED: self._on_connected,
            KazooState.SUSPENDED: self._on_disconnected,
            KazooState.LOST: self._on_session_lost,
        }[state]
        self._post(handle, self._live_connection, self._client._session_id, self._client._state)

    def _on_connected(self, connection: int, session_id: int, _state: str) -> None:
        self._connection = connection
        self._connected.set()
        if self._closed:
            return
        is_first, is_new_session = not self._session_id, session_id != self._session_id
        self._session_id = session_id
        if is_first:
            logger.info("Connected to ZooKeeper at %s, session 0x%x", self.hosts, session_id)
        elif is_new_session:
            logger.info("Reconnected to ZooKeeper with a new session 0x%x", session_id)
            _call_all(self.on_new_session)
        else:
            logger.info("Reconnected to ZooKeeper, session 0x%x continues", session_id)
        sent_writes = [
            operation
            for operation in self._pending
            if operation.zxid_before_send is not None and not operation.future.done()
        ]
        if sent_writes:
            self._recovery = self._loop.create_task(self._recover(sent_writes))
        if not is_first:
            self._watches.fire_all()
            if not is_new_session:
                _call_all(self.on_reconnected)
        self._send_pending()

    def _on_disconnected(self, _connection: int, _session_id: int, _state: str) -> None:
        logger.warning("Lost the connection to ZooKeeper at %s", self.hosts)
        self._reset_connection()
        self._pending.extendleft(reversed(self._interrupted))
        self._interrupted.clear()

    def _on_session_lost(self, _connection: int, _session_id: int, state: str) -> None:
        """Fail all operations, because the session expired or kazoo's thread ended. In the latter
        case, restart the thread."""
        self._is_refused = state == KeeperState.AUTH_FAILED
        self._reset_connection()
        self._fail_all(kazoo_errors.SessionExpiredError())
        if self._closed:
            return
        if self._is_refused:
            logger.error(_REFUSED)
        logger.warning("Lost the ZooKeeper session 0x%x (%s)", self._session_id, state)
        _call_all(self.on_session_lost)
        if state != KeeperState.EXPIRED_SESSION:
            self._loop.call_later(RESTART_DELAY_S, self._restart)

    def _reset_connection(self) -> None:
        self._connection = 0
        self._connected.clear()
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None

    def _fail_all(self, error: BaseException) -> None:
        failed = [*self._interrupted, *self._in_flight, *self._pending]
        self._interrupted.clear()
        self._in_flight.clear()
        self._pending.clear()
        for operation in failed:
            self._resolve(operation, None, error)
        self._idle.set()

    def _restart(self) -> None:
        if not self._closed:
            threading.Thread(target=self._client.start_async, daemon=True, name="zookeeper-restart").start()

    async def _recover(self, sent_writes: list[_Operation]) -> None:
        """Determine which writes were applied and complete them. The other writes are sent again,
        or fail if their outcome is unknown. Stops when the connection breaks."""
        nodes: dict[str, tuple[bytes | None, Stat] | None] = {}
        for path in dict.fromkeys(
            path for operation in sent_writes for path in zookeeper_recovery.paths_to_read(operation.ops)
        ):
            read = _Operation(
                path, wire.GetData(self._full(path), None), self._loop.create_future(), cancel_on_loss=True
            )
            if not self._send(read):
                return
            try:
                data, stat = await read.future
                nodes[path] = data, _stat(stat)
            except StoreError:
                nodes[path] = None
        writes = [zookeeper_recovery.Write(operation.ops, operation.zxid_before_send or 0) for operation in sent_writes]
        verdicts = zookeeper_recovery.judge(writes, nodes, self._session_id)
        for operation, verdict in zip(sent_writes, verdicts, strict=True):
            if verdict is Verdict.APPLIED:
                results = zookeeper_recovery.results_of(operation.ops, nodes)
                self._resolve(operation, [self._chroot + r if isinstance(r, str) else r for r in results], None)
            elif verdict is Verdict.UNKNOWN:
                self._resolve(operation, None, kazoo_errors.ConnectionLoss())
            else:
                operation.zxid_before_send = None
        self._recovery = None
        self._send_pending()

    # ---- close

    async def close(self) -> None:
        if self._closed:
            return
        if self.connected:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), CLOSE_TIMEOUT_S)
        self._closed = True
        self._fail_all(kazoo_errors.ConnectionClosedError())
        stopped = asyncio.Event()
        threading.Thread(target=self._stop_client, args=(stopped,), daemon=True, name="zookeeper-close").start()
        try:
            await asyncio.wait_for(stopped.wait(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            logger.warning("Cannot close the session with ZooKeeper at %s; it will expire", self.hosts)
        self._reset_connection()

    def _stop_client(self, stopped: asyncio.Event) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            logger.warning("Cannot close the ZooKeeper session: %s", error)
        self._post(stopped.set)


def _registration(add: Callable[[str, Watch], None], path: str, watch: Watch | None) -> Callable[[], None] | None:
    return None if watch is None else lambda: add(path, watch)


def _stat(znode_stat: Any) -> Stat:
    return Stat(
        znode_stat.czxid,
        znode_stat.mzxid,
        znode_stat.pzxid,
        znode_stat.ctime,
        znode_stat.mtime,
        znode_stat.version,
        znode_stat.cversion,
        znode_stat.ephemeralOwner,
        znode_stat.dataLength,
        znode_stat.numChildren,
    )


def _size(op: Op) -> int:
    data = op.data if isinstance(op, Create | SetData) else None
    return len(op.path) + len(data or b"") + 64


def _is_cause(result: Any) -> bool:
    """Whether a result of a rejected multi is the error of the failed operation. The other
    operations were rolled back or not processed."""
    return isinstance(result, Exception) and not isinstance(
        result, kazoo_errors.RolledBackError | kazoo_errors.RuntimeInconsistency
    )


def _call_all(callbacks: list[Callable[[], Any]]) -> None:
    for callback in list(callbacks):
        try:
            callback()
        except Exception:
            logger.exception("A callback of the metadata store failed")
