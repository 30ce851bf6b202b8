"""A consumer that reads a partition repeatedly from the disk. It evicts the partition from the page
cache before each pass, unless the argument `warm` is present.

    python -m bench.cold_reader HOST:PORT TOPIC FOLDER [warm]

It decodes only the last offset of each fetch, so that its CPU time is small. At SIGTERM it prints
the number of bytes that it has read.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from tests.support import wire
from tests.support.wire import FETCH, Wire


def evict(folder: Path) -> None:
    """Evict the log files of a partition from the page cache. Data that is not on
    the disk yet remains in the page cache."""
    for path in folder.glob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_partition(connection: Wire, topic: str) -> int:
    """Read partition 0 from the beginning to the high watermark. Return the number of bytes."""
    offset = total = 0
    while True:
        body = wire.fetch_request(topic, 0, offset, version=4, max_bytes=1 << 20)
        code, high_watermark, records = wire.fetched(connection.call(FETCH, 4, body), 4)
        if code != 0:
            raise RuntimeError(f"Cannot fetch at offset {offset}: error {code}")
        total += len(records)
        offset = wire.next_offset(records, offset)
        if offset >= high_watermark:
            return total


def main() -> int:
    address, topic, folder = sys.argv[1:4]
    is_warm = "warm" in sys.argv[4:]
    host, _, port = address.rpartition(":")

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    total = 0
    print("ready", flush=True)
    try:
        with Wire((host, int(port)), 60.0) as connection:
            while True:
                if not is_warm:
                    evict(Path(folder))
                total += read_partition(connection, topic)
    except KeyboardInterrupt:
        pass
    print(total, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
