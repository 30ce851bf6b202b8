"""Registration and rendering of pages."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context as TemplateContext
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from kavka import __version__
from kavka.console import formats
from kavka.console.auth import Role
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.registry import path_of
from kavka.console.rights import Rights

HERE = Path(__file__).parent
PAGE_SIZE = 100

P = TypeVar("P", bound=Callable[["View"], Awaitable[Response]])


@dataclass(frozen=True, slots=True)
class Page:
    """A registered page."""

    path: str
    """The path below /c/{cluster}."""
    title: str
    function: Callable[[View], Awaitable[Response]]
    nav: str
    role: Role
    tab: str
    icon: str
    section: str
    is_data: bool
    """Whether the response is a stream or a download, which other sites cannot link to."""
    topics: tuple[str, ...] | None


PAGES: list[Page] = []
SECTIONS = ("Cluster", "Data", "Pipelines", "Security", "Administration")
"""The sections of the navigation, in order."""


def page(
    path: str,
    title: str,
    *,
    nav: str = "",
    role: Role = Role.VIEW,
    tab: str = "",
    icon: str = "list",
    section: str = "Cluster",
    is_data: bool = False,
    topics: tuple[str, ...] | None = None,
) -> Callable[[P], P]:
    """Register a page of a cluster. `nav` is its label in a section of the navigation, which is in
    the order of registration, and `icon` its symbol there (a name in vendor/lucide/icons.svg).
    `tab` is its label in the tabs of all pages whose paths start with the same two segments
    (`/topics/{topic}`). `topics` names the parameters (path or query) that are topics on which the
    user needs the role: without it the user needs the role in the whole cluster."""
    if section not in SECTIONS:
        raise ValueError(f"unknown section of the navigation: {section}")

    def register(function: P) -> P:
        PAGES.append(Page(path, title, function, nav, role, tab, icon, section, is_data, topics))
        return function

    return register


class View:
    """A request for a page."""

    def __init__(self, request: Request, context: Context, page: Page | None, csrf: str) -> None:
        self.request = request
        self.context = context
        self.page = page
        self.csrf = csrf

    # --- inputs

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def text(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def flag(self, name: str) -> bool:
        return self.text(name).lower() in ("on", "true", "1", "yes")

    def number(self, name: str, default: int = 0, low: int = 0, high: int = 2**53) -> int:
        """Return a query value as a number between `low` and `high`. Raises Refused if it is not a
        whole number."""
        text = self.text(name)
        if not text:
            return default
        try:
            return min(max(int(text), low), high)
        except ValueError:
            raise Refused(f"{name} must be a whole number, not '{text[:60]}'", field=name) from None

    # --- output

    def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        context = self.context
        cluster = context.selected_cluster
        variables = {
            "view": self,
            "user": context.user,
            "roles": Role,
            "console": context.console,
            "cluster": cluster,
            "clusters": list(context.clusters),
            "sample": cluster.sample if cluster else None,
            "navigation": navigation(context.rights),
            "active": self._active(),
            "csrf": self.csrf,
            "login": context.console.auth.is_required,
            "alerts": cluster.alerts if cluster else (),
            "confirmation": context.console.take_message(self.text("confirmation")),
            "version": __version__,
            **values,
        }
        html = environment(context.console.settings.base_path).get_template(template).render(variables)
        return HTMLResponse(html.encode("utf-8", "replace"), status, {"Cache-Control": "no-store"})

    def tabs(self) -> list[tuple[str, str, bool]]:
        """Return the tabs as (label, URL, whether it is this page)."""
        if self.page is None or not self.page.tab:
            return []
        prefix = self.page.path.split("/")[:3]
        values = {name: quote(str(value), safe="") for name, value in self.request.path_params.items()}
        base = self.context.console.settings.base_path
        return [
            (page.tab, f"{base}/c/{{cluster}}{page.path}".format_map(values), page is self.page)
            for page in PAGES
            if page.tab and page.path.split("/")[:3] == prefix and self._may_open(page)
        ]

    def _may_open(self, page: Page) -> bool:
        return self.context.rights.on_topics(topic_names(page, self.request)) >= page.role

    def _active(self) -> Page | None:
        """Return the page of the navigation that this page belongs to."""
        if self.page is None:
            return None
        path = self.page.path
        entries = [p for p in PAGES if p.nav and (path == p.path or path.startswith(p.path + "/"))]
        return max(entries, key=lambda p: len(p.path), default=None)


def navigation(rights: Rights) -> dict[str, list[Page]]:
    """Return the pages that a user with these rights may open, by section."""
    sections: dict[str, list[Page]] = {name: [] for name in SECTIONS}
    for entry in PAGES:
        if entry.nav and rights.on_topics(None if entry.topics is None else ()) >= entry.role:
            sections[entry.section].append(entry)
    return {name: entries for name, entries in sections.items() if entries}


def topic_names(page: Page, request: Request) -> list[str] | None:
    """Return the topics of a request for the page, None if it concerns the whole cluster."""
    if page.topics is None:
        return None
    return [str(request.path_params.get(name, request.query_params.get(name, ""))) for name in page.topics]


class Pager:
    """A page of rows. `page` counts from 1."""

    rows: Sequence[Any]

    def __init__(self, view: View, rows: Sequence[Any], size: int = PAGE_SIZE) -> None:
        self.view = view
        self.total = len(rows)
        self.pages = max(1, -(-self.total // size))
        self.page = view.number("page", 1, 1, self.pages)
        self.first = (self.page - 1) * size
        self.rows = rows[self.first : self.first + size]

    def link(self, page: int) -> str:
        return with_query(self.view, page=page)


def with_query(view: View, **values: Any) -> str:
    """Return the URL of this page with other query values. None and "" are omitted."""
    query = {name: value for name, value in view.request.query_params.items() if name != "confirmation"}
    query.update({name: str(value) for name, value in values.items()})
    query = {name: value for name, value in query.items() if value not in ("", "None")}
    return "?" + urlencode(query) if query else view.request.url.path


@cache
def environment(base_path: str = "") -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    jinja.filters.update(
        bytes=formats.bytes_text,
        number=formats.number_text,
        rate=formats.rate_text,
        share=formats.share_text,
        duration=formats.duration_text,
        count=formats.count_text,
        when=formats.when,
        ago=formats.ago,
    )
    jinja.filters["enc"] = lambda text: quote(str(text), safe="")
    jinja.globals.update(base=base_path, op=_op, url=_url, with_query=with_query, now=time.time)
    jinja.globals["static"] = lambda path: base_path + static(path)
    return jinja


@pass_context
def _op(template: TemplateContext, name: str, **values: str) -> str:
    """The URL of an operation of this cluster: `op("delete_topic", topic=topic.name)`."""
    cluster = template.get("cluster")
    return str(template["base"]) + path_of(name, **({"cluster": cluster.name} if cluster else {}), **values)


@pass_context
def _url(template: TemplateContext, *parts: str, **query: Any) -> str:
    """The URL of a page of this cluster: `url("topics", topic.name)`."""
    path = "/".join(
        [f"{template['base']}/c", quote(template["cluster"].name), *(quote(str(part), safe="") for part in parts)]
    )
    present = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(present)}" if present else path


@cache
def static(path: str) -> str:
    """The URL of a static file with a hash of its content, so that browsers can cache it."""
    digest = hashlib.sha256((HERE / "static" / path).read_bytes()).hexdigest()[:10]
    return f"/static/{path}?v={digest}"
