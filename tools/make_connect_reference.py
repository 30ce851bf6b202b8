"""Generate the second part of docs/connect.md from the option tables of Connect
(src/kavka/pipeline/connect).

--check writes nothing and fails if the file is out of date.
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
MARK = "<!-- `make docs` generates the rest of this page from the tables that the workers use. -->"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def shown_default(option: Option) -> str:
    if option.required:
        return "**required**"
    text = option.default_text()
    return "" if not text or option.type is ConfigType.PASSWORD else f"`{cell(text)}`"


def table(options: Iterable[Option]) -> str:
    lines = ["| option | type | default | |", "|---|---|---|---|"]
    for option in options:
        rule = f" *({cell(option.validator.allowed)})*" if option.validator is not None else ""
        kind = option.type.name.lower()
        lines.append(f"| `{option.name}` | {kind} | {shown_default(option)} | {cell(option.doc)}{rule} |")
    return "\n".join(lines)


def summary(cls: Any) -> str:
    """Return the first paragraph of the docstring."""
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def other_paragraphs(cls: Any) -> list[str]:
    """Return the other paragraphs of the docstring."""
    return [" ".join(paragraph.split()) for paragraph in (cls.__doc__ or "").strip().split("\n\n")[1:]]


def connectors() -> Iterable[str]:
    for plugin, cls in plugins.load_all(Declared(file_connectors=True)):
        yield f"### {plugin.name}"
        names = ", ".join(f"`{name}`" for name in plugin.java_names)
        aliases = f" Other names: {names}." if names else ""
        delivery = ""
        if cls.kind == "sink":
            is_exactly_once = cls.exactly_once  # type: ignore[union-attr]
            delivery = " It supports exactly-once delivery." if is_exactly_once else " Delivery is at least once."
        yield f"A {cls.kind}. {summary(cls)}{aliases}{delivery}"
        yield from other_paragraphs(cls)
        if cls.options:
            yield table(cls.options)
        if cls.prefixes:
            yield "\n".join(f"- `{prefix}…`: {doc}" for prefix, doc in cls.prefixes)


def sections_by_name(classes: dict[str, str]) -> Iterable[str]:
    for name, path in classes.items():
        module, _, attribute = path.partition(":")
        cls: Any = getattr(import_module(module), attribute)
        variants = " (`$Key`, `$Value`)" if getattr(cls, "sided", False) else ""
        yield f"### {name}{variants}"
        yield summary(cls)
        if cls.options:
            yield table(cls.options)


def reference() -> str:
    parts = ["## Connectors", "Connectors also have the options of all connectors, and of all sources or sinks."]
    parts += connectors()
    parts += ["## Options of all connectors", table(settings.COMMON)]
    parts += ["## Options of all sources", table(settings.SOURCE_OPTIONS)]
    parts += ["## Options of all sinks", table(settings.SINK_OPTIONS)]
    parts += ["## Converters", *sections_by_name(CONVERTERS)]
    parts += ["## Transformations", *sections_by_name(TRANSFORMS)]
    parts += ["## Predicates", *sections_by_name(PREDICATES)]
    parts += ["## Workers", table(settings.WORKER)]
    shared = {option.name for option in settings.WORKER}
    for title, options in (("Standalone", settings.STANDALONE), ("Distributed", settings.DISTRIBUTED)):
        parts += [f"### {title}", table(option for option in options if option.name not in shared)]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str]) -> int:
    text = FILE.read_text()
    if MARK not in text:
        print(f"docs/{FILE.name} does not contain {MARK}")
        return 1
    page = f"{text.partition(MARK)[0]}{MARK}\n\n{reference()}"
    if "--check" in argv:
        is_current = page == text
        print(f"docs/{FILE.name}: fine" if is_current else f"docs/{FILE.name} is out of date: make docs")
        return 0 if is_current else 1
    FILE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
