"""The list of the APIs that this broker serves. ApiVersions is derived from it.

A handler module registers its function with `@handles(ApiKey.X, versions=(low, high))`. The
function takes `(ctx, request)` and returns

- the response;
- a future of it, if it waits for data or replicas: later requests of the connection are handled
  meanwhile, and their responses are sent after it;
- a coroutine, if it has several steps: the connection's next request waits for its end, so that a
  client that pipelines sees its own changes. Its result is the response, None, or a future;
- None, if there is no response (Produce with acks=0).

`on_error` builds the response for a `KafkaError`. By default it sets `error_code` (and
`error_message`) in the response.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import APIS, ApiKey

# The modules that serve a request, in the order of the keys.
HANDLER_MODULES = (
    "produce",
    "fetch",
    "list_offsets",
    "metadata",
    "leader_and_isr",
    "stop_replica",
    "update_metadata",
    "controlled_shutdown",
    "offset_commit",
    "offset_fetch",
    "find_coordinator",
    "join_group",
    "heartbeat",
    "leave_group",
    "sync_group",
    "describe_groups",
    "list_groups",
    "api_versions",
    "create_topics",
    "delete_topics",
    "delete_records",
    "init_producer_id",
    "offset_for_leader_epoch",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "end_txn",
    "write_txn_markers",
    "txn_offset_commit",
    "describe_acls",
    "create_acls",
    "delete_acls",
    "describe_configs",
    "alter_configs",
    "alter_replica_log_dirs",
    "describe_log_dirs",
    "create_partitions",
    "delete_groups",
    "elect_leaders",
    "incremental_alter_configs",
    "alter_partition_reassignments",
    "list_partition_reassignments",
    "offset_delete",
    "alter_partition",
    "update_features",
    "describe_cluster",
    "describe_producers",
    "describe_transactions",
    "list_transactions",
    "allocate_producer_ids",
    "consumer_group_heartbeat",
    "consumer_group_describe",
    "list_config_resources",
    "describe_topic_partitions",
)

# APIs that only brokers use: a single node does not serve them.
BETWEEN_BROKERS = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION,
        ApiKey.ALLOCATE_PRODUCER_IDS,
    }
)

NEVER = 1 << 15  # higher than any version

Handler = Callable[[Any, Any], Any]
ErrorResponse = Callable[[Any, int, KafkaError], Any]


class Api:
    """One served API: its decoder, its handler, and its error response."""

    __slots__ = ("flexible_from", "handle", "key", "max_version", "min_version", "name", "on_error", "request_class")

    def __init__(self, key: ApiKey, versions: tuple[int, int], handle: Handler, on_error: ErrorResponse | None) -> None:
        info = APIS[key]
        self.key = int(key)
        self.name = info.name
        self.min_version, self.max_version = versions
        self.handle = handle
        self.request_class = info.request_class()
        self.flexible_from = NEVER if info.flexible_from is None else info.flexible_from
        response_class = info.response_class()
        self.on_error = on_error or _top_level_error(response_class)


def _top_level_error(response_class: Any) -> ErrorResponse:
    has_message = "error_message" in response_class.__slots__

    def respond(request: Any, version: int, error: KafkaError) -> Any:
        response = response_class(error_code=int(error.code))
        if has_message:
            response.error_message = error.message
        return response

    return respond


_apis: dict[int, Api] = {}


def handles(
    key: ApiKey, versions: tuple[int, int], on_error: ErrorResponse | None = None
) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        _apis[int(key)] = Api(key, versions, function, on_error)
        return function

    return register


def load() -> dict[int, Api]:
    """All served APIs by key. The first call imports the handler modules."""
    if len(_apis) < len(HANDLER_MODULES):
        for module in HANDLER_MODULES:
            import_module(f"kavka.api.{module}")
    return _apis


def served(in_cluster: bool) -> dict[int, Api]:
    """The APIs that a broker serves in a cluster, or as a single node."""
    return {key: api for key, api in load().items() if in_cluster or key not in BETWEEN_BROKERS}


def as_kafka_error(error: BaseException) -> KafkaError:
    """The error for a client. An exception that is not a KafkaError becomes UNKNOWN_SERVER_ERROR
    without details."""
    if isinstance(error, KafkaError):
        return error
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The server failed to handle the request; its log has the cause.")
