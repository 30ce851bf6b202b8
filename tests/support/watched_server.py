"""A broker that measures its own event loop: `python -m tests.support.watched_server GAUGE
server.properties`.

A timer of one millisecond fires once in every turn of the loop. The cost of a turn is the CPU time
of the loop's thread between two calls of the timer. The file GAUGE contains the largest cost and
the number of calls, as two doubles in native byte order. The test (`WatchedBroker`) reads both and
resets the cost.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
from pathlib import Path
from time import thread_time
from typing import Any

from kavka.broker import app
from kavka.cli import main as kavka_main

GAUGE = struct.Struct("dd")
COST = struct.Struct("d")
PERIOD_S = 0.001


def watch_turns(loop: asyncio.AbstractEventLoop, gauge: mmap.mmap) -> None:
    last_call = thread_time()
    calls = 0

    def tick() -> None:
        nonlocal last_call, calls
        now = thread_time()
        calls += 1
        GAUGE.pack_into(gauge, 0, max(now - last_call, GAUGE.unpack_from(gauge)[0]), calls)
        last_call = now
        loop.call_later(PERIOD_S, tick)

    loop.call_soon(tick)


def main() -> int:
    with Path(sys.argv[1]).open("r+b") as file:
        gauge = mmap.mmap(file.fileno(), GAUGE.size)
    serve = app.serve

    async def watched(*args: Any, **kwargs: Any) -> Any:
        watch_turns(asyncio.get_running_loop(), gauge)
        return await serve(*args, **kwargs)

    app.serve = watched  # type: ignore[assignment]
    return kavka_main.main(["server", sys.argv[2]])


if __name__ == "__main__":
    sys.exit(main())
