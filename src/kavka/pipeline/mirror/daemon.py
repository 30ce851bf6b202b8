"""Spark's daemon, which forks its Python processes, with the clients already imported.

Otherwise each process imports them again, for every step of a micro-batch (planning, writing,
committing) and several times in a takeover: half a second of CPU each time. The daemon may have no
threads when it forks, so it imports nothing that starts one (pyarrow does).
"""

from __future__ import annotations

import pyspark.sql.datasource  # noqa: F401
from pyspark import daemon

import kavka.client.admin
import kavka.client.consumer.consumer
import kavka.client.producer.producer  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
