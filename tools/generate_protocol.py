#!/usr/bin/env python3
"""Generate src/kavka/protocol/messages/ and src/kavka/protocol/api_keys.py from schemas/.

--check writes nothing and fails if the generated code is out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from protocolgen.modules import api_keys_source, module_source  # noqa: E402
from protocolgen.schema import NOT_MODELLED, SchemaError, SchemaFile, parse_file, parse_not_modelled  # noqa: E402

PACKAGE_DOC = '"""Kafka\'s messages, one module per API, generated from schemas/."""\n'


def load_schemas(folder: Path = ROOT / "schemas") -> list[SchemaFile]:
    return [parse_file(path) for path in sorted(folder.glob("*.txt")) if path.name != NOT_MODELLED]


def generate(schemas: Path) -> dict[Path, str]:
    """Return the text of every generated file by its path under src/kavka/protocol. Raise
    SchemaError if a schema is invalid."""
    files = load_schemas(schemas)
    for file in files:
        kinds = [m.kind for m in file.messages]
        if "data" not in kinds and (kinds != ["request", "response"] or len({m.api_key for m in file.messages}) != 1):
            raise SchemaError(f"{file.name}: expected a request and a response with the same api number")
    result = {Path("messages") / f"{file.name}.py": module_source(file) for file in files}
    result[Path("messages/__init__.py")] = PACKAGE_DOC
    result[Path("api_keys.py")] = api_keys_source(files, parse_not_modelled(schemas / NOT_MODELLED))
    return result


def differences(target: Path, files: dict[Path, str]) -> list[str]:
    """Return a message for each generated file that is missing, out of date or without a schema."""
    problems = []
    for path, text in files.items():
        if not (target / path).exists():
            problems.append(f"{path} is missing")
        elif (target / path).read_text(encoding="utf-8") != text:
            problems.append(f"{path} is out of date")
    for path in sorted((target / "messages").glob("*.py")):
        if path.relative_to(target) not in files:
            problems.append(f"{path.relative_to(target)} has no schema")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing and fail if the code is out of date")
    parser.add_argument("--schemas", type=Path, default=ROOT / "schemas")
    parser.add_argument("--target", type=Path, default=ROOT / "src/kavka/protocol")
    options = parser.parse_args()
    try:
        files = generate(options.schemas)
    except SchemaError as error:
        print(f"generate_protocol: {error}", file=sys.stderr)
        return 1
    if options.check:
        problems = differences(options.target, files)
        for line in problems:
            print(f"generate_protocol: {line}; run tools/generate_protocol.py", file=sys.stderr)
        return 1 if problems else 0
    (options.target / "messages").mkdir(exist_ok=True)
    for path in (options.target / "messages").glob("*.py"):
        if path.relative_to(options.target) not in files:
            path.unlink()
    for path, text in files.items():
        if not (options.target / path).exists() or (options.target / path).read_text(encoding="utf-8") != text:
            (options.target / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
