"""The console: a cluster on a web page, on `kavka.client` alone, so that it works with any Kafka.

How it hangs together
---------------------
- `settings.py`  what it was started with; `server.py` runs it (uvicorn); `app.py` makes the Starlette application.
- `registry.py`  **one list of everything that can be asked or done.** A function becomes an operation by a decorator;
  it is then served as JSON under /api, described in /api/openapi.json, and used by the pages.
- `context.py`   what an operation is called with: the cluster, the user, the store.
- `cluster.py`   a cluster: its Admin, and `state()`, the last sample of it (`probe.py` asks, `sampler.py` repeats).
- `store.py`     SQLite: lag history, rates, alert rules, the audit log.
- `connections.py` limits connections and the time that clients may take, `attempts.py` attempts to log in, `limits.py`
  the work that one message may cause; `workers.py` runs that work outside of the event loop.
- `auth.py`      users, roles, sessions, CSRF; `guard.py` is the middleware that lets nothing pass without them.
- `views.py`     how pages are registered and rendered; `pages/` has them; `templates/`, `static/` what they use.
- `live.py`      server-sent events.

To add an operation
-------------------
    @query("/groups", "All groups with their lag")
    async def list_groups(context: Context, search: Annotated[str, "Part of a name"] = "") -> list[GroupRow]: ...

    @action("/groups/delete", "Delete a group", role=Role.ADMIN)
    async def delete_group(context: Context, group: str, confirm: str, seen: str = "") -> Done: ...

Paths are below /api/clusters/{cluster}. Parameters come from the path (`{topic}`), the query string (GET) or a form or
JSON body (POST), and are converted by their annotations: str, int, float, bool, list[…], dict[str, str], an Enum,
`X | None`; `Annotated[int, "help", Bounds(1, 100)]`. Results are JSON: dataclasses, NamedTuples, dicts, lists; or a
Starlette Response (a download, an EventStream). An action returns `Done(message, location)`: the line that is shown,
and the page to go to; or anything else, that a script of the page makes use of (event `done` of the form). Raise
`Refused("a clear line")` for what cannot be; a KafkaError becomes a clear line by itself. Role checks, CSRF, the audit
log and error answers are not the function's business. What was changed is seen at once if the action calls
`context.cluster.changed()`.

What must not be done by mistake takes `confirm` (the name, typed) and `seen`, a fingerprint of what the page showed:

    check_confirmation(typed=confirm, name=group, seen=seen, now=fingerprint(...))

To add a page
-------------
    @page("/groups", "Groups")                # in pages/groups.py; listed in pages/__init__.py
    async def groups_page(view: View) -> Response:
        return view.render("groups.html", groups=await list_groups(view.context, view.text("search")))

`nav="Groups"` puts it into the navigation. Templates extend base.html and fill `title` and `content`. What comes from a
cluster is put out by `{{ }}` alone, which escapes; `|safe` and `Markup` are not used with such data anywhere. No inline
script, no inline style: the Content-Security-Policy refuses both.

- An element with an `id` and `data-live` is replaced by its newer self when the cluster was sampled anew: the script
  asks for the same page again. Keep forms outside of it.
- `{% from "parts.html" import form, field, confirm %}`, `{% call form(op("create_topic"), csrf, "Create") %}`: forms go
  to an operation; the script sends them and shows the answer in one line inside the form; without script the answer is
  a page.
- `<div class="chart" data-chart="/api/…" data-unit="bytes">`: a chart of a query that returns a `Chart`.
- Times: `<time datetime="…">` by the filter `|when`; sizes `|bytes`, numbers `|number`.
"""
