"""Authorization in handlers: the checks of client rights, and the authorizer log.

A handler whose check is one resource declares it: `@handles(..., needs=cluster(Operation.ALTER))`.
Other handlers call `denied`, which returns the names that the client may not use, or `may`.
Without an authorizer, and for requests that a broker sends to itself, everything is allowed.

The log has Kafka's name and form. A denial is logged at INFO, or at TRACE if the client did not ask
for the resource, for example in a list of all topics. Permitted operations are logged at DEBUG.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kavka.api.context import RequestContext
from kavka.common.errors import ErrorCode, KafkaError
from kavka.security.acls import CLUSTER_NAME, Operation, ResourceType
from kavka.security.authorizer import REPORTED

LOGGER_NAME = "kafka.authorizer.logger"
logger = logging.getLogger(LOGGER_NAME)
TRACE = 5
MAX_LOGGED_NAME = 256

_FAILURES = {
    ResourceType.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    ResourceType.CLUSTER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactional Id authorization failed.",
    ),
    ResourceType.DELEGATION_TOKEN: (
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        "Delegation Token authorization failed.",
    ),
    ResourceType.USER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
}
TOPIC_FAILURE = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
GROUP_FAILURE = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
NOTHING: frozenset[str] = frozenset()


class RequiredOperation(NamedTuple):
    """An operation that a request needs. `name` returns the name of the resource."""

    operation: Operation
    resource_type: ResourceType
    name: Callable[[Any], str]


def cluster(operation: Operation) -> RequiredOperation:
    return RequiredOperation(operation, ResourceType.CLUSTER, lambda request: CLUSTER_NAME)


def group(operation: Operation) -> RequiredOperation:
    """The operation on the group in the field `group_id`."""
    return RequiredOperation(operation, ResourceType.GROUP, lambda request: str(request.group_id))


def transactional_id(operation: Operation) -> RequiredOperation:
    """The operation on the id in the field `transactional_id`."""
    return RequiredOperation(operation, ResourceType.TRANSACTIONAL_ID, lambda request: str(request.transactional_id))


def failure(resource_type: ResourceType) -> KafkaError:
    return KafkaError(*_FAILURES[resource_type])


def may(
    ctx: RequestContext, operation: Operation, resource_type: ResourceType, name: str, *, log_denied: bool = True
) -> bool:
    """Whether the client may perform the operation. `log_denied` is False if the client did not ask
    for this resource."""
    authorizer = ctx.authorizer
    if authorizer is None:
        return True
    is_allowed = authorizer.operations(resource_type, name) >> operation & 1 == 1
    if not is_allowed or logger.isEnabledFor(logging.DEBUG):
        _log(ctx, operation, resource_type, name, is_allowed, log_denied)
    return is_allowed


def require(ctx: RequestContext, operation: Operation, resource_type: ResourceType, name: str) -> None:
    """Raise KafkaError unless the client may perform the operation."""
    if not may(ctx, operation, resource_type, name):
        raise failure(resource_type)


def require_all(ctx: RequestContext, request: Any, needs: Iterable[RequiredOperation]) -> None:
    for required in needs:
        require(ctx, required.operation, required.resource_type, required.name(request))


def may_on_cluster(ctx: RequestContext, operation: Operation, *, log_denied: bool = True) -> bool:
    return may(ctx, operation, ResourceType.CLUSTER, CLUSTER_NAME, log_denied=log_denied)


def denied(
    ctx: RequestContext,
    operation: Operation,
    resource_type: ResourceType,
    names: Iterable[str | None],
    *,
    log_denied: bool = True,
) -> frozenset[str]:
    """Return the names of the resources on which the client may not perform the operation."""
    if ctx.authorizer is None:
        return NOTHING
    # A plain loop takes half the time of a generator if there are few names.
    refused: list[str] = []
    for name in dict.fromkeys(names):
        if name is not None and not may(ctx, operation, resource_type, name, log_denied=log_denied):
            refused.append(name)
    return frozenset(refused) if refused else NOTHING


def may_write_any_topic(ctx: RequestContext) -> bool:
    """Whether there is a topic that the client may write to. An idempotent producer needs this
    (KIP-679)."""
    authorizer = ctx.authorizer
    if authorizer is None:
        return True
    is_allowed = authorizer.may_on_any(Operation.WRITE, ResourceType.TOPIC)
    if not is_allowed or logger.isEnabledFor(logging.DEBUG):
        _log(ctx, Operation.WRITE, ResourceType.TOPIC, "NONE", is_allowed, True)
    return is_allowed


def authorized_operations(
    ctx: RequestContext, resource_type: ResourceType, name: str, reported: int | None = None
) -> int:
    """Return the operations that the client may perform, as a bit field. Bit N is operation N.
    `reported` are the operations that the response can have."""
    reported = REPORTED[resource_type] if reported is None else reported
    return reported if ctx.authorizer is None else reported & ctx.authorizer.operations(resource_type, name)


def cluster_operations(ctx: RequestContext) -> int:
    """Return the operations on the cluster, none if the client may not describe the cluster."""
    if not may_on_cluster(ctx, Operation.DESCRIBE):
        return 0
    return authorized_operations(ctx, ResourceType.CLUSTER, CLUSTER_NAME)


def _log(
    ctx: RequestContext,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    is_allowed: bool,
    log_denied: bool,
) -> None:
    authorizer = ctx.authorizer
    assert authorizer is not None
    level = logging.DEBUG if is_allowed else logging.INFO if log_denied else TRACE
    if not is_allowed and log_denied:
        authorizer.count_denial(operation, resource_type)
    if logger.isEnabledFor(level):
        logger.log(
            level,
            "Principal = %s is %s Operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s "
            "with resourceRefCount = 1",
            _printable(authorizer.principal),
            "Allowed" if is_allowed else "Denied",
            operation.text,
            authorizer.host,
            resource_type.text,
            _printable(name),
            ctx.api_name,
        )


def _printable(text: str) -> str:
    """Return the text without line breaks and other control characters, which a client could use to
    forge lines of the log."""
    text = text[:MAX_LOGGED_NAME]
    return text if text.isprintable() else text.encode("unicode_escape").decode()
