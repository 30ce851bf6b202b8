"""Write the references of all settings from the tables: docs/configuration.md of topics, groups and brokers
(src/kavka/common), docs/client-configuration.md of the clients (src/kavka/client).

With --check nothing is written; it fails when a file differs from what the tables give.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from kavka.client.admin_config import ADMIN_CONFIGS
from kavka.client.config import COMMON
from kavka.client.consumer_config import CONSUMER_ALIASES, CONSUMER_CONFIGS
from kavka.client.producer_config import PRODUCER_ALIASES, PRODUCER_CONFIGS
from kavka.common.broker_config import GENERAL_CONFIGS, SINGLE_NODE_DEFAULTS
from kavka.common.broker_config_groups import GROUP_CONFIGS
from kavka.common.broker_config_log import LOG_CONFIGS
from kavka.common.broker_config_security import SECURITY_CONFIGS
from kavka.common.config import LATER, ConfigKey
from kavka.common.group_config import SINGLE_GROUP_CONFIGS, bounds
from kavka.common.topic_config import TOPIC_CONFIGS

DOCS = Path(__file__).resolve().parents[1] / "docs"

INTRODUCTION = """# Settings

All names are Kafka's. This page is written by `make docs` from the tables that the broker itself reads.

A setting of a topic or a group that is not set for it comes from the broker setting in its last column. *Changes while
running* says how a broker's setting can be altered with `kafka-configs`: per-broker, for one broker at a time;
cluster-wide, for one or for all; read-only, only in the file.
"""

GROUPS = """What a group of the new protocol (`group.protocol=consumer`) may have of its own. A change holds at once and
on every broker: members hear of a new interval with their next heartbeat. It may be made before there is such a group,
and stays when the group is deleted. A session must be longer than the interval of heartbeats.

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
        ("name", "what it does", "default", "allowed", "changes while running"),
        ((f"`{k.name}`", note(k), value(k), allowed(k), k.dynamic.value) for k in keys if not k.internal),
    )


def own_table(keys: Iterable[ConfigKey], limits: Callable[[ConfigKey], str] = allowed) -> str:
    return table(
        ("name", "what it does", "default", "allowed", "from the broker's"),
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
    security = f"These are known, so that a file with them is read; setting one says that it {LATER}.\n"
    parts = [
        INTRODUCTION,
        "## Topics\n",
        own_table(TOPIC_CONFIGS),
        "## Groups\n",
        GROUPS,
        own_table(SINGLE_GROUP_CONFIGS, between),
        "## Brokers\n",
        "The defaults are those of a single node.\n",
        broker_table(GENERAL_CONFIGS),
        "### Logs\n",
        broker_table(LOG_CONFIGS),
        "### Groups, offsets, transactions\n",
        broker_table(GROUP_CONFIGS),
        "### Security\n",
        security,
        table(
            ("name", "what it does", "default"),
            ((f"`{k.name}`", k.help, value(k)) for k in SECURITY_CONFIGS),
        ),
    ]
    return "\n".join(parts)


CLIENTS = """# Settings of the clients

All names are Kafka's, but for those that say *our own*. This page is written by `make docs` from the tables that the
clients themselves read. A client takes them by these names in a mapping, or as keywords with underscores for the dots.
"""


def client_table(keys: Iterable[ConfigKey]) -> str:
    return table(
        ("name", "what it does", "default", "allowed"),
        ((f"`{k.name}`", note(k), f"`{text}`" if (text := k.format(k.default)) else "", allowed(k)) for k in keys),
    )


def render_clients() -> str:
    shared = {key.name for key in COMMON}
    parts = [CLIENTS, "## All clients\n", client_table(COMMON)]
    for title, configs, aliases in (
        ("Producer", PRODUCER_CONFIGS, PRODUCER_ALIASES),
        ("Consumer", CONSUMER_CONFIGS, CONSUMER_ALIASES),
        ("Admin", ADMIN_CONFIGS, {}),
    ):
        parts += [f"## {title}\n", client_table(key for key in configs if key.name not in shared)]
        if aliases:
            names = ", ".join(f"`{name}`" for name in aliases)
            parts.append(f"Older names that are taken as well: {names}.\n")
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
