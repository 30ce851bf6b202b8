"""Explanations of decisions, effective quotas, rights and masks."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.console import showing
from kavka.console.access import explain_access, table_of
from kavka.console.auth import Role, User
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.filters import Filter
from kavka.console.masks import MASK, MaskTable
from kavka.console.pages.principals import effective, set_quota
from kavka.console.pages.security import list_acls
from kavka.console.registry import OPERATIONS, query
from kavka.console.rights import LimitedCluster, Rights, RightsTable
from kavka.console.settings import SettingsError
from kavka.console.state import Group, Partition, Sample, Topic
from kavka.console.views import PAGES
from kavka.security.acls import OPERATIONS as KAFKA_OPERATIONS
from kavka.security.acls import Acl, AclBinding, Operation, PatternType, Permission, ResourcePattern, ResourceType
from kavka.security.authorizer import Authorizer, bit
from kavka.security.quotas import QuotaEntity
from tests.unit.console.test_showing import record

TOPIC, READ, WRITE, DESCRIBE = ResourceType.TOPIC, Operation.READ, Operation.WRITE, Operation.DESCRIBE


def binding(
    operation: Operation, name: str, pattern: PatternType = PatternType.LITERAL, *, principal: str = "User:a",
    host: str = "*", permission: Permission = Permission.ALLOW,
) -> AclBinding:  # fmt: skip
    return AclBinding(ResourcePattern(TOPIC, name, pattern), Acl(principal, host, operation, permission))


DENY_READ = binding(READ, "pay", PatternType.PREFIXED, permission=Permission.DENY)
ALLOW_READ = binding(READ, "payments")


@pytest.mark.parametrize(
    ("bindings", "operation", "expected"),
    [
        ([], READ, (False, "default", "no ACL applies to Topic payments")),
        ([ALLOW_READ], READ, (True, "acl", "an ACL allows Read")),
        ([ALLOW_READ], DESCRIBE, (True, "acl", "an ACL allows Describe")),
        ([ALLOW_READ], WRITE, (False, "default", "none allows Write for User:a from 10.0.0.1")),
        ([ALLOW_READ, DENY_READ], READ, (False, "acl", "an ACL denies Read")),
        ([binding(Operation.ALL, "*", principal="User:*")], WRITE, (True, "acl", "an ACL allows Write")),
        ([binding(READ, "payments", host="10.0.0.2")], READ, (False, "default", "none allows Read")),
    ],
)
def test_decision_names_the_deciding_acl(bindings, operation, expected):
    decision = explain_access(bindings, "User:a", "10.0.0.1", operation, TOPIC, "payments")
    assert (decision.allowed, decision.rule) == expected[:2] and expected[2] in decision.reason
    assert bool(decision.acls) == (decision.rule == "acl")
    if DENY_READ in bindings:
        assert [(acl.permission, acl.name, acl.pattern) for acl in decision.acls] == [("Deny", "pay", "Prefixed")]


def test_super_users_and_the_default_are_named():
    decision = explain_access([DENY_READ], "User:a", "h", READ, TOPIC, "payments", super_users=("User:a",))
    assert (decision.allowed, decision.rule, decision.acls) == (True, "super user", [])
    assert explain_access([], "User:a", "h", READ, TOPIC, "x", allow_without_acls=True).allowed
    assert not explain_access([ALLOW_READ], "User:b", "h", READ, TOPIC, "payments", allow_without_acls=True).allowed


def test_explanations_agree_with_the_authorizer():
    generator = random.Random(7)
    operations = (*KAFKA_OPERATIONS[TOPIC], Operation.ALL)
    for _ in range(500):
        bindings = [
            binding(
                generator.choice(operations),
                generator.choice(["a", "ab", "abc", "*"]),
                generator.choice([PatternType.LITERAL, PatternType.PREFIXED]),
                principal=generator.choice(["User:a", "User:*", "User:b"]),
                host=generator.choice(["*", "h"]),
                permission=generator.choice([Permission.ALLOW, Permission.DENY]),
            )
            for _ in range(generator.randrange(5))
        ]
        operation = generator.choice(KAFKA_OPERATIONS[TOPIC])
        decision = explain_access(bindings, "User:a", "h", operation, TOPIC, "abc")
        authorizer = Authorizer(table_of(bindings))
        assert decision.allowed == bool(authorizer.operations("User:a", "h", TOPIC, "abc") & bit(operation))
        deciding = {acl.permission for acl in decision.acls}
        assert deciding == ({"Allow"} if decision.allowed else {"Deny"} if deciding else set())


def test_cluster_without_authorizer_says_what_to_configure():
    class Admin:
        async def describe_acls(self, **options: Any) -> None:
            raise KafkaError(ErrorCode.SECURITY_DISABLED, "no authorizer")

    context = context_with(Rights(Role.ADMIN), admin=Admin())
    with pytest.raises(Refused, match=r"set authorizer\.class\.name"):
        asyncio.run(list_acls(context))


def test_most_specific_quota_applies():
    key = "producer_byte_rate"
    quotas = {
        QuotaEntity("anna", "app"): {key: 1.0},
        QuotaEntity("anna"): {key: 2.0, "consumer_byte_rate": 9.0},
        QuotaEntity(""): {key: 3.0},
        QuotaEntity(client_id=""): {key: 4.0},
        QuotaEntity(ip=""): {"connection_creation_rate": 5.0},
    }
    bounds = {
        client: {quota.key: (quota.value, quota.entity) for quota in effective(quotas, *client)}
        for client in (("anna", "app", ""), ("anna", "x", ""), ("bert", "app", "10.0.0.1"))
    }
    assert bounds["anna", "app", ""][key] == (1.0, "user anna, client app")
    assert bounds["anna", "app", ""]["consumer_byte_rate"] == (9.0, "user anna")
    assert bounds["anna", "x", ""][key] == (2.0, "user anna")
    assert bounds["bert", "app", "10.0.0.1"][key] == (3.0, "the default user")
    assert bounds["bert", "app", "10.0.0.1"]["connection_creation_rate"] == (5.0, "the default address")


# --- rights


def context_with(rights: Rights, admin: Any = None, cluster: Any = None) -> Context:
    handle = cluster or SimpleNamespace(name="default", admin=admin, alerts=())
    return Context(SimpleNamespace(), User("anna", rights.role), "h", handle, rights)  # type: ignore[arg-type]


RIGHTS = {"rights.anna": "view:payments., operate:orders.", "rights.@admins": "admin", "rights.*": "none"}


def test_rights_replace_the_role_of_matching_users():
    table = RightsTable(RIGHTS)
    anna = table.of(User("anna", Role.ADMIN))
    assert (anna.role, anna.highest) == (Role.NONE, Role.OPERATE)
    roles = [anna.on_topic(topic) for topic in ("payments.a", "orders.a", "payments", "other", "")]
    assert roles == [Role.VIEW, Role.OPERATE, Role.NONE, Role.NONE, Role.NONE]
    assert table.of(User("anna", Role.VIEW, groups=("admins",))).role is Role.ADMIN
    assert table.of(User("bert", Role.ADMIN)) == Rights(Role.NONE)
    assert RightsTable({}).of(User("bert", Role.OPERATE)) == Rights(Role.OPERATE)
    assert table.of(User("@admins", Role.VIEW)).role is Role.NONE, "a user has the name of a group's entry"
    assert anna.on_topics(["payments.a", "orders.a"]) is Role.VIEW, "the lowest role of all topics"
    assert anna.on_topics(None) is Role.NONE and anna.on_topics([""]) is Role.OPERATE


@pytest.mark.parametrize("text", ["king", "view:", "view:payments., boss:x"])
def test_invalid_rights_are_reported(text):
    with pytest.raises(SettingsError, match=r"console\.rights\.anna: "):
        RightsTable({"rights.anna": text})


def test_operations_check_rights_at_every_call():
    @query("/test-only", "Test", role=Role.OPERATE, topics=("topic",))
    async def operation_of_test(context: Context, topic: str) -> str:
        return topic

    try:
        context = context_with(RightsTable(RIGHTS).of(User("anna", Role.ADMIN)))
        assert asyncio.run(operation_of_test(context, "orders.a")) == "orders.a"
        for topic in ("payments.a", "other", "order"):
            with pytest.raises(Refused) as refused:
                asyncio.run(operation_of_test(context, topic=topic))
            assert refused.value.status == 403
        with pytest.raises(Refused, match="topic is missing"):
            asyncio.run(operation_of_test(context, " "))
    finally:
        del OPERATIONS["operation_of_test"]


def test_operations_and_pages_without_declared_topics_need_a_role_in_the_whole_cluster():
    limited = context_with(Rights(Role.NONE, (("", Role.ADMIN),)))
    for name in ("list_brokers", "describe_group", "list_acls", "scram_users", "list_quotas", "audit", "overview"):
        assert OPERATIONS[name].topics is None
        with pytest.raises(Refused):
            limited.require(OPERATIONS[name].role, OPERATIONS[name].topics)
    unlimited = {page.path for page in PAGES if page.topics is not None}
    assert not unlimited & {"/brokers", "/transactions", "/security", "/audit", "/alerts", "/overview", "/groups/one"}
    assert all(page.topics is not None for page in PAGES if page.path.startswith("/messages"))


def sample_of(*topics: str) -> Sample:
    partitions = {name: Partition(name, 0, 1, 0, (1,), (1,)) for name in topics}
    offsets = {TopicPartition(name, 0): 1 for name in topics}
    groups = {
        "all": Group("all", "", "", "", 1, offsets, dict(offsets)),
        "other": Group("other", "", "", "", 1, {TopicPartition("secret", 0): 1}, None),
    }
    by_name = {name: Topic(name, None, False, (p,)) for name, p in partitions.items()}  # type: ignore[arg-type]
    return Sample(0.0, 0.0, "c", 1, {}, by_name, {}, groups=groups)


def test_limited_cluster_has_only_visible_topics_and_offsets():
    sample = sample_of("payments.a", "secret")

    class Cluster:
        name = "default"
        alerts = ("secret-0 is offline",)
        rates = (1,)

        async def state(self, *, groups: bool = False) -> Sample:
            return sample

        async def topic(self, name: str, *, groups: bool = False) -> Topic:
            return sample.topics[name]

    async def body() -> None:
        cluster = LimitedCluster(Cluster(), Rights(Role.NONE, (("payments.", Role.VIEW),)))  # type: ignore[arg-type]
        visible = await cluster.state()
        assert set(visible.topics) == {"payments.a"} and set(visible.groups) == {"all"}
        offsets = {TopicPartition("payments.a", 0): 1}
        assert visible.groups["all"].offsets == offsets == visible.groups["all"].lags
        assert [p.topic for p in visible.partitions] == ["payments.a"]
        assert cluster.name == "default" and not cluster.alerts and not cluster.rates
        with pytest.raises(Refused, match="there is no topic 'secret'"):
            await cluster.topic("secret")

    asyncio.run(body())


@pytest.mark.parametrize("password", [12345678, True, ["12345678", "x"], {"p": 12345678}, None, ""])
def test_error_about_a_password_does_not_contain_it(password):
    with pytest.raises(Refused) as refused:
        OPERATIONS["set_scram_user"].arguments({}, {"name": "alice", "password": password})
    assert refused.value.field == "password" and "12345678" not in str(refused.value)


def test_quota_of_an_address_has_no_user():
    context = context_with(Rights(Role.ADMIN))
    for values in ({"key": "connection_creation_rate", "user": "a"}, {"key": "producer_byte_rate", "ip": "1.2.3.4"}):
        arguments = OPERATIONS["set_quota"].arguments({}, {**values, "value": "1"})
        with pytest.raises(Refused, match="belongs to"):
            asyncio.run(set_quota(context, **arguments))


# --- masks

MASKS = MaskTable({"mask.pay*": "$.card.number, $.items[*].price, header:Token", "mask.keys": "key, value"})
VALUE = {"card": {"number": "4111", "name": "a"}, "items": [{"price": 7, "n": 1}, {"price": 8}], "id": 42}


def masked(value: bytes | None, topic: str = "payments", **filters: str) -> Any:
    headers = (("token", b"secret-token"), ("trace", b"t1"))
    return Filter(topic, masks=MASKS.of(topic), **filters).match(record(value, b"key-1", headers))  # type: ignore[arg-type]


def all_texts(message: Any) -> str:
    object_text = showing._json_text(message) + showing._csv_line(message)
    return object_text + repr(showing.row_of(message)) + showing.pretty(message.value)


def test_masked_fields_are_not_shown():
    message = masked(json.dumps(VALUE).encode())
    assert message.value.data["card"] == {"number": MASK, "name": "a"}
    assert [item["price"] for item in message.value.data["items"]] == [MASK, MASK]
    texts = all_texts(message)
    assert "4111" not in texts and "secret-token" not in texts
    assert "42" in texts and "t1" in texts and "key-1" in texts
    assert "key-1" not in all_texts(masked(b"some value", "keys")) and "some value" not in all_texts(
        masked(b"some value", "keys")
    )
    assert "4111" in all_texts(masked(json.dumps(VALUE).encode(), "other"))


@pytest.mark.parametrize(
    "filters",
    [
        {"text": "4111"},
        {"text": "secret-token"},
        {"header": "token=secret"},
        {"path": '$.card.number == "4111"'},
        {"expression": 'value.card.number contains "4"'},
        {"expression": 'headers.token == "secret-token"'},
        {"text": "34 31 31 31", "value_decoder": "hex"},
    ],
)
def test_masked_fields_are_not_searched(filters):
    assert masked(json.dumps(VALUE).encode(), **filters) is None
    assert masked(json.dumps(VALUE).encode(), "other", **filters)
    assert masked(json.dumps(VALUE).encode(), path="$.id == 42")
    assert masked(json.dumps(VALUE).encode(), text='"id": 42')
    assert masked(json.dumps(VALUE).encode(), header="trace=t1")


@pytest.mark.parametrize("decoder", ["text", "hex", "number", "double"])
def test_value_is_masked_as_a_whole_if_its_fields_are_unknown(decoder):
    assert masked(json.dumps(VALUE).encode(), value_decoder=decoder).value.text == MASK
    assert masked(b"x4111").value.text == MASK
    schema = json.dumps({"type": "array", "items": "int"})
    assert masked(b"\x02\x08\0", value_decoder="avro", value_schema=schema).value.text == MASK
    duplicate = b'{"card": {"number": "4111"}, "card": {"number": "5222"}}'
    assert "4111" not in masked(duplicate).value.text and "5222" not in masked(duplicate).value.text
    assert masked(None).value.text == "null"


def test_hostile_nesting_is_masked_as_a_whole():
    for depth in (500, 5_000, 100_000):
        message = masked(b"[" * depth + b'{"items": {"price": 4111}}' + b"]" * depth)
        assert "4111" not in message.value.text


def test_malformed_headers_are_not_shown_for_masked_topics():
    broken = record(b"{}", b"k", (("token", b"secret-token"),))
    broken._headers = b"\xff\xff\xff\xff secret-token"
    message = Filter("payments", masks=MASKS.of("payments")).match(broken)
    assert message is not None and b"secret-token".hex(" ") not in repr(message.headers)


@pytest.mark.parametrize("text", ["card.number", "$.", "header:", "$..x", "keys"])
def test_invalid_masks_are_reported(text):
    with pytest.raises(SettingsError, match=r"console\.mask\.x: "):
        MaskTable({"mask.x": text})
