#!/usr/bin/env python3
"""Regenerate tests/golden/frames/: every message in every version, serialized by Apache Kafka.

Requires Java (17 or newer) and Maven, which downloads Kafka's jars: 4.3.0 for the versions that it
has, 3.9.1 for older versions and for most keys of `__consumer_offsets`.
tests/golden/java/GoldenFrames.java serializes the messages. There is one file per schema and one
line per frame: message, version, variant, bytes in hexadecimal, and Kafka's JSON form, from which
the tests build the expected object.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from generate_protocol import load_schemas  # noqa: E402
from protocolgen.schema import Message, SchemaFile  # noqa: E402

NEWEST, LAST_WITH_ZOOKEEPER = "4.3.0", "3.9.1"
JACKSON = "2.16.2"
PROGRAM = ROOT / "tests/golden/java/GoldenFrames.java"
FRAMES = ROOT / "tests/golden/frames"
COORDINATORS = ("kafka-group-coordinator", "kafka-transaction-coordinator")
PACKAGES = {
    "offsets_topic": "org.apache.kafka.coordinator.group.generated.",
    "transaction_log": "org.apache.kafka.coordinator.transaction.generated.",
}
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>kavka</groupId><artifactId>golden</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>"""
DEPENDENCY = """<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
  <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""


class Frame(NamedTuple):
    """A frame to generate: the release of Kafka, the Java class and version, and Kavka's name and
    version."""

    release: str
    java_class: str
    java_version: int
    name: str
    version: int


def class_path(release: str, folder: Path) -> str:
    jars = [("org.apache.kafka", "kafka-clients", release), ("org.slf4j", "slf4j-api", "1.7.36")]
    jars += [("org.apache.kafka", artifact, release) for artifact in COORDINATORS]
    jars += [
        ("com.fasterxml.jackson.core", f"jackson-{module}", JACKSON) for module in ("databind", "core", "annotations")
    ]
    text = "".join(DEPENDENCY.format(group=g, artifact=a, version=v) for g, a, v in jars)
    (folder / "pom.xml").write_text(POM.format(dependencies=text), encoding="utf-8")
    output = folder / f"{release}.txt"
    subprocess.run(
        ["mvn", "-q", "-f", folder / "pom.xml", "dependency:build-classpath", f"-Dmdep.outputFile={output}"], check=True
    )
    return output.read_text(encoding="utf-8").strip()


def versions_in(jars: str, names: list[str], folder: Path) -> dict[str, tuple[int, int]]:
    """Return the versions of each class in a release, as arguments for range(). Classes without
    versions are omitted."""
    result = {}
    run = subprocess.run(
        ["javap", "-constants", "-cp", jars, *names], capture_output=True, text=True, cwd=folder, check=False
    )
    for text in run.stdout.split("Compiled from ")[1:]:
        name = re.search(r"class ([\w.]+)", text)
        first = re.search(r"LOWEST_SUPPORTED_VERSION = (-?\d+)", text)
        last = re.search(r"HIGHEST_SUPPORTED_VERSION = (-?\d+)", text)
        if name and first and last and int(first[1]) <= int(last[1]):
            result[name[1]] = int(first[1]), int(last[1]) + 1
    return result


def java_name(file: SchemaFile, message: Message) -> str:
    if file.name in PACKAGES:
        return PACKAGES[file.name] + message.name
    if message.kind == "data":
        return f"org.apache.kafka.common.message.{message.name}"
    return f"org.apache.kafka.common.message.{message.name}Data"


def plan(file: SchemaFile, message: Message, versions: dict[str, dict[str, tuple[int, int]]]) -> list[Frame]:
    """Choose the release for each version of a message."""
    java_class = java_name(file, message)
    # In Kavka and Kafka 3.9, the version of a key of __consumer_offsets is the record type. In 4.3
    # it is always 0.
    is_record_type = file.name == "offsets_topic" and message.name.endswith("Key")
    frames = []
    for version in message.versions:
        if is_record_type and java_class not in versions[LAST_WITH_ZOOKEEPER]:
            frames.append(Frame(NEWEST, java_class, 0, message.name, version))
            continue
        releases = (LAST_WITH_ZOOKEEPER,) if is_record_type else (NEWEST, LAST_WITH_ZOOKEEPER)
        candidates = (
            release
            for release in releases
            if java_class in versions[release] and version in range(*versions[release][java_class])
        )
        release = next(candidates, None)
        if release is None:
            raise SystemExit(f"neither release has version {version} of {java_class}")
        frames.append(Frame(release, java_class, version, message.name, version))
    return frames


def run_java(classes: str, frames: list[Frame], folder: Path) -> list[str]:
    command = ["java", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", "-cp", classes, str(PROGRAM)]
    requests = "\n".join(f"{frame.java_class} {frame.java_version}" for frame in frames)
    run = subprocess.run(command, input=requests, stdout=subprocess.PIPE, encoding="utf-8", cwd=folder, check=False)
    if run.returncode != 0:
        raise SystemExit("GoldenFrames.java failed")
    return run.stdout.splitlines()


def main() -> int:
    files = load_schemas()
    lines: dict[str, list[tuple[int, str]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {release: class_path(release, folder) for release in (NEWEST, LAST_WITH_ZOOKEEPER)}
        names = [java_name(file, message) for file in files for message in file.messages]
        versions = {release: versions_in(paths[release], names, folder) for release in (NEWEST, LAST_WITH_ZOOKEEPER)}
        frames = [frame for file in files for message in file.messages for frame in plan(file, message, versions)]
        for release in (NEWEST, LAST_WITH_ZOOKEEPER):
            planned = [frame for frame in frames if frame.release == release]
            by_class = {(frame.java_class.rsplit(".", 1)[1], frame.java_version): frame for frame in planned}
            for line in run_java(paths[release], planned, folder):
                class_name, version, columns = line.split("\t", 2)
                frame = by_class[class_name, int(version)]
                lines.setdefault(frame.name, []).append((frame.version, f"{frame.name}\t{frame.version}\t{columns}\n"))
    FRAMES.mkdir(exist_ok=True)
    for path in FRAMES.iterdir():
        path.unlink()
    for file in files:
        text = "".join(line for message in file.messages for _version, line in sorted(lines[message.name]))
        (FRAMES / f"{file.name}.txt.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
