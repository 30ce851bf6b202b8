"""[pure] The states of a replica fetcher and of the partitions that it copies.

Each state machine has one table of the allowed transitions: (from, to) -> reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class FetcherState(Enum):
    __hash__ = object.__hash__  # every request looks up two transitions; Enum's own hash is slow

    IDLE = auto()  # no request in flight: nothing to fetch, or a flush is pending
    CONNECTING = auto()
    FETCHING = auto()  # one request in flight
    BACKING_OFF = auto()  # waits before the next connection attempt
    CLOSED = auto()


class CopyState(Enum):
    FETCHING = auto()  # in the fetch session, or in the next request
    DELAYED = auto()  # not fetched until a timer fires or a worker is done: error, lookup, truncation
    FAILED = auto()  # not fetched until the controller's next order
    REMOVED = auto()


FETCHER_TRANSITIONS: Mapping[tuple[FetcherState, FetcherState], str] = {
    (FetcherState.IDLE, FetcherState.CONNECTING): "there are partitions to fetch and no connection",
    (FetcherState.IDLE, FetcherState.FETCHING): "there are partitions to fetch",
    (FetcherState.IDLE, FetcherState.BACKING_OFF): "a response could not be processed",
    (FetcherState.CONNECTING, FetcherState.IDLE): "connected",
    (FetcherState.CONNECTING, FetcherState.BACKING_OFF): "the leader is unreachable",
    (FetcherState.FETCHING, FetcherState.IDLE): "a response arrived, or the request is abandoned",
    (FetcherState.FETCHING, FetcherState.BACKING_OFF): "the connection is lost",
    (FetcherState.BACKING_OFF, FetcherState.IDLE): "the backoff has expired, or a partition was added",
    (FetcherState.IDLE, FetcherState.CLOSED): "closed",
    (FetcherState.CONNECTING, FetcherState.CLOSED): "closed",
    (FetcherState.FETCHING, FetcherState.CLOSED): "closed",
    (FetcherState.BACKING_OFF, FetcherState.CLOSED): "closed",
    (FetcherState.CLOSED, FetcherState.CLOSED): "closed again",
}

COPY_TRANSITIONS: Mapping[tuple[CopyState, CopyState], str] = {
    (CopyState.FETCHING, CopyState.DELAYED): "a transient error, a throttle, an offset lookup, or a truncation",
    (CopyState.DELAYED, CopyState.DELAYED): "another error",
    (CopyState.DELAYED, CopyState.FETCHING): "the timer fired, or the lookup or the truncation is complete",
    (CopyState.FETCHING, CopyState.FAILED): "fenced, or the log directory is offline",
    (CopyState.DELAYED, CopyState.FAILED): "the log directory is offline",
    (CopyState.FETCHING, CopyState.REMOVED): "no longer followed",
    (CopyState.DELAYED, CopyState.REMOVED): "no longer followed",
    (CopyState.FAILED, CopyState.REMOVED): "no longer followed",
}
