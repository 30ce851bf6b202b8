"""The console's pages of the cluster, brokers, topics and alerts in a real browser. The cluster has
three Kavka brokers. The same operations work with Apache Kafka."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kavka import Admin, NewTopic, Producer, TopicPartition
from kavka.client.admin.types import ConfigResource
from tests.support.apache import ApacheKafka
from tests.support.browser import PHONE, browser, expect, page_of
from tests.support.cluster import KavkaCluster
from tests.support.console import ConsoleProcess, of_default, open_details, send, submit_expecting_error
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[KavkaCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with ZooKeeper(folder / "zookeeper") as zookeeper, KavkaCluster(folder, zookeeper) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def console(tmp_path_factory, cluster) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(tmp_path_factory.mktemp("console"), cluster.bootstrap_servers) as console:
        yield console


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as chromium:
        yield chromium


@pytest.fixture(autouse=True)
def restart_stopped_brokers(cluster) -> None:
    """Start brokers that an earlier test left stopped."""
    stopped = [broker_id for broker_id in cluster.brokers if broker_id not in cluster.alive()]
    if stopped:
        cluster.start(*stopped)


@pytest.fixture
def page(chromium, console) -> Iterator[Page]:
    with page_of(chromium, console.origin) as (browser_page, watch):
        yield browser_page
        watch.check()


@pytest.fixture(scope="module")
def admin(cluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture(scope="module")
def flow(admin) -> str:
    admin.create_topics([NewTopic("flow", 3, 3)])
    return "flow"


def figure(page: Page, label: str, id: str = "figures"):
    return page.locator(f"#{id} .figure").filter(has=page.get_by_text(label, exact=True)).locator(".value")


def produce(cluster: KavkaCluster, topic: str, count: int, size: int = 100) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for _ in range(count):
            producer.send(topic, b"x" * size)
        producer.flush()


def check_audit(console: ConsoleProcess, *actions: str) -> None:
    """Assert that the audit log has a successful entry of each action."""
    lines = console.api("/audit?limit=1000")
    assert {line["action"] for line in lines if line["outcome"] == "done"} >= set(actions)


def test_the_overview_is_updated_while_messages_are_produced(page, cluster, admin, flow):
    page.goto("/c/default/overview")
    expect(figure(page, "Brokers up")).to_have_text("3")
    expect(figure(page, "Offline")).to_have_text("0")
    page.evaluate("window.same = true")
    produce(cluster, flow, 2000)
    expect(figure(page, "Topics")).to_have_text(str(len(admin.list_topics())))
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(page.locator("#disks tbody tr")).to_have_count(3)
    rates = wait_for_rate(page)
    assert max(value for value in rates if value is not None) > 0
    assert page.evaluate("window.same"), "the page was reloaded"


def wait_for_rate(page: Page) -> list[float | None]:
    rates: list[float | None] = []

    def has_rate() -> bool:
        response = page.evaluate("fetch('/api/clusters/default/rates').then(r => r.json())")
        rates[:] = response["lines"]["in"]
        return any(rates)

    wait_until(has_rate, timeout=TIMEOUT_S, what="messages per second", interval=0.5)
    return rates


def test_a_topic_is_created_configured_emptied_and_deleted(page, cluster, admin, console):
    """One test of many steps, because they follow the life of one topic."""
    page.goto("/c/default/topics")
    create = open_details(page, "create")
    create.locator("[name='name']").fill("not a name")
    submit_expecting_error(create, "Create", "letters, digits")
    create.locator("[name='name']").fill("orders")
    create.locator("[name='partitions']").fill("3")
    create.locator("[name='replication']").fill("7")
    submit_expecting_error(create, "Create", "replication factor of 7")
    create.locator("[name='replication']").fill("2")
    create.locator("[name='configs.retention.ms']").fill("soon")
    submit_expecting_error(create, "Create", "retention.ms")
    create.locator("[name='configs.retention.ms']").fill("3600000")
    send(create, "Create", "orders was created with 3 partitions")
    expect(page).to_have_url(re.compile(r"/topics/orders$"))
    expect(page.locator("#partitions tbody tr")).to_have_count(3)
    expect(page.locator("#readers")).to_contain_text("No group has committed")

    produce(cluster, "orders", 300)
    admin.alter_consumer_group_offsets("readers", {TopicPartition("orders", p): 0 for p in range(3)})
    expect(figure(page, "Messages")).to_have_text("300")
    expect(page.locator("#readers tbody tr")).to_contain_text("300")

    page.get_by_role("link", name="Settings", exact=True).click()
    page.get_by_label("Find a setting").fill("retention.ms")
    row = page.locator("tr[data-text='retention.ms']")
    expect(row).to_contain_text("set for this topic")
    expect(page.locator("tr[data-text='cleanup.policy']")).to_be_hidden()
    row.get_by_label("retention.ms").fill("-5")
    submit_expecting_error(row, "Save", "retention.ms: -5 is not allowed; it must be at least -1")
    row.get_by_label("retention.ms").fill("7200000")
    send(row, "Save", "retention.ms is 7200000")
    send(page.locator("tr[data-text='retention.ms']"), "Default", "was reset")
    stale_row = page.locator("tr[data-text='max.message.bytes']")
    admin.incremental_alter_configs({ConfigResource.topic("orders"): {"max.message.bytes": "2000"}})
    stale_row.get_by_label("max.message.bytes").fill("3000")
    submit_expecting_error(stale_row, "Save", "has changed since the page was loaded")

    page.get_by_role("link", name="Actions", exact=True).click()
    add_partitions = page.locator("#partitions")
    add_partitions.get_by_label("How many in all").fill("5")
    send(add_partitions, "Add partitions", "orders has 5 partitions")
    expect(page.locator("#partitions tbody tr")).to_have_count(5)
    page.get_by_role("link", name="Actions", exact=True).click()
    empty = open_details(page, "empty")
    empty.get_by_label("to confirm").fill("order")
    submit_expecting_error(empty, "Delete all messages", "type 'orders' to confirm; nothing was done")
    empty.get_by_label("to confirm").fill("orders")
    send(empty, "Delete all messages", "orders is empty")
    expect(figure(page, "Messages")).to_have_text("0")

    page.get_by_role("link", name="Actions", exact=True).click()
    delete = open_details(page, "delete")
    admin.delete_topics(["orders"])
    wait_until(lambda: "orders" not in admin.list_topics(), timeout=TIMEOUT_S, what="the topic is deleted")
    admin.create_topics([NewTopic("orders", 5, 1)])
    delete.get_by_label("to confirm").fill("orders")
    submit_expecting_error(
        delete, "Delete the topic", "has changed since the page was loaded: reload it; nothing was done"
    )
    assert "orders" in admin.list_topics()
    page.reload()
    delete = open_details(page, "delete")
    delete.get_by_label("to confirm").fill("orders")
    send(delete, "Delete the topic", "orders was deleted")
    expect(page).to_have_url(re.compile(r"/topics$"))
    wait_until(lambda: "orders" not in admin.list_topics(), timeout=TIMEOUT_S, what="the topic is deleted")
    check_audit(console, "create_topic", "delete_topic", "empty_topic", "add_partitions", "change_topic_setting")
    assert any("nothing was done" in line["outcome"] for line in console.api("/audit?limit=1000"))


def test_topics_are_searched_and_sorted_and_internal_ones_hidden(page, admin):
    admin.create_topics([NewTopic("apples", 2, 1), NewTopic("pears", 40, 1)])
    admin.alter_consumer_group_offsets("eaters", {TopicPartition("apples", 0): 0})  # creates the internal topic
    page.goto("/c/default/topics")
    expect(page.locator("#topics")).not_to_contain_text("__consumer_offsets")
    page.get_by_role("link", name=re.compile("^Partitions")).click()
    page.get_by_role("link", name=re.compile("^Partitions")).click()
    expect(page.locator("#topics tbody tr").first).to_contain_text("pears")
    page.locator("[name=search]").fill("APPL")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#topics tbody tr")).to_have_count(1)
    page.locator("[name=search]").fill("")
    page.get_by_label("include internal topics").check()
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#topics")).to_contain_text("__consumer_offsets")
    page.goto("/c/default/topics?search=%3Cb%3Enothing")
    expect(page.locator("#topics")).to_contain_text("No topic matches")


def throttle_of(admin: Admin, broker: int) -> str | None:
    resource = ConfigResource.broker(broker)
    configs = admin.describe_configs(resource)[resource].get("follower.replication.throttled.rate")
    return configs.value if configs else None


def test_partitions_are_moved_as_planned_and_a_move_can_be_cancelled(page, cluster, admin, console):
    admin.create_topics([NewTopic("heavy", replica_assignments={0: [0, 1], 1: [1, 0]})])
    produce(cluster, "heavy", 3000, 1000)
    page.goto("/c/default/topics/heavy/move")
    choose = page.locator("#choose")
    choose.locator("[name=brokers][value='0']").uncheck()
    choose.locator("[name=brokers][value='2']").check()
    page.get_by_role("button", name="See the plan").click()
    run = page.locator("#run")
    expect(run.locator("tbody tr")).to_have_count(2)
    run.get_by_label("Brokers of partition 0").fill("2, 2")
    submit_expecting_error(run, "Run the plan", "partition 0 would have two replicas on a broker")
    run.get_by_label("Brokers of partition 0").fill("1, 2")
    run.get_by_label("Brokers of partition 1").fill("2, 1")
    run.get_by_label("Throttle").fill("10000")
    send(run, "Run the plan", "reassignment of 2 partitions has started")
    expect(page.locator("#moves tbody tr")).to_have_count(2)
    assert throttle_of(admin, 2) == "10000"
    send(page.locator("#cancel"), "Cancel the moves", "was cancelled")
    expect(page.locator("#moves")).to_contain_text("No partition of this topic is being moved")

    def is_unthrottled() -> bool:
        topic = ConfigResource.topic("heavy")
        replicas = admin.describe_configs(topic)[topic]["follower.replication.throttled.replicas"].value
        return throttle_of(admin, 2) is None and not replicas

    wait_until(is_unthrottled, timeout=TIMEOUT_S, what="the throttle is removed", interval=0.5)
    page.goto("/c/default/topics/heavy/move?brokers=1&brokers=2&replication=2")
    send(page.locator("#run"), "Run the plan", "has started")

    def is_moved() -> bool:
        description = admin.describe_topics(["heavy"])["heavy"]
        return all({n.id for n in p.replicas} == {n.id for n in p.isr} == {1, 2} for p in description.partitions)

    wait_until(is_moved, timeout=TIMEOUT_S, what="all partitions are moved", interval=0.2)
    expect(page.locator("#moves")).to_contain_text("No partition of this topic is being moved")
    response = console.post(of_default("/topics/heavy/moves"), {"plan": {"0": "0,1"}, "seen": "0" * 16})
    assert response.status == 409
    check_audit(console, "move_partitions", "cancel_moves")


def test_dynamic_broker_settings_are_changed_and_reset(page, admin, console):
    page.goto("/c/default/brokers")
    expect(page.locator("#brokers tbody tr")).to_have_count(3)
    expect(page.locator("#brokers .tag")).to_have_text("controller")
    page.locator("#brokers").get_by_role("link", name="1", exact=True).click()
    expect(page.locator("#dirs tbody tr")).to_have_count(1)
    static_row = page.locator("tr[data-text='broker.id']")
    expect(static_row).to_contain_text("cannot change while running")
    expect(static_row.get_by_role("button")).to_have_count(0)
    row = page.locator("tr[data-text='log.retention.ms']")
    row.get_by_label("log.retention.ms").fill("x")
    submit_expecting_error(row, "Save", "log.retention.ms")
    row.get_by_label("log.retention.ms").fill("1234567")
    send(row, "Save", "log.retention.ms is 1234567")
    broker = ConfigResource.broker(1)
    assert admin.describe_configs(broker)[broker]["log.retention.ms"].value == "1234567"
    row = page.locator("tr[data-text='log.retention.ms']")
    expect(row).to_contain_text("set for this broker")
    send(row, "Default", "was reset")
    check_audit(console, "change_broker_setting")


def test_alert_rules_are_added_disabled_and_deleted(page, console):
    page.goto("/c/default/alerts")
    add = open_details(page, "add")
    add.locator("[name=kind]").select_option("disk")
    add.locator("[name=threshold]").fill("0")
    add.locator("[name=webhook]").evaluate("input => { input.type = 'text' }")
    add.locator("[name=webhook]").fill("javascript:alert(1)")
    submit_expecting_error(add, "Add", "starts with http:// or https://")
    add.locator("[name=webhook]").fill("")
    send(add, "Add", "the rule was added")
    expect(page.locator("#active")).to_contain_text("% full")
    page.goto("/c/default/topics")
    expect(page.locator("#strip")).to_contain_text("% full")
    page.goto("/c/default/alerts")
    row = page.locator("#rules tbody tr").last
    send(row, "Off", "the rule is disabled")
    expect(page.locator("#strip")).not_to_contain_text("% full")
    row = page.locator("#rules tbody tr").last
    row.get_by_text("Delete", exact=True).first.click()
    row.get_by_label("to confirm").fill("nope")
    submit_expecting_error(row.locator("details"), "Delete", "to confirm; nothing was done")
    rule_id = row.locator("td").first.inner_text()
    row.get_by_label("to confirm").fill(rule_id)
    send(row.locator("details"), "Delete", "the rule was deleted")
    expect(page.locator("#events")).to_contain_text("% full")
    check_audit(console, "add_rule", "switch_rule", "delete_rule")


def test_an_open_page_shows_that_a_broker_was_killed_and_restarted(page, cluster, console, admin, flow):
    page.goto("/c/default/overview")
    expect(figure(page, "Brokers up")).to_have_text("3")
    page.evaluate("window.same = true")
    cluster.kill(2)
    expect(figure(page, "Brokers up")).to_have_text("2")
    expect(page.locator("#figures .figure.bad")).to_contain_text(["missing: 2"])
    expect(figure(page, "Under-replicated")).not_to_have_text("0")
    expect(page.locator("#strip")).to_contain_text("broker 2 is not in the cluster")
    assert page.evaluate("window.same"), "the page was reloaded"
    page.goto("/c/default/brokers/2")
    expect(page.locator("#up")).to_contain_text("Broker 2 is not in the cluster now")
    assert console.post(of_default("/brokers/2/forget"), {"confirm": "2"}).status == 409, (
        "a broker with replicas was removed"
    )
    page.goto("/c/default/topics/flow")
    expect(page.locator("#partitions .bad").first).to_contain_text("missing: 2")
    cluster.start(2)
    expect(page.locator("#strip")).not_to_contain_text("broker 2 is not in the cluster")
    expect(page.locator("#partitions .bad")).to_have_count(0)
    page.get_by_role("link", name="Actions", exact=True).click()
    expect(page.locator("#leaders")).to_contain_text("led by another replica")
    elect = page.locator("#elect")
    send(elect, "Elect preferred leaders", "elected")
    wait_until(
        lambda: all(p.leader == p.replicas[0] for p in admin.describe_topics(["flow"])["flow"].partitions),
        timeout=TIMEOUT_S, what="the preferred replicas lead",
    )  # fmt: skip
    page.get_by_role("link", name="Actions", exact=True).click()
    send(page.locator("#elect"), "Elect preferred leaders", "lead already")
    check_audit(console, "elect_preferred")


def test_pages_fit_a_phone_and_work_with_the_keyboard(chromium, console, flow):
    with page_of(chromium, console.origin, viewport=PHONE, color_scheme="dark", has_touch=True) as (page, watch):
        for path in ("overview", "topics", "topics/flow", "topics/flow/settings", "brokers", "brokers/1", "alerts"):
            page.goto(f"/c/default/{path}")
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{path} is {overflow} pixels too wide"
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != "rgb(247, 248, 250)"
        page.goto("/c/default/topics")
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        page.locator("[name=search]").focus()
        page.keyboard.type("flow")
        page.keyboard.press("Enter")
        expect(page.locator("#topics tbody tr")).to_have_count(1)
        watch.check()


def test_pages_work_without_javascript(chromium, console, admin):
    with page_of(chromium, console.origin, java_script_enabled=False) as (page, _):
        page.goto("/c/default/topics")
        create = open_details(page, "create")
        create.locator("[name='name']").fill("no script")
        create.get_by_role("button", name="Create").click()
        assert "letters, digits" in page.locator("#error").inner_text()
        page.get_by_role("link", name="Back to the page").click()
        create = open_details(page, "create")
        create.locator("[name='name']").fill("plain")
        create.get_by_role("button", name="Create").click()
        assert "plain was created" in page.locator(".toast.good").inner_text()


def test_topic_and_broker_operations_work_with_apache_kafka(tmp_path):
    with (
        ApacheKafka(tmp_path / "kafka") as kafka,
        ConsoleProcess(tmp_path / "console", kafka.bootstrap_servers) as console,
    ):

        def post(path: str, values: dict[str, object]) -> str:
            response = console.post(of_default(path), values)
            assert response.status == 200, response.text
            return str(response.json()["message"])

        assert post("/topics/create", {"name": "a", "partitions": 2, "configs": {"retention.ms": "60000"}})
        with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            producer.send("a", b"x" * 1000).get(60)
        wait_until(
            lambda: console.api("/topics/a")["row"]["messages"] == 1, timeout=TIMEOUT_S, what="a message", interval=0.3
        )
        assert console.api("/topics/a")["row"]["size"] > 1000
        overview = console.api("/overview")
        assert (overview["brokers"], overview["topics"], overview["disks"][0]["total"] > 0) == ([1], 1, True)
        settings = {entry["name"]: entry for entry in console.api("/topics/a/settings")}
        assert settings["retention.ms"]["value"] == "60000" and settings["retention.ms"]["own"]
        assert all("<" not in entry["help"] for entry in settings.values())
        assert post("/topics/a/settings", {"name": "retention.ms", "reset": True})
        rejected = console.post(of_default("/topics/a/settings"), {"name": "retention.ms", "value": "x"})
        assert rejected.status == 400 and "retention.ms" in rejected.error
        assert post("/brokers/1/settings", {"name": "log.cleaner.threads", "value": "2"})
        assert post("/topics/a/partitions", {"total": 3}) == "a has 3 partitions"
        assert post("/topics/a/elect", {}) == "The preferred replicas lead already"
        assert post("/topics/a/empty", {"confirm": "a"}) == "a is empty"
        assert console.api("/topics/a")["row"]["messages"] == 0
        for path in ("overview", "topics", "topics/a", "topics/a/settings", "topics/a/move", "brokers/1", "alerts"):
            assert console.get(f"/c/default/{path}", Accept="text/html").status == 200, path
        assert post("/topics/a/delete", {"confirm": "a"}) == "a was deleted"
