"""The authorizer against a direct transcription of Kafka's rules."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.common.metrics import Registry
from kavka.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclBinding,
    AclFilter,
    Operation,
    PatternFilter,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from kavka.security.authorizer import MAX_CACHED_RESOURCES, AclTable, Authorizer

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALICE, BOB = "User:alice", "User:bob"
HOST = "10.0.0.1"


def binding(
    operation: Operation,
    name: str = "t",
    pattern_type: PatternType = LITERAL,
    *,
    principal: str = ALICE,
    host: str = "*",
    permission: Permission = ALLOW,
    resource_type: ResourceType = TOPIC,
) -> AclBinding:
    return AclBinding(ResourcePattern(resource_type, name, pattern_type), Acl(principal, host, operation, permission))


def table_of(bindings: list[AclBinding]) -> AclTable:
    table = AclTable()
    for pattern in {b.pattern for b in bindings}:
        table.replace(pattern, frozenset(b.acl for b in bindings if b.pattern == pattern))
    return table


def allows(
    bindings: list[AclBinding], operation: Operation, name: str = "t", *, everyone: bool = False, host: str = HOST
) -> bool:
    return Authorizer(table_of(bindings), (), everyone).client(ALICE, host).may(operation, TOPIC, name)


READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL


def test_without_acls_nothing_is_allowed_unless_configured() -> None:
    assert not allows([], READ)
    assert allows([], READ, everyone=True)
    assert not allows([binding(READ, principal=BOB)], READ, everyone=True)
    assert not allows([binding(READ, "te", PREFIXED, principal=BOB)], READ, "test", everyone=True)


def test_super_users_may_do_everything_and_names_are_case_sensitive() -> None:
    table = table_of([binding(ALL, WILDCARD, permission=DENY)])
    authorizer = Authorizer(table, [ALICE])
    assert authorizer.client(ALICE, HOST).may(WRITE, TOPIC, "t")
    assert not authorizer.client("User:Alice", HOST).may(WRITE, TOPIC, "t")


def test_deny_takes_precedence_over_allow() -> None:
    assert allows([binding(READ)], READ)
    assert not allows([binding(READ), binding(READ, permission=DENY)], READ)
    assert not allows([binding(READ), binding(ALL, WILDCARD, permission=DENY)], READ)
    assert not allows([binding(ALL), binding(READ, "", PREFIXED, permission=DENY, principal="User:*")], READ)


@pytest.mark.parametrize("operation", [READ, WRITE, Operation.DELETE, Operation.ALTER])
def test_operations_include_describe_only_if_allowed(operation: Operation) -> None:
    assert allows([binding(operation)], DESCRIBE)
    assert allows([binding(operation, permission=DENY), binding(DESCRIBE)], DESCRIBE)
    assert not allows([binding(operation), binding(DESCRIBE, permission=DENY)], DESCRIBE)
    assert not allows([binding(DESCRIBE)], operation)


def test_alter_configs_includes_describe_configs() -> None:
    assert allows([binding(Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS)
    assert not allows([binding(Operation.DESCRIBE_CONFIGS)], Operation.ALTER_CONFIGS)
    assert not allows([binding(Operation.ALTER_CONFIGS)], DESCRIBE)


def test_patterns_hosts_and_principals() -> None:
    assert allows([binding(READ, WILDCARD)], READ, "anything")
    assert allows([binding(READ, "te", PREFIXED)], READ, "test")
    assert allows([binding(READ, "test", PREFIXED)], READ, "test")
    assert not allows([binding(READ, "testing", PREFIXED)], READ, "test")
    # `*` is a prefix like any other.
    assert not allows([binding(READ, WILDCARD, PREFIXED)], READ, "test")
    assert allows([binding(READ, host=HOST)], READ)
    assert not allows([binding(READ, host="10.0.0.2")], READ)
    assert allows([binding(READ, principal="User:*")], READ)
    assert not allows([binding(READ, resource_type=GROUP)], READ)


NAMES = st.text("ab", min_size=1, max_size=4)
ACLS = st.builds(
    binding,
    st.sampled_from([READ, WRITE, DESCRIBE, ALL, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]),
    NAMES | st.just(WILDCARD),
    st.sampled_from([LITERAL, PREFIXED]),
    principal=st.sampled_from([ALICE, BOB, "User:*"]),
    host=st.sampled_from(["*", HOST, "10.0.0.2"]),
    permission=st.sampled_from([ALLOW, DENY]),
    resource_type=st.sampled_from([TOPIC, GROUP]),
)


def by_rules(bindings: list[AclBinding], operation: Operation, name: str, everyone: bool) -> bool:
    """Kafka's AclAuthorizer, without an index."""
    pattern_filter = PatternFilter(TOPIC, name, PatternType.MATCH)
    acls = [b.acl for b in bindings if pattern_filter.matches(b.pattern)]
    if not acls:
        return everyone
    applicable = [acl for acl in acls if acl.principal in (ALICE, "User:*") and acl.host in (HOST, "*")]

    def has(permission: Permission, operations: set[Operation]) -> bool:
        return any(acl.permission is permission and acl.operation in operations for acl in applicable)

    included_in = {
        DESCRIBE: {DESCRIBE, READ, WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS},
    }
    allowing = included_in.get(operation, {operation}) | {ALL}
    return not has(DENY, {operation, ALL}) and has(ALLOW, allowing)


