"""The metadata tree of a cluster, with the data model of ZooKeeper.

A znode has a path, data (bytes or None) and a `Stat`. Every store guarantees:

- Writes are atomic and sequential, and are on disk before the call returns.
- A read returns the result of every write that was started earlier through the same store.
- A watch fires once, on the event loop, after the change is on disk and before the call that made
  the change returns. To watch further changes, read again with the watch.

As in ZooKeeper, `get` and `exists` watch the znode's data and existence; `children` watches the
list of its children and its deletion. `exists` can watch a znode that does not exist yet. If the
znode does not exist, `get` and `children` raise `NoNode` and set no watch.
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
    """A failed operation on the tree; `path` is the affected znode."""

    meaning = "the metadata store failed"

    def __init__(self, path: str, detail: str | None = None) -> None:
        self.path = path
        super().__init__(f"{path}: {self.meaning}" + (f" ({detail})" if detail else ""))


class NoNode(StoreError):
    meaning = "there is no such node"


class NodeExists(StoreError):
    meaning = "the node already exists"


class BadVersion(StoreError):
    meaning = "the node does not have the expected version"


class NotEmpty(StoreError):
    meaning = "the node has children"


class NoChildrenForEphemerals(StoreError):
    meaning = "an ephemeral node cannot have children"


class StoreUnavailable(StoreError):
    """The store is closed, its disk failed and nothing was written, or its session ended. If the
    session ended, it is unknown whether pending writes were applied."""

    meaning = "the metadata store cannot be reached"


class Stat(NamedTuple):
    """ZooKeeper's metadata of a znode. A zxid is the transaction id of a write. Zxids always
    increase, even after a restart."""

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
    """Fails the `multi` unless the znode exists with this version."""

    path: str
    version: int


Op = Create | SetData | Delete | Check

# The result of an operation of a multi: the created path, the new Stat, or None.
OpResult = str | Stat | None


class MetadataStore(ABC):
    """A session with the metadata tree. Only the event loop may call the methods."""

    @property
    @abstractmethod
    def session_id(self) -> int:
        """The owner of the ephemeral znodes that this store creates."""

    @abstractmethod
    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, Stat]: ...

    @abstractmethod
    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None: ...

    @abstractmethod
    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names (not paths) of the children, sorted. Raises NoNode."""

    @abstractmethod
    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """Apply `ops` in order and return their results. If an operation fails, apply none of them
        and raise the StoreError of the failed operation."""

    @abstractmethod
    async def close(self) -> None:
        """Complete pending writes, and remove the ephemeral znodes of this session."""

    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a znode and return its path. With `sequential` the path is `path` and a number of
        ten digits. Raises NodeExists and NoNode."""
        result = (await self.multi((Create(path, data, ephemeral, sequential),)))[0]
        assert isinstance(result, str)
        return result

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> Stat:
        result = (await self.multi((SetData(path, data, version),)))[0]
        assert isinstance(result, Stat)
        return result

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi((Delete(path, version),))

    async def ensure(self, path: str) -> None:
        """Create the znode and its parents if they do not exist."""
        if await self.exists(path) is not None:
            return
        parent = parent_of(path)
        if parent != "/":
            await self.ensure(parent)
        with suppress(NodeExists):
            await self.create(path)

    async def subtree(self, path: str) -> list[str]:
        """Return the paths of the znode and all its descendants, children before parents. This is
        the order in which they can be deleted. Empty if the znode does not exist."""
        try:
            names = await self.children(path)
        except NoNode:
            return []
        prefix = path if path != "/" else ""
        subtrees = await asyncio.gather(*(self.subtree(f"{prefix}/{name}") for name in names))
        return [*(descendant for subtree in subtrees for descendant in subtree), path]


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


_NAME = "(?!\\.{1,2}(?:/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]+"
_PATH = re.compile(f"/|(?:/{_NAME})+")


def check_path(path: str) -> None:
    """Raise ValueError unless ZooKeeper accepts the path: absolute, no empty or relative name, no
    trailing slash, no control characters."""
    if _PATH.fullmatch(path) is None:
        raise ValueError(f"invalid znode path {path!r}")
