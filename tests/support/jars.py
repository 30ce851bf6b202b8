"""Class paths of Apache Kafka's clients, tools and servers. Maven resolves them once; they are
cached under .cache/.

`python -m tests.support.jars` resolves all of them ahead of the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from kavka.cli import registry_files
from kavka.cli.tool import ToolError
from tests.support import debian

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "java"

Coordinates = tuple[str, str, str]

_JACKSON: Coordinates = ("com.fasterxml.jackson.core", "jackson-databind", "2.16.2")

CLASS_PATHS: dict[str, tuple[Coordinates, ...]] = {
    "clients-3.9.1": (
        ("org.apache.kafka", "kafka-clients", "3.9.1"),
        ("org.slf4j", "slf4j-nop", "1.7.36"),
        _JACKSON,
    ),
    "clients-4.3.0": (
        ("org.apache.kafka", "kafka-clients", "4.3.0"),
        ("org.slf4j", "slf4j-nop", "1.7.36"),
        _JACKSON,
        # For the tokens of OAUTHBEARER.
        ("org.bitbucket.b_c", "jose4j", "0.9.6"),
    ),
    "server-3.9.1": (
        ("org.apache.kafka", "kafka_2.13", "3.9.1"),
        ("org.apache.kafka", "kafka-tools", "3.9.1"),
    ),
    "server-4.3.0": (
        ("org.apache.kafka", "kafka_2.13", "4.3.0"),
        ("org.apache.kafka", "kafka-tools", "4.3.0"),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ),
    "streams-3.9.1": (
        ("org.apache.kafka", "kafka-streams", "3.9.1"),
        ("org.apache.kafka", "kafka-streams-test-utils", "3.9.1"),
        ("org.slf4j", "slf4j-nop", "1.7.36"),
    ),
    "streams-4.3.0": (
        ("org.apache.kafka", "kafka-streams", "4.3.0"),
        ("org.apache.kafka", "kafka-streams-test-utils", "4.3.0"),
        ("org.slf4j", "slf4j-nop", "1.7.36"),
    ),
    "postgresql-jdbc": (("org.postgresql", "postgresql", "42.7.4"),),
}
# Class paths that only single tests use. `main` does not resolve them.
RARE_CLASS_PATHS: dict[str, tuple[Coordinates, ...]] = {
    "connect-3.9.1": (
        ("org.apache.kafka", "connect-runtime", "3.9.1"),
        ("org.apache.kafka", "connect-file", "3.9.1"),
        ("org.apache.kafka", "connect-json", "3.9.1"),
        ("org.apache.kafka", "connect-transforms", "3.9.1"),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
    "mirror-3.9.1": (
        ("org.apache.kafka", "connect-mirror", "3.9.1"),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
    # The serdes of 3.0.9, the version of the registry, cannot be resolved: their parent is missing.
    "apicurio-serdes-3.1.7": (
        ("io.apicurio", "apicurio-registry-avro-serde-kafka", "3.1.7"),
        ("org.slf4j", "slf4j-nop", "2.0.17"),
    ),
    "spark-avro-4.0.0": (("org.apache.spark", "spark-avro_2.13", "4.0.0"),),
    "spark-connector-4.0.0": (("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0"),),
    # Spark 4.3 has Hadoop 3.5.0. Of the AWS SDK these modules are enough; its bundle has 686 MB.
    "hadoop-aws-3.5.0": (
        ("org.apache.hadoop", "hadoop-aws", "3.5.0"),
        ("software.amazon.awssdk", "s3", "2.35.4"),
        ("software.amazon.awssdk", "s3-transfer-manager", "2.35.4"),
        ("software.amazon.awssdk", "sts", "2.35.4"),
    ),
    "s3proxy-3.3.0": (
        ("org.gaul", "s3proxy", "3.3.0"),
        ("com.fasterxml.jackson.core", "jackson-annotations", "2.22"),
    ),
}
_EXCLUDED = {"hadoop-aws": ("software.amazon.awssdk", "bundle")}


class JavaMissing(RuntimeError):
    """Java or Maven is missing and cannot be installed, or an artifact is not available."""


def java() -> str:
    """Return the path of the java command. Install Java and Maven if they are missing."""
    _require("java", "mvn")
    return _path_of("java")


def _path_of(command: str) -> str:
    path = shutil.which(command)
    if path is None:
        raise JavaMissing(f"{command} is not on the PATH")
    return path


def _require(*commands: str) -> None:
    missing = [command for command in commands if shutil.which(command) is None]
    if not missing:
        return
    if not debian.may_install():
        raise JavaMissing(f"{' and '.join(missing)} not found, and only root on Debian can install them here")
    if problem := debian.install("openjdk-17-jdk-headless", "maven"):
        raise JavaMissing(f"{' and '.join(missing)} could not be installed: {problem}")


def class_path(name: str) -> str:
    """Return the class path with this name, with jars separated by colons."""
    artifacts = (CLASS_PATHS | RARE_CLASS_PATHS)[name]
    key = hashlib.sha256(repr(artifacts).encode()).hexdigest()[:12]
    CACHE.mkdir(parents=True, exist_ok=True)
    cached = CACHE / f"{name}-{key}.classpath"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if cached.exists():
            text = cached.read_text().strip()
            if all(Path(jar).exists() for jar in text.split(":")):
                return text
        java()
        return _resolve(name, artifacts, cached)


def _resolve(name: str, artifacts: tuple[Coordinates, ...], cached: Path) -> str:
    folder = CACHE / name
    folder.mkdir(exist_ok=True)
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{_exclusions(artifact)}</dependency>"
        for group, artifact, version in artifacts
    )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>kavka.tests</groupId>"
        f"<artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
    output = folder / "classpath.txt"
    result = subprocess.run(
        ["mvn", "-B", "-q", "-f", str(folder / "pom.xml"), "dependency:build-classpath", f"-Dmdep.outputFile={output}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0 or not output.exists():
        raise JavaMissing(f"Maven could not resolve {name}: {(result.stdout + result.stderr)[-800:]}")
    text = output.read_text().strip()
    temporary = cached.with_suffix(".tmp")
    temporary.write_text(text + "\n")
    temporary.replace(cached)
    return text


def _exclusions(artifact: str) -> str:
    if artifact not in _EXCLUDED:
        return ""
    group, excluded = _EXCLUDED[artifact]
    exclusion = f"<groupId>{group}</groupId><artifactId>{excluded}</artifactId>"
    return f"<exclusions><exclusion>{exclusion}</exclusion></exclusions>"


def apicurio_home() -> Path:
    """Return the folder of Apicurio Registry. Download it if it is missing."""
    CACHE.mkdir(parents=True, exist_ok=True)
    home = CACHE / f"apicurio-registry-{registry_files.VERSION}"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        java()
        try:
            return home if home.exists() else registry_files.download(CACHE)
        except ToolError as error:
            raise JavaMissing(str(error)) from None


def main() -> int:
    for name in CLASS_PATHS:
        jars = class_path(name).split(":")
        print(f"{name}: {len(jars)} jars")
    print(f"Apicurio Registry: {apicurio_home().name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
