"""The exceptions of Streams."""

from __future__ import annotations


class StreamsException(Exception):
    """An error that ends a stream."""


class FailedProcessingException(StreamsException):
    """An error for which an exception handler returned FAIL. No other handler is called."""


class RetryProductionException(StreamsException):
    """A record was not written, and the production exception handler says RETRY: the query starts
    again from the last completed micro-batch."""


class TopologyException(StreamsException):
    """An invalid topology, found when it is built or compiled."""


class InvalidStateStoreException(StreamsException):
    """A store does not exist, or cannot be read now."""
