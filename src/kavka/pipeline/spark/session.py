"""Builds the Spark sessions of Streams, Connect and mirroring.

With a master on other machines the session sends the executors what they need of this one:

    spark.submit.pyFiles  modules (`.py`, `.zip`, `.whl`): copied at the start, so that an executor
                          that starts later does not depend on the original files
    spark.archives        archives; that of `kavka pipeline pack` is on the executors' module path
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.packing import ARCHIVE_FOLDER
from kavka.runtimes import MissingRuntime, check_spark

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_DEFAULTS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_PY_FILES, _ARCHIVES, _PYTHON_PATH = "spark.submit.pyFiles", "spark.archives", "spark.executorEnv.PYTHONPATH"
_CONNECT_TIMEOUT = 5.0


def build_session(
    name: str,
    config: Mapping[str, str],
    master: str | None = None,
    *,
    log_level: str | None = None,
    error: type[Exception] = PipelineError,
) -> SparkSession:
    """Return the session of this process with `config` (`spark.…`), or create it. The default of
    `master` is that of spark-submit if it started this process, the variable SPARK_MASTER, else all
    cores of this machine. Raises `error` if pyspark is not installed or the master cannot be
    reached."""
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not is_submitted:
        master = os.environ.get("SPARK_MASTER") or "local[*]"
    settings = {**_DEFAULTS, **config}
    _choose_python(master)
    if not is_submitted:
        try:
            check_spark()
        except MissingRuntime as missing:
            raise error(f"{name} runs on Spark: {missing}") from None
    from pyspark.sql import SparkSession

    py_files = _copies(filter(None, settings.pop(_PY_FILES, "").split(",")), error)
    if master is not None and not is_local(master):
        _check_reachable(master, error)
        _add_archives(settings, error)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for option, value in settings.items():
        builder = builder.config(option, value)
    session = builder.getOrCreate()
    level = os.environ.get("KAVKA_SPARK_LOG_LEVEL") or log_level
    if level:
        session.sparkContext.setLogLevel(level)
    if py_files:
        _add_modules(session.sparkContext, py_files)
    return session


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master.startswith("local") and not master.startswith("local-cluster")


def running_session() -> SparkSession | None:
    """Return the active session of this thread, None if pyspark is not loaded or there is none."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _choose_python(master: str | None) -> None:
    """Choose the interpreter of Spark's Python processes. Spark runs the same command on executors
    and on this machine, so on a cluster it has to be a name that each finds on its PATH."""
    if master is not None and is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = f"python3.{sys.version_info.minor}"
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _check_reachable(master: str, error: type[Exception]) -> None:
    """Raise `error` if no master of a standalone cluster accepts connections. Spark itself would
    retry for a minute and stop without a message."""
    if not master.startswith("spark://"):
        return
    problem = ""
    for address in master.removeprefix("spark://").split(","):
        url = urlsplit(f"//{address}")
        try:
            socket.create_connection((url.hostname or "", url.port or 7077), _CONNECT_TIMEOUT).close()
            return
        except (OSError, ValueError) as cause:
            problem = str(cause)
    raise error(f"cannot connect to the Spark master {master}: {problem}; check the address and that it runs")


def _add_archives(settings: dict[str, str], error: type[Exception]) -> None:
    """Put the archive of `kavka pipeline pack` on the module path of the executors."""
    archives = [archive for archive in settings.get(_ARCHIVES, "").split(",") if archive]
    if not archives:
        return
    named = [archive if "#" in archive else f"{archive}#{ARCHIVE_FOLDER}" for archive in archives]
    paths, names = zip(*(archive.split("#", 1) for archive in named), strict=True)
    settings[_ARCHIVES] = ",".join(f"{path}#{name}" for path, name in zip(_copies(paths, error), names, strict=True))
    settings[_PYTHON_PATH] = os.pathsep.join([*names, *filter(None, [settings.get(_PYTHON_PATH)])])


def _add_modules(context: SparkContext, files: Iterable[str]) -> None:
    """Send modules to the executors. Spark also runs Python on the driver, to plan sources and
    states, and does not give these processes the files: they need the module path."""
    path = [context.environment.get("PYTHONPATH", "")]
    for file in files:
        context.addPyFile(file)
        path.append(str(Path(file).parent) if file.endswith(".py") else file)
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))


def _copies(files: Iterable[str], error: type[Exception]) -> list[str]:
    """Copy local files to a folder of this process; other addresses stay as they are."""
    copies = []
    folder: Path | None = None
    for file in files:
        if len(urlsplit(file).scheme) > 1 and not file.startswith("file:"):
            copies.append(file)
            continue
        path = Path(file.removeprefix("file://") if file.startswith("file:") else file)
        if not path.exists():
            raise error(f"there is no file {path} to send to the executors")
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="kavka-files-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        copies.append(str(_copy(path, Path(tempfile.mkdtemp(dir=folder)))))
    return copies


def _copy(path: Path, folder: Path) -> Path:
    path = path.resolve()
    if path.is_dir():
        # A package is a module of its parent; another folder has modules.
        root, base = (path.parent, path.name) if (path / "__init__.py").exists() else (path, None)
        return Path(shutil.make_archive(str(folder / path.name), "zip", root, base))
    target = folder / path.name
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)
    return target
