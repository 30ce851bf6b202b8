"""ACLs with real clients: denied and permitted requests, changes under load, hostile requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from kavka import AclFilter, Admin, NewTopic, PatternFilter
from kavka.client.admin import AdminError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kavka.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kavka.protocol.messages.describe_acls import DescribeAclsRequest
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kavka.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from tests.support import wire
from tests.support.acls import ANONYMOUS, acl, start_with_acls
from tests.support.kavka_process import KavkaProcess
from tests.support.messages import Messages

pytestmark = pytest.mark.timeout(120)

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ADMIN = acl(Operation.ALTER, CLUSTER)
# An ACL change must take effect on open connections within this time.
MAX_DELAY_S = 1.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KavkaProcess]:
    """Anonymous clients may change ACLs, and create topics that start with `t-`."""
    overrides = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": 0}
    creation = acl(Operation.CREATE, TOPIC, "t-", PatternType.PREFIXED)
    broker = start_with_acls(tmp_path_factory.mktemp("acls"), ADMIN, creation, overrides=overrides)
    try:
        yield broker
        assert broker.process.running()
    finally:
        broker.close()


@pytest.fixture
def admin(broker: KavkaProcess) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        yield admin


def produce(broker: KavkaProcess, topic: str) -> Any:
    """Produce a record with librdkafka. Return the error, or None."""
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 10_000})
    try:
        producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(15)
    except KafkaException as error:
        return error.args[0]
    return errors[0]


def test_a_client_needs_write_read_and_a_group(broker: KavkaProcess, admin: Admin, topic: str) -> None:
    with pytest.raises(AdminError) as refused:
        admin.create_topics([_new_topic("other")])
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    admin.create_topics([_new_topic(topic)])
    assert produce(broker, topic).name() == "TOPIC_AUTHORIZATION_FAILED"
    admin.create_acls([acl(Operation.WRITE, TOPIC, topic)])
    assert produce(broker, topic) is None

    group = f"g-{topic}"
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        assert _first_error(consumer) == "GROUP_AUTHORIZATION_FAILED"
        admin.create_acls([acl(Operation.READ, GROUP, group[:4], PatternType.PREFIXED)])
        assert _first_error(consumer) == "TOPIC_AUTHORIZATION_FAILED"
        admin.create_acls([acl(Operation.READ, TOPIC, topic)])
        assert _first_value(consumer) == b"x"
    finally:
        consumer.close()
    log = (broker.folder / "kavka.out").read_text()
    assert (
        f"Principal = {ANONYMOUS} is Denied Operation = Describe from host = 127.0.0.1 on resource = "
        f"Topic:LITERAL:{topic} for request = Metadata with resourceRefCount = 1 (kafka.authorizer.logger)"
    ) in log


def _new_topic(name: str) -> NewTopic:
    return NewTopic(name, 1)


def _first_error(consumer: Consumer) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error():
            return str(message.error().name())
    raise AssertionError("no error")


def _first_value(consumer: Consumer) -> bytes:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            return bytes(message.value() or b"")
    raise AssertionError("no record")


def test_metadata_hides_topics_that_a_client_may_not_describe(broker: KavkaProcess, admin: Admin, topic: str) -> None:
    admin.create_topics([_new_topic(topic)])
    with Messages(("127.0.0.1", broker.port)) as client:
        names = [MetadataRequestTopic(name=topic), MetadataRequestTopic(name="t-missing")]
        hidden = client.call(MetadataRequest(topics=names), 9).topics
        assert {(t.error_code, len(t.partitions)) for t in hidden} == {(29, 0)}
        assert topic not in {t.name for t in client.call(MetadataRequest(topics=None), 9).topics}
        admin.create_acls([acl(Operation.DESCRIBE, TOPIC, topic)])
        shown = client.call(MetadataRequest(topics=names, include_topic_authorized_operations=True), 9).topics
        assert [(t.error_code, t.topic_authorized_operations) for t in shown if t.name == topic] == [
            (0, 1 << Operation.DESCRIBE | 1 << Operation.CREATE)
        ]
        assert topic in {t.name for t in client.call(MetadataRequest(topics=None), 9).topics}


def test_a_pattern_matches_only_topics_that_the_member_may_describe(
    broker: KavkaProcess, admin: Admin, topic: str
) -> None:
    names = [f"{topic}-{letter}" for letter in "ab"]
    admin.create_topics([_new_topic(name) for name in names])
    group = f"g-{topic}"
    admin.create_acls([acl(Operation.READ, GROUP, group), acl(Operation.DESCRIBE, TOPIC, names[0])])
    with Messages(("127.0.0.1", broker.port)) as client:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id="AAAAAAAAAAAAAAAAAAAAAA",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[],
            subscribed_topic_regex=f"{topic}-.*",
            topic_partitions=[],
        )
        client.call(FindCoordinatorRequest(coordinator_keys=[group]), 4)
        deadline = time.monotonic() + 30
        while (response := client.call(request, 1)).error_code and time.monotonic() < deadline:
            time.sleep(0.1)
        assert response.error_code == 0 and response.assignment is not None
        shown = client.call(MetadataRequest(topics=[MetadataRequestTopic(name=names[0])]), 12).topics[0]
        assert [assigned.topic_id for assigned in response.assignment.topic_partitions] == [shown.topic_id]


def test_the_admin_client_lists_and_removes_acls(admin: Admin, topic: str) -> None:
    ours = AclFilter(PatternFilter(name=topic))
    read, deny = acl(Operation.READ, TOPIC, topic), acl(Operation.ALL, GROUP, topic, permission=Permission.DENY)
    prefixed = acl(Operation.WRITE, TOPIC, topic, PatternType.PREFIXED, principal="User:alice", host="10.1.2.3")
    admin.create_acls([read, deny, prefixed, read])
    assert admin.describe_acls(ours) == sorted([read, deny, prefixed])
    assert ADMIN in admin.describe_acls()
    only_deny = ours._replace(permission=Permission.DENY)
    assert (
        admin.delete_acls([only_deny, ours]) == {only_deny: [deny], ours: [read, prefixed]}
        or admin.describe_acls(ours) == []
    )
    assert admin.describe_acls(ours) == []


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        (acl(Operation.READ, CLUSTER, "other"), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (acl(Operation.READ, TOPIC, ""), "Invalid empty resource name"),
        (acl(Operation.READ, GROUP, "a/b"), "slash"),
        (acl(Operation.READ, GROUP, ".."), "cannot be stored"),
        (acl(Operation.READ, TOPIC, "t", PatternType.MATCH), "unknown elements"),
        (acl(Operation.ANY, TOPIC, "t"), "unknown elements"),
        (acl(Operation.READ, TOPIC, "t", principal="alice"), "principalType:principalName"),
    ],
)
def test_invalid_acls_are_refused(admin: Admin, binding: AclBinding, message: str) -> None:
    with pytest.raises(AdminError) as refused:
        admin.create_acls([binding])
    assert (refused.value.code, message in str(refused.value)) == (ErrorCode.INVALID_REQUEST, True), refused.value


def test_changes_take_effect_under_load_on_open_connections(broker: KavkaProcess, admin: Admin, topic: str) -> None:
    """A producer with one connection sends all the time. Every change of its right takes effect
    within a second, and no record is accepted while the right is denied."""
    admin.create_topics([_new_topic(topic)])
    right = acl(Operation.WRITE, TOPIC, topic)
    deny = acl(Operation.WRITE, TOPIC, topic, permission=Permission.DENY)
    outcomes: list[tuple[float, bool]] = []
    stopped = threading.Event()
    admin.create_acls([right])

    def send() -> None:
        records = wire.batch([b"x"])
        with Messages(("127.0.0.1", broker.port)) as client:
            while not stopped.is_set():
                data = PartitionProduceData(index=0, records=memoryview(bytearray(records)))
                request = ProduceRequest(
                    acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
                )
                code = client.call(request, 9).responses[0].partition_responses[0].error_code
                assert code in (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                outcomes.append((time.monotonic(), code == 0))

    sender = threading.Thread(target=send)
    sender.start()
    changes: list[tuple[float, bool]] = []
    try:
        for _ in range(4):
            time.sleep(0.3)
            admin.create_acls([deny])
            changes.append((time.monotonic(), False))
            time.sleep(0.3)
            admin.delete_acls([AclFilter(PatternFilter(TOPIC, topic), permission=Permission.DENY)])
            changes.append((time.monotonic(), True))
        time.sleep(0.3)
    finally:
        stopped.set()
        sender.join()
    for (changed, is_permitted), (until, _) in zip(changes, [*changes[1:], (time.monotonic(), False)], strict=True):
        later = [outcome for at, outcome in outcomes if changed + 0.05 < at < until - 0.05]
        assert later and set(later) == {is_permitted}


def test_ten_thousand_filters_and_long_names_do_not_stop_the_broker(broker: KavkaProcess, admin: Admin) -> None:
    anything: dict[str, Any] = {
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        "resource_type_filter": 1,
        "pattern_type_filter": 2,
    }
    long_name = "x" * 30_000
    with Messages(("127.0.0.1", broker.port), timeout=60) as client, Messages(("127.0.0.1", broker.port)) as other:
        filters = [DeleteAclsFilter(resource_name_filter=f"none-{n}*", **anything) for n in range(10_000)]
        for acl_filter in filters:
            acl_filter.principal_filter = "User:nobody"
        slowest = 0.0
        finished = threading.Event()

        def probe() -> None:
            nonlocal slowest
            while not finished.is_set():
                start = time.monotonic()
                other.call(MetadataRequest(topics=[]), 9)
                slowest = max(slowest, time.monotonic() - start)

        prober = threading.Thread(target=probe)
        prober.start()
        try:
            results = client.call(DeleteAclsRequest(filters=filters), 2).filter_results
            assert len(results) == 10_000 and not any(r.error_code or r.matching_acls for r in results)
            creations = [
                AclCreation(
                    resource_type=3, resource_name=f"{long_name}{n}", resource_pattern_type=4, principal="User:x",
                    host="*", operation=3, permission_type=3,
                )
                for n in range(50)
            ]  # fmt: skip
            created = client.call(CreateAclsRequest(creations=creations), 2).results
            assert {result.error_code for result in created} == {0}
            described = client.call(
                DescribeAclsRequest(
                    resource_type_filter=3, resource_name_filter=f"{long_name}7-and-more", pattern_type_filter=2,
                    operation=1, permission_type=1, principal_filter=None, host_filter=None,
                ),
                2,
            )  # fmt: skip
            assert [len(resource.resource_name) for resource in described.resources] == [30_001]
            admin.delete_acls([AclFilter(principal="User:x")])
        finally:
            finished.set()
            prober.join()
    assert slowest < 2.0
    assert admin.describe_acls(AclFilter(principal="User:x")) == []


def test_a_wrong_authorizer_class_or_super_user_stops_the_start_with_one_line(tmp_path: Path) -> None:
    for name, value, message in (
        ("authorizer.class.name", "com.example.Mine", "authorizer.class.name: 'com.example.Mine' is not allowed"),
        ("super.users", "admin", "super.users: 'admin' is not allowed"),
    ):
        broker = KavkaProcess(tmp_path / name, overrides={name: value}, start=False)
        broker.launch()
        assert broker.process.wait(30) == 1
        lines = (broker.folder / "kavka.out").read_text().splitlines()
        assert len(lines) == 1 and message in lines[0]


def test_without_the_right_acls_cannot_be_listed_or_changed(tmp_path: Path) -> None:
    broker = start_with_acls(tmp_path)
    try:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            for call in (
                admin.describe_acls,
                lambda: admin.create_acls([ADMIN]),
                lambda: admin.delete_acls([AclFilter()]),
            ):
                with pytest.raises(KafkaError) as refused:
                    call()
                assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    finally:
        broker.close()
