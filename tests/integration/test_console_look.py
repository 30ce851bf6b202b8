"""The frame of the console's pages in a browser: themes, phone, palette, formats, accessibility."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from kavka import Admin, NewTopic, Producer, TopicPartition
from kavka.console import formats
from tests.support.axe import serious_violations
from tests.support.browser import PHONE, browser, expect, page_of
from tests.support.console import ConsoleProcess, of_default, open_details, send
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGES = (
    "overview", "brokers", "brokers/0", "topics", "topics?search=none", "topics/orders", "topics/orders/settings",
    "topics/orders/actions", "topics/orders/move", "messages", "messages?topic=orders",
    "messages/one?topic=orders&partition=0&offset=1", "groups", "groups/one?group=readers",
    "transactions?hanging=on&minutes=0&of_topic=orders", "pipelines", "alerts", "audit", "security", "security/users",
    "security/quotas", "nowhere",
)  # fmt: skip
HOSTILE_GROUP = "<img src=x onerror=alert(1)>"
MODES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "dark", "viewport": PHONE, "has_touch": True},
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def console(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    with KavkaProcess(tmp_path_factory.mktemp("broker")) as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
            admin.create_topics([NewTopic(name, 1, 1) for name in ("orders", "orders.archive", "shop.orders")])
            for number in range(3):
                producer.send("orders", json.dumps({"id": number}).encode(), key=b"k", headers=[("trace", b"t")])
            producer.flush()
            for group in ("readers", HOSTILE_GROUP):
                admin.alter_consumer_group_offsets(group, {TopicPartition("orders", 0): 1})
        with ConsoleProcess(tmp_path_factory.mktemp("console"), servers) as console:
            wait_until(lambda: len(console.api("/groups")) == 2, timeout=60, what="the groups")
            yield console


@pytest.fixture
def page(chromium: Browser, console: ConsoleProcess) -> Iterator[Page]:
    with page_of(chromium, console.origin, color_scheme="light") as (browser_page, watch):
        yield browser_page
        watch.check()


@pytest.mark.parametrize("mode", MODES)
def test_pages_have_no_serious_violations_and_fit(mode: str, chromium: Browser, console: ConsoleProcess) -> None:
    with page_of(chromium, console.origin, **MODES[mode]) as (page, watch):
        for path in PAGES:
            page.goto(f"/c/default/{path}")
            assert serious_violations(page) == [], path
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{path} is {overflow} pixels too wide"
        page.goto("/c/default/topics")
        dialog = open_details(page, "create")
        # Colours are paler until the dialog is shown completely.
        dialog.evaluate("dialog => Promise.all(dialog.getAnimations().map(animation => animation.finished))")
        assert serious_violations(page) == []
        watch.check()


def background(page: Page) -> int:
    """Return the brightness of the page, from 0 to 765."""
    colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return sum(int(channel) for channel in re.findall(r"\d+", colour)[:3])


def test_the_theme_follows_the_system_until_one_is_chosen_and_stored(page: Page) -> None:
    page.goto("/c/default/overview")
    assert background(page) > 600
    page.emulate_media(color_scheme="dark")
    assert background(page) < 150
    page.get_by_role("button", name="Light").click()
    assert background(page) > 600
    page.goto("/c/default/topics")
    assert background(page) > 600
    expect(page.get_by_role("button", name="Light")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="As the system").click()
    page.reload()
    assert background(page) < 150


def test_the_palette_finds_everything_by_name_with_the_keyboard(page: Page) -> None:
    page.goto("/c/default/overview")
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Search")
    expect(palette.get_by_role("option", name="Brokers")).to_be_visible()
    page.keyboard.type("orders")
    expect(palette.get_by_role("option")).to_have_text(["orders", "orders.archive", "shop.orders"])
    expect(palette.get_by_role("option", selected=True)).to_have_text("orders")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/topics/shop.orders$"))
    page.keyboard.press("/")
    page.keyboard.type("onerror")
    expect(palette.get_by_role("option")).to_contain_text([HOSTILE_GROUP])
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(HOSTILE_GROUP)
    page.get_by_role("button", name="Search").click()
    page.keyboard.type("no such name")
    expect(palette.locator("#palette-hint")).to_contain_text("no such name")
    assert serious_violations(page) == []
    page.keyboard.press("Escape")
    expect(palette).to_be_hidden()


def test_a_search_has_a_bounded_input(console: ConsoleProcess) -> None:
    response = console.get(of_default("/search?text=" + "x" * 201))
    assert (response.status, response.error) == (400, "the text has more than 200 characters")


def test_the_navigation_of_a_phone_is_a_drawer(chromium: Browser, console: ConsoleProcess) -> None:
    with page_of(chromium, console.origin, **MODES["phone"]) as (page, watch):
        page.goto("/c/default/overview")
        link = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Topics")
        expect(link).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
        assert serious_violations(page) == []
        page.keyboard.press("Escape")
        expect(link).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
        link.click()
        expect(page.locator("h1")).to_have_text("Topics")
        expect(link).to_be_hidden()
        watch.check()


def test_success_is_a_toast_that_can_be_closed(page: Page) -> None:
    page.goto("/c/default/messages?topic=orders")
    produce = open_details(page, "produce")
    produce.locator("[name=value]").fill("x")
    send(produce, "Produce", "partition 0, offset")
    expect(produce).to_be_hidden()
    page.get_by_role("button", name="Close the message").click()
    expect(page.locator(".toast")).to_have_count(0)


def test_the_script_formats_as_the_server_does(page: Page) -> None:
    page.goto("/c/default/overview")
    numbers = [0, 0.04, 0.05, 0.25, 0.9999, 1.25, 2.5, 9.94, 9.96, 59.4, 99.94, 999.5, 3484, 12_345, 999_960, 86_460]
    numbers += [-value for value in numbers] + [5 * 10**15, 1_234_567.5]
    for name, function in (
        ("number", formats.number_text),
        ("bytes", formats.bytes_text),
        ("compact", formats.compact_text),
        ("rate", formats.rate_text),
        ("share", formats.share_text),
        ("duration", formats.duration_text),
    ):
        texts = page.evaluate(f"values => values.map(kavka.format.{name})", [None, *numbers])
        assert texts == [function(value) for value in [None, *numbers]], name
    counts = page.evaluate("[0, 1, 3484].map((count) => kavka.format.count(count, 'partition'))")
    assert counts == [formats.count_text(count, "partition") for count in (0, 1, 3484)]
    moment = datetime(2026, 1, 31, 2, 3, 4)
    assert page.evaluate("kavka.format.date(new Date(2026, 0, 31, 2, 3, 4))") == formats.date_text(moment)
