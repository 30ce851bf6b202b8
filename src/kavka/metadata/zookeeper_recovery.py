"""Was a write made whose answer was lost with the connection?

The server does what one session asks for in order, so of the writes that were under way a first part was made and the
rest was not: what has to be found is the last that was. A write shows itself in the nodes it left: a made node with its
data, a changed one with its data and the next version, all with one zxid, newer than the last that this session knew of
when it asked. A write that only deletes shows itself by what is gone. One that leaves nothing behind (only checks, or
sequential nodes, whose names nobody knows) is taken as not made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kavka.metadata.store import ANY_VERSION, Check, Create, Delete, Op, OpResult, SetData, Stat

Found = Mapping[str, tuple[bytes | None, Stat] | None]


def paths_to_read(ops: Sequence[Op]) -> list[str]:
    return list(dict.fromkeys(op.path for op in ops if not isinstance(op, Check)))


def results_if_made(ops: Sequence[Op], found: Found, sent_after: int, session_id: int) -> list[OpResult] | None:
    """What the write answered, when it was the last to touch its nodes; None when it does not look made."""
    last = {op.path: op for op in ops if not isinstance(op, Check)}
    if not last or any(isinstance(op, Create) and op.sequential for op in ops):
        return None
    zxids = set()
    for path, op in last.items():
        node = found.get(path)
        if isinstance(op, Delete):
            if node is not None:
                return None
            continue
        if node is None:
            return None
        data, stat = node
        if data != op.data:
            return None
        if isinstance(op, Create):
            if stat.ephemeral_owner != (session_id if op.ephemeral else 0) or stat.version != 0:
                return None
            zxids.add(stat.czxid)
        elif isinstance(op, SetData):
            if op.version != ANY_VERSION and stat.version != op.version + 1:
                return None
            zxids.add(stat.mzxid)
    if len(zxids) > 1 or any(zxid <= sent_after for zxid in zxids):
        return None
    return results_of(ops, found)


def results_of(ops: Sequence[Op], found: Found) -> list[OpResult]:
    """The answer of a write that is known to have been made, as far as it can be told from what is there now."""
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
