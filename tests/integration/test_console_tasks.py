"""The daily tasks of an operator: each takes at most three clicks from any page. Typing and the
palette (Ctrl-K) need no click."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kavka import Admin, NewTopic, Producer, TopicPartition, jobs
from tests.support.browser import browser, expect, page_of
from tests.support.console import ConsoleProcess
from tests.support.fake_connect import fake_connect
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MAX_CLICKS = 3


class Task:
    """A task that starts on a page: counts the clicks."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0
        page.goto("/c/default/alerts")

    def click(self, locator: Locator) -> None:
        self.clicks += 1
        assert self.clicks <= MAX_CLICKS
        locator.click()

    def menu(self, name: str) -> None:
        self.click(self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=name))

    def button(self, name: str) -> None:
        self.click(self.page.locator("main").get_by_role("button", name=name, exact=True))

    def find(self, name: str, title: str = "") -> None:
        """Open a page with the keyboard."""
        self.page.keyboard.press("Control+k")
        self.page.keyboard.type(name)
        expect(self.page.get_by_role("option", selected=True)).to_contain_text(name)
        self.page.keyboard.press("Enter")
        expect(self.page.locator("h1")).to_contain_text(title or name)

    def expect_message(self, text: str) -> None:
        expect(self.page.locator(".toast.good", has_text=re.compile(text)).last).to_be_visible()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KavkaProcess]:
    with KavkaProcess(tmp_path_factory.mktemp("broker")) as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
            admin.create_topics([NewTopic("orders", 1, 1)])
            for number in range(20):
                producer.send("orders", b"value %d" % number, key=b"key-%d" % number)
            producer.flush()
            admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 5})
        yield broker


@pytest.fixture(scope="module")
def console(broker: KavkaProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    folder: Path = tmp_path_factory.mktemp("console")
    env = {**os.environ, "KAVKA_PIPELINE_DIR": str(folder / "jobs")}
    with (
        pytest.MonkeyPatch.context() as patch,
        fake_connect() as (_, address),
        ConsoleProcess(folder, broker.bootstrap_servers, "--connect-url", address, env=env) as console,
    ):
        patch.setenv("KAVKA_PIPELINE_DIR", env["KAVKA_PIPELINE_DIR"])
        progress = {"state": "RUNNING", "rows_per_second": 12.0, "lag": 34, "batch": 7, "state_rows": 8, "job": "w.py"}
        jobs.write("words", {**progress, "pid": os.getpid(), "begun": jobs.start_ticks(os.getpid())})
        wait_until(lambda: len(console.api("/groups")) == 1, timeout=60, what="the group")
        yield console


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as chromium:
        yield chromium


@pytest.fixture
def task(chromium: Browser, console: ConsoleProcess) -> Iterator[Task]:
    with page_of(chromium, console.origin) as (page, watch):
        yield Task(page)
        watch.check()


def test_find_a_message_by_its_key(task: Task) -> None:
    task.menu("Messages")
    task.page.locator("[name=topic]").first.fill("orders")
    task.page.locator("form.search [name=key]").fill("key-17")
    task.button("Search")
    expect(task.page.locator("#rows tr")).to_have_count(1)
    expect(task.page.locator("#rows")).to_contain_text("value 17")


def test_follow_a_topic_live(task: Task, broker: KavkaProcess) -> None:
    task.menu("Messages")
    task.page.locator("[name=topic]").first.fill("orders")
    task.clicks += 1
    task.page.locator("[name=start]").select_option("tail")
    task.button("Search")
    expect(task.page.locator("#progress")).to_contain_text("Live")
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("orders", b"just now").get(60)
    expect(task.page.locator("#rows")).to_contain_text("just now")


def test_see_why_a_group_lags_and_since_when(task: Task) -> None:
    task.menu("Groups")
    task.click(task.page.get_by_role("link", name="billing", exact=True))
    expect(task.page.locator("#members")).to_contain_text("The group has no members")
    expect(task.page.locator("#offsets tbody tr")).to_contain_text("orders")
    expect(task.page.locator("#lag")).to_be_visible()


def test_reset_the_offsets_of_a_group(task: Task) -> None:
    task.find("billing")
    task.button("Reset offsets")
    task.button("Preview")
    expect(task.page.locator("#preview tbody tr")).to_contain_text("orders")
    task.button("Set these offsets")
    task.expect_message("")
    expect(task.page.locator("#offsets tbody tr td").nth(2)).to_have_text("0")


def test_see_which_broker_or_partition_is_in_trouble(task: Task) -> None:
    task.menu("Overview")
    for label in ("Brokers up", "Offline", "Under-replicated"):
        expect(task.page.locator("#figures")).to_contain_text(label)


def test_create_a_topic_with_settings(task: Task) -> None:
    task.menu("Topics")
    task.button("Create topic")
    task.page.locator("#create [name=name]").fill("shipments")
    task.page.locator("#create [name='configs.retention.ms']").fill("3600000")
    task.button("Create")
    task.expect_message("shipments was created")


def test_create_a_connector(task: Task) -> None:
    task.find("Pipelines")
    task.click(task.page.get_by_role("link", name="Create connector"))
    task.click(task.page.get_by_role("link", name="Lines", exact=True))
    task.page.locator("[name='config.name']").fill("new")
    task.page.locator("[name='config.topic']").fill("orders")
    task.button("Create connector")
    task.expect_message("new was created")


def test_correct_and_restart_a_connector(task: Task) -> None:
    task.find("broken")
    expect(task.page.locator("#tasks")).to_contain_text("no disk")
    task.click(task.page.get_by_role("link", name="Edit"))
    task.page.locator("[name='config.topic']").fill("orders")
    task.button("Save")
    task.expect_message("broken was changed")
    task.button("Restart failed")
    expect(task.page.locator("#figures")).to_contain_text("RUNNING")


def test_see_the_state_and_lag_of_a_streams_job(task: Task) -> None:
    task.menu("Pipelines")
    row = task.page.locator("#jobs tr", has_text="words")
    expect(row).to_contain_text("RUNNING")
    expect(row).to_contain_text("34")


def test_plan_a_move_of_the_replicas_of_a_topic(task: Task) -> None:
    task.find("orders")
    task.click(task.page.get_by_role("link", name="Move", exact=True))
    task.button("See the plan")
    expect(task.page.locator("#plan")).to_be_visible()
