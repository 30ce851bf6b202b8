"""Check that imports in src/kavka go only down the layers, and that the layers without I/O do none.

    python tools/check_layers.py [folder of the package]

Every import counts, also one inside a function; only those under `if TYPE_CHECKING:` do not, since nothing runs them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "kavka"

# From the bottom up. Layers on one line stand side by side: neither imports the other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("common",),
    ("protocol",),
    ("records",),
    ("security", "web"),
    ("storage", "client"),
    ("metadata",),
    ("replication",),
    ("coordinator", "controller"),
    ("api",),
    ("network",),
    ("broker",),
    ("jobs",),
    ("pipeline", "cli", "console", "testing", "aio", "parallel", "streams", "connect"),
)
RANK = {layer: rank for rank, layers in enumerate(LAYERS) for layer in layers}

TOP = frozenset(LAYERS[-1])
NO_IO = frozenset({"common", "protocol", "records"})

# What is on top reaches a cluster through the client, as anybody's program does, so that it works with any Kafka.
BELOW_TOP = NO_IO | {"client", "security", "web", "jobs"}

# The tools that start a broker, read a log folder or talk to ZooKeeper: (file, layer) pairs that are allowed.
EXCEPTIONS: frozenset[tuple[str, str]] = frozenset(
    {
        ("cli/console.py", "console"),
        ("cli/connect.py", "pipeline"),
        ("cli/dump_indexes.py", "storage"),
        ("cli/mirror_maker.py", "pipeline"),
        ("cli/pipeline.py", "streams"),
        ("cli/server.py", "broker"),
        ("cli/server.py", "metadata"),
        ("cli/server.py", "storage"),
        ("cli/zookeeper_brokers.py", "metadata"),
        ("connect/__init__.py", "pipeline"),
        ("streams/__init__.py", "pipeline"),
    }
)

# What layers without I/O may not import, and what they may not call. Paths and byte orders are no I/O.
IO_MODULES = frozenset(
    {
        "asyncio", "fcntl", "glob", "http", "io", "kazoo", "mmap", "multiprocessing", "pyspark", "select", "selectors",
        "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "urllib", "uvloop",
    }
)  # fmt: skip
# `import os` is fine for os.path and os.sep; its functions that touch files are not.
OS_ALLOWED = frozenset({"path", "sep", "linesep", "PathLike", "fspath"})


def layer_of(file: Path, package: Path) -> str:
    """`api` for api/fetch.py, `testing` for testing.py; the package's own __init__.py has none."""
    first = file.relative_to(package).parts[0]
    return first.removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all that is imported, `from a import b` as a.b, since b may be a module."""
    for node in _running(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            for other in node.orelse:
                yield other
                yield from _running(other)
            continue
        yield node
        yield from _running(node)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def check_file(file: Path, package: Path) -> Iterator[str]:
    layer = layer_of(file, package)
    if layer == "__init__":
        return
    relative = file.relative_to(package).as_posix()
    if layer not in RANK:
        yield f"{relative}: {layer} is not a layer; tools/check_layers.py knows all of them"
        return
    tree = ast.parse(file.read_text(), filename=str(file))
    for line, name in imports(tree):
        if name.startswith("."):
            yield f"{relative}:{line}: relative import; say {PACKAGE}.{layer}… in full"
            continue
        parts = name.split(".")
        if parts[0] == PACKAGE and len(parts) > 1:
            problem = _direction(layer, parts[1], relative)
        elif layer in NO_IO:
            problem = _no_io(name)
        else:
            problem = None
        if problem:
            yield f"{relative}:{line}: {problem}"
    if layer in NO_IO:
        yield from (f"{relative}:{line}: {problem}" for line, problem in _io_calls(tree))


def _direction(layer: str, other: str, relative: str) -> str | None:
    if other == layer or other not in RANK or (relative, other) in EXCEPTIONS:
        return None
    if layer in TOP and other not in BELOW_TOP:
        return f"{layer} may use only {', '.join(sorted(BELOW_TOP))} and itself, not {other}"
    if RANK[other] > RANK[layer]:
        return f"{layer} imports {other}, which is above it"
    if RANK[other] == RANK[layer]:
        return f"{layer} imports {other}, which stands beside it"
    return None


def _no_io(name: str) -> str | None:
    if name.split(".")[0] in IO_MODULES:
        return f"imports {name}, but this layer does no I/O"
    if name.startswith("os.") and name.split(".")[1] not in OS_ALLOWED:
        return f"imports {name}, but this layer does no I/O"
    return None


def _io_calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in _running(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield node.lineno, "opens a file, but this layer does no I/O"
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            and node.attr not in OS_ALLOWED
        ):
            yield node.lineno, f"uses os.{node.attr}, but this layer does no I/O"


def unused_exceptions(package: Path) -> Iterator[str]:
    """An exception that nothing needs any more is removed from the list, not kept for later."""
    for relative, layer in sorted(EXCEPTIONS):
        file = package / relative
        used = set()
        if file.exists():
            tree = ast.parse(file.read_text())
            used = {name.split(".")[1] for _, name in imports(tree) if name.startswith(f"{PACKAGE}.")}
        if layer not in used:
            yield f"tools/check_layers.py: the exception of {relative} for {layer} is not used"


def check(package: Path) -> list[str]:
    return [problem for file in sorted(package.rglob("*.py")) for problem in check_file(file, package)]


def main(argv: list[str]) -> int:
    package = Path(argv[0]) if argv else Path(__file__).resolve().parents[1] / "src" / PACKAGE
    problems = [*check(package), *unused_exceptions(package)]
    for problem in problems:
        print(problem)
    print(f"layers: {len(problems)} problems" if problems else "layers: fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
