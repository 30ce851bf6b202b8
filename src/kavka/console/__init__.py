"""The console: a web interface for clusters. It accesses them through `kavka.client` only, so it
also works with Apache Kafka.

Modules
-------
- `settings.py`: the settings; `server.py` runs uvicorn; `app.py` creates the Starlette application.
- `registry.py`: **the list of all operations.** A decorator turns a function into an operation,
  which is served as JSON under /api, described in /api/openapi.json, and used by the pages.
- `context.py`: the first argument of an operation: the cluster, the user, the store.
- `cluster.py`: a cluster: its admin client, and `state()`, the last sample. `probe.py` takes a
  sample, `sampler.py` repeats it.
- `store.py`: SQLite: lag history, rates, alert rules, the audit log.
- `attempts.py` limits login attempts, `limits.py` the work per message; `workers.py` runs that work
  in threads.
- `auth.py`: users, roles, sessions, CSRF tokens; `passwords.py`: hashes; `guard.py`: the checks of
  every request; `oidc.py`: the identity provider; `logins.py`: the requests of logins.
- `rights.py`: the rights of users per cluster and topic prefix; `masks.py`: masked fields;
  `access.py`: explanations of ACLs.
- `bodies.py`: inputs of requests; `metrics.py`: the console's own metrics.
- `views.py`: registration and rendering of pages; `pages/`: the pages; `templates/`, `static/`.
- `connect_client.py`: a client of Connect's REST interface; `connector_forms.py`: the form of a
  configuration, without passwords.
- `formats.py`: numbers, sizes, rates, durations and dates as texts; `static/format.js` is the same
  for the script.
- `live.py`: server-sent events.

To add an operation
-------------------
    @query("/groups", "List all groups with their lag")
    async def list_groups(context: Context, search: Annotated[str, "Part of a name"] = "") -> ...

    @action("/groups/delete", "Delete a group", role=Role.ADMIN)
    async def delete_group(context: Context, group: str, confirm: str, seen: str = "") -> Done: ...

Paths are below /api/clusters/{cluster}. Parameters come from the path (`{topic}`), the query string
(GET) or a form or JSON body (POST), and are converted by their annotations: str, int, float, bool,
list[…], dict[str, str], an Enum, `X | None`; `Annotated[int, "help", Bounds(1, 100)]`. Results are
JSON: dataclasses, NamedTuples, dicts, lists; or a Starlette Response (a download, an EventStream).
An action returns `Done(message, location)`, the message to show and the next page, or another value
for a script of the page (event `done` of the form). Raise `Refused("a clear line")` for an invalid
request, with `fields` if several inputs may be invalid; a KafkaError is converted automatically.
`app.py` checks roles and CSRF tokens, writes the audit log and converts errors. An operation that
concerns topics names their parameters (`topics=("topic",)`); `topics=()` means that the user needs
some right in the cluster, and `context.cluster` has only visible topics. Without `topics` the user
needs the role in the whole cluster. The registry checks this at every call, also of a page. An
action calls `context.cluster.mark_stale()`, so that the next page shows the change.

A destructive action has the parameters `confirm` (the typed name) and `seen`, a fingerprint of the
page:

    check_confirmation(typed=confirm, name=group, seen=seen, current=fingerprint(...))

To add a page
-------------
    @page("/groups", "Groups")  # in pages/groups.py, which pages/__init__.py imports
    async def groups_page(view: View) -> Response:
        rows = await list_groups(view.context, view.text("search"))
        return view.render("groups.html", rows=rows)

`nav="Groups", icon="users", section="Data"` adds it to the navigation and to the palette (Ctrl-K).
Templates extend base.html and fill `title` and `content`. The comment at the top of parts.html
lists the macros for headers, figures, tables, forms, dialogs, charts and empty states; use them
instead of classes. Colours, sizes and spaces are the custom properties of static/theme.css. Write
data of a cluster with `{{ }}` only, which escapes; never use `|safe` or `Markup` with it. The
Content-Security-Policy forbids inline scripts and styles.

- After a new sample the script requests the page again and replaces every element with an `id` and
  `data-live`. Keep forms outside of such elements.
- `{% from "parts.html" import form, field, confirm %}`, `{% call form(op("create_topic"), csrf,
  "Create") %}`: a form calls an operation. The script sends it, shows success as a toast and an
  error in the form; without the script the response is a page.
- `{% call dialog("create", "Create a topic") %}` and its button `{{ opener("create", "Create
  topic") }}`: a modal dialog, also without the script. A form in it closes it when the operation
  succeeds, unless a script of the page prevents the default of the form's event `done`.
- `{{ chart(op("rates"), "bytes", "Bytes per second") }}`: a chart of a query that returns a
  `Chart`.
- Times: the filter `|when` renders `<time datetime="…">`; sizes: `|bytes`; numbers: `|number`; a
  number with its noun: `|count("partition")`.
- In scripts: `kavka.format`, `kavka.showToast(text)`, `kavka.icon(name)`,
  `kavka.colour("--chart-1")` (the colour of the current theme, for a canvas).
"""
