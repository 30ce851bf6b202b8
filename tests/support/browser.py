"""A browser for the tests of the console: Chromium from Debian's package, controlled by Playwright.

Every page collects signs of a vulnerability: dialogs (a script ran), script errors, and requests to
other hosts than the console."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.missing import need_command, skip_loudly

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    # Without Playwright, `browser` skips the test before it uses these names.
    expect = sync_playwright = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TIMEOUT_MS = 60_000
# Chromium sends no requests to the internet, which may not be available.
OFFLINE_OPTIONS = (
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium without a window. Without Chromium, skip the test, or fail it on CI."""
    path = need_command("chromium", "chromium")
    if sync_playwright is None:
        skip_loudly("playwright is not installed: pip install playwright")
    expect.set_options(timeout=TIMEOUT_MS)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser_process = playwright.chromium.launch(executable_path=path, args=[*arguments, *OFFLINE_OPTIONS])
        try:
            yield browser_process
        finally:
            browser_process.close()


class Watch:
    """Records dialogs, script errors and requests to other hosts of a page."""

    def __init__(self, page: Page, origin: str) -> None:
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self.external_requests: list[str] = []
        self._origin = origin
        page.on("dialog", self._on_dialog)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._on_request)

    def _on_dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self._origin, "data:", "blob:")):
            self.external_requests.append(request.url)

    def check(self) -> None:
        """Raise AssertionError if the page opened a dialog, had a script error or contacted another
        host."""
        assert (self.dialogs, self.errors, self.external_requests) == ([], [], [])


@contextmanager
def page_of(chromium: Browser, origin: str, **options: Any) -> Iterator[tuple[Page, Watch]]:
    """Open a page in a separate browser context. `options` are those of Playwright's
    new_context."""
    context = chromium.new_context(**{"viewport": DESKTOP, "base_url": origin, **options})
    context.set_default_timeout(TIMEOUT_MS)
    context.set_default_navigation_timeout(TIMEOUT_MS)
    page = context.new_page()
    try:
        yield page, Watch(page, origin)
    finally:
        context.close()
