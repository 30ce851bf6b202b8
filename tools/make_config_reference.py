"""Write docs/configuration.md, the reference of all settings, from the tables in src/kavka/common.

With --check nothing is written; it fails when the file differs from what the tables give.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from kavka.common.broker_config import GENERAL_CONFIGS, SINGLE_NODE_DEFAULTS
from kavka.common.broker_config_groups import GROUP_CONFIGS
from kavka.common.broker_config_log import LOG_CONFIGS
from kavka.common.broker_config_security import SECURITY_CONFIGS
from kavka.common.config import LATER, ConfigKey
from kavka.common.topic_config import TOPIC_CONFIGS

TARGET = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

INTRODUCTION = """# Settings

All names are Kafka's. This page is written by `make docs` from the tables that the broker itself reads.

A setting of a topic that is not set on the topic comes from the broker setting in its last column. *Changes while
running* says how a broker's setting can be altered with `kafka-configs`: per-broker, for one broker at a time;
cluster-wide, for one or for all; read-only, only in the file.
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


def render() -> str:
    topics = table(
        ("name", "what it does", "default", "allowed", "from the broker's"),
        (
            (f"`{k.name}`", note(k), value(k), allowed(k), ", ".join(f"`{s.name}`" for s in k.synonyms))
            for k in TOPIC_CONFIGS
            if not k.internal
        ),
    )
    security = f"These are known, so that a file with them is read; setting one says that it {LATER}.\n"
    parts = [
        INTRODUCTION,
        "## Topics\n",
        topics,
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


def main(argv: list[str]) -> int:
    text = render()
    if "--check" not in argv:
        TARGET.write_text(text)
        return 0
    if not TARGET.exists() or TARGET.read_text() != text:
        print("docs/configuration.md is out of date: make docs")
        return 1
    print("docs/configuration.md: fine")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
