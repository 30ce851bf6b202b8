"""`kavka pipeline pack`: an archive with Kavka and the distributions that it needs on executors.

The archive is a gzipped tar of a folder for Python's module path, with the compiled modules of this
machine. PySpark is not in it: executors have that of their Spark. Executors need the same minor
version of Python, and the same operating system and processor architecture.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import kavka
from kavka.pipeline.spark.errors import PipelineError

# The folder of the archive in the working directory of an executor.
ARCHIVE_FOLDER = "kavka-environment"
_EXTRAS = ("pipeline", "serializers")
_OF_SPARK = frozenset({"pyspark", "py4j"})
_UNUSED = frozenset({"__pycache__", "tests", "include"})
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def pack(output: Path, extra_distributions: Iterable[str] = ()) -> list[str]:
    """Write the archive. Returns the distributions in it, with their versions. A crash leaves a
    file with the suffix .tmp."""
    distributions = _required(extra_distributions)
    temporary = output.with_name(f"{output.name}.tmp")
    with tarfile.open(temporary, "w:gz", compresslevel=1) as archive:
        package = Path(kavka.__file__).parent
        for path, name in _tree(package, "kavka"):
            archive.add(path, name, recursive=False)
        for required in distributions:
            for path, name in _files(required):
                archive.add(path, name, recursive=False)
    temporary.replace(output)
    return [f"kavka {kavka.__version__}", *(f"{each.metadata['Name']} {each.version}" for each in distributions)]


def _required(extra_distributions: Iterable[str]) -> list[Distribution]:
    """The distributions that Kavka's pipelines require, and these others with what they require."""
    selected: dict[str, Distribution] = {}
    pending = [*_requirements(_installed("kavka"), _EXTRAS)]
    for name in extra_distributions:
        selected[_normal(name)] = _installed(name)
        pending += _requirements(selected[_normal(name)], ())
    while pending:
        name = pending.pop()
        if name in selected or name in _OF_SPARK or name == "kavka":
            continue
        try:
            selected[name] = distribution(name)
        except PackageNotFoundError:
            # A requirement of other platforms or Python versions.
            continue
        pending += _requirements(selected[name], ())
    return [selected[name] for name in sorted(selected)]


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise PipelineError(f"the distribution {name} is not installed here: pip install {name}") from None


def _requirements(required: Distribution, extras: tuple[str, ...]) -> Iterator[str]:
    for line in required.requires or ():
        name = _NAME.match(line)
        extra = _EXTRA.search(line)
        if name is not None and (extra is None or extra[1] in extras):
            yield _normal(name[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files(required: Distribution) -> Iterator[tuple[Path, str]]:
    if required.files is None:
        raise PipelineError(f"the files of {required.metadata['Name']} are not known: install it with pip")
    for file in required.files:
        path = Path(str(required.locate_file(file)))
        if ".." not in file.parts and not _UNUSED.intersection(file.parts) and path.is_file():
            yield path, str(file)


def _tree(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if path.is_file() and "__pycache__" not in inner.parts:
            yield path, f"{name}/{inner.as_posix()}"
