"""The jars of a ZooKeeper server and the command that runs it.

The jars come from the first of: the folders in `KAVKA_ZOOKEEPER_JARS` (separated as in PATH), the
distribution in `ZOOKEEPER_HOME`, and the `jars` folder of the installed PySpark. Only the jars that
a ZooKeeper server loads are used: Spark's other jars would double its start time.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from kavka.runtimes import MissingRuntime, find_java

JARS_VARIABLE = "KAVKA_ZOOKEEPER_JARS"
HOME_VARIABLE = "ZOOKEEPER_HOME"

SERVER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# Enough for several thousand znodes. ZK_SERVER_HEAP and KAFKA_HEAP_OPTS override it.
DEFAULT_HEAP = "-Xmx64m"

_PREFIXES = (
    "zookeeper-", "slf4j-", "log4j-", "logback-", "reload4j", "metrics-core-", "snappy-java-", "netty-",
    "commons-io-", "commons-cli-", "audience-annotations-",
)  # fmt: skip
_EXCLUDED_PREFIXES = (
    "netty-tcnative-boringssl",
    "netty-all-",
    "log4j-layout-template-json-",
    "zookeeper-prometheus-metrics-",
)


class NoZooKeeper(Exception):
    """Java or the ZooKeeper jars are missing. `str()` says how to install them."""


def find_jars() -> list[Path]:
    """Return the jars of the first source that is configured or installed. Raise NoZooKeeper if
    there is none, or if it has no ZooKeeper jar."""
    for source, folders in _sources():
        jars = [jar for folder in folders for jar in _server_jars(folder)]
        if any(jar.name.startswith("zookeeper-") and "jute" not in jar.name for jar in jars):
            return jars
        if source != "PySpark":
            raise NoZooKeeper(f"{source} ({os.environ[source]}) contains no zookeeper-*.jar")
    raise NoZooKeeper(
        "ZooKeeper's jars were not found: install PySpark, which contains them (pip install pyspark), or set "
        f"{HOME_VARIABLE} to a ZooKeeper distribution"
    )


def server_command(config: Path, *, jvm: Iterable[str] = ()) -> list[str]:
    """Return the command of a ZooKeeper server, which logs to standard output. Raise NoZooKeeper if
    Java or the jars are missing."""
    return [*java_command(jvm), SERVER_CLASS, str(config)]


def java_command(jvm: Iterable[str] = ()) -> list[str]:
    """Return `java` with its options and the class path. The options in `jvm` take precedence."""
    class_path = os.pathsep.join(map(str, find_jars()))
    try:
        java = find_java()
    except MissingRuntime as error:
        raise NoZooKeeper(f"ZooKeeper requires Java: {error}") from None
    return [
        java,
        DEFAULT_HEAP,
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dzookeeper.admin.enableServer=false",
        # The level for standard output, unless a Log4j configuration is set.
        "-Dlog4j2.level=INFO",
        *jvm,
        "-cp",
        class_path,
    ]


def _sources() -> Iterable[tuple[str, list[Path]]]:
    if configured := os.environ.get(JARS_VARIABLE):
        yield JARS_VARIABLE, [Path(folder) for folder in configured.split(os.pathsep) if folder]
    if configured := os.environ.get(HOME_VARIABLE):
        yield HOME_VARIABLE, [Path(configured), Path(configured) / "lib"]
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        yield "PySpark", [Path(spec.origin).parent / "jars"]


def _server_jars(folder: Path) -> list[Path]:
    return sorted(
        jar
        for jar in folder.glob("*.jar")
        if jar.name.startswith(_PREFIXES) and not jar.name.startswith(_EXCLUDED_PREFIXES)
    )
