"""The files of Apicurio Registry, the schema registry that `kavka registry` runs.

They come from the folder in `APICURIO_HOME`, or from Maven Central: the archive is downloaded once
to the user's cache and compared with its checksum. `KAVKA_MAVEN_REPOSITORY` names another
repository.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from kavka.cli.tool import ToolError
from kavka.runtimes import MissingRuntime, find_java

# The last release that runs on Java 17.
VERSION = "3.0.9"
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
HOME_VARIABLE = "APICURIO_HOME"
REPOSITORY_VARIABLE = "KAVKA_MAVEN_REPOSITORY"
MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
API_PATH = "/apis/ccompat/v7"
DEFAULT_HEAP = "-Xmx512m"
_TIMEOUT_S = 60.0
_JARS = ("quarkus-run.jar", "apicurio-registry-app-*-runner.jar")


def find_home() -> Path | None:
    """Return the folder of the registry if it is configured or downloaded. Raise ToolError if the
    configured folder has no registry."""
    if configured := os.environ.get(HOME_VARIABLE):
        if _jar(Path(configured)) is None:
            raise ToolError(f"{HOME_VARIABLE} ({configured}) contains no {' and no '.join(_JARS)}")
        return Path(configured)
    home = cache_folder() / f"apicurio-registry-{VERSION}"
    return home if home.exists() else None


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kavka"


def download(folder: Path) -> Path:
    """Download the registry to a folder and return its home. Raise ToolError if that fails. An
    interrupted download leaves no home."""
    name = f"apicurio-registry-app-{VERSION}-all.tar.gz"
    repository = os.environ.get(REPOSITORY_VARIABLE) or MAVEN_CENTRAL
    url = f"{repository.rstrip('/')}/io/apicurio/apicurio-registry-app/{VERSION}/{name}"
    home = folder / f"apicurio-registry-{VERSION}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as created:
            archive, unpacked = Path(created) / name, Path(created) / "unpacked"
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, archive.open("wb") as file:
                shutil.copyfileobj(response, file)
            with archive.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != SHA256:
                raise ToolError(f"{url} has the wrong checksum: it was changed, or the download is incomplete")
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")
            if not home.exists():
                unpacked.rename(home)
    except (OSError, tarfile.TarError) as error:
        raise ToolError(f"Apicurio Registry cannot be downloaded from {url}: {error}") from None
    return home


def command(home: Path, host: str, port: int, *, jvm: Sequence[str] = ()) -> list[str]:
    """Return the command of a registry that keeps its schemas in memory. Raise ToolError if Java is
    missing. The options in `jvm` take precedence."""
    jar = _jar(home)
    if jar is None:
        raise ToolError(f"{home} contains no {' and no '.join(_JARS)}")
    try:
        java = find_java()
    except MissingRuntime as error:
        raise ToolError(f"the schema registry requires Java: {error}") from None
    settings = {
        "quarkus.http.host": host,
        "quarkus.http.port": str(port),
        "quarkus.http.access-log.enabled": "false",
        "quarkus.log.level": "WARN",
        "quarkus.banner.enabled": "false",
    }
    return [
        java,
        DEFAULT_HEAP,
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *(f"-D{name}={value}" for name, value in settings.items()),
        *jvm,
        "-jar",
        str(jar),
    ]


def _jar(home: Path) -> Path | None:
    return next((jar for pattern in _JARS for jar in sorted(home.glob(pattern))), None)
