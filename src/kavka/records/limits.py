"""How much a batch may hold that the broker opens, whatever the topic's settings say.

A few kilobytes of compressed data unpack to gigabytes and to millions of records. The limits grow with the size of the
batch as it was sent, so that opening it costs at most a fixed multiple of sending it, and have a floor below which no
honest batch is refused. docs/decisions/0007-limits-of-decoding.md has the figures.
"""

from __future__ import annotations

from typing import Final

from kavka.common.errors import ErrorCode, KafkaError

_MIB: Final = 1024 * 1024
MIN_UNPACKED_BYTES: Final = 32 * _MIB
MAX_UNPACKED_BYTES: Final = 256 * _MIB
UNPACKED_RATIO: Final = 16
MIN_RECORDS: Final = 100_000

# A batch that fits these is opened where it was received: on the event loop.
SMALL_BATCH_BYTES: Final = 16 * 1024
SMALL_UNPACKED_BYTES: Final = 64 * 1024

LOOP_S: Final = 0.025
"""For so long one request opens batches on the event loop; the rest of them are opened in worker threads."""
OPENING_S: Final = 30.0
"""For so long the batches of one request are opened in worker threads, as long as Java's clients wait for a response.
The rest of the partitions get REQUEST_TIMED_OUT, and clients ask again."""


def unpacked_limit(size: int) -> int:
    """The most bytes that a batch of `size` bytes may unpack to."""
    return min(MAX_UNPACKED_BYTES, max(MIN_UNPACKED_BYTES, UNPACKED_RATIO * size))


def record_limit(size: int) -> int:
    """The most records that a compressed batch of `size` bytes may hold."""
    return max(MIN_RECORDS, size)


def check_count(count: int, size: int) -> None:
    limit = record_limit(size)
    if count > limit:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"a compressed batch of {size} bytes holds more than {limit} records"
        )
