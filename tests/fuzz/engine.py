"""Runs a target on mutated inputs, and reports the first input that fails or exceeds a limit."""

from __future__ import annotations

import hashlib
import os
import random
import re
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MAX_INPUT = 64 * 1024
# Bytes above the initial address space of the process. Larger allocations fail.
ADDRESS_SPACE = 2 << 30
HANG_SECONDS = 20

_INTERESTING = (
    b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\x7f\xff", b"\x80\x00", b"\xff\xff",
    b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\xff\xff", b"\x00\x10\x00\x00",
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\xff" * 9 + b"\x01", b"\x7f" + b"\xff" * 7,
    b"\x80" + b"\x00" * 7,
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """`run` raises an exception for a finding. `inputs` is the number of inputs in `make test`."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    inputs: int
    cpu_seconds: float = 0.25
    memory_bytes: int = 64 << 20

    @cached_property
    def corpus(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted((CORPUS / self.name).glob("*"))]


class Finding(Exception):
    """An input that failed or exceeded a limit."""

    def __init__(self, target: Target, data: bytes, reason: str) -> None:
        super().__init__(f"{target.name}: {reason}")
        self.target = target
        self.data = data
        self.reason = reason

    def save(self, folder: Path) -> Path:
        path = folder / f"{self.target.name}-{hashlib.sha256(self.data).hexdigest()[:12]}"
        path.write_bytes(self.data)
        return path


class Hang(BaseException):
    """Interrupts an input that does not end. It is a BaseException, so that no decoder catches
    it."""


@contextmanager
def bounded_process() -> Iterator[None]:
    """Limit the address space of this process, and interrupt an input that uses HANG_SECONDS of CPU
    time."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise Hang

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ADDRESS_SPACE, limits[1]))
    previous = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, limits)


_status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
_PEAK = re.compile(rb"VmHWM:\s+(\d+) kB")


def peak_memory() -> int:
    """Return the peak memory of this process. `ru_maxrss` starts with the peak of the parent."""
    peak = _PEAK.search(os.pread(_status, 8192, 0))
    assert peak is not None
    return int(peak[1]) * 1024


def run_input(target: Target, data: bytes) -> None:
    """Run one input. Raises Finding. Peak memory never decreases, so only the first input that
    exceeds the limit is a finding."""
    memory = peak_memory()
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    started = time.thread_time()
    try:
        target.run(data)
    except Hang:
        raise Finding(target, data, f"no result after {HANG_SECONDS} s of CPU time") from None
    except Exception:
        raise Finding(target, data, traceback.format_exc()) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    seconds = time.thread_time() - started
    if seconds > target.cpu_seconds:
        raise Finding(target, data, f"{seconds:.2f} s of CPU time, {target.cpu_seconds} s allowed")
    growth = peak_memory() - memory
    if growth > target.memory_bytes:
        raise Finding(target, data, f"{growth >> 20} MiB of memory, {target.memory_bytes >> 20} MiB allowed")


def fuzz(target: Target, seed: int, inputs: int | None = None, seconds: float | None = None) -> int:
    """Run every seed and corpus file, then mutations until the limit `inputs` or `seconds`. Return
    the number of inputs. The same seed produces the same inputs."""
    pool = [*target.corpus, *target.seeds()]
    deadline = None if seconds is None else time.monotonic() + seconds
    rng = random.Random(f"{target.name} {seed}")
    count = 0
    with bounded_process():
        for data in mutations(pool, rng):
            if (inputs is not None and count >= inputs) or (deadline is not None and time.monotonic() > deadline):
                return count
            run_input(target, data)
            count += 1
    return count


def mutations(pool: Sequence[bytes], rng: random.Random) -> Iterator[bytes]:
    yield from pool
    while True:
        data = bytearray(rng.choice(pool))
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            _mutate(data, pool, rng)
        yield bytes(data[:MAX_INPUT])


def _mutate(data: bytearray, pool: Sequence[bytes], rng: random.Random) -> None:
    position = rng.randrange(len(data) + 1)
    end = min(len(data), position + rng.choice((1, 2, 4, 8, 64)))
    match rng.randrange(9):
        case 0:
            data[position:end] = rng.randbytes(end - position)
        case 1 | 2:
            value = rng.choice(_INTERESTING)
            data[position : position + len(value)] = value
        case 3:
            if position < len(data):
                data[position] ^= 1 << rng.randrange(8)
        case 4:
            del data[position:end]
        case 5:
            del data[position:]
        case 6:
            data[position:position] = rng.choice(_INTERESTING)
        case 7:
            other = rng.choice(pool)
            start = rng.randrange(len(other) + 1)
            data[position:] = other[start : start + MAX_INPUT]
        case 8:
            chunk = data[position:end]
            if chunk:
                data[position:position] = chunk * rng.choice((1, 2, 100, MAX_INPUT // len(chunk)))
