"""Was a write made whose answer was lost with the connection?

The server does what one session asks for in order, so of the writes that were under way a first part was looked at and
the rest was not. A write that was made shows itself in the nodes it left: a made node with its data, a changed one with
its data and the next version, all with one zxid, newer than the last that this session knew of when it asked. One
that only deletes shows itself by what is gone. One that leaves nothing behind (only checks, or sequential nodes,
whose names nobody knows) shows nothing.

What does not show itself was refused, was never looked at, or was overwritten since: by somebody else, or by a later
write of the same session. In the last case nobody can tell any more, unless the later one could only succeed after it.
In the others it can be asked for again: whoever asked has not been answered yet, so that now is as good as then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from kavka.metadata.store import ANY_VERSION, Check, Create, Delete, Op, OpResult, SetData, Stat

Found = Mapping[str, tuple[bytes | None, Stat] | None]


class Verdict(Enum):
    MADE = "made"
    AGAIN = "to be asked for again"
    UNKNOWN = "unknown"


class Write(NamedTuple):
    """`sent_after` is the last zxid that the session had seen before it asked."""

    ops: Sequence[Op]
    sent_after: int


def paths_to_read(ops: Sequence[Op]) -> list[str]:
    return list(dict.fromkeys(op.path for op in ops if not isinstance(op, Check)))


def judge(writes: Sequence[Write], found: Found, session_id: int) -> list[Verdict]:
    """A verdict for each; `found` has every node of `paths_to_read` as it is now, None where it is not there."""
    verdicts: list[Verdict] = []
    # From the last to the first: `later` has, by path, the next op of a write that was made.
    later: dict[str, Op] = {}
    for write in reversed(writes):
        changes = {op.path: op for op in write.ops if not isinstance(op, Check)}
        if _shows(write, found, session_id):
            verdict = Verdict.MADE
        elif not changes.keys() & later.keys():
            verdict = Verdict.AGAIN
        elif any(path in later and _follows(op, later[path]) for path, op in changes.items()):
            verdict = Verdict.MADE
        else:
            verdict = Verdict.UNKNOWN
        if verdict is Verdict.MADE:
            later |= {path: op for path, op in changes.items()}
        verdicts.append(verdict)
    return verdicts[::-1]


def _shows(write: Write, found: Found, session_id: int) -> bool:
    last = {op.path: op for op in write.ops if not isinstance(op, Check)}
    if not last or any(isinstance(op, Create) and op.sequential for op in write.ops):
        return False
    zxids = set()
    for path, op in last.items():
        node = found.get(path)
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
    return len(zxids) <= 1 and all(zxid > write.sent_after for zxid in zxids)


def _follows(op: Op, later: Op) -> bool:
    """Whether the later one can hardly have been made without the other."""
    if isinstance(later, Create) or isinstance(op, Delete):
        return isinstance(later, Create) and isinstance(op, Delete)
    if isinstance(later, SetData | Delete) and later.version != ANY_VERSION:
        return later.version == (0 if isinstance(op, Create) else _next_version(op))
    return False


def _next_version(op: Op) -> int | None:
    return op.version + 1 if isinstance(op, SetData) and op.version != ANY_VERSION else None


def results_of(ops: Sequence[Op], found: Found) -> list[OpResult]:
    """The answer of a write that was made, as far as it can be told from what is there now."""
    results: list[OpResult] = []
    for op in ops:
        if isinstance(op, Create):
            results.append(op.path)
        elif isinstance(op, SetData):
            node = found.get(op.path)
            stat = node[1] if node is not None else Stat(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            results.append(stat if op.version == ANY_VERSION else stat._replace(version=op.version + 1))
        else:
            results.append(None)
    return results
