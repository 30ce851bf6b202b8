"""`kavka acls` (`kafka-acls`): list, add and remove ACLs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Any

from kavka.cli.connecting import JSON, admin_for, connection_options
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.output import print_json
from kavka.cli.tool import ToolError, run

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.security.acls import Acl, AclBinding, PatternFilter, ResourcePattern

# The options that name resources, with the types of the resources.
RESOURCE_OPTIONS = {
    "topic": "Topic",
    "group": "Group",
    "transactional-id": "TransactionalId",
    "delegation-token": "DelegationToken",
    "user-principal": "User",
}
PATTERN_TYPES = ("ANY", "MATCH", "LITERAL", "PREFIXED")
OPERATIONS = (
    "All", "Alter", "AlterConfigs", "ClusterAction", "Create", "CreateTokens", "Delete", "Describe",
    "DescribeConfigs", "DescribeTokens", "IdempotentWrite", "Read", "Write",
)  # fmt: skip

COMMAND = Command(
    "acls",
    "List, add and remove ACLs, which permit or deny operations on topics, groups, transactional ids and the cluster.",
    (
        Option("list", "List the ACLs of the resources, or all ACLs without a resource."),
        Option("add", "Add ACLs."),
        Option("remove", "Remove ACLs."),
        Option("topic", "A topic; '*' for all topics.", "topic", repeated=True, completes="topic"),
        Option("group", "A group; '*' for all groups.", "group", repeated=True, completes="group"),
        Option("cluster", "The cluster."),
        Option("transactional-id", "A transactional id; '*' for all ids.", "transactional-id", repeated=True),
        Option("delegation-token", "A delegation token; '*' for all tokens.", "delegation-token", repeated=True),
        Option("user-principal", "A user, for operations on delegation tokens.", "user-principal", repeated=True),
        Option(
            "resource-pattern-type",
            "LITERAL for names, PREFIXED for prefixes of names. To list or remove: ANY for both types of patterns "
            "with exactly this name, MATCH for every pattern that applies to the name.",
            "ANY|MATCH|LITERAL|PREFIXED",
            default="LITERAL",
            choices=PATTERN_TYPES,
            ignore_case=True,
        ),
        Option(
            "operation", "An operation to permit or deny.", "operation", repeated=True, default_text="All",
            choices=OPERATIONS, ignore_case=True,
        ),
        Option("allow-principal", "A principal to permit, for example User:alice or 'User:*'.", "allow-principal",
               repeated=True),
        Option("allow-host", "A host of the permitted principals, as an IP address; the default is every host.",
               "allow-host", repeated=True),
        Option("deny-principal", "A principal to deny. Deny takes precedence.", "deny-principal", repeated=True),
        Option("deny-host", "A host of the denied principals; the default is every host.", "deny-host", repeated=True),
        Option("producer", "Short for Write, Describe and Create on the topics, and Write and Describe on the "
               "transactional ids."),
        Option("consumer", "Short for Read and Describe on the topics, and Read on the groups."),
        Option("idempotent", "With --producer: IdempotentWrite on the cluster as well."),
        Option("principal", "With --list: list only the ACLs of this principal.", "principal", repeated=True),
        Option("force", "Remove without a prompt."),
        JSON,
        *connection_options(),
        Option("authorizer", "Not supported: use --bootstrap-server.", "authorizer", deprecated=True),
        Option("authorizer-properties", "Not supported: use --bootstrap-server.", "authorizer-properties",
               repeated=True, deprecated=True),
        Option("zk-tls-config-file", "Not supported: use --bootstrap-server.", "file", deprecated=True),
    ),
    error="Error while executing ACL command: ",
    examples=(
        "kavka acls --bootstrap-server localhost:9092 --add --allow-principal User:alice --producer --topic orders",
        "kavka acls --bootstrap-server localhost:9092 --add --allow-principal User:bob --consumer --topic orders "
        "--group billing",
        "kavka acls --bootstrap-server localhost:9092 --list --topic orders",
        "kavka acls --bootstrap-server localhost:9092 --remove --topic orders --force",
    ),
)  # fmt: skip

# Entries by pattern or filter.
Entries = dict[Any, list["Acl"]]


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> None:
    _check(args)
    entries = _entries(args) if "list" not in args else {}
    if "add" in args:
        if args["resource-pattern-type"] not in ("LITERAL", "PREFIXED"):
            value = args["resource-pattern-type"]
            raise UsageError(f"A '--resource-pattern-type' value of '{value}' is not valid when adding acls.")
        if not all(entries.values()):
            raise UsageError("You must specify one of: --allow-principal, --deny-principal when trying to add ACLs.")
    principals = [_principal(text) for text in args["principal"]]
    with admin_for(args) as admin:
        if "add" in args:
            _add(admin, entries)
        elif "remove" in args:
            _remove(admin, entries, may_prompt="force" not in args)
        else:
            _list(admin, _filters(args), principals, as_json=bool(args["json"]))


def _check(args: Arguments) -> None:
    """Raise UsageError or ToolError for an invalid combination of options."""
    if any(option in args for option in ("authorizer", "authorizer-properties", "zk-tls-config-file")):
        raise ToolError("ACLs are changed by a broker: use --bootstrap-server instead of --authorizer-properties")
    if sum(action in args for action in ("list", "add", "remove")) != 1:
        raise UsageError("Command must include exactly one action: --list, --add, --remove. ")
    if "list" in args:
        for option in ("producer", "consumer", "allow-host", "allow-principal", "deny-host", "deny-principal"):
            args.forbid("list", option)
    for role in ("producer", "consumer"):
        for option in ("operation", "deny-principal", "deny-host"):
            args.forbid(role, option)
    if "principal" in args and "list" not in args:
        raise UsageError("The --principal option is only available if --list is set")
    if "producer" in args and "topic" not in args:
        raise UsageError("With --producer you must specify a --topic")
    if "idempotent" in args and "producer" not in args:
        raise UsageError("The --idempotent option is only available if --producer is set")
    is_other_resource = "producer" not in args and ("cluster" in args or "transactional-id" in args)
    if "consumer" in args and ("topic" not in args or "group" not in args or is_other_resource):
        raise UsageError(
            "With --consumer you must specify a --topic and a --group and no --cluster or --transactional-id option "
            "should be specified."
        )


def _filters(args: Arguments) -> list[PatternFilter]:
    """Return filters for the resources on the command line."""
    from kavka.security.acls import CLUSTER_NAME, PatternFilter, PatternType, ResourceType

    pattern_type = PatternType.from_text(args["resource-pattern-type"])
    filters = [PatternFilter(ResourceType.TOPIC, name.strip(), pattern_type) for name in args["topic"]]
    if pattern_type is PatternType.LITERAL and ("cluster" in args or "idempotent" in args):
        filters.append(PatternFilter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    for option, resource_type in list(RESOURCE_OPTIONS.items())[1:]:
        filters += [
            PatternFilter(ResourceType.from_text(resource_type), name.strip(), pattern_type) for name in args[option]
        ]
    return list(dict.fromkeys(filters))


def _entries(args: Arguments) -> Entries:
    """Return the entries to add or remove. Without a principal, there are no entries: --remove then
    removes all entries of the resource."""
    from kavka.security.acls import OPERATIONS as SUPPORTED
    from kavka.security.acls import Operation, ResourceType

    filters = _filters(args)
    if not filters:
        raise UsageError(
            "You must provide at least one resource: --topic <topic> or --cluster or --group <group> or "
            "--delegation-token <Delegation Token ID>"
        )
    entries: Entries = {}
    if "producer" not in args and "consumer" not in args:
        operations = [Operation.from_text(text) for text in args["operation"]] or [Operation.ALL]
        entries = {pattern_filter: _acls(args, operations) for pattern_filter in filters}
    roles = {
        "producer": {
            ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
            ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
            **({ResourceType.CLUSTER: (Operation.IDEMPOTENT_WRITE,)} if "idempotent" in args else {}),
        },
        "consumer": {
            ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
            ResourceType.GROUP: (Operation.READ,),
        },
    }
    for role, operations_by_type in roles.items():
        if role in args:
            for pattern_filter in filters:
                acls = _acls(args, operations_by_type.get(pattern_filter.resource_type, ()))
                if acls or pattern_filter.resource_type in operations_by_type:
                    merged = dict.fromkeys([*acls, *entries.get(pattern_filter, [])])
                    entries[pattern_filter] = list(merged)
    for pattern_filter, acls in entries.items():
        supported = [*SUPPORTED[pattern_filter.resource_type], Operation.ALL]
        if pattern_filter.resource_type is ResourceType.GROUP:
            supported += [Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS]
        if any(acl.operation not in supported for acl in acls):
            names = ", ".join(sorted(operation.text for operation in supported))
            raise UsageError(f"ResourceType {pattern_filter.resource_type.name} only supports operations {names}")
    return entries


def _acls(args: Arguments, operations: Iterable[Any]) -> list[Acl]:
    """Return an entry for every combination of principal, host and operation."""
    from kavka.security.acls import ANY_HOST, Acl, Permission

    operations = list(operations)
    return [
        Acl(_principal(principal), host.strip(), operation, permission)
        for prefix, permission in (("allow", Permission.ALLOW), ("deny", Permission.DENY))
        for principal, operation, host in product(
            args[f"{prefix}-principal"], operations, args[f"{prefix}-host"] or [ANY_HOST]
        )
    ]


def _principal(text: str) -> str:
    principal_type, _, name = text.strip().partition(":")
    if not principal_type or not name:
        raise ToolError(f"expected a string in format principalType:principalName but got {text}")
    return text.strip()


def _add(admin: Admin, entries: Entries) -> None:
    from kavka.security.acls import AclBinding, ResourcePattern

    for pattern_filter, acls in entries.items():
        pattern = ResourcePattern(*pattern_filter)
        print(f"Adding ACLs for resource `{_pattern_text(pattern)}`: \n {_entry_lines(acls)} \n")
        admin.create_acls([AclBinding(pattern, acl) for acl in acls])


def _remove(admin: Admin, entries: Entries, *, may_prompt: bool) -> None:
    from kavka.security.acls import AclFilter

    for pattern_filter, acls in entries.items():
        text = _pattern_text(pattern_filter)
        if acls:
            question = (
                f"Are you sure you want to remove ACLs: \n {_entry_lines(acls)} \n from resource filter `{text}`?"
            )
        else:
            question = f"Are you sure you want to delete all ACLs for resource filter `{text}`?"
        if may_prompt and not _is_confirmed(f"{question} (y/n)"):
            continue
        filters = [AclFilter(pattern_filter, *acl) for acl in acls] or [AclFilter(pattern_filter)]
        admin.delete_acls(filters)


def _is_confirmed(question: str) -> bool:
    print(question)
    return sys.stdin.readline().strip().lower() == "y"


def _list(admin: Admin, filters: list[PatternFilter], principals: list[str], *, as_json: bool) -> None:
    from kavka.security.acls import AclFilter

    acl_filters = [AclFilter(pattern_filter) for pattern_filter in filters] or [AclFilter()]
    bindings = dict.fromkeys(binding for acl_filter in acl_filters for binding in admin.describe_acls(acl_filter))
    if as_json:
        print_json([_as_json(binding) for binding in bindings if not principals or binding.acl.principal in principals])
        return
    if not principals:
        _print_bindings(bindings)
    for principal in principals:
        print(f"ACLs for principal `{principal}`")
        _print_bindings(binding for binding in bindings if binding.acl.principal == principal)


def _print_bindings(bindings: Iterable[AclBinding]) -> None:
    by_pattern: Entries = {}
    for binding in bindings:
        by_pattern.setdefault(binding.pattern, []).append(binding.acl)
    for pattern, acls in by_pattern.items():
        print(f"Current ACLs for resource `{_pattern_text(pattern)}`: \n {_entry_lines(acls)} \n")


def _pattern_text(pattern: ResourcePattern | PatternFilter) -> str:
    resource_type, name, pattern_type = pattern
    return f"ResourcePattern(resourceType={resource_type.name}, name={name}, patternType={pattern_type.name})"


def _entry_lines(acls: Iterable[Acl]) -> str:
    return "\n".join(
        f"\t(principal={acl.principal}, host={acl.host}, operation={acl.operation.name}, "
        f"permissionType={acl.permission.name})"
        for acl in acls
    )


def _as_json(binding: AclBinding) -> dict[str, str]:
    pattern, acl = binding
    return {
        "resourceType": pattern.resource_type.name,
        "name": pattern.name,
        "patternType": pattern.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permissionType": acl.permission.name,
    }
