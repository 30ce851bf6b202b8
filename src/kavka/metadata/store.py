"""The tree that the cluster's metadata lives in: ZooKeeper's shape, whoever keeps it.

A node has a path, some bytes (or none at all) and a `Stat`. What every implementation promises:
- writes take effect one after the other, each whole or not at all, and are on disk before they are answered;
- a read sees every write that was started before it through the same store;
- a watch fires once, on the loop, after the change that it waited for is on disk and before that change is answered
  to whoever made it; to go on watching, read again with the watch.

Watches follow ZooKeeper: `get` and `exists` leave a watch on the node's data and existence, `children` one on the
list of its children and its end. `exists` may watch a node that is not there yet; the other two raise `NoNode` then,
and leave no watch.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple


class StoreError(Exception):
    """Something about the tree itself; `path` is the node that it is about."""

    meaning = "the metadata store failed"

    def __init__(self, path: str, detail: str | None = None) -> None:
        self.path = path
        super().__init__(f"{path}: {self.meaning}" + (f" ({detail})" if detail else ""))


class NoNode(StoreError):
    meaning = "there is no such node"


class NodeExists(StoreError):
    meaning = "the node exists already"


class BadVersion(StoreError):
    meaning = "the node has another version than the one expected"


class NotEmpty(StoreError):
    meaning = "the node has children"


class NoChildrenForEphemerals(StoreError):
    meaning = "an ephemeral node can have no children"


class StoreUnavailable(StoreError):
    """The store is closed, or its disk failed and nothing was written, or its session ended: then what was under way
    may have been written or not."""

    meaning = "the metadata store cannot be reached"


class Stat(NamedTuple):
    """What ZooKeeper tells of a node. A zxid is the number of a write; they only go up, also over restarts."""

    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    ephemeral_owner: int
    data_length: int
    children_count: int


class WatchType(Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    type: WatchType
    path: str


Watch = Callable[[WatchEvent], Any]

ANY_VERSION = -1


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes | None = None
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes | None
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Changes nothing; fails the whole `multi` when the node is gone or has another version."""

    path: str
    version: int


Op = Create | SetData | Delete | Check

# What an op of a multi gives: the path made, the new Stat, or nothing.
OpResult = str | Stat | None


class MetadataStore(ABC):
    @property
    @abstractmethod
    def session_id(self) -> int:
        """The owner of the ephemeral nodes made through this store."""

    @abstractmethod
    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, Stat]: ...

    @abstractmethod
    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None: ...

    @abstractmethod
    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names (not paths) of the children, sorted."""

    @abstractmethod
    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """All of `ops` in order, or none: then the error of the first that could not be done is raised."""

    @abstractmethod
    async def close(self) -> None:
        """What was answered is kept; ephemeral nodes of this session go."""

    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """The path that was made: with `sequential`, ten digits follow what was asked for."""
        result = (await self.multi((Create(path, data, ephemeral, sequential),)))[0]
        assert isinstance(result, str)
        return result

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> Stat:
        result = (await self.multi((SetData(path, data, version),)))[0]
        assert isinstance(result, Stat)
        return result

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi((Delete(path, version),))

    async def watch_data(self, path: str, watch: Watch) -> Stat | None:
        """Be told when the node is made, changed or deleted, whichever comes next."""
        return await self.exists(path, watch)

    async def watch_children(self, path: str, watch: Watch) -> list[str]:
        return await self.children(path, watch)

    async def ensure(self, path: str) -> None:
        """Make the node, and those above it, where they are not there yet."""
        if await self.exists(path) is not None:
            return
        parent = parent_of(path)
        if parent != "/":
            await self.ensure(parent)
        with suppress(NodeExists):
            await self.create(path)

    async def subtree(self, path: str) -> list[str]:
        """The node and all below it, children before their parents: the order to delete them in. Empty if not there."""
        try:
            names = await self.children(path)
        except NoNode:
            return []
        below = path if path != "/" else ""
        found = await asyncio.gather(*(self.subtree(f"{below}/{name}") for name in names))
        return [*(each for one in found for each in one), path]


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


_NAME = "(?!\\.{1,2}(?:/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]+"
_PATH = re.compile(f"/|(?:/{_NAME})+")


def check_path(path: str) -> None:
    """ZooKeeper's rules: absolute, no empty or relative name, no slash at the end, no control characters."""
    if _PATH.fullmatch(path) is None:
        raise ValueError(f"not a path that a node can have: {path!r}")
