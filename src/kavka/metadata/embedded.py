"""The metadata tree of a single node, stored in SQLite.

The file has one table, `nodes`, with a row per znode. `creates` counts the children ever created
and numbers sequential znodes. The root has a row as well, so the greatest zxid in the table is the
last used zxid: a deleted znode leaves its zxid in its parent's `pzxid`.

The tree on disk is also in memory, together with the accepted writes that are not committed yet
(`_pending`). A write is validated against both on the event loop, and queued. A worker thread
commits all queued writes in one transaction, with an fsync. The event loop then updates the tree,
fires the watches and completes the writes. If a commit fails, for example on a full disk,
its writes and all queued writes fail, and the tree stays unchanged.

A session lasts as long as the process. After a crash the ephemeral znodes remain in the file; the
next `open` removes them. The file is locked while it is open: a second process gets
`StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kavka.common.clock import Clock, SystemClock
from kavka.metadata.store import (
    ANY_VERSION,
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
    StoreUnavailable,
    Watch,
    WatchEvent,
    WatchType,
    check_path,
    parent_of,
)
from kavka.metadata.watches import Watches

logger = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS nodes (
    path TEXT PRIMARY KEY,
    data BLOB,
    version INTEGER NOT NULL,
    creates INTEGER NOT NULL,
    czxid INTEGER NOT NULL,
    mzxid INTEGER NOT NULL,
    pzxid INTEGER NOT NULL,
    ctime INTEGER NOT NULL,
    mtime INTEGER NOT NULL,
    ephemeral_owner INTEGER NOT NULL
) WITHOUT ROWID
"""
_FORMAT_VERSION = 1


class _Node(NamedTuple):
    """The state of a znode after a write. Immutable. `child_count` is not stored on disk. The
    cversion of ZooKeeper counts created and deleted children, and follows from both counts."""

    data: bytes | None
    version: int
    creates: int
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    ephemeral_owner: int
    child_count: int = 0

    def stat(self) -> Stat:
        return Stat(
            self.czxid,
            self.mzxid,
            self.pzxid,
            self.ctime,
            self.mtime,
            self.version,
            self.creates * 2 - self.child_count,
            self.ephemeral_owner,
            len(self.data) if self.data else 0,
            self.child_count,
        )


@dataclass(slots=True, eq=False, repr=False)
class _Transaction:
    """A validated write that is not committed yet. The result of the future `outcome` is None or
    the error; the future never raises."""

    zxid: int
    changes: dict[str, _Node | None] = field(default_factory=dict)
    events: list[WatchEvent] = field(default_factory=list)
    results: list[OpResult] = field(default_factory=list)
    outcome: asyncio.Future[StoreUnavailable | None] = field(init=False)


