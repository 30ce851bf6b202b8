"""Interpreters of newer Python versions, unpacked from packages of Debian and Ubuntu.

apt-get resolves the packages against an empty list of installed packages, so a folder has all
libraries, including the C library, and works on an older Debian. `python -m tests.support.pythons`
prints the interpreters.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

from tests.support import debian
from tests.support.missing import need_command, skip_loudly

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "pythons"
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


class Source(NamedTuple):
    mirror: str
    suite: str
    keyring: str = ""
    """The package on the mirror with its keys; "" if this machine's apt has them."""
    keyring_sha256: str = ""


_DEBIAN = "http://deb.debian.org/debian"
SOURCES = {
    "3.12": Source(
        "http://archive.ubuntu.com/ubuntu",
        "noble",
        "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb",
        "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8",
    ),
    "3.13": Source(_DEBIAN, "trixie"),
    "3.14": Source(_DEBIAN, "sid"),
}
VERSIONS = ("3.11", *SOURCES)


def interpreter(version: str) -> Path:
    """Return the interpreter of a Python version. Skip the test if it cannot be installed."""
    if version == RUNNING:
        return Path(sys.executable)
    target = CACHE / version
    python = target / "usr" / "bin" / f"python{version}"
    if python.exists():
        return python
    if not debian.may_install():
        skip_loudly(f"no Python {version}: it needs root and apt-get")
    patchelf = need_command("patchelf", "patchelf")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=CACHE) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not python.exists():
            _unpack(version, SOURCES[version], Path(folder), patchelf)
            Path(folder, "root").rename(target)
    return python


def headers(version: str) -> dict[str, str]:
    """Return the environment variables with which a compiler finds the headers of a Python
    version."""
    if version == RUNNING:
        return {}
    include = interpreter(version).parents[1] / "include"
    # Also those of the architecture: all headers of the C library must be of one version.
    return {"CPATH": ":".join(map(str, [*include.glob("*-linux-gnu*"), include]))}


def _unpack(version: str, source: Source, folder: Path, patchelf: str) -> None:
    root = folder / "root"
    for name in ("lists/partial", "archives/partial", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    signed_by = f" [signed-by={_keyring(source, folder)}]" if source.keyring else ""
    (folder / "sources.list").write_text(f"deb{signed_by} {source.mirror} {source.suite} main\n")
    options = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache::Archives": folder / "archives",
        "Dir::Cache::PkgCache": "",
        "Dir::Cache::SrcPkgCache": "",
        "APT::Sandbox::User": "root",
    }
    arguments = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    packages = (f"python{version}", f"libpython{version}-dev")
    install = ["install", "--download-only", "--no-install-recommends", "-y", *packages]
    for command in (["update"], install):
        result = debian.apt_get(*arguments, *command)
        if result.returncode:
            skip_loudly(f"no Python {version}: {result.stderr[-300:].strip()}")
    for package in sorted((folder / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    python = root / "usr" / "bin" / f"python{version}"
    loader = next(path for path in root.rglob("ld-linux-*.so.?") if path.is_file())
    final = CACHE / version
    libraries = sorted({path.parent for pattern in ("libc.so.6", "libssl.so.3") for path in root.rglob(pattern)})
    search_path = ":".join(str(final / path.relative_to(root)) for path in libraries)
    # DT_RPATH, unlike DT_RUNPATH, also applies to the libraries of extension modules.
    subprocess.run(
        [patchelf, "--force-rpath", "--set-rpath", search_path,
         "--set-interpreter", final / loader.relative_to(root), python],
        check=True,
    )  # fmt: skip


def _keyring(source: Source, folder: Path) -> Path:
    """Download the keys of a mirror; their checksum is in SOURCES."""
    package = folder / "keyring.deb"
    try:
        with urllib.request.urlopen(f"{source.mirror}/{source.keyring}", timeout=60) as response:
            package.write_bytes(response.read())
    except OSError as error:
        skip_loudly(f"{source.keyring} cannot be downloaded: {error}")
    assert hashlib.sha256(package.read_bytes()).hexdigest() == source.keyring_sha256
    subprocess.run(["dpkg-deb", "-x", package, folder / "keys"], check=True)
    return folder / "keys" / "usr/share/keyrings/ubuntu-archive-keyring.gpg"


if __name__ == "__main__":
    for name in VERSIONS:
        print(name, interpreter(name))
