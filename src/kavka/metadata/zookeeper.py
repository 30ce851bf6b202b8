"""The metadata tree of a cluster, kept by ZooKeeper and reached through kazoo.

Threads: kazoo has one, which owns the connection, pings, and reads answers. It touches nothing here but `_arrived`
(an append and a wake-up of the loop) and, under `_gate`, the number of the connection that is up. All else belongs to
the loop, and sees answers, watches and changes of the connection in the order in which the server sent them.

Operations leave in the order in which they were asked for, at most `max_in_flight` at a time. When the connection
breaks they wait, whether they were sent or not, and after the reconnect go again in the same order. A write that had
been sent may have been made: that is looked up first (see `zookeeper_recovery`), so that nothing is done twice and
nobody is told that his own write is in his way. Only a sequential node may be made twice, and where nobody can tell any
more (a later write of the same session has changed the same node) the answer is `StoreUnavailable`.

When the session is gone (the server says so, after a reconnect), everything that was asked for in it fails with
`StoreUnavailable`, and whether a write that was under way has been made is unknown. What is asked for from then on
waits for the next session, which kazoo opens by itself.

ZooKeeper forgets this client's watches with the connection. Each that is still registered then fires once when there is
a connection again (as CHANGED or CHILDREN): whoever watches has to look, and misses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import Callback, EventType, KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE

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

log = logging.getLogger(__name__)
# kazoo tells of every try to connect; what matters is told here.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)

# A server drops the connection of whoever sends more than its jute.maxbuffer: that would be tried again without end.
MAX_REQUEST_BYTES = 0xFFFFF - 1024
# How long a closing store waits for what was asked for, and then for kazoo's thread.
CLOSE_PATIENCE_S = 5.0
RESTART_DELAY_S = 1.0
# kazoo wakes its thread with a byte for each request, in a pipe that takes some 270 before it blocks the loop.
MOST_IN_FLIGHT = 200

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
_SESSION_ENDED = (
    kazoo_errors.SessionExpiredError,
    kazoo_errors.ConnectionClosedError,
    kazoo_errors.AuthFailedError,
)


class _Operation:
    """Something asked of the server. `path` names it in errors; `ops` are those of a write.

    `register` is called with the value just before the answer is given: it leaves the watch. `sent_after` is the last
    zxid seen before a write was first sent, None while no server can have it. What is asked `once` fails with the
    connection.
    """

    __slots__ = ("answer", "once", "ops", "path", "register", "request", "sent_after")

    def __init__(
        self,
        path: str,
        request: Any,
        answer: asyncio.Future[Any],
        register: Callable[[], None] | None = None,
        ops: Sequence[Op] = (),
        *,
        once: bool = False,
    ) -> None:
        self.path = path
        self.request = request
        self.answer = answer
        self.register = register
        self.ops = ops
        self.once = once
        self.sent_after: int | None = None


class _Reply:
    """What kazoo puts an answer into; called in kazoo's thread."""

    __slots__ = ("operation", "store")

    def __init__(self, store: ZooKeeperStore, operation: _Operation) -> None:
        self.store = store
        self.operation = operation

    def set(self, value: Any = None) -> None:
        self.store._post(self.store._on_answer, self.operation, value, None)

    def set_exception(self, error: BaseException) -> None:
        self.store._post(self.store._on_answer, self.operation, None, error)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Without the two worker threads of kazoo's own: watches are handed over by the thread that reads the answers,
    so that they keep their place among them."""

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Callback) -> None:
        callback.func(*callback.args)


class ZooKeeperStore(MetadataStore):
    """Made by `open`. The lists of callbacks may be changed at any time; they are called on the loop."""

    def __init__(self, hosts: str, session_timeout_ms: int, max_in_flight: int) -> None:
        servers, slash, path = hosts.partition("/")
        self.hosts = hosts
        self._chroot = (slash + path).rstrip("/")
        if self._chroot:
            check_path(self._chroot)
        self._loop = asyncio.get_running_loop()
        self._max_in_flight = min(max_in_flight, MOST_IN_FLIGHT)
        self.on_session_lost: list[Callable[[], Any]] = []
        self.on_new_session: list[Callable[[], Any]] = []
        self.on_reconnected: list[Callable[[], Any]] = []
        self._session_id = 0
        self._closed = False
        self._connected = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting: deque[_Operation] = deque()
        self._in_flight: dict[_Operation, None] = {}
        self._lost: list[_Operation] = []
        self._watches = Watches()
        self._recovery: asyncio.Task[None] | None = None
        # The number of the connection that is up, 0 while none is: what the loop knows, and what is so.
        self._connection = 0
        self._gate = threading.Lock()
        self._live_connection = 0
        self._connections = 0
        self._arrived: deque[tuple[Any, ...]] = deque()
        self._woken = False
        self._client = KazooClient(
            hosts=servers,
            timeout=session_timeout_ms / 1000,
            handler=_Handler(),
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, max_jitter=0.4),
            logger=_kazoo_log,
        )
        self._client.add_listener(self._state_changed)

    @classmethod
    async def open(
        cls, hosts: str, *, session_timeout_ms: int, connection_timeout_ms: int, max_in_flight: int = 10
    ) -> ZooKeeperStore:
        """Connected, or `StoreUnavailable` after the connection timeout. A chroot in `hosts` is made when missing."""
        store = cls(hosts, session_timeout_ms, max_in_flight)
        store._client.start_async()
        try:
            async with asyncio.timeout(connection_timeout_ms / 1000):
                await store._connected.wait()
                await store._make_chroot()
        except TimeoutError:
            await store.close()
            raise StoreUnavailable(hosts, f"no ZooKeeper answered in {connection_timeout_ms} ms") from None
        except BaseException:
            await store.close()
            raise
        return store

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

    # ---- what can be asked for

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, Stat]:
        request = wire.GetData(self._full(path), self._watched if watch is not None else None)
        data, stat = await self._ask(path, request, _registration(self._watches.add_data, path, watch))
        return data, _stat(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        request = wire.Exists(self._full(path), self._watched if watch is not None else None)
        stat = await self._ask(path, request, _registration(self._watches.add_data, path, watch))
        return _stat(stat) if stat is not None else None

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        request = wire.GetChildren(self._full(path), self._watched if watch is not None else None)
        return sorted(await self._ask(path, request, _registration(self._watches.add_children, path, watch)))

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        request = wire.Transaction([self._wire_op(op) for op in ops])
        if (size := sum(map(_size, ops))) > MAX_REQUEST_BYTES:
            raise StoreError(ops[0].path, f"a write of {size} bytes, and ZooKeeper takes no more than 1 MiB")
        results = await self._ask(ops[0].path if ops else "/", request, None, ops)
        return [self._op_result(op, result) for op, result in zip(ops, results, strict=True)]

    async def _ask(self, path: str, request: Any, register: Callable[[], None] | None, ops: Sequence[Op] = ()) -> Any:
        if self._closed:
            raise StoreUnavailable(self.hosts, "the session is closed")
        operation = _Operation(path, request, self._loop.create_future(), register, ops)
        self._waiting.append(operation)
        self._idle.clear()
        self._send_waiting()
        return await operation.answer

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
                return wire.Create(path, op.data, OPEN_ACL_UNSAFE, flags)
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

    # ---- the queue (on the loop)

    def _send_waiting(self) -> None:
        if self._recovery is not None:
            return
        while self._waiting and len(self._in_flight) < self._max_in_flight:
            operation = self._waiting[0]
            if not operation.answer.done() and not self._send(operation):
                return
            self._waiting.popleft()
        if not self._waiting and not self._in_flight:
            self._idle.set()

    def _send(self, operation: _Operation) -> bool:
        """False when there is no connection: it has to wait."""
        with self._gate:
            if not self._connection or self._connection != self._live_connection:
                return False
            self._in_flight[operation] = None
            if operation.ops and operation.sent_after is None:
                operation.sent_after = self._client.last_zxid
            self._client._call(operation.request, _Reply(self, operation))
        return True

    def _on_answer(self, operation: _Operation, value: Any, error: BaseException | None) -> None:
        if self._in_flight.pop(operation, False) is False:
            return
        if error is None and operation.ops:
            error = next((result for result in value if _is_cause(result)), None)
        if isinstance(error, kazoo_errors.ConnectionLoss):
            if operation.once:
                operation.answer.cancel()
            else:
                # These come in the order in which they were sent.
                self._lost.append(operation)
            return
        self._resolve(operation, value, error)
        self._send_waiting()

    def _resolve(self, operation: _Operation, value: Any, error: BaseException | None) -> None:
        if error is None and operation.register is not None:
            operation.register()
        if operation.answer.done():
            return
        if error is None:
            operation.answer.set_result(value)
        else:
            operation.answer.set_exception(self._translate(operation, value, error))

    def _translate(self, operation: _Operation, value: Any, error: BaseException) -> StoreError:
        if isinstance(error, _SESSION_ENDED):
            return StoreUnavailable(operation.path, "the session ended; what was under way may have been done or not")
        if isinstance(error, kazoo_errors.ConnectionLoss):
            return StoreUnavailable(operation.path, "the connection was lost, and it may have been done or not")
        path = operation.path
        if operation.ops and isinstance(value, list):
            failed = next((index for index, result in enumerate(value) if result is error), 0)
            path = operation.ops[failed].path
        kind = _ERRORS.get(type(error))
        return kind(path) if kind is not None else StoreError(path, type(error).__name__)

    # ---- what kazoo's thread tells

    def _post(self, *call: Any) -> None:
        """In kazoo's thread: have it called on the loop, after all that was posted before."""
        self._arrived.append(call)
        if not self._woken:
            self._woken = True
            # The loop is closed when the program ends without closing the store: nobody waits for this any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_arrived)

    def _take_arrived(self) -> None:
        """Only what is there now: what comes meanwhile wakes the loop again, and leaves others their turn."""
        self._woken = False
        for _ in range(len(self._arrived)):
            function, *arguments = self._arrived.popleft()
            function(*arguments)

    def _watched(self, event: WatchedEvent) -> None:
        """In kazoo's thread. That the connection broke is no news about a node, and comes another way."""
        if event.type in _WATCH_TYPES:
            path = event.path[len(self._chroot) :] or "/"
            self._post(self._watches.fire, WatchEvent(_WATCH_TYPES[event.type], path))

    def _state_changed(self, state: str) -> None:
        """In kazoo's thread. From here on nothing is sent until the loop knows of the new connection too."""
        with self._gate:
            self._connections += state == KazooState.CONNECTED
            self._live_connection = self._connections if state == KazooState.CONNECTED else 0
        if state == KazooState.SUSPENDED:
            # kazoo has failed what was under way before it told; this is for what was asked for in between.
            self._client._notify_pending(KeeperState.CONNECTING)
        handle = {
            KazooState.CONNECTED: self._on_connected,
            KazooState.SUSPENDED: self._on_disconnected,
            KazooState.LOST: self._on_lost,
        }[state]
        self._post(handle, self._live_connection, self._client._session_id, self._client._state)

    def _on_connected(self, connection: int, session_id: int, _state: str) -> None:
        self._connection = connection
        self._connected.set()
        if self._closed:
            return
        first, new = not self._session_id, session_id != self._session_id
        self._session_id = session_id
        if first:
            log.info("Connected to ZooKeeper at %s, session 0x%x", self.hosts, session_id)
        elif new:
            log.info("Connected to ZooKeeper again, with a new session 0x%x", session_id)
            _call_all(self.on_new_session)
        else:
            log.info("Connected to ZooKeeper again, session 0x%x goes on", session_id)
        unknown = [each for each in self._waiting if each.sent_after is not None and not each.answer.done()]
        if unknown:
            self._recovery = self._loop.create_task(self._recover(unknown))
        if not first:
            self._watches.fire_all()
            if not new:
                _call_all(self.on_reconnected)
        self._send_waiting()

    def _on_disconnected(self, *_about: Any) -> None:
        log.warning("The connection to ZooKeeper at %s is lost", self.hosts)
        self._forget_connection()
        self._waiting.extendleft(reversed(self._lost))
        self._lost.clear()

    def _on_lost(self, _connection: int, _session_id: int, state: str) -> None:
        """The server ended the session, or kazoo's thread has ended (it is then started again)."""
        self._forget_connection()
        self._fail_all(kazoo_errors.SessionExpiredError())
        if self._closed:
            return
        log.warning("ZooKeeper ended the session 0x%x", self._session_id)
        _call_all(self.on_session_lost)
        if state != KeeperState.EXPIRED_SESSION:
            self._loop.call_later(RESTART_DELAY_S, self._restart)

    def _forget_connection(self) -> None:
        self._connection = 0
        self._connected.clear()
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None

    def _fail_all(self, error: BaseException) -> None:
        under_way = [*self._lost, *self._in_flight, *self._waiting]
        self._lost.clear()
        self._in_flight.clear()
        self._waiting.clear()
        for operation in under_way:
            self._resolve(operation, None, error)
        self._idle.set()

    def _restart(self) -> None:
        if not self._closed:
            threading.Thread(target=self._client.start_async, daemon=True, name="zookeeper-restart").start()

    async def _recover(self, unknown: list[_Operation]) -> None:
        """Answers the writes that were made, and lets the others go again. Ends early when the connection does."""
        found: dict[str, tuple[bytes | None, Stat] | None] = {}
        for path in dict.fromkeys(path for each in unknown for path in zookeeper_recovery.paths_to_read(each.ops)):
            read = _Operation(path, wire.GetData(self._full(path), None), self._loop.create_future(), once=True)
            if not self._send(read):
                return
            try:
                data, stat = await read.answer
                found[path] = data, _stat(stat)
            except StoreError:
                found[path] = None
        writes = [zookeeper_recovery.Write(each.ops, each.sent_after or 0) for each in unknown]
        verdicts = zookeeper_recovery.judge(writes, found, self._session_id)
        for operation, verdict in zip(unknown, verdicts, strict=True):
            if verdict is Verdict.MADE:
                results = zookeeper_recovery.results_of(operation.ops, found)
                self._resolve(operation, [self._chroot + r if isinstance(r, str) else r for r in results], None)
            elif verdict is Verdict.UNKNOWN:
                self._resolve(operation, None, kazoo_errors.ConnectionLoss())
            else:
                operation.sent_after = None
        self._recovery = None
        self._send_waiting()

    # ---- the end

    async def close(self) -> None:
        if self._closed:
            return
        if self.connected:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), CLOSE_PATIENCE_S)
        self._closed = True
        self._fail_all(kazoo_errors.ConnectionClosedError())
        stopped = asyncio.Event()
        threading.Thread(target=self._stop_client, args=(stopped,), daemon=True, name="zookeeper-close").start()
        try:
            await asyncio.wait_for(stopped.wait(), CLOSE_PATIENCE_S)
        except TimeoutError:
            log.warning("The session with ZooKeeper at %s could not be closed and will run out", self.hosts)
        self._forget_connection()

    def _stop_client(self, stopped: asyncio.Event) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            log.warning("Closing the session with ZooKeeper: %s", error)
        self._post(stopped.set)


def _registration(add: Callable[[str, Watch], None], path: str, watch: Watch | None) -> Callable[[], None] | None:
    return None if watch is None else lambda: add(path, watch)


def _stat(found: Any) -> Stat:
    return Stat(
        found.czxid,
        found.mzxid,
        found.pzxid,
        found.ctime,
        found.mtime,
        found.version,
        found.cversion,
        found.ephemeralOwner,
        found.dataLength,
        found.numChildren,
    )


def _size(op: Op) -> int:
    data = op.data if isinstance(op, Create | SetData) else None
    return len(op.path) + len(data or b"") + 64


def _is_cause(result: Any) -> bool:
    """Of the results of a multi that was refused: the error of the op that is to blame. The others were undone, or
    never looked at."""
    return isinstance(result, Exception) and not isinstance(
        result, kazoo_errors.RolledBackError | kazoo_errors.RuntimeInconsistency
    )


def _call_all(callbacks: list[Callable[[], Any]]) -> None:
    for callback in list(callbacks):
        try:
            callback()
        except Exception:
            log.exception("A callback of the metadata store failed")
