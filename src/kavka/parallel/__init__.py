"""Two ways to handle records with many threads, ready to use; both commit only what is done, so that a crash loses
nothing.

`ConsumerThreads`: a consumer in every thread. Each handles its own partitions, one record after the other: simple,
ordered per partition, and no more threads are of use than there are partitions.

    with ConsumerThreads(settings, ["orders"], handle, threads=4) as threads:
        threads.run()

`HandlerPool`: one consumer, many threads that handle. Records of one key (or of one partition) are handled in order,
others at the same time; as many threads as the work wants, however few partitions there are.

    with HandlerPool(settings, ["orders"], handle, workers=32, order="key") as pool:
        pool.run()

`handle(record)` is the program's. When it raises, and `retries` did not help, `on_error(record, error)` decides: True
counts the record as done (having put it somewhere, say), anything else stops everything, and `run` raises
HandlerFailed. A record is committed when it and all before it in its partition are done; so after a crash, or a stop by
an error, some that were done are handled again, and none is left out.
"""

from __future__ import annotations

from kavka.parallel.handling import HandlerFailed as HandlerFailed
from kavka.parallel.pool import HandlerPool as HandlerPool
from kavka.parallel.threads import ConsumerThreads as ConsumerThreads

__all__ = ["ConsumerThreads", "HandlerFailed", "HandlerPool"]
