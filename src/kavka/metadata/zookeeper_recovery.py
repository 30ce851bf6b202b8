"""[pure] Determines whether a write was applied if its response was lost with the connection.

The server processes the writes of a session in order, so it has processed a prefix of the pending
writes. An applied write is visible in its znodes: a created znode with its data, a changed znode
with its data and the next version, all with the same zxid, which is newer than the last zxid that
the session had seen when it sent the write. A write that only deletes is visible by missing znodes.
A write of checks or sequential znodes only, whose names are unknown, is never visible.

A write that is not visible was rejected, not processed, or overwritten by another client or by a
later write of the same session. In the last case the outcome is unknown, unless the later write
depends on the earlier write. In the other cases the write can be sent again, because its caller has
no response yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from kavka.metadata.store import ANY_VERSION, Check, Create, Delete, Op, OpResult, SetData, Stat

Nodes = Mapping[str, tuple[bytes | None, Stat] | None]


class Verdict(Enum):
    APPLIED = "applied"
    RETRY = "send again"
    UNKNOWN = "unknown"


class Write(NamedTuple):
    """A pending write. `zxid_before_send` is the last zxid that the session had seen when it sent
    the write."""

    ops: Sequence[Op]
    zxid_before_send: int


def paths_to_read(ops: Sequence[Op]) -> list[str]:
    """Return the paths of the znodes that `judge` needs."""
    return list(dict.fromkeys(op.path for op in ops if not isinstance(op, Check)))


def judge(writes: Sequence[Write], nodes: Nodes, session_id: int) -> list[Verdict]:
    """Return one verdict per write. `nodes` has the current znode for every path of
    `paths_to_read`, or None if the znode does not exist."""
    verdicts: list[Verdict] = []
    # From the last write to the first. `later_ops` has the operations of later applied writes.
    later_ops: dict[str, Op] = {}
    for write in reversed(writes):
        changes = {op.path: op for op in write.ops if not isinstance(op, Check)}
        if _is_visible(write, nodes, session_id):
            verdict = Verdict.APPLIED
        elif not changes.keys() & later_ops.keys():
            verdict = Verdict.RETRY
        elif any(path in later_ops and _depends_on(op, later_ops[path]) for path, op in changes.items()):
            verdict = Verdict.APPLIED
        else:
            verdict = Verdict.UNKNOWN
        if verdict is Verdict.APPLIED:
            later_ops |= changes
        verdicts.append(verdict)
    return verdicts[::-1]


def _is_visible(write: Write, nodes: Nodes, session_id: int) -> bool:
    last_ops = {op.path: op for op in write.ops if not isinstance(op, Check)}
    if not last_ops or any(isinstance(op, Create) and op.sequential for op in write.ops):
        return False
    zxids = set()
    for path, op in last_ops.items():
        node = nodes.get(path)
        if isinstance(op, Delete):
            if node is not None:
                return False
            continue
        if node is None or node[0] != getattr(op, "data", None):
            return False
        stat = node[1]
        if isinstance(op, Create):
            if stat.ephemeral_owner != (session_id if op.ephemeral else 0) or stat.version != 0:
                return False
            zxids.add(stat.czxid)
        elif isinstance(op, SetData):
            if op.version not in (ANY_VERSION, stat.version - 1):
                return False
            zxids.add(stat.mzxid)
    return len(zxids) <= 1 and all(zxid > write.zxid_before_send for zxid in zxids)


def _depends_on(op: Op, later: Op) -> bool:
    """Whether the later operation could only succeed after `op`."""
    if isinstance(later, Create) or isinstance(op, Delete):
        return isinstance(later, Create) and isinstance(op, Delete)
    if isinstance(later, SetData | Delete) and later.version != ANY_VERSION:
        return later.version == (0 if isinstance(op, Create) else _next_version(op))
    return False


def _next_version(op: Op) -> int | None:
    return op.version + 1 if isinstance(op, SetData) and op.version != ANY_VERSION else None


def results_of(ops: Sequence[Op], nodes: Nodes) -> list[OpResult]:
    """Return the results of an applied write, reconstructed from the current znodes."""
    results: list[OpResult] = []
    for op in ops:
        if isinstance(op, Create):
            results.append(op.path)
        elif isinstance(op, SetData):
            node = nodes.get(op.path)
            stat = node[1] if node is not None else Stat(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            results.append(stat if op.version == ANY_VERSION else stat._replace(version=op.version + 1))
        else:
            results.append(None)
    return results
