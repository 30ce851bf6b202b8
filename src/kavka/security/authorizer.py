"""The authorizer: which operations a principal may perform on a resource, by Kafka's rules.

- A super user may do everything.
- If no ACL applies to the resource, `allow.everyone.if.no.acl.found` decides.
- Otherwise an operation needs at least one ACL that allows it, and no ACL that denies it. READ,
  WRITE, DELETE and ALTER include DESCRIBE, and ALTER_CONFIGS includes DESCRIBE_CONFIGS, if they are
  allowed. A denied operation includes no other operation.

Operations are bits (`bit`), so a decision for all operations of a resource is a few lookups:
`AclTable` has for every pattern the allowed and denied bits by principal and host. The cost does
not depend on the number of ACLs, only on the number of different lengths of prefixed patterns.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from kavka.common.metrics import Registry
from kavka.security.acls import (
    ANY_HOST,
    ANY_USER,
    NO_ACLS,
    OPERATIONS,
    WILDCARD,
    AclBinding,
    AclFilter,
    Acls,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

NO_OPERATION = 0
ALL_OPERATIONS = (1 << len(Operation)) - 1
# The cache of a connection is cleared when it has this many resources. Longer names are not cached.
MAX_CACHED_RESOURCES = 4096
MAX_CACHED_NAME = 512


def bit(operation: Operation) -> int:
    return 1 << operation


def bits(operations: Iterable[Operation]) -> int:
    return sum(map(bit, operations))


# The operations that Kafka reports as authorized operations of a resource.
REPORTED = {resource_type: bits(operations) for resource_type, operations in OPERATIONS.items()}

_INCLUDES_DESCRIBE = bits((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER))
_DESCRIBE = bit(Operation.DESCRIBE)
_ALTER_CONFIGS = bit(Operation.ALTER_CONFIGS)
_DESCRIBE_CONFIGS = bit(Operation.DESCRIBE_CONFIGS)

# (principal, host)
Subject = tuple[str, str]
# (allowed bits, denied bits)
Rights = tuple[int, int]
NO_RIGHTS: Rights = (NO_OPERATION, NO_OPERATION)


def _rights_by_subject(acls: Acls) -> dict[Subject, Rights]:
    rights: dict[Subject, Rights] = {}
    for acl in acls:
        subject = acl.principal, acl.host
        allowed, denied = rights.get(subject, NO_RIGHTS)
        operations = ALL_OPERATIONS if acl.operation is Operation.ALL else bit(acl.operation)
        if acl.permission is Permission.ALLOW:
            allowed |= operations
        else:
            denied |= operations
        rights[subject] = allowed, denied
    return rights


class _Patterns:
    """The patterns of one resource type, by name. `lengths` are the lengths of the prefixed names,
    in ascending order."""

    __slots__ = ("_counts", "lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, dict[Subject, Rights]] = {}
        self.prefixed: dict[str, dict[Subject, Rights]] = {}
        self.lengths: list[int] = []
        self._counts: Counter[int] = Counter()

    def replace(self, pattern: ResourcePattern, rights: dict[Subject, Rights]) -> None:
        is_literal = pattern.pattern_type is PatternType.LITERAL
        by_name = self.literal if is_literal else self.prefixed
        had_acls = by_name.pop(pattern.name, None) is not None
        if rights:
            by_name[pattern.name] = rights
        if is_literal or had_acls == bool(rights):
            return
        length = len(pattern.name)
        self._counts[length] += 1 if rights else -1
        if rights and self._counts[length] == 1:
            insort(self.lengths, length)
        elif not self._counts[length]:
            self.lengths.remove(length)

    def applicable(self, name: str) -> Iterator[dict[Subject, Rights]]:
        """Yield the rights of every pattern that applies to the resource."""
        for literal_name in (name, WILDCARD) if name != WILDCARD else (name,):
            rights = self.literal.get(literal_name)
            if rights is not None:
                yield rights
        size = len(name)
        for length in self.lengths:
            if length > size:
                return
            rights = self.prefixed.get(name[:length])
            if rights is not None:
                yield rights


class AclTable:
    """All ACLs of a cluster, indexed for decisions. `version` changes with every change."""

    def __init__(self) -> None:
        self.version = 0
        self._acls: dict[ResourcePattern, Acls] = {}
        self._patterns: dict[ResourceType, _Patterns] = {}
        # The patterns with rights of a subject, by resource type.
        self._by_subject: dict[tuple[ResourceType, Subject], dict[ResourcePattern, Rights]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._acls.values()))

    @property
    def patterns(self) -> Mapping[ResourcePattern, Acls]:
        return self._acls

    def replace(self, pattern: ResourcePattern, acls: Acls) -> None:
        """Set the entries of a pattern. Without entries the pattern is removed."""
        previous = self._acls.get(pattern, NO_ACLS)
        if previous == acls:
            return
        for subject in _rights_by_subject(previous):
            key = pattern.resource_type, subject
            self._by_subject[key].pop(pattern)
            if not self._by_subject[key]:
                del self._by_subject[key]
        rights = _rights_by_subject(acls)
        for subject, subject_rights in rights.items():
            self._by_subject.setdefault((pattern.resource_type, subject), {})[pattern] = subject_rights
        self._patterns.setdefault(pattern.resource_type, _Patterns()).replace(pattern, rights)
        if acls:
            self._acls[pattern] = acls
        else:
            del self._acls[pattern]
        self.version += 1

    def bindings(self, acl_filter: AclFilter) -> Iterator[AclBinding]:
        """Yield the bindings that match the filter."""
        exact = acl_filter.pattern.exact_patterns()
        for pattern in list(self._acls) if exact is None else exact:
            if exact is None and not acl_filter.pattern.matches(pattern):
                continue
            for acl in self._acls.get(pattern, NO_ACLS):
                if acl_filter.matches_acl(acl):
                    yield AclBinding(pattern, acl)

    def rights(self, principal: str, host: str, resource_type: ResourceType, name: str) -> Rights | None:
        """Return the allowed and denied bits of a resource, or None if no ACL applies to it."""
        patterns = self._patterns.get(resource_type)
        if patterns is None:
            return None
        subjects = subjects_of(principal, host)
        allowed = denied = NO_OPERATION
        has_acls = False
        for by_subject in patterns.applicable(name):
            has_acls = True
            for subject in subjects:
                rights = by_subject.get(subject)
                if rights is not None:
                    allowed |= rights[0]
                    denied |= rights[1]
        return (allowed, denied) if has_acls else None

    def subject_patterns(
        self, principal: str, host: str, resource_type: ResourceType
    ) -> Iterator[tuple[ResourcePattern, Rights]]:
        """Yield the patterns with rights of the principal. A pattern may appear several times."""
        for subject in subjects_of(principal, host):
            yield from self._by_subject.get((resource_type, subject), {}).items()


def subjects_of(principal: str, host: str) -> tuple[Subject, ...]:
    """The principals and hosts of the ACLs that apply to a client."""
    return (principal, host), (principal, ANY_HOST), (ANY_USER, host), (ANY_USER, ANY_HOST)


class Authorizer:
    """Decides by the ACLs in `table`. Has no I/O; `metadata/acls.py` keeps the table up to date."""

    __slots__ = ("_allows_without_acls", "_super_users", "denials", "table")

    def __init__(
        self,
        table: AclTable,
        super_users: Iterable[str] = (),
        allow_without_acls: bool = False,
        metrics: Registry | None = None,
    ) -> None:
        self.table = table
        self.denials = (metrics or Registry()).counter(
            "kavka_authorization_denials_total", "Operations that were denied", ("operation", "resource_type")
        )
        self._super_users = frozenset(super_users)
        self._allows_without_acls = allow_without_acls

    def client(self, principal: str, host: str) -> ClientAuthorizer:
        """Return the authorizer of a connection."""
        return ClientAuthorizer(self, principal, host)

    def operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """Return the bits of the operations that the principal may perform on the resource."""
        if principal in self._super_users:
            return ALL_OPERATIONS
        rights = self.table.rights(principal, host, resource_type, name)
        if rights is None:
            return ALL_OPERATIONS if self._allows_without_acls else NO_OPERATION
        allowed, denied = rights
        if allowed & _INCLUDES_DESCRIBE:
            allowed |= _DESCRIBE
        if allowed & _ALTER_CONFIGS:
            allowed |= _DESCRIBE_CONFIGS
        return allowed & ~denied

    def may_on_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there can be a resource of the type on which the principal may perform the
        operation (KIP-679). Operations include no other operation here, as in Kafka."""
        if principal in self._super_users:
            return True
        mask = bit(operation)
        allowed: list[ResourcePattern] = []
        denied: set[ResourcePattern] = set()
        for pattern, rights in self.table.subject_patterns(principal, host, resource_type):
            if rights[1] & mask:
                denied.add(pattern)
            if rights[0] & mask:
                allowed.append(pattern)
        if ResourcePattern(resource_type, WILDCARD) in denied:
            return False
        if self._allows_without_acls:
            return True
        prefix_lengths = sorted({len(p.name) for p in denied if p.pattern_type is PatternType.PREFIXED})
        return any(not _is_denied(pattern, denied, prefix_lengths) for pattern in allowed)


