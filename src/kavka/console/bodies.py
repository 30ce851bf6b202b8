"""The inputs of requests: bodies, form values, and paths of redirects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request

from kavka.console.errors import Refused

MAX_FIELDS = 2000


async def read_form(request: Request) -> dict[str, Any]:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in ("application/x-www-form-urlencoded", "multipart/form-data"):
        raise Refused("a form or JSON is expected", 415)
    async with request.form(max_fields=MAX_FIELDS, max_files=1) as form:
        fields = []
        for name, value in form.multi_items():
            text = (await value.read()).decode("utf-8", "replace") if isinstance(value, UploadFile) else value
            fields.append((name, text))
    return group_values(fields)


async def read_body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return await read_form(request)
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        raise Refused("the request body is not JSON") from None
    if not isinstance(body, dict):
        raise Refused("a JSON object is expected")
    return body


def group_values(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return values


def first_value(form: Mapping[str, Any], name: str) -> str:
    value = form.get(name, "")
    if isinstance(value, list):
        value = value[0] if value else ""
    return value if isinstance(value, str) else ""


def local_path(path: str, default: str = "/") -> str:
    """Return the path if it is on this console, otherwise the default."""
    is_plain = path.isprintable() and "\\" not in path and " " not in path
    return path if is_plain and path.startswith("/") and not path.startswith("//") else default