@given(st.lists(ACLS, max_size=8), NAMES, st.booleans())
@settings(max_examples=400, deadline=None)
def test_the_index_agrees_with_the_rules(bindings: list[AclBinding], name: str, everyone: bool) -> None:
    client = Authorizer(table_of(bindings), (), everyone).client(ALICE, HOST)
    for operation in (READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS):
        assert client.may(operation, TOPIC, name) == by_rules(bindings, operation, name, everyone), operation


@given(st.lists(ACLS, max_size=8))
@settings(max_examples=400, deadline=None)
def test_any_resource_is_found_if_there_is_a_name_that_may_be_written(bindings: list[AclBinding]) -> None:
    """Names longer than every pattern stand for all other names."""
    authorizer = Authorizer(table_of(bindings))
    names = {b.pattern.name for b in bindings if b.pattern.name != WILDCARD}
    names |= {f"{name}aaaaaaa" for name in names} | {"zzzzzzzz"}
    expected = any(authorizer.client(ALICE, HOST).may(WRITE, TOPIC, name) for name in names)
    result = authorizer.may_on_any(ALICE, HOST, WRITE, TOPIC)
    # As in Kafka, an allowed prefix counts although longer denied names may cover it. So does an
    # allowed wildcard although every prefix is denied.
    assert result or not expected


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        ([], False),
        ([binding(WRITE)], True),
        ([binding(WRITE, "p", PREFIXED)], True),
        ([binding(WRITE, permission=DENY), binding(WRITE)], False),
        ([binding(WRITE, "t", PREFIXED, permission=DENY), binding(WRITE, "topic")], False),
        ([binding(WRITE, "t", PREFIXED, permission=DENY), binding(WRITE, "to", PREFIXED)], False),
        ([binding(WRITE, "to", PREFIXED, permission=DENY), binding(WRITE, "t", PREFIXED)], True),
        ([binding(WRITE, WILDCARD, permission=DENY), binding(WRITE)], False),
        ([binding(WRITE, WILDCARD)], True),
        ([binding(READ)], False),
        ([binding(ALL)], True),
        ([binding(WRITE, principal=BOB)], False),
    ],
)
def test_authorization_by_resource_type(bindings: list[AclBinding], expected: bool) -> None:
    assert Authorizer(table_of(bindings)).client(ALICE, HOST).may_on_any(WRITE, TOPIC) is expected


