"""Check that imports in src/kavka only go down the layers, and that some layers do no I/O.

    python tools/check_layers.py [folder of the package]

Imports inside functions are checked. Imports under `if TYPE_CHECKING:` are not, since they never
run.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "kavka"

# From the bottom up. Layers on one line do not import each other.
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
    ("jobs", "runtimes"),
    ("pipeline", "cli", "console", "testing", "aio", "parallel", "streams", "connect"),
)
# The packages of the pipelines, likewise. `mirror` has the workers and plugins of Connect.
PIPELINE: tuple[tuple[str, ...], ...] = (("columns",), ("spark",), ("connect", "streams"), ("mirror",))
PIPELINE_RANK = {name: rank for rank, names in enumerate(PIPELINE) for name in names}
RANK = {layer: rank for rank, layers in enumerate(LAYERS) for layer in layers}

TOP = frozenset(LAYERS[-1])
NO_IO = frozenset({"common", "protocol", "records"})

# Top layers access a cluster only through the client, so that they work with any Kafka cluster.
BELOW_TOP = NO_IO | {"client", "security", "web", "jobs", "runtimes"}

# Exceptions (file, layer), for example tools that start a broker or read log files.
EXCEPTIONS: frozenset[tuple[str, str]] = frozenset(
    {
        ("cli/console.py", "console"),
        ("cli/connect.py", "pipeline"),
        ("cli/dump_indexes.py", "storage"),
        ("cli/mirror_maker.py", "pipeline"),
        ("cli/pipeline.py", "streams"),
        ("cli/pipeline.py", "pipeline"),
        ("cli/examples/word_count.py", "streams"),
        ("cli/quickstart.py", "testing"),
        ("cli/server.py", "broker"),
        ("cli/server.py", "metadata"),
        ("cli/server.py", "storage"),
        ("cli/shards.py", "broker"),
        ("cli/shards.py", "storage"),
        ("cli/zookeeper_brokers.py", "metadata"),
        ("connect/__init__.py", "pipeline"),
        ("streams/__init__.py", "pipeline"),
    }
)

# Modules that layers without I/O must not import.
IO_MODULES = frozenset(
    {
        "asyncio", "fcntl", "glob", "http", "io", "kazoo", "mmap", "multiprocessing", "pyspark", "select", "selectors",
        "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "urllib", "uvloop",
    }
)  # fmt: skip
# Attributes of `os` that do no I/O.
OS_ALLOWED = frozenset({"path", "sep", "linesep", "PathLike", "fspath"})


def layer_of(file: Path, package: Path) -> str:
    """Return `api` for api/fetch.py, `testing` for testing.py, and `__init__` for __init__.py."""
    first = file.relative_to(package).parts[0]
    return first.removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import. `from a import b` yields a.b, since b may be a
    module."""
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            for other in node.orelse:
                yield other
                yield from _executed(other)
            continue
        yield node
        yield from _executed(node)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def check_file(file: Path, package: Path) -> Iterator[str]:
    """Yield a message for each import or call in a file that breaks the rules."""
    layer = layer_of(file, package)
    if layer == "__init__":
        return
    relative = file.relative_to(package).as_posix()
    if layer not in RANK:
        yield f"{relative}: {layer} is not a layer in tools/check_layers.py"
        return
    tree = ast.parse(file.read_text(), filename=str(file))
    for line, name in imports(tree):
        if name.startswith("."):
            yield f"{relative}:{line}: relative import; write {PACKAGE}.{layer}…"
            continue
        parts = name.split(".")
        if parts[0] == PACKAGE and len(parts) > 1:
            problem = _direction(layer, parts[1], relative) or _pipeline_direction(relative, parts)
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
        return f"{layer} imports {other}, which has the same rank"
    return None


def _pipeline_direction(relative: str, imported: list[str]) -> str | None:
    """Return a problem if a package of the pipelines imports another one that is not below it."""
    layer, *folders = relative.split("/")
    if layer != "pipeline" or imported[1] != "pipeline" or len(folders) < 2 or len(imported) < 3:
        return None
    package, other = folders[0], imported[2]
    if package not in PIPELINE_RANK:
        return f"pipeline/{package} is not in PIPELINE in tools/check_layers.py"
    if other == package or PIPELINE_RANK.get(other, -1) < PIPELINE_RANK[package]:
        return None
    return f"pipeline.{package} imports pipeline.{other}, which is not below it"


def _no_io(name: str) -> str | None:
    if name.split(".")[0] in IO_MODULES:
        return f"imports {name}, but this layer does no I/O"
    if name.startswith("os.") and name.split(".")[1] not in OS_ALLOWED:
        return f"imports {name}, but this layer does no I/O"
    return None


def _io_calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in _executed(tree):
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
    """Yield a problem for each exception that no import needs."""
    for relative, layer in sorted(EXCEPTIONS):
        file = package / relative
        used = set()
        if file.exists():
            tree = ast.parse(file.read_text())
            used = {name.split(".")[1] for _, name in imports(tree) if name.startswith(f"{PACKAGE}.")}
        if layer not in used:
            yield f"tools/check_layers.py: the exception for {layer} in {relative} is not used"


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
