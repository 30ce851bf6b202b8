"""A znode tree in memory that several sessions share, as brokers share ZooKeeper. Tests can make it
fail.

`MemoryTree().session()` returns a `MetadataStore`. Every operation yields to the loop once, so that
sessions interleave. `expire` expires a session: its ephemeral znodes are deleted, and its later
operations fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kavka.metadata.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
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


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes | None
    stat: Stat
    creates: int = 0
    children: frozenset[str] = frozenset()


class MemoryTree:
    def __init__(self) -> None:
        self.zxid = 1
        self.nodes: dict[str, Node] = {"/": Node(None, Stat(0, 0, 0, 0, 0, 0, 0, 0, 0, 0))}
        self.sessions: list[TreeSession] = []
        self.multis = 0

    def session(self) -> TreeSession:
        session = TreeSession(self, 1000 + len(self.sessions))
        self.sessions.append(session)
        return session

    def commit(self, ops: Sequence[Op], owner: int) -> list[OpResult]:
        """Apply all operations or none, and fire the watches of all sessions."""
        changes: dict[str, Node | None] = {}
        events: list[WatchEvent] = []
        results = [self._do(op, owner, changes, events) for op in ops]
        self.zxid += 1
        self.multis += 1
        for path, node in changes.items():
            if node is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = node
        for event in events:
            for session in self.sessions:
                session.fire(event)
        return results

    def _do(self, op: Op, owner: int, changes: dict[str, Node | None], events: list[WatchEvent]) -> OpResult:
        check_path(op.path)

        def find(path: str) -> Node:
            node = changes[path] if path in changes else self.nodes.get(path)
            if node is None:
                raise NoNode(op.path)
            return node

        if isinstance(op, Create):
            parent_path = parent_of(op.path)
            parent = find(parent_path)
            path = f"{op.path}{parent.creates:010d}" if op.sequential else op.path
            if (changes[path] if path in changes else self.nodes.get(path)) is not None:
                raise NodeExists(path)
            stat = Stat(self.zxid, self.zxid, self.zxid, 0, 0, 0, 0, owner if op.ephemeral else 0, 0, 0)
            changes[path] = Node(op.data, stat)
            name = path.rpartition("/")[2]
            changes[parent_path] = replace(parent, creates=parent.creates + 1, children=parent.children | {name})
            events += [WatchEvent(WatchType.CREATED, path), WatchEvent(WatchType.CHILDREN, parent_path)]
            return path
        node = find(op.path)
        if getattr(op, "version", ANY_VERSION) not in (ANY_VERSION, node.stat.version):
            raise BadVersion(op.path)
        if isinstance(op, SetData):
            stat = node.stat._replace(version=node.stat.version + 1, mzxid=self.zxid)
            changes[op.path] = replace(node, data=op.data, stat=stat)
            events.append(WatchEvent(WatchType.CHANGED, op.path))
            return stat
        if isinstance(op, Delete):
            if node.children:
                raise NotEmpty(op.path)
            parent = find(parent_of(op.path))
            changes[op.path] = None
            name = op.path.rpartition("/")[2]
            changes[parent_of(op.path)] = replace(parent, children=parent.children - {name})
            events += [WatchEvent(WatchType.DELETED, op.path), WatchEvent(WatchType.CHILDREN, parent_of(op.path))]
        else:
            assert isinstance(op, Check)
        return None


class TreeSession(MetadataStore):
    def __init__(self, tree: MemoryTree, session_id: int) -> None:
        self.tree = tree
        self._session_id = session_id
        self._is_alive = True
        self._watches: dict[tuple[str, bool], dict[Watch, None]] = {}
        # Called before each multi. If it raises, nothing is written.
        self.before_multi: Callable[[Sequence[Op]], None] = lambda ops: None
        # Called after each multi. If it raises, the change is written and the caller gets an error.
        self.after_multi: Callable[[Sequence[Op]], None] = lambda ops: None

    @property
    def session_id(self) -> int:
        return self._session_id

    def expire(self) -> None:
        if self._is_alive:
            self._is_alive = False
            nodes = self.tree.nodes.items()
            for path in [path for path, node in nodes if node.stat.ephemeral_owner == self._session_id]:
                self.tree.commit([Delete(path)], 0)

    def renew(self) -> None:
        """Expire the session and start a new one."""
        self.expire()
        self._session_id += 100
        self._is_alive = True
        self._watches.clear()

    async def close(self) -> None:
        self.expire()

    async def _yield_to_loop(self) -> None:
        if not self._is_alive:
            raise StoreUnavailable("/", "the session has expired")
        await asyncio.sleep(0)
        if not self._is_alive:
            raise StoreUnavailable("/", "the session has expired")

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, Stat]:
        await self._yield_to_loop()
        node = self.tree.nodes.get(path)
        if node is None:
            raise NoNode(path)
        self._add_watch(path, False, watch)
        return node.data, node.stat

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        await self._yield_to_loop()
        self._add_watch(path, False, watch)
        node = self.tree.nodes.get(path)
        return node.stat if node is not None else None

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        await self._yield_to_loop()
        node = self.tree.nodes.get(path)
        if node is None:
            raise NoNode(path)
        self._add_watch(path, True, watch)
        return sorted(node.children)

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        await self._yield_to_loop()
        self.before_multi(ops)
        results = self.tree.commit(ops, self._session_id)
        self.after_multi(ops)
        return results

    def _add_watch(self, path: str, children: bool, watch: Watch | None) -> None:
        if watch is not None:
            self._watches.setdefault((path, children), {})[watch] = None

    def fire(self, event: WatchEvent) -> None:
        if not self._is_alive:
            return
        fired: dict[Watch, None] = {}
        if event.type is not WatchType.CHILDREN:
            fired |= self._watches.pop((event.path, False), {})
        if event.type in (WatchType.CHILDREN, WatchType.DELETED):
            fired |= self._watches.pop((event.path, True), {})
        for watch in fired:
            watch(event)
