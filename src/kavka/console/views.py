"""How pages are registered and rendered."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context as TemplateContext
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from kavka import __version__
from kavka.console.auth import Role
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.registry import path_of

HERE = Path(__file__).parent
PAGE_SIZE = 100

P = TypeVar("P", bound=Callable[["View"], Awaitable[Response]])


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    """Below /c/{cluster}."""
    title: str
    function: Callable[[View], Awaitable[Response]]
    nav: str
    role: Role
    tab: str


PAGES: list[Page] = []


def page(path: str, title: str, *, nav: str = "", role: Role = Role.VIEW, tab: str = "") -> Callable[[P], P]:
    """A page of a cluster; with `nav`, one that the navigation names, in the order of registration; with `tab`, one of
    several about the same thing: those whose paths begin with the same two steps (`/topics/{topic}`)."""

    def register(function: P) -> P:
        PAGES.append(Page(path, title, function, nav, role, tab))
        return function

    return register


class View:
    """One request for a page."""

    def __init__(self, request: Request, context: Context, page: Page | None, csrf: str) -> None:
        self.request = request
        self.context = context
        self.page = page
        self.csrf = csrf

    # --- what the address says

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def text(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def flag(self, name: str) -> bool:
        return self.text(name).lower() in ("on", "true", "1", "yes")

    def number(self, name: str, default: int = 0, low: int = 0, high: int = 2**53) -> int:
        text = self.text(name)
        if not text:
            return default
        try:
            return min(max(int(text), low), high)
        except ValueError:
            raise Refused(f"{name} must be a whole number, not '{text[:60]}'", field=name) from None

    # --- what is shown

    def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        context = self.context
        cluster = context.of
        shown = {
            "view": self,
            "user": context.user,
            "roles": Role,
            "console": context.console,
            "cluster": cluster,
            "clusters": list(context.console.clusters.values()),
            "sample": cluster.sample if cluster else None,
            "navigation": [page for page in PAGES if page.nav],
            "active": self._active(),
            "csrf": self.csrf,
            "login": context.console.auth.needed,
            "alerts": cluster.alerts if cluster else (),
            "message": context.console.said(self.text("said")),
            "version": __version__,
            **values,
        }
        html = environment().get_template(template).render(shown)
        return HTMLResponse(html.encode("utf-8", "replace"), status, {"Cache-Control": "no-store"})

    def tabs(self) -> list[tuple[str, str, bool]]:
        """(words, address, whether it is this one) of the pages about the same thing."""
        if self.page is None or not self.page.tab:
            return []
        start = self.page.path.split("/")[:3]
        values = {name: quote(str(value), safe="") for name, value in self.request.path_params.items()}
        return [
            (other.tab, "/c/{cluster}".format_map(values) + other.path.format_map(values), other is self.page)
            for other in PAGES
            if other.tab and other.path.split("/")[:3] == start and self.context.user.role >= other.role
        ]

    def _active(self) -> str:
        """The entry of the navigation that this page is below."""
        if self.page is None:
            return ""
        found = [p for p in PAGES if p.nav and (self.page.path == p.path or self.page.path.startswith(p.path + "/"))]
        return max(found, key=lambda p: len(p.path)).nav if found else ""


class Pager:
    """Some of many rows; `page` counts from 1."""

    def __init__(self, view: View, rows: list[Any], size: int = PAGE_SIZE) -> None:
        self.view = view
        self.total = len(rows)
        self.pages = max(1, -(-self.total // size))
        self.page = view.number("page", 1, 1, self.pages)
        self.first = (self.page - 1) * size
        self.rows = rows[self.first : self.first + size]

    def link(self, page: int) -> str:
        return with_query(self.view, page=page)


def with_query(view: View, **values: Any) -> str:
    """The address of this page with other values in its query; one that is None or "" is left out."""
    found = {name: value for name, value in view.request.query_params.items() if name != "said"}
    found.update({name: str(value) for name, value in values.items()})
    found = {name: value for name, value in found.items() if value not in ("", "None")}
    return "?" + urlencode(found) if found else view.request.url.path


@cache
def environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update(bytes=bytes_text, number=number_text, rate=rate_text, when=when, ago=ago, share=share_text)
    found.filters["duration"] = duration_text
    found.filters["enc"] = lambda text: quote(str(text), safe="")
    found.globals.update(op=_op, url=_url, static=static, with_query=with_query, now=time.time)
    return found


@pass_context
def _op(template: TemplateContext, name: str, **values: str) -> str:
    """The address of an operation of this cluster: `op("delete_topic", topic=topic.name)`."""
    cluster = template.get("cluster")
    return path_of(name, **({"cluster": cluster.name} if cluster else {}), **values)


@pass_context
def _url(template: TemplateContext, *parts: str, **query: Any) -> str:
    """The address of a page of this cluster: `url("topics", topic.name)`."""
    path = "/".join(["/c", quote(template["cluster"].name), *(quote(str(part), safe="") for part in parts)])
    found = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(found)}" if found else path


@cache
def static(path: str) -> str:
    """With a piece of its hash, so that a browser may keep it and still sees a new one."""
    digest = hashlib.sha256((HERE / "static" / path).read_bytes()).hexdigest()[:10]
    return f"/static/{path}?v={digest}"


# --- filters


def bytes_text(value: float | None) -> str:
    if value is None:
        return "–"
    size = float(value)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def number_text(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}".replace(",", "\u202f")


def rate_text(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if 0 < abs(value) < 10 else number_text(value)


def share_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def when(seconds: float | None) -> Markup | str:
    """A time, as UTC; the script shows it in the reader's own."""
    if seconds is None or not 0 <= seconds < 253402300799:
        return "–"
    moment = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        moment.isoformat(timespec="milliseconds"), moment.strftime("%Y-%m-%d %H:%M:%S")
    )


def ago(seconds: float | None) -> str:
    """How long since, in the largest units."""
    if not seconds:
        return "–"
    return duration_text(time.time() - seconds)


def duration_text(length: float) -> str:
    length = max(0.0, length)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if length >= size:
            return f"{length / size:.0f} {unit}"
    return f"{length:.0f} s"
