"""Generate docs/tools.md from the option tables of the tools (src/kavka/cli).

--check writes nothing and fails if the file is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kavka.cli.catalogue import Tool, groups, table_of
from kavka.cli.options import Command, Option, positional_text, sections

FILE = Path(__file__).resolve().parents[1] / "docs" / "tools.md"

INTRODUCTION = """# Command-line tools

`make docs` generates this page from the tables that the tools use.

Each tool is a subcommand of `kavka`, and Kafka's tools are also scripts with Kafka's names, with and
without `.sh`: under `bin/` in a checkout, on the PATH after `pip install`. The tools use only the
client, so they also work with Apache Kafka.

- Options are Kafka's. All tools accept `--name value` and `--name=value`, one or two dashes,
  unambiguous prefixes of names, `--help` and `--version`.
- In a pipe or a file, a tool prints the same bytes as the tool of Kafka 3.9
  (`kafka-consumer-groups`: Kafka 4.3). On a terminal, tools print aligned tables, colours (unless
  `NO_COLOR` is set) and live progress. `--json` prints lists as JSON.
- An error is one line on standard error and a non-zero exit code (Kafka's `kafka-consumer-groups` and
  `kafka-delete-records` exit with 0); after Ctrl-C the exit code is 130.
- `--zookeeper host:port[/chroot]` reads the bootstrap brokers from ZooKeeper.
- bash and zsh complete options, topics, groups and files: `source <(kavka completion bash)`.
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def option_table(options: list[Option]) -> str:
    lines = ["| Option | Description |", "|---|---|"]
    for option in options:
        notes = f" *({cell(option.notes)})*" if option.notes else ""
        lines.append(f"| `{cell(option.synopsis)}` | {cell(option.help)}{notes} |")
    return "\n".join(lines)


def section(command: Command, program: str, level: int) -> list[str]:
    parts = [f"{'#' * level} {program}", command.summary]
    if command.positionals:
        lines = [f"- `{positional_text(p)}`: {p.help}" for p in command.positionals]
        parts.append("\n".join(lines))
    for title, options in sections(command):
        if title == "deprecated options":
            parts.append("Deprecated options:")
        parts.append(option_table(options))
    for subcommand in command.subcommands:
        parts += section(subcommand, f"{program} {subcommand.name}", level + 1)
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
        contents.append(f"- **{group}**: " + ", ".join(f"[{tool.name}](#kavka-{tool.name.lower()})" for tool in tools))
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
    is_current = FILE.exists() and FILE.read_text() == text
    print("docs/tools.md: fine" if is_current else "docs/tools.md is out of date: make docs")
    return 0 if is_current else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
