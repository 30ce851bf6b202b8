"""The one list of what this broker serves. ApiVersions is derived from it.

A handler module registers its function with `@handles(ApiKey.X, versions=(low, high))`. The function takes
`(ctx, request)` and returns
- the response object, when it can answer at once;
- a future of it, when it waits for data or replicas: later requests of the connection are handled meanwhile,
  and answered after it;
- a coroutine, when it changes something by several steps: the connection's next request waits for its end, so
  that a client which pipelines sees its own changes. Its result is the response, None, or a future as above;
- None, when there is no answer (Produce with acks=0).

A `KafkaError` that it raises becomes the answer built by `on_error`, by default the response with its
`error_code` (and `error_message`, where there is one) set.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import APIS, ApiKey

# Each module under api/ that serves a request, in the order of the keys.
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

# What only brokers ask of each other: a broker that is alone does not serve it.
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

NEVER = 1 << 15  # above any version

Handler = Callable[[Any, Any], Any]
ErrorAnswer = Callable[[Any, int, KafkaError], Any]


class Api:
    """One served request: how to decode it, who answers it, and how a failure is answered."""

    __slots__ = ("flexible_from", "handle", "key", "max_version", "min_version", "name", "on_error", "request_class")

    def __init__(self, key: ApiKey, versions: tuple[int, int], handle: Handler, on_error: ErrorAnswer | None) -> None:
        info = APIS[key]
        self.key = int(key)
        self.name = info.name
        self.min_version, self.max_version = versions
        self.handle = handle
        self.request_class = info.request_class()
        self.flexible_from = NEVER if info.flexible_from is None else info.flexible_from
        response_class = info.response_class()
        self.on_error = on_error or _top_level_error(response_class)


def _top_level_error(response_class: Any) -> ErrorAnswer:
    has_message = "error_message" in response_class.__slots__

    def answer(request: Any, version: int, error: KafkaError) -> Any:
        response = response_class(error_code=int(error.code))
        if has_message:
            response.error_message = error.message
        return response

    return answer


_apis: dict[int, Api] = {}


def handles(
    key: ApiKey, versions: tuple[int, int], on_error: ErrorAnswer | None = None
) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        _apis[int(key)] = Api(key, versions, function, on_error)
        return function

    return register


def load() -> dict[int, Api]:
    """Every served API by its key. Imports the handler modules when first called."""
    if len(_apis) < len(HANDLER_MODULES):
        for module in HANDLER_MODULES:
            import_module(f"kavka.api.{module}")
    return _apis


def served(in_cluster: bool) -> dict[int, Api]:
    """What a broker serves that is a member of a cluster, or alone."""
    return {key: api for key, api in load().items() if in_cluster or key not in BETWEEN_BROKERS}


def as_kafka_error(error: BaseException) -> KafkaError:
    """What a client is told of an exception that is not a KafkaError: that it is the server's fault, no more."""
    if isinstance(error, KafkaError):
        return error
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The server failed to handle the request; its log has the cause.")
