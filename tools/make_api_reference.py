"""Write docs/api.md: the public methods of the Python clients, from signatures and docstrings.

python tools/make_api_reference.py [--check]
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import kavka
from kavka import aio, parallel, testing

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
# The asyncio clients have the methods of these clients, which have the docstrings.
SAME = {aio.Producer: kavka.Producer, aio.Consumer: kavka.Consumer}
CLASSES = (
    (kavka.Producer, "kavka.Producer", "[Producer](producer.md)"),
    (kavka.Consumer, "kavka.Consumer", "[Consumer](consumer.md)"),
    (kavka.Admin, "kavka.Admin", "[Admin](admin.md)"),
    (aio.Producer, "kavka.aio.Producer", "[Producer](producer.md#asyncio)"),
    (aio.Consumer, "kavka.aio.Consumer", "[Consumer](consumer.md#asyncio)"),
    (parallel.ConsumerThreads, "kavka.parallel.ConsumerThreads", "[Parallel consumers](parallel.md)"),
    (parallel.HandlerPool, "kavka.parallel.HandlerPool", "[Parallel consumers](parallel.md)"),
    (testing.Broker, "kavka.testing.Broker", "[Get started](get-started.md#in-a-test)"),
)
# Called by clients, not by applications.
INTERNAL = {"try_send", "start", "on_partitions_assigned", "on_partitions_lost", "on_partitions_revoked"}
INTRODUCTION = """# Python API

`make docs` generates this page from signatures and docstrings. `kavka.aio.Admin` has the methods of
`kavka.Admin` as coroutines. [Streams](streams.md) and [Connect](connect.md) list their classes.
"""


def first_paragraph(documented: object) -> str:
    text = (inspect.getdoc(documented) or "").split("\n\n")[0]
    return " ".join(text.split())


def parameters(function: object) -> str:
    names = []
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        if parameter.name == "self":
            continue
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        if parameter.kind is parameter.KEYWORD_ONLY and not any(name.startswith("*") for name in names):
            names.append("*")
        names.append(f"{prefix}{parameter.name}{default}")
    return ", ".join(names)


def _default(value: object) -> str:
    text = repr(value)
    return "…" if text.startswith("<") else text


def section(documented: type, name: str, page: str) -> str:
    lines = [f"## {name}\n", f"{first_paragraph(documented)} Examples: {page}.\n", "| Method | |", "|---|---|"]
    for method, function in sorted(inspect.getmembers(documented, callable)):
        if not method.startswith("_") and method not in INTERNAL:
            prefix = "await " if inspect.iscoroutinefunction(function) else ""
            text = first_paragraph(function) or first_paragraph(getattr(SAME.get(documented), method, None))
            text = text.replace("|", "\\|")
            lines.append(f"| `{prefix}{method}({parameters(function)})` | {text} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    return "\n".join([INTRODUCTION, *(section(*entry) for entry in CLASSES)])


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            print(f"{PAGE.name} is out of date: run make docs", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