class EmbeddedStore(MetadataStore):
    """Owns the tree in memory, the queue of writes and the SQLite connection."""

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Clock) -> None:
        self.path = path
        self._connection = connection
        self._clock = clock
        self._nodes: dict[str, _Node] = {}
        self._children: dict[str, set[str]] = {}
        self._pending: dict[str, tuple[int, _Node | None]] = {}
        self._queue: list[_Transaction] = []
        self._tail: asyncio.Future[StoreUnavailable | None] | None = None
        self._committing = False
        self._closed = False
        self._watches = Watches()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")
        self._zxid = 0

    @classmethod
    def open(cls, path: Path, clock: Clock | None = None) -> EmbeddedStore:
        """Open or create the file. Blocks while it reads the tree. Raises StoreUnavailable if the
        file cannot be opened or another process has locked it."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
            for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _FORMAT_VERSION):
                raise StoreUnavailable(str(path), f"a newer release wrote format {version}")
            if version == 0:
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA user_version={_FORMAT_VERSION}")
            store = cls(path, connection, clock or SystemClock())
            store._load()
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(str(path), str(error)) from error
        return store

    def _load(self) -> None:
        rows = self._connection.execute(
            "SELECT path, data, version, creates, czxid, mzxid, pzxid, ctime, mtime, ephemeral_owner FROM nodes"
        ).fetchall()
        nodes = {row[0]: _Node(*row[1:]) for row in rows}
        self._zxid = max((max(n.czxid, n.mzxid, n.pzxid) for n in nodes.values()), default=0)
        children: dict[str, set[str]] = {path: set() for path in nodes}
        for path in nodes:
            if path != "/":
                children[parent_of(path)].add(path.rpartition("/")[2])
        self._children = children
        self._nodes = {path: node._replace(child_count=len(children[path])) for path, node in nodes.items()}
        changes: dict[str, _Node | None] = {}
        if "/" not in nodes:
            now = self._clock.now_ms()
            changes["/"] = _Node(None, 0, 0, 0, 0, 0, now, now, 0)
        changes |= self._end_session()
        if changes:
            self._commit([changes])
            self._apply(changes)
        # The session id is a new zxid, so no znode on disk has it as its owner.
        self._zxid += 1
        self._session_id = self._zxid

    def _end_session(self) -> dict[str, _Node | None]:
        """Return the changes that remove all ephemeral znodes."""
        transaction = _Transaction(self._zxid + 1)
        for path, node in self._nodes.items():
            if node.ephemeral_owner:
                self._delete(transaction, Delete(path))
        if transaction.changes:
            self._zxid = transaction.zxid
        return transaction.changes

    @property
    def session_id(self) -> int:
        return self._session_id

    # ---- reads

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, Stat]:
        await self._wait_for_writes()
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(path)
        if watch is not None:
            self._watches.add_data(path, watch)
        return node.data, node.stat()

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        await self._wait_for_writes()
        if watch is not None:
            self._watches.add_data(path, watch)
        node = self._nodes.get(path)
        return node.stat() if node is not None else None

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        await self._wait_for_writes()
        names = self._children.get(path)
        if names is None:
            raise NoNode(path)
        if watch is not None:
            self._watches.add_children(path, watch)
        return sorted(names)

    async def _wait_for_writes(self) -> None:
        """Wait until the accepted writes are committed, because a read must return their data."""
        if self._tail is not None and not self._tail.done():
            await asyncio.shield(self._tail)

    # ---- writes

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if self._closed:
            raise StoreUnavailable(str(self.path), "the store is closed")
        transaction = _Transaction(self._zxid + 1)
        for op in ops:
            transaction.results.append(self._validate(transaction, op))
        self._zxid = transaction.zxid
        for path, node in transaction.changes.items():
            self._pending[path] = (transaction.zxid, node)
        loop = asyncio.get_running_loop()
        transaction.outcome = self._tail = loop.create_future()
        if not self._queue and not self._committing:
            loop.call_soon(self._start_commit)
        self._queue.append(transaction)
        failure = await asyncio.shield(transaction.outcome)
        if failure is not None:
            raise failure
        return transaction.results

    def _validate(self, transaction: _Transaction, op: Op) -> OpResult:
        check_path(op.path)
        match op:
            case Create():
                return self._create(transaction, op)
            case SetData():
                node = self._expect(transaction, op.path, op.version)
                changed = node._replace(
                    data=op.data, version=node.version + 1, mzxid=transaction.zxid, mtime=self._clock.now_ms()
                )
                transaction.changes[op.path] = changed
                transaction.events.append(WatchEvent(WatchType.CHANGED, op.path))
                return changed.stat()
            case Delete():
                self._expect(transaction, op.path, op.version)
                self._delete(transaction, op)
            case Check():
                self._expect(transaction, op.path, op.version)
        return None

    def _create(self, transaction: _Transaction, op: Create) -> str:
        zxid = transaction.zxid
        parent_path = parent_of(op.path)
        parent = self._newest(transaction, parent_path)
        if parent is None:
            raise NoNode(op.path)
        path = f"{op.path}{parent.creates:010d}" if op.sequential else op.path
        if self._newest(transaction, path) is not None:
            raise NodeExists(path)
        if parent.ephemeral_owner:
            raise NoChildrenForEphemerals(path)
        now = self._clock.now_ms()
        owner = self._session_id if op.ephemeral else 0
        transaction.changes[path] = _Node(op.data, 0, 0, zxid, zxid, zxid, now, now, owner)
        transaction.changes[parent_path] = parent._replace(
            creates=parent.creates + 1, pzxid=zxid, child_count=parent.child_count + 1
        )
        transaction.events.append(WatchEvent(WatchType.CREATED, path))
        transaction.events.append(WatchEvent(WatchType.CHILDREN, parent_path))
        return path

    def _delete(self, transaction: _Transaction, op: Delete) -> None:
        node = self._newest(transaction, op.path)
        if op.path == "/" or node is None or node.child_count:
            raise NotEmpty(op.path)
        parent_path = parent_of(op.path)
        parent = self._newest(transaction, parent_path)
        assert parent is not None
        transaction.changes[op.path] = None
        transaction.changes[parent_path] = parent._replace(pzxid=transaction.zxid, child_count=parent.child_count - 1)
        transaction.events.append(WatchEvent(WatchType.DELETED, op.path))
        transaction.events.append(WatchEvent(WatchType.CHILDREN, parent_path))

    def _newest(self, transaction: _Transaction, path: str) -> _Node | None:
        """Return the znode after all accepted writes and the operations of `transaction` so far, or
        None."""
        if path in transaction.changes:
            return transaction.changes[path]
        pending = self._pending.get(path)
        return pending[1] if pending is not None else self._nodes.get(path)

    def _expect(self, transaction: _Transaction, path: str, version: int) -> _Node:
        """Return the znode. Raises NoNode if it does not exist, and BadVersion if it has another
        version."""
        node = self._newest(transaction, path)
        if node is None:
            raise NoNode(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path)
        return node

    # ---- commit

    def _start_commit(self) -> None:
        batch, self._queue = self._queue, []
        self._committing = True
        work = asyncio.get_running_loop().run_in_executor(self._worker, self._commit, [t.changes for t in batch])
        work.add_done_callback(lambda commit: self._finish_commit(batch, commit))

    def _commit(self, batch: Iterable[dict[str, _Node | None]]) -> None:
        """Write the changes of several transactions to disk. Runs in the worker thread, or in
        `open` before that thread exists. Raises sqlite3.Error."""
        merged: dict[str, _Node | None] = {}
        for changes in batch:
            merged.update(changes)
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT OR REPLACE INTO nodes VALUES (?,?,?,?,?,?,?,?,?,?)",
                [(path, *node[:9]) for path, node in merged.items() if node is not None],
            )
            connection.executemany(
                "DELETE FROM nodes WHERE path = ?", [(path,) for path, node in merged.items() if node is None]
            )
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _finish_commit(self, batch: list[_Transaction], commit: asyncio.Future[None]) -> None:
        self._committing = False
        error = commit.exception()
        if error is not None:
            logger.error("Cannot write the metadata to %s: %s", self.path, error)
            # The queued writes were validated against the failed writes.
            failed, self._queue = batch + self._queue, []
            self._pending.clear()
            for transaction in failed:
                transaction.outcome.set_result(StoreUnavailable(str(self.path), str(error)))
            return
        if self._queue:
            self._start_commit()
        for transaction in batch:
            self._apply(transaction.changes)
            for path in transaction.changes:
                pending = self._pending.get(path)
                if pending is not None and pending[0] == transaction.zxid:
                    del self._pending[path]
            for event in transaction.events:
                self._watches.fire(event)
            transaction.outcome.set_result(None)

    def _apply(self, changes: dict[str, _Node | None]) -> None:
        # The changes are in any order: a deleted znode may come before or after its deleted parent.
        for path, node in changes.items():
            parent, _, name = path.rpartition("/")
            if node is not None:
                self._nodes[path] = node
                self._children.setdefault(path, set())
                if name:
                    self._children.setdefault(parent or "/", set()).add(name)
            elif self._nodes.pop(path, None) is not None:
                self._children.pop(path, None)
                siblings = self._children.get(parent or "/")
                if siblings is not None:
                    siblings.discard(name)

    async def close(self) -> None:
        if self._closed:
            return
        while self._tail is not None and not self._tail.done():
            await self._wait_for_writes()
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._worker, self._close)
        self._worker.shutdown(wait=False)

    def _close(self) -> None:
        try:
            changes = self._end_session()
            if changes:
                self._commit([changes])
        except sqlite3.Error as error:
            logger.warning("The ephemeral nodes remain in %s until the next start: %s", self.path, error)
        self._connection.close()