def test_a_change_takes_effect_on_cached_decisions() -> None:
    table = AclTable()
    client = Authorizer(table).client(ALICE, HOST)
    assert not client.may(READ, TOPIC, "t") and not client.may_on_any(READ, TOPIC)
    pattern = ResourcePattern(TOPIC, "t")
    table.replace(pattern, frozenset({Acl(ALICE, "*", READ, ALLOW)}))
    assert client.may(READ, TOPIC, "t") and client.may_on_any(READ, TOPIC)
    table.replace(pattern, frozenset())
    assert not client.may(READ, TOPIC, "t") and not client.may_on_any(READ, TOPIC)
    assert len(table) == 0 and not table.patterns


def test_the_cache_of_a_connection_is_bounded() -> None:
    client = Authorizer(AclTable()).client(ALICE, HOST)
    for number in range(2 * MAX_CACHED_RESOURCES + 10):
        client.may(READ, TOPIC, f"topic-{number}")
    client.may(READ, TOPIC, "x" * 65_000)
    assert len(client._operations) <= MAX_CACHED_RESOURCES
    assert max(len(name) for _, name in client._operations) < 100


def test_filters() -> None:
    literal, wildcard = binding(READ, "foo"), binding(READ, WILDCARD)
    prefix, cluster = binding(WRITE, "fo", PREFIXED), binding(ALL, CLUSTER_NAME, resource_type=CLUSTER)
    table = table_of([literal, wildcard, prefix, cluster])

    def matching(*pattern: object, **more: object) -> set[AclBinding]:
        return set(table.bindings(AclFilter(PatternFilter(*pattern), **more)))  # type: ignore[arg-type]

    assert matching() == {literal, wildcard, prefix, cluster}
    assert matching(TOPIC) == {literal, wildcard, prefix}
    assert matching(TOPIC, "foo", PatternType.MATCH) == {literal, wildcard, prefix}
    assert matching(TOPIC, "foo", PatternType.ANY) == {literal}
    assert matching(ResourceType.ANY, "foo", LITERAL) == {literal}
    assert matching(TOPIC, "foo", PREFIXED) == set()
    assert matching(TOPIC, None, PREFIXED) == {prefix}
    assert matching(operation=WRITE) == {prefix}
    assert matching(principal=BOB) == set()
    assert matching(host="*", permission=ALLOW) == {literal, wildcard, prefix, cluster}


def test_denials_are_counted_by_operation_and_resource_type() -> None:
    metrics = Registry()
    authorizer = Authorizer(AclTable(), metrics=metrics)
    authorizer.client(ALICE, HOST).count_denial(READ, TOPIC)
    assert [(labels, child.value) for labels, child in authorizer.denials.children()] == [(("Read", "Topic"), 1)]


def test_a_cold_decision_does_not_depend_on_the_number_of_acls() -> None:
    """A scan of 10,000 ACLs takes milliseconds."""
    table = AclTable()
    for number in range(10_000):
        pattern_type = PREFIXED if number % 2 else LITERAL
        acl = Acl(f"User:u{number % 100}", "*", READ, ALLOW)
        table.replace(ResourcePattern(TOPIC, f"topic-{number}", pattern_type), frozenset({acl}))
    authorizer = Authorizer(table)
    fastest = float("inf")
    for attempt in range(20):
        start = time.perf_counter()
        authorizer.operations("User:u1", HOST, TOPIC, f"topic-{attempt}-suffix")
        fastest = min(fastest, time.perf_counter() - start)
    assert fastest < 0.0005


def test_names_in_kafkas_spelling() -> None:
    assert [t.text for t in ResourceType][2:] == [
        "Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User",
    ]  # fmt: skip
    assert Operation.from_text("DescribeConfigs") is Operation.from_text("DESCRIBE_CONFIGS")
    assert Operation.of(99) is Operation.UNKNOWN
    with pytest.raises(ValueError, match="unknown Operation"):
        Operation.from_text("Reed")
