"""`kavka <tool>`: the command that runs all tools."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from kavka.cli.catalogue import TOOLS, Tool, find, groups, why_missing

# The extra of pyproject.toml that installs a module.
EXTRAS = {
    "fastavro": "serializers",
    "grpc_tools": "serializers",
    "h11": "connect",
    "jinja2": "console",
    "jks": "jks",
    "jsonschema": "serializers",
    "kazoo": "cluster",
    "lmdb": "pipeline",
    "pandas": "pipeline",
    "puresasl": "cluster",
    "pyarrow": "arrow",
    "pyspark": "pipeline",
    "starlette": "connect",
    "uvicorn": "connect",
}


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
        cause = why_missing(arguments[0])
        hint = f": {cause}" if cause else f"{_suggestion(arguments[0])} (kavka --help lists all tools)"
        print(f"kavka: there is no tool '{arguments[0]}'{hint}", file=sys.stderr)
        return 1
    return _run(tool, arguments[1:])


def script_main() -> int:
    """Run the tool whose script was called: `kafka-topics.sh --list`."""
    return main([Path(sys.argv[0]).name, *sys.argv[1:]])


def _run(tool: Tool, arguments: list[str]) -> int:
    try:
        return int(getattr(import_module(tool.module), tool.main)(arguments) or 0)
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module == "kavka":
            raise
        package = f"kavka[{EXTRAS[module]}]" if module in EXTRAS else module
        print(f"kavka {tool.name}: the module {error.name} is missing: pip install '{package}'", file=sys.stderr)
        return 1


def _help() -> str:
    lines = ["usage: kavka <tool> [options]", "       kavka <tool> --help"]
    for group, tools in groups():
        lines += ["", group]
        lines += [f"  {tool.name:<28}{tool.help}" for tool in tools]
    return "\n".join(lines)


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    names = [tool_name for tool in TOOLS for tool_name in (tool.name, *tool.aliases)]
    matches = get_close_matches(name.removesuffix(".sh").removeprefix("kafka-"), names, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


if __name__ == "__main__":
    sys.exit(main())
