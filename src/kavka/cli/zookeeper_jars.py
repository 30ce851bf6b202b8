"""Where the classes of a ZooKeeper server are, and the command that runs one.

The first place that has them counts: the folders in `KAVKA_ZOOKEEPER_JARS` (separated as a PATH is), the
distribution in `ZOOKEEPER_HOME`, then the `jars` folder of the installed PySpark. Of a folder only the jars that a
ZooKeeper server loads are taken: Spark's others would double its start time.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

JARS_VARIABLE = "KAVKA_ZOOKEEPER_JARS"
HOME_VARIABLE = "ZOOKEEPER_HOME"

SERVER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# A tree of a few thousand nodes fits well; ZK_SERVER_HEAP and KAFKA_HEAP_OPTS ask for more.
DEFAULT_HEAP = "-Xmx64m"

_PREFIXES = (
    "zookeeper-", "slf4j-", "log4j-", "logback-", "reload4j", "metrics-core-", "snappy-java-", "netty-",
    "commons-io-", "commons-cli-", "audience-annotations-",
)  # fmt: skip
_NEVER = ("netty-tcnative-boringssl", "netty-all-", "log4j-layout-template-json-", "zookeeper-prometheus-metrics-")


class NoZooKeeper(Exception):
    """There is no Java, or no ZooKeeper for it to run; `str()` says what to do."""


def find_jars() -> list[Path]:
    for source, folders in _places():
        found = [jar for folder in folders for jar in _server_jars(folder)]
        if any(jar.name.startswith("zookeeper-") and "jute" not in jar.name for jar in found):
            return found
        if source != "PySpark":
            raise NoZooKeeper(f"there is no zookeeper-*.jar where {source} points ({os.environ[source]})")
    raise NoZooKeeper(
        "ZooKeeper's jars were not found: install PySpark, which has them (pip install pyspark), or set "
        f"{HOME_VARIABLE} to a ZooKeeper distribution"
    )


def server_command(config: Path, *, jvm: Iterable[str] = ()) -> list[str]:
    """The command of a ZooKeeper server on that file; what it logs goes to its standard output."""
    return [*java_command(jvm), SERVER_CLASS, str(config)]


def java_command(jvm: Iterable[str] = ()) -> list[str]:
    """`java` up to and with the class path; `jvm` comes after, and so counts more than, what is set here."""
    class_path = os.pathsep.join(map(str, find_jars()))
    return [
        _java(),
        DEFAULT_HEAP,
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dzookeeper.admin.enableServer=false",
        # Where no configuration of Log4j is given: to standard output, from this level on.
        "-Dlog4j2.level=INFO",
        *jvm,
        "-cp",
        class_path,
    ]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home and (at_home := Path(home) / "bin" / "java").exists():
        return str(at_home)
    found = shutil.which("java")
    if found is None:
        raise NoZooKeeper("ZooKeeper needs Java, and there is none on the PATH or in JAVA_HOME")
    return found


def _places() -> Iterable[tuple[str, list[Path]]]:
    if given := os.environ.get(JARS_VARIABLE):
        yield JARS_VARIABLE, [Path(folder) for folder in given.split(os.pathsep) if folder]
    if given := os.environ.get(HOME_VARIABLE):
        yield HOME_VARIABLE, [Path(given), Path(given) / "lib"]
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        yield "PySpark", [Path(spec.origin).parent / "jars"]


def _server_jars(folder: Path) -> list[Path]:
    return sorted(
        jar for jar in folder.glob("*.jar") if jar.name.startswith(_PREFIXES) and not jar.name.startswith(_NEVER)
    )
