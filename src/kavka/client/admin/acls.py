"""Access control lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kavka.client.admin.base import AdminBase, Outcome, as_list
from kavka.client.errors import error_of
from kavka.common.errors import KafkaError
from kavka.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kavka.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kavka.protocol.messages.describe_acls import DescribeAclsRequest
from kavka.security.acls import (
    Acl,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

# The public names. They have the prefix Acl because `kavka.ResourceType` is the type of a config
# resource.
AclOperation = Operation
AclPermission = Permission
AclResourceType = ResourceType


class Acls(AdminBase):
    async def create_acls(self, acls: Iterable[AclBinding] | AclBinding, *, timeout: float | None = None) -> None:
        """Add ACLs. An ACL that exists already is not an error."""

        async def attempt(bindings: list[AclBinding]) -> Outcome[AclBinding, None]:
            request = CreateAclsRequest(
                creations=[
                    AclCreation(
                        resource_type=int(pattern.resource_type),
                        resource_name=pattern.name,
                        resource_pattern_type=int(pattern.pattern_type),
                        principal=acl.principal,
                        host=acl.host,
                        operation=int(acl.operation),
                        permission_type=int(acl.permission),
                    )
                    for pattern, acl in bindings
                ]
            )
            response = await self._request(None, request)
            return _outcome(bindings, response.results, [None] * len(bindings))

        await self._each(as_list(acls, AclBinding), attempt, timeout)

    async def describe_acls(
        self, acl_filter: AclFilter | None = None, *, timeout: float | None = None
    ) -> list[AclBinding]:
        """Return the ACLs that match the filter, or all ACLs if it is None, sorted by resource."""
        effective_filter = acl_filter or AclFilter()

        async def attempt() -> list[AclBinding]:
            response = await self._request(None, DescribeAclsRequest(**_filter_fields(effective_filter)))
            if response.error_code:
                raise error_of(response.error_code, response.error_message)
            return sorted(
                AclBinding(_pattern(resource), _acl(acl)) for resource in response.resources for acl in resource.acls
            )

        return await self._once("the ACLs", attempt, timeout)

    async def delete_acls(
        self, filters: Iterable[AclFilter] | AclFilter, *, timeout: float | None = None
    ) -> dict[AclFilter, list[AclBinding]]:
        """Remove the ACLs that match a filter. Returns the removed ACLs of each filter. An ACL that
        several filters match is in the result of the first of them."""

        async def attempt(keys: list[AclFilter]) -> Outcome[AclFilter, list[AclBinding]]:
            request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter_fields(key)) for key in keys])
            response = await self._request(None, request)
            for result in response.filter_results:
                failed_match = next((match for match in result.matching_acls if match.error_code), None)
                if failed_match is not None and not result.error_code:
                    result.error_code, result.error_message = failed_match.error_code, failed_match.error_message
            removed = [
                [AclBinding(_pattern(match), _acl(match)) for match in result.matching_acls]
                for result in response.filter_results
            ]
            return _outcome(keys, response.filter_results, removed)

        return await self._each(as_list(filters, AclFilter), attempt, timeout)


def _outcome(keys: Sequence[Any], results: Sequence[Any], values: Sequence[Any]) -> Outcome[Any, Any]:
    """Return the values of the keys that succeeded, and the errors of the others. The results have
    the order of the keys."""
    done: dict[Any, Any] = {}
    errors: dict[Any, KafkaError] = {}
    for key, result, value in zip(keys, results, values, strict=True):
        if result.error_code:
            errors[key] = error_of(result.error_code, result.error_message)
        else:
            done[key] = value
    return done, errors


def _filter_fields(acl_filter: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": int(acl_filter.pattern.resource_type),
        "resource_name_filter": acl_filter.pattern.name,
        "pattern_type_filter": int(acl_filter.pattern.pattern_type),
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": int(acl_filter.operation),
        "permission_type": int(acl_filter.permission),
    }


def _pattern(resource: Any) -> ResourcePattern:
    return ResourcePattern(
        ResourceType.of(resource.resource_type), resource.resource_name, PatternType.of(resource.pattern_type)
    )


def _acl(message: Any) -> Acl:
    """Return the access control entry of an AclDescription or a DeleteAclsMatchingAcl."""
    return Acl(message.principal, message.host, Operation.of(message.operation), Permission.of(message.permission_type))
