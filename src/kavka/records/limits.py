"""Limits for batches that the broker decompresses, independent of the topic configuration.

A few kilobytes of compressed data can decompress to gigabytes and to millions of records. The
limits grow with the size of the compressed batch, so that the cost of decompression is at most a
fixed multiple of the cost of sending the batch. Each limit has a minimum, which regular batches do
not exceed. docs/decisions/0007-limits-of-decoding.md has the figures.
"""

from __future__ import annotations

from typing import Final

from kavka.common.errors import ErrorCode, KafkaError

_MIB: Final = 1024 * 1024
MIN_UNPACKED_BYTES: Final = 32 * _MIB
MAX_UNPACKED_BYTES: Final = 256 * _MIB
UNPACKED_RATIO: Final = 16
MIN_RECORDS: Final = 100_000

# Batches within these limits are decompressed on the event loop.
SMALL_BATCH_BYTES: Final = 16 * 1024
SMALL_UNPACKED_BYTES: Final = 64 * 1024

# The time for which one request may decompress batches on the event loop. Worker threads decompress
# further batches.
MAX_DECOMPRESSION_ON_LOOP_S: Final = 0.025
# The time for which worker threads may decompress the batches of one request, equal to the request
# timeout of Java clients. Partitions after that fail with REQUEST_TIMED_OUT, and clients retry.
MAX_DECOMPRESSION_IN_WORKERS_S: Final = 30.0


def unpacked_limit(size: int) -> int:
    """The maximum decompressed size of a batch of `size` bytes."""
    return min(MAX_UNPACKED_BYTES, max(MIN_UNPACKED_BYTES, UNPACKED_RATIO * size))


def record_limit(size: int) -> int:
    """The maximum number of records in a compressed batch of `size` bytes."""
    return max(MIN_RECORDS, size)


def check_count(count: int, size: int) -> None:
    """Raise MESSAGE_TOO_LARGE if a compressed batch of `size` bytes has too many records."""
    limit = record_limit(size)
    if count > limit:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"a compressed batch of {size} bytes has more than {limit} records"
        )
