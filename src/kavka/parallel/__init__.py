"""Two patterns that process records with many threads. Both commit only the offsets of processed
records, so that a crash loses no record.

`ConsumerThreads` has a consumer in every thread, which processes the records of its partitions in
order. It is the simpler pattern. More threads than partitions have no effect.

    with ConsumerThreads(settings, ["orders"], handle, threads=4) as threads:
        threads.run()

`HandlerPool` has one consumer and a pool of workers. Records with the same key (or of the same
partition) are processed in order, all other records concurrently. The number of workers does not
depend on the number of partitions.

    with HandlerPool(settings, ["orders"], handle, workers=32, order="key") as pool:
        pool.run()

`handle(record)` is a function of the application. If it still fails after all `retries`,
`on_error(record, error)` is called. The result True marks the record as processed, for example
after sending it to a dead letter topic. Any other result stops all threads, and `run` raises
HandlerFailed. An offset is committed when all records before it are processed. After a crash or an
error, some records are processed again, and no record is skipped.
"""

from __future__ import annotations

from kavka.parallel.handling import HandlerFailed as HandlerFailed
from kavka.parallel.pool import HandlerPool as HandlerPool
from kavka.parallel.threads import ConsumerThreads as ConsumerThreads

__all__ = ["ConsumerThreads", "HandlerFailed", "HandlerPool"]
