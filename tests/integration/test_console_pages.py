"""Every action on messages, groups, transactions and pipelines of a three-broker cluster, in a real
browser."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kavka import Admin, Consumer, KafkaError, NewTopic, Producer, jobs
from kavka.common.types import TopicPartition
from tests.support.browser import PHONE, browser, expect, page_of
from tests.support.cluster import KavkaCluster
from tests.support.console import ConsoleProcess, open_details, send, submit_expecting_error
from tests.support.fake_connect import PASSWORD, FakeConnect, fake_connect
from tests.support.processes import ManagedProcess, wait_until
from tests.support.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGES = ("overview", "brokers", "topics", "messages", "groups", "transactions", "pipelines", "alerts", "audit")
SCRIPT = b"<script>alert('value')</script><img src=x onerror=alert(1)>"
HOSTILE = [
    (SCRIPT, SCRIPT),
    (b"\xff\xfe\xfa", b"\xc3\x28 not UTF-8"),
    (b'"><svg/onload=alert(2)>', b'{"</script><script>alert(3)</script>": ["' + b"<b>" * 50 + b'"]}'),
    (b"control", b"bell\x07 escape\x1b[31m null\x00 turn\xe2\x80\xae around"),
    (b"huge", b"<i>" * 200_000),
    (None, None),
    (b"=cmd|' /C calc'!A1", b'=HYPERLINK("http://elsewhere.example")'),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def cluster(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KavkaCluster]:
    folder = tmp_path_factory.mktemp("console")
    with ZooKeeper(folder / "zookeeper") as zookeeper, KavkaCluster(folder, zookeeper) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def jobs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def connect_worker() -> Iterator[tuple[FakeConnect, str]]:
    with fake_connect() as worker:
        yield worker


@pytest.fixture(scope="module")
def console(
    cluster: KavkaCluster,
    connect_worker: tuple[FakeConnect, str],
    jobs_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(
        tmp_path_factory.mktemp("console-data"),
        cluster.bootstrap_servers,
        "--connect-url",
        connect_worker[1],
        env={**os.environ, "KAVKA_PIPELINE_DIR": str(jobs_folder)},
    ) as console_process:
        yield console_process


@pytest.fixture
def page(chromium: Browser, console: ConsoleProcess) -> Iterator[Page]:
    """A browser page. The test fails if a dialog opened, a script failed or another host was
    contacted."""
    with page_of(chromium, console.origin) as (browser_page, watch):
        yield browser_page
        watch.check()


@pytest.fixture(scope="module")
def admin(cluster: KavkaCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        yield admin


def create_topic(admin: Admin, name: str, partitions: int = 3, replicas: int = 3) -> str:
    admin.create_topics([NewTopic(name, partitions, replicas)])
    return name


def produce(cluster: KavkaCluster, topic: str, count: int, partition: int | None = None) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        for number in range(count):
            value = json.dumps({"id": number, "user": {"name": f"user-{number % 10}"}}).encode()
            headers = [("trace", b"t-%d" % number)]
            producer.send(topic, value, key=b"key-%d" % number, partition=partition, headers=headers)
        producer.flush()


def wait_for_topic(console: ConsoleProcess, name: str) -> None:
    """Wait for the console to discover the topic. It polls the cluster every few seconds."""
    wait_until(
        lambda: any(row["name"] == name for row in console.api("/topics")), timeout=60, what=f"{name} in the console"
    )


# --- all pages


def test_every_page_can_be_opened_with_the_keyboard(page: Page) -> None:
    page.goto("/")
    expect(page).to_have_url(re.compile("/c/default/overview"))
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("To the content")
    for name in PAGES[:-1]:
        link = page.get_by_role("navigation", name="Pages").get_by_role("link", name=name.capitalize())
        link.focus()
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(f"/c/default/{name}$"))
        expect(link).to_have_attribute("aria-current", "page")
        expect(page.locator("h1")).to_be_visible()


def test_every_page_fits_a_phone_and_has_a_dark_mode(
    chromium: Browser, console: ConsoleProcess, cluster: KavkaCluster, admin: Admin
) -> None:
    topic = create_topic(admin, "narrow-" + "x" * 60)
    produce(cluster, topic, 10)
    wait_for_topic(console, topic)
    with page_of(chromium, console.origin, viewport=PHONE, color_scheme="dark", has_touch=True) as (page, watch):
        paths = [*PAGES, f"topics/{topic}", f"messages?topic={topic}", "brokers/0"]
        for path in paths:
            page.goto(f"/c/default/{path}")
            page.wait_for_load_state("load")
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{path} is {overflow} pixels too wide"
            background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            assert sum(int(channel) for channel in re.findall(r"\d+", background)[:3]) < 200, (
                f"{path} is bright: {background}"
            )
        watch.check()


# --- messages


def result_rows(page: Page) -> Any:
    return page.locator("#rows tr")


def wait_for_end_of_search(page: Page) -> None:
    expect(page.locator("#progress")).to_contain_text(re.compile("That is all|There is more|Nothing was found"))


def test_messages_are_found_from_every_start_and_by_every_filter(
    page: Page, console: ConsoleProcess, cluster: KavkaCluster, admin: Admin
) -> None:
    topic = create_topic(admin, "found", 1)
    produce(cluster, topic, 120)
    wait_for_topic(console, topic)
    page.goto("/c/default/messages")
    form = page.locator("form.search")

    def search(**inputs: str) -> None:
        form.get_by_label("Topic").fill(topic)
        if form.locator("details").get_attribute("open") is None:
            form.locator("details > summary").click()
        for name in ("key", "text", "header", "path", "expression", "partition", "limit"):
            if name != "limit" or "limit" in inputs:
                form.locator(f"[name={name}]").fill(inputs.get(name, ""))
        form.locator("[name=start]").select_option(inputs.get("start", "newest"))
        if "at" in inputs:
            form.locator("[name=at]").fill(inputs["at"])
        form.get_by_role("button", name="Search").click()

    def offsets() -> list[int]:
        wait_for_end_of_search(page)
        return [int(text) for text in page.locator("#rows tr td:nth-child(3)").all_inner_texts()]

    search()
    assert offsets() == list(range(119, 69, -1))
    page.get_by_role("button", name="More").click()
    expect(result_rows(page)).to_have_count(100)
    assert offsets() == list(range(119, 19, -1))
    page.get_by_role("button", name="More").click()
    expect(page.locator("#progress")).to_contain_text("That is all")
    assert offsets() == list(range(119, -1, -1))
    search(start="oldest", limit="5")
    assert offsets() == [0, 1, 2, 3, 4]
    search(start="offset", at="100", limit="50")
    assert offsets() == list(range(100, 120))
    search(start="time", at="2020-01-01T00:00:00Z")
    assert len(offsets()) == 50
    search(start="time", at="2099-01-01T00:00:00Z")
    expect(page.locator("#progress")).to_contain_text("Nothing was found")
    search(key="key-11")
    assert offsets() == [*range(119, 109, -1), 11]
    search(text='"id": 42,')
    assert offsets() == [42]
    search(header="trace=t-7")
    assert offsets() == [*range(79, 69, -1), 7]
    search(path="$.user.name == 'user-3'")
    assert offsets() == list(range(113, 0, -10))
    search(expression="value.id >= 10 and value.id < 12 or key endswith '-99'")
    assert offsets() == [99, 11, 10]
    search(expression="value.id >")
    expect(page.locator("main [role=alert]")).to_contain_text("not the end")
    search(partition="7")
    expect(page.locator("#failed")).to_contain_text("no partition 7")
    page.goto("/c/default/messages?topic=nowhere")
    expect(page.locator("main [role=alert]")).to_contain_text("there is no topic 'nowhere'")


def test_hostile_messages_are_shown_as_text_and_not_executed(
    page: Page, console: ConsoleProcess, cluster: KavkaCluster, admin: Admin
) -> None:
    topic = create_topic(admin, "hostile", 1)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for key, value in HOSTILE:
            producer.send(topic, value, key=key, headers=[("<script>alert(5)</script>", SCRIPT), ("none", None)])
        producer.flush()
    wait_for_topic(console, topic)
    page.goto(f"/c/default/messages?topic={topic}&start=oldest")
    wait_for_end_of_search(page)
    expect(result_rows(page)).to_have_count(len(HOSTILE))
    texts = page.locator("#rows tr td:nth-child(5)").all_inner_texts()
    assert texts[0].startswith(SCRIPT.decode())
    assert "07" in texts[3]
    assert len(texts[4]) < 1000
    page.goto(f"/c/default/messages?topic={topic}&start=oldest&value_format=text&key_format=text")
    wait_for_end_of_search(page)
    texts = page.locator("#rows tr td:nth-child(5)").all_inner_texts()
    assert "bell\u2407 escape\u241b[31m null\u2400 turn⟨U+202E⟩ around" in texts[3]
    assert "\ufffd( not UTF-8" in texts[1]
    assert page.locator("#rows script, #rows img, #rows svg, #rows b, #rows i").count() == 0
    for offset in range(len(HOSTILE)):
        page.goto(f"/c/default/messages/one?topic={topic}&partition=0&offset={offset}")
        expect(page.locator("h1")).to_contain_text("hostile")
        assert page.locator("main script, main img, main svg:not(.icon), main b, main i").count() == 0
        expect(page.locator("main")).to_contain_text("<script>alert(5)</script>")
    page.goto(f"/c/default/messages/one?topic={topic}&partition=0&offset=0&value_format=hex")
    expect(page.locator("section[aria-label=Value] pre")).to_contain_text("3c 73 63 72 69 70 74")
    page.goto(f"/c/default/messages/one?topic={topic}&partition=0&offset=99")
    expect(page.locator("main")).to_contain_text("no message at offset 99")

    page.goto(f"/c/default/messages?topic={topic}&start=oldest")
    with page.expect_download() as download:
        page.locator("#csv").click()
    csv_text = Path(download.value.path()).read_text()
    assert csv_text.startswith("partition,offset,timestamp,time,key,value,headers\n")
    assert "\"'=HYPERLINK" in csv_text
    assert "'=cmd|" in csv_text
    with page.expect_download() as download:
        page.locator("#json").click()
    json_messages = json.loads(Path(download.value.path()).read_text())
    assert [message["offset"] for message in json_messages] == list(range(len(HOSTILE)))
    assert json_messages[0]["value"] == SCRIPT.decode()
    assert json_messages[5]["key"] is None
    assert json_messages[1]["valueBase64"]


def test_a_message_is_produced_copied_and_shown_by_a_live_tail(
    page: Page, console: ConsoleProcess, admin: Admin
) -> None:
    topic = create_topic(admin, "written", 2)
    wait_for_topic(console, topic)
    page.goto(f"/c/default/messages?topic={topic}&start=tail")
    expect(page.locator("#notice")).to_contain_text("waiting")
    form = open_details(page, "produce").locator("form.op")
    form.locator("[name=value_format]").select_option("json")
    form.locator("[name=value]").fill('{"a": ')
    submit_expecting_error(form, "Produce", "value is not json")
    form.locator("[name=value]").fill('{"a": 1}')
    form.locator("[name=key_format]").select_option("text")
    form.locator("[name=key]").fill("first")
    form.locator("[name=partition]").fill("9")
    submit_expecting_error(form, "Produce", "has 2 partitions")
    form.locator("[name=partition]").fill("1")
    form.locator("[name=headers]").fill("origin: console")
    send(form, "Produce", "partition 1, offset 0")
    expect(result_rows(page)).to_have_count(1)
    expect(result_rows(page)).to_contain_text('{"a": 1}')
    open_details(page, "produce")
    form.locator("[name=topic]").fill("__consumer_offsets")
    submit_expecting_error(form, "Produce", "internal|there is no topic")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Stop").click()
    wait_until(lambda: console.searches() == 0, timeout=60, what="the end of the tail")

    result_rows(page).get_by_role("link").click()
    copy = open_details(page, "copy").locator("form.op")
    copy.locator("[name=to_topic]").fill("no-such-topic")
    submit_expecting_error(copy, "Copy", "there is no topic")
    copy.locator("[name=to_topic]").fill(topic)
    copy.locator("[name=to_partition]").fill("0")
    send(copy, "Copy", "partition 0, offset 0")
    messages = console.api(f"/messages?topic={topic}&start=oldest")["messages"]
    assert sorted((message["partition"], message["key"]["text"], message["value"]["text"]) for message in messages) == [
        (0, "first", '{"a": 1}'),
        (1, "first", '{"a": 1}'),
    ]
    assert all(message["headers"][0]["name"] == "origin" for message in messages)


def test_a_search_shows_results_while_it_runs_and_can_be_stopped(
    page: Page, console: ConsoleProcess, cluster: KavkaCluster, admin: Admin
) -> None:
    topic = create_topic(admin, "long", 1, 1)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, b'{"needle": 1}')
        for number in range(150_000):
            producer.send(topic, b'{"id": %d, "text": "hay"}' % number)
        producer.flush()
    wait_for_topic(console, topic)
    page.goto(f"/c/default/messages?topic={topic}&start=oldest&path=$.needle == 1")
    expect(result_rows(page)).to_have_count(1)
    expect(page.locator("#progress")).to_contain_text("Searching")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#progress")).to_contain_text("Stopped: 1 shown")
    wait_until(lambda: console.searches() == 0, timeout=60, what="the end of the search")
    # A running search ends when its page is closed.
    page.goto(f"/c/default/messages?topic={topic}&start=oldest&path=$.needle == 1")
    expect(result_rows(page)).to_have_count(1)
    page.goto("/c/default/groups")
    wait_until(lambda: console.searches() == 0, timeout=60, what="the end of the search after its page was closed")


def test_records_of_internal_topics_are_decoded(page: Page, cluster: KavkaCluster, admin: Admin) -> None:
    topic = create_topic(admin, "committed", 1)
    produce(cluster, topic, 3)
    admin.alter_consumer_group_offsets("layout", {TopicPartition(topic, 0): 2})
    page.goto("/c/default/messages?topic=__consumer_offsets&expression=key.data.group == 'layout'")
    expect(result_rows(page).first).to_contain_text('"topic":"committed"')
    expect(result_rows(page).first).to_contain_text('"offset":2')


# --- groups


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_shown_with_its_members_and_its_lag(
    protocol: str, page: Page, console: ConsoleProcess, cluster: KavkaCluster, admin: Admin
) -> None:
    topic = create_topic(admin, f"read-{protocol}", 2)
    produce(cluster, topic, 50)
    group = f"readers/{protocol}"
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id=group, client_id="anna", group_protocol=protocol,
        auto_offset_reset="earliest", enable_auto_commit=False,
    ) as consumer:  # fmt: skip
        consumer.subscribe([topic])
        read_count = 0
        while read_count < 10:
            records = consumer.poll(1.0, max_records=10)
            read_count += len(records)
        consumer.commit_sync()
        wait_until(
            lambda: any(row["group"] == group and row["lag"] == 50 - read_count for row in console.api("/groups")),
            timeout=60, what="the lag", interval=0.5,
        )  # fmt: skip
        page.goto("/c/default/groups")
        row = page.locator("#groups tr", has_text=group)
        expect(row).to_contain_text(str(50 - read_count))
        expect(row).to_contain_text(protocol)
        row.get_by_role("link").click()
        expect(page.locator("#members")).to_contain_text("anna")
        expect(page.locator("#members")).to_contain_text(f"{topic}: 0-1")
        expect(page.locator("#figures")).to_contain_text("Stable")
        expect(page.locator("#lag canvas, #lag p")).to_be_visible()
        reset = open_details(page, "reset")
        submit_expecting_error(reset.locator("form#plan"), "Preview", "Stable.*no members")
        page.keyboard.press("Escape")
        delete = open_details(page, "delete").locator("form.op")
        delete.locator("[name=confirm]").fill(group)
        submit_expecting_error(delete, "Delete", "Stable.*no members")


def test_offsets_are_reset_with_every_method_after_a_preview(page: Page, cluster: KavkaCluster, admin: Admin) -> None:
    """One test of many steps, because each method resets the offsets of the one before."""
    topic = create_topic(admin, "again", 2)
    for partition in (0, 1):
        produce(cluster, topic, 30, partition)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.alter_consumer_group_offsets("again", {first: 10, second: 20})

    def preview(method: str, value: str = "", topics: str = "", file: str = "") -> list[str]:
        page.goto("/c/default/groups/one?group=again")
        open_details(page, "reset")
        plan = page.locator("form#plan")
        plan.locator("[name=way]").select_option(method)
        for name, text in (("value", value), ("topics", topics), ("file", file)):
            plan.locator(f"[name={name}]").fill(text)
        send(plan, "Preview", "nothing has been changed yet")
        return page.locator("#preview tbody tr td:nth-child(4)").all_inner_texts()

    def committed() -> list[int]:
        offsets = admin.list_consumer_group_offsets("again")
        return [entry.offset for _, entry in sorted(offsets.items()) if entry is not None]

    for method, value, topics, file, expected in (
        ("to-current", "", "", "", [10, 20]),
        ("shift-by", "-5", "", "", [5, 15]),
        ("to-offset", "7", "again:1", "", [5, 7]),
        ("to-latest", "", "", "", [30, 30]),
        ("by-duration", "PT24H", "", "", [0, 0]),
        ("to-datetime", "2099-01-01T00:00:00", "", "", [30, 30]),
        ("from-file", "", "", "again,0,3\nagain,1,400\n", [3, 30]),
        ("to-earliest", "", "again", "", [0, 0]),
    ):
        previous_offsets = committed()
        new_offsets = preview(method, value, topics, file)
        assert committed() == previous_offsets
        assert [int(text) for text in new_offsets] == ([7] if topics == "again:1" else expected)
        if method == "from-file":
            expect(page.locator("#warnings")).to_contain_text("higher than latest")
        send(page.locator("form#set"), "Set these offsets", "offsets of again were set")
        assert committed() == expected, method

    # The committed offsets changed after the preview.
    preview("to-latest")
    admin.alter_consumer_group_offsets("again", {first: 1})
    submit_expecting_error(page.locator("form#set"), "Set these offsets", "changed since")
    assert committed() == [1, 0]
    for method, value, topics, message in (
        ("shift-by", "a few", "", "not a number"),
        ("to-offset", "", "", "requires a value"),
        ("to-datetime", "tomorrow", "", "T"),
        ("by-duration", "1 day", "", "PnDTnHnMnS"),
        ("to-latest", "", "nowhere", "nowhere"),
        ("to-latest", "", "again:9", "again-9"),
        ("shift-by", "1", "found-nothing:0", r"\w\w"),
        ("from-file", "", "", "no line"),
    ):
        page.goto("/c/default/groups/one?group=again")
        open_details(page, "reset")
        plan = page.locator("form#plan")
        plan.locator("[name=way]").select_option(method)
        plan.locator("[name=value]").fill(value)
        plan.locator("[name=topics]").fill(topics)
        submit_expecting_error(plan, "Preview", message)
    assert committed() == [1, 0]

    page.goto("/c/default/groups/one?group=again")
    forget = open_details(page, "forget").locator("form.op")
    forget.locator("[name=confirm]").fill("agian")
    submit_expecting_error(forget, "Delete offsets", "type 'again'")
    forget.locator("[name=confirm]").fill(topic)
    send(forget, "Delete offsets", "deleted")
    assert committed() == []
    admin.alter_consumer_group_offsets("again", {first: 1})
    page.goto("/c/default/groups/one?group=again")
    delete = open_details(page, "delete").locator("form.op")
    admin.alter_consumer_group_offsets("again", {first: 2})
    delete.locator("[name=confirm]").fill("again")
    submit_expecting_error(delete, "Delete", "changed since")
    page.goto("/c/default/groups/one?group=again")
    delete = open_details(page, "delete").locator("form.op")
    delete.locator("[name=confirm]").fill("again")
    send(delete, "Delete", "deleted")
    assert "again" not in [group.group_id for group in admin.list_groups()]


# --- transactions, pipelines


def test_an_open_transaction_is_shown_and_aborted(page: Page, cluster: KavkaCluster, admin: Admin) -> None:
    topic = create_topic(admin, "paid", 1)
    producer = Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="payments-1")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"one", partition=0).get(60)
    page.goto("/c/default/transactions")
    row = page.locator("#transactions tr", has_text="payments-1")
    expect(row).to_contain_text("Ongoing")
    expect(row).to_contain_text("paid-0")
    page.goto(f"/c/default/transactions?of_topic={topic}&of_partition=0")
    expect(page.locator("#producers table")).to_contain_text("0")
    page.goto(f"/c/default/transactions?hanging=on&topic={topic}&minutes=0")
    expect(page.locator("#hanging tr", has_text="paid-0")).to_contain_text("open")
    terminate = open_details(page, "terminate").locator("form.op").first
    terminate.locator("[name=confirm]").fill("payments")
    submit_expecting_error(terminate, "Abort", "type 'payments-1'")
    terminate.locator("[name=confirm]").fill("payments-1")
    send(terminate, "Abort", "fenced")
    with pytest.raises(KafkaError):
        producer.commit_transaction()
    producer.close(5)
    page.goto(f"/c/default/messages?topic={topic}&committed=on")
    expect(page.locator("#progress")).to_contain_text("Nothing was found")


def test_pipelines_are_shown_stopped_paused_and_restarted(
    page: Page, jobs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(jobs_folder))
    process = ManagedProcess(["sleep", "1000"], log=tmp_path / "job.log")
    progress = {"state": "RUNNING", "rows_per_second": 1234.0, "lag": 56, "batch": 7, "state_rows": 8, "job": "w.py"}
    jobs.write("words", {**progress, "pid": process.pid, "begun": jobs.start_ticks(process.pid)})
    jobs.write("broken", {"state": jobs.FAILED, "error": "<b>no such topic</b>", "pid": 2**22 + 1})
    page.goto("/c/default/pipelines")
    row = page.locator("#jobs tr", has_text="words")
    for text in ("RUNNING", "56", "1\u202f234"):
        expect(row).to_contain_text(text)
    expect(page.locator("#jobs tr", has_text="broken")).to_contain_text("<b>no such topic</b>")
    send(row, "Stop", "words was stopped")
    assert not process.running()
    send(page.locator("#jobs tr", has_text="broken"), "Forget", "was removed")
    jobs.remove("words")


def test_connectors_are_created_repaired_controlled_and_deleted(
    page: Page, connect_worker: tuple[FakeConnect, str]
) -> None:
    worker, _ = connect_worker
    page.goto("/c/default/pipelines")
    files = page.locator("#connectors tr", has_text="files")
    expect(files).to_contain_text("RUNNING")
    send(files, "Pause", "files is being paused")
    expect(page.locator("#connectors tr", has_text="files")).to_contain_text("PAUSED")
    send(page.locator("#connectors tr", has_text="files"), "Resume", "is being resumed")
    expect(page.locator("#connectors tr", has_text="broken")).to_contain_text("ConnectException: <b>no file</b>")

    page.get_by_role("link", name="broken").click()
    trace = page.locator("#tasks td details")
    trace.locator("summary").click()
    expect(trace).to_contain_text("IOException: no disk")
    assert PASSWORD not in page.content()
    page.get_by_role("link", name="Edit").click()
    form = page.locator("#connector")
    form.locator("summary", has_text="Common").click()
    form.locator("[name='config.tasks.max']").fill("many")
    submit_expecting_error(form, "Save", "tasks.max: Invalid value many")
    expect(form.locator(".field-error")).to_have_text(re.compile("Invalid value many"))
    form.locator("[name='config.tasks.max']").fill("2")
    send(form, "Check", "is valid")
    send(form, "Save", "broken was changed")
    assert worker.configs["broken"]["db.password"] == PASSWORD
    send(page.locator("#tasks"), "Restart", "task 0 of broken is being restarted")
    expect(page.locator("#figures")).to_contain_text("RUNNING")
    send(page.locator("#commands"), "Stop", "is being stopped")
    expect(page.locator("#commands button")).to_have_text("Resume")
    open_details(page, "alter").locator("textarea").fill('[{"partition": {"file": "in"}, "offset": {"position": 1}}]')
    send(page.locator("#alter"), "Set these offsets", "changed successfully")
    expect(page.locator("#offset-rows")).to_contain_text('{"position": 1}')
    open_details(page, "reset").locator("[name=confirm]").fill("broken")
    send(page.locator("#reset"), "Reset offsets", "changed successfully")
    open_details(page, "delete").locator("[name=confirm]").fill("broken")
    send(page.locator("#delete"), "Delete connector", "broken was deleted")

    page.get_by_role("link", name="Create connector").click()
    page.get_by_role("link", name="Lines", exact=True).click()
    form = page.locator("#connector")
    form.locator("[name='config.name']").fill("new")
    form.get_by_role("button", name="Check").click()
    expect(form.locator(".field-error")).to_have_text("Missing required configuration topic")
    form.locator("[name='config.topic']").fill("lines")
    send(form, "Create connector", "new was created")
    expect(page.locator("h1")).to_have_text("new")


# --- a broker that is down


def test_messages_of_a_stopped_broker_are_reported_missing_until_it_returns(
    page: Page, console: ConsoleProcess, cluster: KavkaCluster, admin: Admin
) -> None:
    assignments = {"alone": {0: [2]}, "half": {0: [0], 1: [2]}}
    admin.create_topics([NewTopic(name, replica_assignments=assignment) for name, assignment in assignments.items()])
    for topic in ("alone", "half"):
        produce(cluster, topic, 6)
    wait_for_topic(console, "half")
    page.goto("/c/default/messages?topic=alone&start=tail")
    expect(page.locator("#notice")).to_contain_text("waiting")
    cluster.kill(2)
    try:
        wait_until(
            lambda: any(row["name"] == "alone" and row["offline"] for row in console.api("/topics")),
            timeout=90, what="a topic without a leader", interval=0.5,
        )  # fmt: skip
        page.goto("/c/default/messages?topic=alone")
        expect(page.locator("#failed")).to_contain_text("none of the partitions has a leader")
        form = open_details(page, "produce").locator("form.op")
        form.locator("[name=value]").fill("not accepted")
        submit_expecting_error(form, "Produce", r"\w\w")
        page.goto("/c/default/messages?topic=half&start=oldest")
        expect(page.locator("#notice")).to_contain_text("not read, because there is no leader: partition 1")
        wait_for_end_of_search(page)
        assert set(page.locator("#rows tr td:nth-child(2)").all_inner_texts()) <= {"0"}
        for name in ("groups", "transactions", "pipelines"):
            page.goto(f"/c/default/{name}")
            expect(page.locator("h1")).to_be_visible()
            assert page.locator("#error").count() == 0, name
    finally:
        cluster.start(2)
    wait_until(
        lambda: not any(row["offline"] for row in console.api("/topics")),
        timeout=90, what="a leader of every partition", interval=0.5,
    )  # fmt: skip
    page.goto("/c/default/messages?topic=alone&start=oldest")
    expect(result_rows(page)).to_have_count(6)
