"""The filters of DescribeAcls and DeleteAcls, and the checks of ACL requests."""

from __future__ import annotations

from typing import Protocol

from kavka.common.errors import ErrorCode, KafkaError
from kavka.security.acls import AclFilter, Operation, PatternFilter, PatternType, Permission, ResourceType

MIN_PATTERN_TYPES_VERSION = 1


class FilterMessage(Protocol):
    """A DescribeAclsRequest or a DeleteAclsFilter."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def acl_filter(message: FilterMessage, version: int) -> AclFilter:
    """Return the filter. Raises INVALID_REQUEST if an element is unknown. Version 0 has only
    literal patterns."""
    pattern_type = PatternType.LITERAL if version < MIN_PATTERN_TYPES_VERSION else message.pattern_type_filter
    elements = (
        ResourceType.of(message.resource_type_filter),
        PatternType.of(pattern_type),
        Operation.of(message.operation),
        Permission.of(message.permission_type),
    )
    if not all(elements):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The filter has unknown elements.")
    resource_type, known_pattern_type, operation, permission = elements
    return AclFilter(
        PatternFilter(resource_type, message.resource_name_filter, known_pattern_type),
        message.principal_filter,
        message.host_filter,
        operation,
        permission,
    )


def security_disabled(message: str) -> KafkaError:
    return KafkaError(ErrorCode.SECURITY_DISABLED, message)