def _is_denied(pattern: ResourcePattern, denied: set[ResourcePattern], prefix_lengths: list[int]) -> bool:
    """Whether the denied patterns cover every resource of the pattern."""
    resource_type, name, pattern_type = pattern
    is_literal = pattern_type is PatternType.LITERAL
    if is_literal and name == WILDCARD:
        return False
    if is_literal and pattern in denied:
        return True
    return any(
        length <= len(name) and ResourcePattern(resource_type, name[:length], PatternType.PREFIXED) in denied
        for length in prefix_lengths
    )


class ClientAuthorizer:
    """The decisions for one connection, cached until an ACL changes."""

    __slots__ = ("_any_resource", "_authorizer", "_operations", "_version", "host", "principal", "table")

    def __init__(self, authorizer: Authorizer, principal: str, host: str) -> None:
        self.principal = principal
        self.host = host
        self._authorizer = authorizer
        self.table = authorizer.table
        self._version = authorizer.table.version
        self._operations: dict[tuple[ResourceType, str], int] = {}
        self._any_resource: dict[tuple[Operation, ResourceType], bool] = {}

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the bits of the operations that the client may perform on the resource."""
        if self._version != self.table.version:
            self._forget()
        operations = self._operations.get((resource_type, name))
        if operations is None:
            operations = self._authorizer.operations(self.principal, self.host, resource_type, name)
            if len(name) <= MAX_CACHED_NAME:
                if len(self._operations) >= MAX_CACHED_RESOURCES:
                    self._operations.clear()
                self._operations[resource_type, name] = operations
        return operations

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return self.operations(resource_type, name) >> operation & 1 == 1

    def count_denial(self, operation: Operation, resource_type: ResourceType) -> None:
        self._authorizer.denials.labels(operation.text, resource_type.text).value += 1

    def may_on_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        if self._version != self.table.version:
            self._forget()
        key = operation, resource_type
        if key not in self._any_resource:
            self._any_resource[key] = self._authorizer.may_on_any(self.principal, self.host, *key)
        return self._any_resource[key]

    def _forget(self) -> None:
        self._version = self.table.version
        self._operations.clear()
        self._any_resource.clear()
