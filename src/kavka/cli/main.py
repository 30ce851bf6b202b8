"""`kavka <tool>`: one command for all tools. Each is a file beside this one, imported only when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NamedTuple


class Tool(NamedTuple):
    name: str
    group: str
    help: str
    function: str
    """`module:function`, called with the arguments after the name; returns the exit code."""
    aliases: tuple[str, ...] = ()


TOOLS = (
    Tool("server", "Broker", "start a broker", "kavka.cli.server:main", ("server-start",)),
    Tool("server-stop", "Broker", "stop the brokers that were started from here", "kavka.cli.server:stop_main"),
)


def find(name: str) -> Tool | None:
    """By its name, by Kafka's (`kafka-server-start.sh`), or by Kafka's without the `kafka-` or the `.sh`."""
    plain = name.removesuffix(".sh").removeprefix("kafka-")
    return next((tool for tool in TOOLS if plain == tool.name or plain in tool.aliases), None)


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 1
    if arguments[0] == "--version":
        from kavka import __version__

        print(f"kavka {__version__}")
        return 0
    tool = find(arguments[0])
    if tool is None:
        print(
            f"kavka: there is no tool '{arguments[0]}'{_nearest(arguments[0])} (kavka --help lists them)",
            file=sys.stderr,
        )
        return 1
    return _run(tool, arguments[1:])


def _run(tool: Tool, arguments: list[str]) -> int:
    module, _, function = tool.function.partition(":")
    try:
        return int(getattr(import_module(module), function)(arguments) or 0)
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == "kavka":
            raise
        print(f"kavka {tool.name}: the package '{error.name}' is missing (make setup installs it)", file=sys.stderr)
        return 1


def _help() -> str:
    lines = ["usage: kavka <tool> [options]", "       kavka <tool> --help"]
    for group in dict.fromkeys(tool.group for tool in TOOLS):
        lines += ["", group]
        lines += [f"  {tool.name:<24}{tool.help}" for tool in TOOLS if tool.group == group]
    return "\n".join(lines)


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    known = [known for tool in TOOLS for known in (tool.name, *tool.aliases)]
    near = get_close_matches(name.removesuffix(".sh").removeprefix("kafka-"), known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


if __name__ == "__main__":
    sys.exit(main())
