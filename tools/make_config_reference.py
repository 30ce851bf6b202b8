"""Generate the references of all settings: docs/configuration.md from the tables in
src/kavka/common, and docs/client-configuration.md from those in src/kavka/client.

--check writes nothing and fails if a file is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from kavka.client.admin_config import ADMIN_CONFIGS
from kavka.client.config import COMMON
from kavka.client.consumer_config import CONSUMER_ALIASES, CONSUMER_CONFIGS
from kavka.client.producer_config import PRODUCER_ALIASES, PRODUCER_CONFIGS
from kavka.client.security_config import SECURITY, SECURITY_ALIASES
from kavka.common.broker_config import GENERAL_CONFIGS, SINGLE_NODE_DEFAULTS
from kavka.common.broker_config_groups import GROUP_CONFIGS
from kavka.common.broker_config_log import LOG_CONFIGS
from kavka.common.broker_config_security import SECURITY_CONFIGS
from kavka.common.config import ConfigKey
from kavka.common.group_config import SINGLE_GROUP_CONFIGS, bounds
from kavka.common.topic_config import TOPIC_CONFIGS

DOCS = Path(__file__).resolve().parents[1] / "docs"

INTRODUCTION = """# Settings

All names are Kafka's, except those with the remark "Kavka only". `make docs` generates this page
from the tables that the broker uses.

The last column of topic and group settings is the broker setting that provides the default.
*Dynamic* shows how `kafka-configs` can change a broker setting: per-broker, for one broker at a
time; cluster-wide, for one or all brokers; read-only, only in the file.
"""

GROUPS = """Settings of groups with the new protocol (`group.protocol=consumer`). A change applies
immediately on every broker; members receive a new interval with their next heartbeat. Settings can
be changed before the group exists, and remain when the group is deleted. The session timeout must
be longer than the heartbeat interval.

```
kavka configs --bootstrap-server localhost:9092 --alter --group billing --add-config consumer.session.timeout.ms=60000
kavka configs --bootstrap-server localhost:9092 --describe --group billing
kavka configs --bootstrap-server localhost:9092 --alter --group billing --delete-config consumer.session.timeout.ms
```
"""


def value(key: ConfigKey) -> str:
    default = SINGLE_NODE_DEFAULTS.get(key.name, key.default)
    text = key.format(default)
    return "" if not text else f"`{text}`"


def note(key: ConfigKey) -> str:
    return f"{key.help} *({key.warning[0].upper()}{key.warning[1:]}.)*" if key.warning else key.help


def allowed(key: ConfigKey) -> str:
    return key.allowed.replace("|", "\\|")


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headings = list(headings)
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(cell.replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def broker_table(keys: Iterable[ConfigKey]) -> str:
    return table(
        ("Name", "Description", "Default", "Allowed", "Dynamic"),
        ((f"`{k.name}`", note(k), value(k), allowed(k), k.dynamic.value) for k in keys if not k.internal),
    )


def resource_table(keys: Iterable[ConfigKey], limits: Callable[[ConfigKey], str] = allowed) -> str:
    return table(
        ("Name", "Description", "Default", "Allowed", "Broker default"),
        (
            (f"`{k.name}`", note(k), value(k), limits(k), ", ".join(f"`{s.name}`" for s in k.synonyms))
            for k in keys
            if not k.internal
        ),
    )


def between(key: ConfigKey) -> str:
    low, high = bounds(key.name)
    return f"between `{low}` and `{high}`"


def render() -> str:
    parts = [
        INTRODUCTION,
        "## Topics\n",
        resource_table(TOPIC_CONFIGS),
        "## Groups\n",
        GROUPS,
        resource_table(SINGLE_GROUP_CONFIGS, between),
        "## Brokers\n",
        "The defaults are those of a single node.\n",
        broker_table(GENERAL_CONFIGS),
        "### Logs\n",
        broker_table(LOG_CONFIGS),
        "### Groups, offsets, transactions\n",
        broker_table(GROUP_CONFIGS),
        "### Security\n",
        "`listener.name.<listener>.` before a name sets it for one listener. See [security.md](security.md).\n",
        broker_table(SECURITY_CONFIGS),
    ]
    return "\n".join(parts)


CLIENTS = """# Settings of the clients

All names are Kafka's, except those with the remark "Kavka only". `make docs` generates this page
from the tables that the clients use. Pass settings to a client in a mapping with these names, or as
keywords with underscores instead of dots.
"""


def client_table(keys: Iterable[ConfigKey]) -> str:
    return table(
        ("Name", "Description", "Default", "Allowed"),
        ((f"`{k.name}`", note(k), f"`{text}`" if (text := k.format(k.default)) else "", allowed(k)) for k in keys),
    )


def render_clients() -> str:
    shared = {key.name for key in COMMON}
    secured = {key.name for key in SECURITY}
    names = ", ".join(f"`{name}`" for name in SECURITY_ALIASES)
    parts = [
        CLIENTS,
        "## All clients\n",
        client_table(key for key in COMMON if key.name not in secured),
        "## Security\n",
        "These settings apply to all clients; [security.md](security.md#clients) explains them.\n",
        client_table(SECURITY),
        f"Further names of librdkafka: {names}.\n",
    ]
    for title, configs, aliases in (
        ("Producer", PRODUCER_CONFIGS, PRODUCER_ALIASES),
        ("Consumer", CONSUMER_CONFIGS, CONSUMER_ALIASES),
        ("Admin", ADMIN_CONFIGS, {}),
    ):
        parts += [f"## {title}\n", client_table(key for key in configs if key.name not in shared)]
        if aliases:
            names = ", ".join(f"`{name}`" for name in aliases)
            parts.append(f"Deprecated names: {names}.\n")
    return "\n".join(parts)


TARGETS = {"configuration.md": render, "client-configuration.md": render_clients}


def main(argv: list[str]) -> int:
    stale = 0
    for name, make in TARGETS.items():
        path, text = DOCS / name, make()
        if "--check" not in argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"docs/{name} is out of date: make docs")
            stale += 1
        else:
            print(f"docs/{name}: fine")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
