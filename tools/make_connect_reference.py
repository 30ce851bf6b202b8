"""Write the second part of docs/connect.md, from the option tables of Connect (src/kavka/pipeline/connect).

With --check nothing is written; it fails when the file differs from what the tables give.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from kavka.common.config import ConfigType
from kavka.pipeline.connect import plugins, settings
from kavka.pipeline.connect.loading import CONVERTERS, PREDICATES, TRANSFORMS, Declared
from kavka.pipeline.connect.options import Option

FILE = Path(__file__).resolve().parents[1] / "docs" / "connect.md"
MARK = "<!-- From here on written by `make docs` from the tables that the workers themselves read. -->"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def shown_default(option: Option) -> str:
    if option.required:
        return "**required**"
    text = option.default_text()
    return "" if not text or option.type is ConfigType.PASSWORD else f"`{cell(text)}`"


def table(options: Iterable[Option]) -> str:
    lines = ["| option | type | default | |", "|---|---|---|---|"]
    for one in options:
        rule = f" *({cell(one.validator.allowed)})*" if one.validator is not None else ""
        kind = one.type.name.lower()
        lines.append(f"| `{one.name}` | {kind} | {shown_default(one)} | {cell(one.doc)}{rule} |")
    return "\n".join(lines)


def summary(cls: Any) -> str:
    """The first paragraph of the docstring."""
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def more(cls: Any) -> list[str]:
    """The other paragraphs."""
    return [" ".join(one.split()) for one in (cls.__doc__ or "").strip().split("\n\n")[1:]]


def connectors() -> Iterable[str]:
    for plugin, cls in plugins.load_all(Declared(file_connectors=True)):
        yield f"### {plugin.name}"
        names = ", ".join(f"`{name}`" for name in plugin.java_names)
        known = f" Kafka users know it as {names}." if names else ""
        once = ""
        if cls.kind == "sink":
            once = " It can write each record once." if cls.exactly_once else " It writes at least once."  # type: ignore[union-attr]
        yield f"A {cls.kind}. {summary(cls)}{known}{once}"
        yield from more(cls)
        if cls.options:
            yield table(cls.options)
        if cls.prefixes:
            yield "\n".join(f"- `{prefix}…`: {doc}" for prefix, doc in cls.prefixes)


def parts_by_name(known: dict[str, str]) -> Iterable[str]:
    for name, where in known.items():
        module, _, attribute = where.partition(":")
        cls: Any = getattr(import_module(module), attribute)
        sided = " (`$Key`, `$Value`)" if getattr(cls, "sided", False) else ""
        yield f"### {name}{sided}"
        yield summary(cls)
        if cls.options:
            yield table(cls.options)


def reference() -> str:
    parts = ["## Connectors", "Beside their own options, connectors have those of all, and of all sources or sinks."]
    parts += connectors()
    parts += ["## Options of all connectors", table(settings.COMMON)]
    parts += ["## Options of all sources", table(settings.SOURCE_OPTIONS)]
    parts += ["## Options of all sinks", table(settings.SINK_OPTIONS)]
    parts += ["## Converters", *parts_by_name(CONVERTERS)]
    parts += ["## Transformations", *parts_by_name(TRANSFORMS)]
    parts += ["## Predicates", *parts_by_name(PREDICATES)]
    parts += ["## Workers", table(settings.WORKER)]
    shared = {one.name for one in settings.WORKER}
    for title, options in (("Standalone", settings.STANDALONE), ("Distributed", settings.DISTRIBUTED)):
        parts += [f"### {title}", table(one for one in options if one.name not in shared)]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str]) -> int:
    text = FILE.read_text()
    if MARK not in text:
        print(f"{FILE.name}: the mark is gone: {MARK}")
        return 1
    page = f"{text.partition(MARK)[0]}{MARK}\n\n{reference()}"
    if "--check" in argv:
        same = page == text
        print(f"docs/{FILE.name}: " + ("fine" if same else "not what the tables give; run make docs"))
        return 0 if same else 1
    FILE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
