"""The console manages an Apache Kafka 4.3 cluster. It uses nothing but the Kafka protocol."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kavka import Admin, Consumer, Producer
from kavka.common.types import TopicPartition
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support import wire
from tests.support.apache import ApacheKafka
from tests.support.browser import browser, expect, page_of
from tests.support.console import ConsoleProcess, Response, of_default, open_details, send, submit_expecting_error
from tests.support.messages import Messages
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def kafka(java_parts: None, tmp_path: Path) -> Iterator[ApacheKafka]:
    # Without this check a producer can write to a transaction that the coordinator does not have.
    # Such a transaction hangs.
    settings = {"transaction.partition.verification.enable": "false"}
    with ApacheKafka(tmp_path / "kafka", version="4.3.0", overrides=settings) as kafka:
        yield kafka


@pytest.fixture
def page(kafka: ApacheKafka, tmp_path: Path) -> Iterator[Page]:
    with (
        browser() as chromium,
        ConsoleProcess(tmp_path, kafka.bootstrap_servers) as console,
        page_of(chromium, console.origin) as (browser_page, watch),
    ):
        yield browser_page
        watch.check()


LAST_VERSION_WITHOUT_TRANSACTIONS_V2 = 11
TRANSACTIONAL = 0x10


def create_hanging_transaction(kafka: ApacheKafka, topic: str, producer_id: int) -> None:
    """Produce a transactional batch without adding its partition to a transaction."""
    records = wire.batch(
        [b"hangs"], attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=0
    )
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    request = ProduceRequest(transactional_id="ghost", acks=-1, timeout_ms=30_000, topic_data=[data])
    with Messages(kafka.address, 60) as messages:
        response = messages.call(request, LAST_VERSION_WITHOUT_TRANSACTIONS_V2)
    assert [p.error_code for t in response.responses for p in t.partition_responses] == [0]


def test_all_pages_and_actions_work_with_apache_kafka(page: Page, kafka: ApacheKafka) -> None:
    """One test of many steps, because each action needs the topic of the actions before."""
    servers = kafka.bootstrap_servers
    for name in ("overview", "brokers", "topics", "messages", "groups", "transactions", "pipelines", "alerts"):
        page.goto(f"/c/default/{name}")
        expect(page.locator("h1")).to_be_visible()
        assert page.locator("#error").count() == 0, name
    page.goto("/c/default/topics")
    create = open_details(page, "create").locator("form.op")
    create.get_by_label("Name").fill("orders")
    create.get_by_label("Replicas of each").fill("1")
    send(create, "Create", "orders")

    page.goto("/c/default/messages?topic=orders")
    produce = open_details(page, "produce").locator("form.op")
    produce.locator("[name=value]").fill("<b>hello</b>")
    send(produce, "Produce", "offset 0")
    page.goto("/c/default/messages?topic=orders&text=hello")
    expect(page.locator("#rows tr")).to_contain_text("<b>hello</b>")

    with Admin(bootstrap_servers=servers) as admin:
        for protocol in ("classic", "consumer"):
            with Consumer(
                bootstrap_servers=servers, group_id=protocol, group_protocol=protocol, client_id="anna",
                auto_offset_reset="earliest",
            ) as consumer:  # fmt: skip
                consumer.subscribe(["orders"])
                wait_until(lambda consumer=consumer: bool(consumer.poll(1.0)), timeout=60, what="the message")
                consumer.commit_sync()
                page.goto(f"/c/default/groups/one?group={protocol}")
                expect(page.locator("#members")).to_contain_text("anna")
                expect(page.locator("#figures")).to_contain_text(protocol)
            wait_until(lambda p=protocol: admin.group_state(p) == "Empty", timeout=60, what="an empty group")
            page.goto(f"/c/default/groups/one?group={protocol}")
            open_details(page, "reset")
            send(page.locator("form#plan"), "Preview", "nothing has been changed yet")
            send(page.locator("form#set"), "Set these offsets", "were set")
            committed = admin.list_consumer_group_offsets(protocol)[TopicPartition("orders", 0)]
            assert committed is not None
            assert committed.offset == 0
        page.goto("/c/default/messages?topic=__consumer_offsets&expression=key.data.group == 'classic'")
        expect(page.locator("#rows tr").first).to_contain_text('"group":"classic"')

        producer = Producer(bootstrap_servers=servers, transactional_id="pay-1")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"open", partition=0).get(60)
        page.goto("/c/default/transactions?hanging=on&minutes=0")
        expect(page.locator("#transactions tr", has_text="pay-1")).to_contain_text("Ongoing")
        expect(page.locator("#hanging tr", has_text="orders-0")).to_contain_text("open")
        terminate = open_details(page, "terminate").locator("form.op").first
        terminate.locator("[name=confirm]").fill("pay-1")
        send(terminate, "Abort", "fenced")
        producer.close(5)

    create_hanging_transaction(kafka, "orders", 424242)
    page.goto("/c/default/transactions?hanging=on&topic=orders")
    row = page.locator("#hanging tr", has_text="424242")
    expect(row).to_contain_text("hangs")
    row.locator("summary").click()
    abort = row.locator("form")
    abort.locator("[name=confirm]").fill("orders")
    submit_expecting_error(abort, "Abort", "type 'orders-0'")
    abort.locator("[name=confirm]").fill("orders-0")
    send(abort, "Abort", "producer 424242 in orders-0 was aborted")
    submit_expecting_error(abort, "Abort", "no transaction is open")
    page.goto("/c/default/transactions?hanging=on&topic=orders&minutes=0")
    expect(page.locator("#hanging table")).to_contain_text("Nothing is open")

    page.goto("/c/default/topics/orders/actions")
    delete = open_details(page, "delete").locator("form.op")
    delete.locator("[name=confirm]").fill("order")
    submit_expecting_error(delete, "Delete the topic", "type 'orders'")
    delete.locator("[name=confirm]").fill("orders")
    send(delete, "Delete the topic", "orders")
    page.goto("/c/default/topics")
    expect(page.locator("#topics")).not_to_contain_text(re.compile("orders"))


STANDARD_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.mark.matrix
@pytest.mark.parametrize("authorizer", [{}, STANDARD_AUTHORIZER], ids=["none", "standard"])
def test_security_operations_work_with_apache_kafka(java_parts: None, tmp_path: Path, authorizer) -> None:
    with (
        ApacheKafka(tmp_path / "kafka", version="4.3.0", overrides=authorizer) as kafka,
        ConsoleProcess(tmp_path, kafka.bootstrap_servers) as console,
    ):

        def post(path: str, values: object) -> Response:
            return console.post(of_default(path), values)

        user = {"name": "alice", "mechanism": "SCRAM-SHA-512"}
        assert post("/scram-users/set", {**user, "password": "secret"}).status == 200
        wait_until(lambda: len(console.api("/scram-users")) == 1, timeout=30, what="the user")
        assert post("/scram-users/delete", {**user, "confirm": "alice"}).status == 200
        quota = {"key": "producer_byte_rate", "user": "(default)", "client": "app"}
        assert post("/quotas/set", {**quota, "value": 1000}).status == 200
        wait_until(lambda: len(console.api("/quotas")) == 1, timeout=30, what="the quota")
        assert console.api("/quotas/effective?user=alice&client=app")[0]["value"] == 1000
        assert post("/quotas/set", quota).status == 200
        acl = {"principal": "User:alice", "operation": "Read", "resource_type": "Topic", "name": "a"}
        if not authorizer:
            refused = console.get(of_default("/acls"))
            assert refused.status == 409 and "authorizer.class.name" in refused.error
            assert "StandardAuthorizer" in console.get("/c/default/security", Accept="text/html").text
            return
        assert post("/acls/create", acl).status == 200
        wait_until(lambda: len(console.api("/acls")) == 1, timeout=30, what="the ACL")
        question = "/acls/explain?principal=User:alice&resource_type=Topic&name=a&operation="
        assert console.api(question + "Describe")["allowed"]
        denied = console.api(question + "Write")
        assert not denied["allowed"] and "brokers do not return super.users" in denied["reason"]
        assert post("/acls/delete", {**acl, "confirm": "User:alice"}).status == 200
