"""Java and PySpark on this machine. ZooKeeper, the schema registry and the pipelines need them."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

MINIMUM_JAVA = 17
# As in the extra `pipeline` of pyproject.toml.
MINIMUM_PYSPARK = "4.2"
JAVA_REMEDY = f"install Java {MINIMUM_JAVA} or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless)"
PYSPARK_REMEDY = f"pip install 'pyspark>={MINIMUM_PYSPARK}'"
_VERSION_TIMEOUT_S = 20.0


class MissingRuntime(Exception):
    """Java or PySpark is missing or too old. `str()` says how to install it."""


def find_java() -> str:
    """Return the path of `java`, in JAVA_HOME or on the PATH. Raise MissingRuntime if there is
    none."""
    home = os.environ.get("JAVA_HOME")
    if home and (java_in_home := Path(home) / "bin" / "java").exists():
        return str(java_in_home)
    java = shutil.which("java")
    if java is None:
        raise MissingRuntime(f"Java is neither on the PATH nor in JAVA_HOME: {JAVA_REMEDY}")
    return java


@cache
def java_version(java: str) -> int:
    """Run `java -version` and return the major version. Raise MissingRuntime if Java cannot run or
    is too old."""
    try:
        result = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingRuntime(f"{java} does not run ({error}): {JAVA_REMEDY}") from None
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    if match is None:
        first_line = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[0]
        raise MissingRuntime(f"{java} does not print its version ({first_line}): {JAVA_REMEDY}")
    version = int(match[1])
    if version < MINIMUM_JAVA:
        raise MissingRuntime(f"{java} is Java {version}, which is too old: {JAVA_REMEDY}")
    return version


def pyspark_version() -> str:
    """Return the version of the installed PySpark. Raise MissingRuntime if it is missing, too old,
    or if SPARK_HOME has the jars of another version."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise MissingRuntime("PySpark is not installed: pip install 'kavka[pipeline]'") from None
    if _numbers(version) < _numbers(MINIMUM_PYSPARK):
        raise MissingRuntime(f"PySpark {version} is older than {MINIMUM_PYSPARK}: {PYSPARK_REMEDY}")
    spark_home = os.environ.get("SPARK_HOME")
    for jar in Path(spark_home, "jars").glob("spark-core_*.jar") if spark_home else ():
        jar_version = jar.stem.rpartition("-")[2]
        if _numbers(jar_version) != _numbers(version):
            raise MissingRuntime(
                f"SPARK_HOME ({spark_home}) has Spark {jar_version}, but PySpark is {version}: unset SPARK_HOME, or "
                f"pip install pyspark=={jar_version}"
            )
    return version


def check_spark() -> None:
    """Raise MissingRuntime if Spark cannot start on this machine: PySpark itself prints a stack
    trace."""
    pyspark_version()
    java_version(find_java())


def _numbers(version: str) -> tuple[int, ...]:
    """Return the major and the minor version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
