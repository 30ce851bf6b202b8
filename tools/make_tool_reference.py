"""Write docs/tools.md from the option tables of the tools (src/kavka/cli).

With --check nothing is written; it fails when the file differs from what the tables give.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kavka.cli.catalogue import Tool, groups, table_of
from kavka.cli.options import Command, Option, sections, shown_positional

FILE = Path(__file__).resolve().parents[1] / "docs" / "tools.md"

INTRODUCTION = """# Command-line tools

This page is written by `make docs` from the tables that the tools themselves read.

Each tool is a script under `bin/` with Kafka's name, with and without `.sh`, and `kavka <name>`; after `pip install`
the command `kavka` has them all. They use only the client, so they work with Apache Kafka, too.

- Options are Kafka's. `--name value` and `--name=value`, one dash for two, and any beginning of a name that no other
  option has, are all understood. `--help` and `--version` are known to every tool.
- In a pipe or a file the output is what Kafka 3.9's tool prints, byte for byte; `kafka-consumer-groups` prints what
  that of 4.3 does. At a terminal there are aligned tables and colours (`NO_COLOR` turns those off), and long work shows
  how far it is. `--json` gives every list as JSON.
- What goes wrong is one line on standard error and an exit code that is not 0 (Kafka's `kafka-consumer-groups` and
  `kafka-delete-records` end with 0 even then); 130 after Ctrl-C.
- `--zookeeper host:port[/chroot]` reads the brokers from ZooKeeper, says so, and goes on as with
  `--bootstrap-server`.
- Names of topics and groups, options and files are completed by bash and zsh: `source <(kavka completion bash)`.
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def option_table(options: list[Option]) -> str:
    lines = ["| option | what it does |", "|---|---|"]
    for option in options:
        notes = f" *({cell(option.notes)})*" if option.notes else ""
        lines.append(f"| `{cell(option.synopsis)}` | {cell(option.help)}{notes} |")
    return "\n".join(lines)


def section(command: Command, program: str, level: int) -> list[str]:
    parts = [f"{'#' * level} {program}", command.summary]
    if command.positionals:
        lines = [f"- `{shown_positional(p)}`: {p.help}" for p in command.positionals]
        parts.append("\n".join(lines))
    for title, options in sections(command):
        if title == "older forms":
            parts.append("Older forms:")
        parts.append(option_table(options))
    for sub in command.subcommands:
        parts += section(sub, f"{program} {sub.name}", level + 1)
    if command.examples:
        parts.append("```sh\n" + "\n".join(command.examples) + "\n```")
    return parts


def tool_section(tool: Tool) -> list[str]:
    parts = section(table_of(tool), f"kavka {tool.name}", 3)
    if tool.script_names:
        scripts = ", ".join(f"`bin/{name}.sh`" for name in tool.script_names)
        parts.insert(1, f"Also {scripts}.")
    return parts


def page() -> str:
    parts = [INTRODUCTION.strip()]
    contents = []
    for group, tools in groups():
        contents.append(f"- **{group}**: " + ", ".join(f"[{tool.name}](#kavka-{tool.name})" for tool in tools))
    parts.append("\n".join(contents))
    for group, tools in groups():
        parts.append(f"## {group}")
        for tool in tools:
            parts += tool_section(tool)
    return "\n\n".join(parts) + "\n"


def main(argv: list[str]) -> int:
    text = page()
    if "--check" not in argv:
        FILE.write_text(text)
        return 0
    fine = FILE.exists() and FILE.read_text() == text
    print(f"docs/tools.md: {'fine' if fine else 'differs from the tables; run make docs'}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
