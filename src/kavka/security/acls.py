"""Access control lists: entries, the resource patterns that they apply to, and filters.

The numbers of the enums are those of Kafka's protocol. The names are those of Kafka's znodes and
tools (`DescribeConfigs`, `TransactionalId`); a filter may also use ANY and MATCH.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

WILDCARD = "*"
ANY_HOST = "*"
ANY_USER = "User:*"
CLUSTER_NAME = "kafka-cluster"


class _Named(IntEnum):
    """An enum whose members have a `text` in Kafka's spelling: DESCRIBE_CONFIGS has
    `DescribeConfigs`."""

    @property
    def text(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def from_text(cls, text: str) -> Any:
        """Return the member of this name, in Kafka's spelling or with underscores, in any case.
        Raises ValueError."""
        key = text.replace("_", "").lower()
        for member in cls:
            if member.text.lower() == key:
                return member
        raise ValueError(f"unknown {cls.__name__} {text!r}")

    @classmethod
    def of(cls, number: int) -> Any:
        """Return the member of this number, UNKNOWN if there is none."""
        try:
            return cls(number)
        except ValueError:
            return cls(0)


class ResourceType(_Named):
    UNKNOWN, ANY, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(8)


class PatternType(_Named):
    UNKNOWN, ANY, MATCH, LITERAL, PREFIXED = range(5)


class Operation(_Named):
    UNKNOWN, ANY, ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = range(9)
    CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(9, 13)
    CREATE_TOKENS, DESCRIBE_TOKENS, TWO_PHASE_COMMIT = range(13, 16)


class Permission(_Named):
    UNKNOWN, ANY, DENY, ALLOW = range(4)


class ResourcePattern(NamedTuple):
    """The resources that an ACL applies to: the name, every name (a literal `*`), or every name
    with a prefix."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL


class Acl(NamedTuple):
    """An access control entry: allows or denies a principal to perform an operation from a host."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclBinding(NamedTuple):
    pattern: ResourcePattern
    acl: Acl


Acls = frozenset[Acl]
NO_ACLS: Acls = frozenset()

RESOURCE_TYPES = tuple(ResourceType)[2:]
PATTERN_TYPES = (PatternType.LITERAL, PatternType.PREFIXED)

# The operations that each type of resource supports. Responses report these as authorized
# operations.
OPERATIONS: dict[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}


class PatternFilter(NamedTuple):
    """Selects patterns. A name of None selects every name. With MATCH, the filter selects every
    pattern that applies to the name."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY

    def matches(self, pattern: ResourcePattern) -> bool:
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type is PatternType.LITERAL:
            return pattern.name in (self.name, WILDCARD)
        return self.name.startswith(pattern.name)

    def exact_patterns(self) -> list[ResourcePattern] | None:
        """Return the only patterns that can match, or None if they cannot be listed."""
        if self.name is None or self.pattern_type is PatternType.MATCH:
            return None
        types = RESOURCE_TYPES if self.resource_type is ResourceType.ANY else (self.resource_type,)
        pattern_types = PATTERN_TYPES if self.pattern_type is PatternType.ANY else (self.pattern_type,)
        return [ResourcePattern(t, self.name, pattern_type) for t in types for pattern_type in pattern_types]


class AclFilter(NamedTuple):
    """Selects bindings. None selects every principal or host, ANY every operation or
    permission."""

    pattern: PatternFilter = PatternFilter()
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches_acl(self, acl: Acl) -> bool:
        return (
            self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def matches(self, binding: AclBinding) -> bool:
        return self.pattern.matches(binding.pattern) and self.matches_acl(binding.acl)


def acls_to_members(acls: Iterable[Acl]) -> dict[str, Any]:
    """Return the JSON members of the znode of a resource pattern."""
    return {
        "version": 1,
        "acls": [
            {
                "principal": acl.principal,
                "permissionType": acl.permission.text,
                "operation": acl.operation.text,
                "host": acl.host,
            }
            for acl in sorted(acls)
        ],
    }


def acls_from_members(members: dict[str, Any]) -> Acls:
    """Return the entries in the JSON members of a znode. Raises ValueError."""
    rows = members.get("acls")
    if members.get("version") != 1 or not isinstance(rows, list):
        raise ValueError("not a list of ACLs of version 1")
    return frozenset(_acl(row) for row in rows)


def _acl(row: Any) -> Acl:
    if not isinstance(row, dict) or not isinstance(row.get("principal"), str) or not isinstance(row.get("host"), str):
        raise ValueError(f"not an ACL: {row!r}")
    operation = Operation.from_text(str(row.get("operation")))
    return Acl(row["principal"], row["host"], operation, Permission.from_text(str(row.get("permissionType"))))
