"""`kavka config-files`: the configuration files that Kavka ships, as `config/` has them in a
checkout."""

from __future__ import annotations

from pathlib import Path

from kavka.cli.options import Arguments, Command, Option, Positional
from kavka.cli.tool import ToolError, run

FOLDER = Path(__file__).with_name("config")

COMMAND = Command(
    "config-files",
    "List, print or copy the configuration files of brokers, ZooKeeper and Connect. Without arguments: list them.",
    (
        Option("copy", "Copy the files, or the named ones, to this folder. Existing files are not replaced.", "folder",
               completes="directory"),
    ),
    positionals=(Positional("name", "A file to print.", required=False, many=True),),
    examples=(
        "kavka config-files --copy config",
        "kavka config-files standalone.properties",
    ),
)  # fmt: skip


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> None:
    files = {path.name: path for path in sorted(FOLDER.glob("*.properties"))}
    for name in args.positionals:
        if name not in files:
            raise ToolError(f"there is no file {name}; the files are {', '.join(files)}")
    selected = [files[name] for name in args.positionals] or list(files.values())
    if "copy" in args:
        _copy(selected, Path(args["copy"]))
    elif args.positionals:
        print("".join(path.read_text() for path in selected), end="")
    else:
        print("\n".join(files))


def _copy(files: list[Path], folder: Path) -> None:
    """Copy the files. Nothing is copied if one of them exists. A file that this cannot complete
    remains and is not replaced by the next call, which names it."""
    existing = [path.name for path in files if (folder / path.name).exists()]
    if existing:
        raise ToolError(f"{', '.join(existing)} exist in {folder}: choose another folder, or name the files to copy")
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        with (folder / path.name).open("xb") as copy:
            copy.write(path.read_bytes())
        print(folder / path.name)
