"""CPU time and private memory of a process and its descendants, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Return the process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(process.name))
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(process.name))
    pids = [pid]
    for each in pids:
        pids += children.get(each, [])
    return pids


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its descendants, those that have ended included."""
    ticks = 0
    for each in descendants(pid):
        fields = _stat(each)
        if fields is not None:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS


def private_bytes(pid: int) -> int:
    """Return the memory that no other process shares (USS); 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name of the command."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
