"""Full garbage collections of the broker's process.

A full collection visits every object that was created since the start, and blocks all threads.
Python starts one whenever the number of objects grows by a quarter, so a request with tens of
thousands of elements started several, each up to 200 ms. Reference counting frees almost all
objects of a broker, so the broker collects rarely, at regular times.
"""

from __future__ import annotations

import asyncio
import gc
from time import thread_time

INTERVAL_S = 60.0
# The interval if the last collection took more than `MAX_COLLECTION_S`.
LONG_INTERVAL_S = 600.0
MAX_COLLECTION_S = 0.025
# Python starts a full collection only after this many collections of younger objects, which is
# after several million new objects.
YOUNG_COLLECTIONS = 1000


def pause_collections() -> None:
    """Collect nothing until `collect_garbage` is called. A start creates objects that live as long
    as the broker; collections would visit all of them again and again."""
    gc.disable()


async def collect_garbage() -> None:
    """Take over full collections from Python until cancelled. Objects that exist now are never
    collected."""
    young, middle, full = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(young, middle, YOUNG_COLLECTIONS)
    gc.enable()
    interval_s = INTERVAL_S
    try:
        while True:
            await asyncio.sleep(interval_s)
            started_at = thread_time()
            gc.collect()
            interval_s = INTERVAL_S if thread_time() - started_at <= MAX_COLLECTION_S else LONG_INTERVAL_S
    finally:
        gc.set_threshold(young, middle, full)
