"""What goes wrong with a topology."""

from __future__ import annotations


class StreamsException(Exception):
    """Something that stops a stream; the message says what and where."""


class FailedProcessingException(StreamsException):
    """What a handler was asked about and said FAIL to: no other handler is asked."""


class TopologyException(StreamsException):
    """A topology that cannot be: told when it is built or compiled."""


class InvalidStateStoreException(StreamsException):
    """A store that is not there, or not now."""
