"""The produce lane: a short path for the most common Produce request.

Most producers send requests with one batch for one partition, and on a connection all requests for
a partition begin with the same bytes: client id, acks, timeout, topic, partition. After the first
request, which the handler in `produce.py` serves, the connection has a `ProduceLane` for these
bytes. The lane reads only the records of a request, stages them like the handler, and encodes the
response from a template. A request that the lane cannot serve, or whose records are refused, goes
to the handler, which returns the error.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import TYPE_CHECKING

from kavka.api import authorization
from kavka.api.produce import set_write_error
from kavka.common.errors import KafkaError
from kavka.common.topics import is_internal
from kavka.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kavka.protocol.primitives import uvarint
from kavka.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from kavka.api.context import RequestContext
    from kavka.api.registry import Api
    from kavka.replication.partition import Partition
    from kavka.security.authorizer import ClientAuthorizer
    from kavka.security.quotas import ClientQuota

# Before version 5 the response has no log start offset.
MIN_VERSION = 5
MIN_FLEXIBLE_VERSION = 9
HEAD_BYTES = 8
"""The bytes before the client id: API key, version and correlation id."""
MAX_PREFIX_BYTES = 512

_SIZE = Struct(">i")
_HEAD = Struct(">ii")
_OFFSETS = Struct(">qqq")
# The empty tagged fields of the partition, the topic and the request.
_NO_TAGS = b"\x00\x00\x00"
# The offsets in a template, which each response replaces.
_UNSET = (-0x0101010101010102, -0x0202020202020203, -0x0303030303030304)


class LaneResponse:
    """The response to a request of a lane, an entry of the connection's response queue. It encodes
    itself with its frame size and header."""

    __slots__ = (
        "_append_time", "_base_offset", "_correlation_id", "_error", "_lane", "_log_start_offset", "api", "started_at",
        "throttle_time_ms",
    )  # fmt: skip

    is_complete = True

    def __init__(
        self,
        lane: ProduceLane,
        correlation_id: int,
        started_at: float,
        base_offset: int,
        append_time: int,
        log_start_offset: int,
    ) -> None:
        self._lane = lane
        self.api = lane.api
        self._correlation_id = correlation_id
        self.started_at = started_at
        self._base_offset = base_offset
        self._append_time = append_time
        self._log_start_offset = log_start_offset
        self._error: KafkaError | None = None
        self.throttle_time_ms = 0

    def encode_frame(self) -> bytes:
        lane = self._lane
        if self._error is None and not self.throttle_time_ms:
            return lane.pack(
                lane.size,
                self._correlation_id,
                lane.before,
                self._base_offset,
                self._append_time,
                self._log_start_offset,
                lane.after,
            )
        body = lane.encode(
            self._error, self._base_offset, self._append_time, self._log_start_offset, self.throttle_time_ms
        )
        tags = b"\x00" if lane.version >= MIN_FLEXIBLE_VERSION else b""
        return _HEAD.pack(len(body) + len(tags) + 4, self._correlation_id) + tags + body


def _set_error(response: LaneResponse, error: KafkaError) -> None:
    response._error = error


class ProduceLane:
    """Appends the batches of one connection to one partition.

    `prefix` are the bytes of the requests from HEAD_BYTES to the length of the records. The lane
    serves a request only while its partition is the one that the handler would append to, this
    broker leads it without followers or the client does not wait for them, no acknowledgement waits
    for a flush, and the client may write to the topic.
    """

    __slots__ = (
        "_acks", "_acl_version", "_authorizer", "_end", "_is_flexible", "_key", "_partition", "_partitions",
        "_staged_appends", "_topic_id", "after", "api", "before", "client_id", "pack", "prefix", "quota",
        "quota_version", "size", "version",
    )  # fmt: skip

    def __init__(
        self, ctx: RequestContext, api: Api, request: ProduceRequest, partition: Partition, prefix: bytes
    ) -> None:
        topic, data = request.topic_data[0], request.topic_data[0].partition_data[0]
        replicas = ctx.broker.replica_manager
        self.prefix = prefix
        self.api = api
        self.version = ctx.version
        self.client_id = ctx.client_id
        self._acks = request.acks
        self._authorizer = ctx.authorizer
        # The version of the ACLs by which the client may write to the topic.
        self._acl_version = -1
        # The quota of `client_id`, in a version of all quotas. The connection resolves it.
        self.quota: ClientQuota | None = None
        self.quota_version = -1
        self._end = HEAD_BYTES + len(prefix)
        self._is_flexible = ctx.version >= MIN_FLEXIBLE_VERSION
        self._key = (partition.topic_partition.topic, data.index)
        self._topic_id = topic.topic_id
        self._partition = partition
        self._partitions = replicas.partitions
        self._staged_appends = replicas.staged_appends
        self._create_template()

    def _create_template(self) -> None:
        """Split an encoded frame at the offsets, in which responses differ."""
        body = self.encode(None, *_UNSET, 0)
        before, _, self.after = body.partition(_OFFSETS.pack(*_UNSET))
        self.before = b"\x00" + before if self._is_flexible else before
        template = Struct(f">ii{len(self.before)}sqqq{len(self.after)}s")
        self.size = template.size - _SIZE.size
        self.pack = template.pack

    def encode(
        self,
        error: KafkaError | None,
        base_offset: int,
        append_time: int,
        log_start_offset: int,
        throttle_time_ms: int,
    ) -> bytes:
        """Return the encoded response without its header. With an error, the offsets are -1."""
        result = PartitionProduceResponse(
            index=self._key[1],
            base_offset=base_offset,
            log_append_time_ms=append_time,
            log_start_offset=log_start_offset,
        )
        if error is not None:
            set_write_error(result, error)
        response = ProduceResponse(
            responses=[TopicProduceResponse(name=self._key[0], topic_id=self._topic_id, partition_responses=[result])],
            throttle_time_ms=throttle_time_ms,
        )
        pieces: list[bytes] = []
        response.encode(pieces, self.version)
        return b"".join(pieces)

    @property
    def is_obsolete(self) -> bool:
        """Whether the partition was removed from this broker or created again."""
        return self._partitions.get(self._key) is not self._partition

    def append(self, data: memoryview, correlation_id: int, started_at: float) -> LaneResponse | None:
        """Stage the batch of a request that begins with `prefix`. Returns None if the handler must
        serve the request; then nothing is staged."""
        partition = self._partition
        role, log = partition.leader_role, partition.log
        if role is None or log is None or self._partitions.get(self._key) is not partition:
            return None
        config = log.config
        if (self._acks == -1 and (role.followers or config.flush_before_visible)) or config.flush_messages == 1:
            return None
        authorizer = self._authorizer
        if authorizer is not None and (
            (self._acl_version != authorizer.table.version and not self._may_write(authorizer))
            or authorization.logger.isEnabledFor(logging.DEBUG)
        ):
            return None
        records = self._records(data)
        if records is None:
            return None
        try:
            info = log.stage_as_leader(records, partition.leader_epoch, api_version=self.version, on_loop=True)
        except Exception:
            # The handler stages the batch again, and returns the error.
            return None
        if not info.duplicate:
            metrics = partition.metrics
            metrics.messages_in.value += info.count
            metrics.bytes_in.value += info.size
        response = LaneResponse(
            self, correlation_id, started_at, info.first_offset, info.append_time, info.log_start_offset
        )
        self._staged_appends.add(partition, response, _set_error)
        return response

    def _may_write(self, authorizer: ClientAuthorizer) -> bool:
        """Ask the authorizer, and store the version of the ACLs if they permit the client to
        write."""
        if not authorizer.may(Operation.WRITE, ResourceType.TOPIC, self._key[0]):
            return False
        self._acl_version = authorizer.table.version
        return True

    def _records(self, data: memoryview) -> memoryview | None:
        """Return the records, or None unless they are the last field of the request."""
        position, end = self._end, len(data)
        if self._is_flexible:
            if end - position < 8 or data[end - 3 :] != _NO_TAGS:
                return None
            end -= 3
            size = data[position] & 127
            shift = 7
            while data[position] > 127 and shift < 35:
                position += 1
                size |= (data[position] & 127) << shift
                shift += 7
            size -= 1
            position += 1
        else:
            if end - position < 4:
                return None
            (size,) = _SIZE.unpack_from(data, position)
            position += 4
        return data[position:end] if 0 < size == end - position else None


def new_lane(ctx: RequestContext, api: Api, request: ProduceRequest, data: memoryview) -> ProduceLane | None:
    """Return a lane for requests like this one, None if a lane cannot serve them. `data` is the
    whole request."""
    if ctx.version < MIN_VERSION or request.acks not in (-1, 1) or request.transactional_id is not None:
        return None
    if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
        return None
    topic, partition_data = request.topic_data[0], request.topic_data[0].partition_data[0]
    records = partition_data.records
    name = topic.name if ctx.version < 13 else ctx.broker.metadata_cache.topic_name(topic.topic_id)
    if records is None or name is None or is_internal(name):
        return None
    partition = ctx.broker.replica_manager.partitions.get((name, partition_data.index))
    if partition is None or partition.leader_role is None or (request.acks == -1 and partition.leader_role.followers):
        return None
    length = _SIZE.pack(len(records)) if ctx.version < MIN_FLEXIBLE_VERSION else uvarint(len(records) + 1)
    tags = 0 if ctx.version < MIN_FLEXIBLE_VERSION else len(_NO_TAGS)
    end = len(data) - tags - len(records) - len(length)
    if not HEAD_BYTES < end <= MAX_PREFIX_BYTES or data[end : end + len(length)] != length:
        return None
    return ProduceLane(ctx, api, request, partition, bytes(data[HEAD_BYTES:end]))
