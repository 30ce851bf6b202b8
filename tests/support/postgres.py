"""A PostgreSQL server from Debian's packages. They are installed, or unpacked under .cache/, if
they are missing.

`python -m tests.support.postgres` does so ahead of the tests, and prints the folder of the
programs.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import debian
from tests.support.jars import CACHE
from tests.support.processes import ManagedProcess, die_with_parent, free_port, wait_until

INSTALLED = Path("/usr/lib/postgresql")
UNPACKED = CACHE.parent / "postgresql"
USER = "postgres"
PROGRAMS = ("initdb", "postgres", "psql")


class PostgresMissing(RuntimeError):
    """PostgreSQL is missing and can be neither installed nor unpacked."""


def programs() -> Path:
    """Return the folder of PostgreSQL's programs."""
    UNPACKED.mkdir(parents=True, exist_ok=True)
    with (UNPACKED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = _newest(INSTALLED) or _newest(_unpacked_root())
        if directory is not None:
            return directory
        if shutil.which("apt-get") is None:
            raise PostgresMissing("PostgreSQL is not installed, and apt-get is not available")
        if os.geteuid() == 0:
            install()
            directory = _newest(INSTALLED)
        else:
            unpack()
            directory = _newest(_unpacked_root())
        if directory is None:
            raise PostgresMissing(f"Debian's packages of PostgreSQL do not contain {', '.join(PROGRAMS)}")
        return directory


def _unpacked_root() -> Path:
    return UNPACKED / "root" / INSTALLED.relative_to("/")


def _newest(versions: Path) -> Path | None:
    candidates = [
        path / "bin" for path in versions.glob("*") if all((path / "bin" / name).exists() for name in PROGRAMS)
    ]
    return max(candidates, key=lambda path: float(path.parent.name), default=None)


def install() -> None:
    """Install the programs, as root. By default, the package would also create and start a
    server."""
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("create_main_cluster = false\n")
    if problem := debian.install("--no-install-recommends", "postgresql"):
        raise PostgresMissing(f"postgresql could not be installed: {problem}")


def unpack() -> None:
    """Download and unpack the packages, as any user."""
    output = _apt("install", "--print-uris", "-y", "--no-install-recommends", "postgresql")
    names = [line.split()[1].split("_")[0] for line in output.splitlines() if line.startswith("'")]
    downloads = UNPACKED / "packages"
    downloads.mkdir(exist_ok=True)
    _apt("download", *names, cwd=downloads)
    for package in sorted(downloads.glob("*.deb")):
        result = subprocess.run(["dpkg", "-x", str(package), str(UNPACKED / "root")], capture_output=True, text=True)
        if result.returncode:
            raise PostgresMissing(f"{package.name} could not be unpacked: {result.stderr[-500:]}")


def _apt(*arguments: str, cwd: Path | None = None) -> str:
    result = debian.apt_get(*arguments, cwd=cwd)
    if result.returncode:
        raise PostgresMissing(f"apt-get {' '.join(arguments)} failed: {result.stderr[-500:]}")
    return result.stdout


class Postgres:
    """A server with a database `test` in a temporary folder. PostgreSQL does not run as root: if
    the test does, the server runs as the package's user or else as `nobody`."""

    user = "kavka"
    password = "secret"
    database = "test"

    def __init__(self) -> None:
        self._bin = programs()
        self._account = _account()
        self._environment = self._library_path()
        self.folder = Path(tempfile.mkdtemp(prefix="kavka-postgres-"))
        self.port = free_port()
        self._process: ManagedProcess | None = None
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        secret = self.folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)
        self._run(
            "initdb", "-D", str(self.folder / "data"), "-U", self.user, "-A", "scram-sha-256", "--pwfile", str(secret),
            "-E", "UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        self.start()
        self.query(f"CREATE DATABASE {self.database}", database="postgres")

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{self.database}"

    @property
    def connection(self) -> dict[str, str]:
        """The connection as settings of a connector."""
        return {"connection.url": self.url, "connection.user": self.user, "connection.password": self.password}

    def start(self) -> None:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
            "max_connections": 30,
            "shared_buffers": "64MB",
        }
        argv = [str(self._bin / "postgres"), "-D", str(self.folder / "data")]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        self._process = ManagedProcess(
            argv, log=self.folder / "log", env=self._environment, cwd=self.folder, before_exec=self._change_user
        )
        wait_until(self._is_ready, timeout=120, what=f"PostgreSQL at port {self.port}", interval=0.05)

    def _is_ready(self) -> bool:
        if self._process is None or not self._process.running():
            raise RuntimeError(f"PostgreSQL has ended: {self._process and self._process.log_tail()}")
        return self._psql("SELECT 1", "postgres").returncode == 0

    def stop(self) -> None:
        """Kill the server, as in a crash. Committed data is preserved."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def query(self, sql: str, database: str = "") -> list[tuple[str, ...]]:
        """Return the rows of the last statement, with values as text. Null is the text NULL."""
        result = self._psql(sql, database or self.database)
        if result.returncode:
            raise RuntimeError(f"{sql}: {result.stderr}")
        return [tuple(line.split("\t")) for line in result.stdout.splitlines()]

    def _psql(self, sql: str, database: str) -> subprocess.CompletedProcess[str]:
        argv = [
            str(self._bin / "psql"), "-X", "-q", "-A", "-t", "-F", "\t", "-P", "null=NULL", "-v", "ON_ERROR_STOP=1",
            "-h", "127.0.0.1", "-p", str(self.port), "-U", self.user, "-d", database, "-f", "-",
        ]  # fmt: skip
        environment = {**os.environ, **self._environment, "PGPASSWORD": self.password}
        return subprocess.run(argv, input=sql, env=environment, capture_output=True, text=True, check=False)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Postgres:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, program: str, *arguments: str) -> None:
        result = subprocess.run(
            [str(self._bin / program), *arguments],
            env={**os.environ, **self._environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=self._change_user,
        )
        if result.returncode:
            raise PostgresMissing(f"{program} failed: {result.stderr[-1000:]}")

    def _change_user(self) -> None:
        """Change to the server's user in the child, before exec."""
        if self._account is not None:
            os.setgroups([])
            os.setgid(self._account.pw_gid)
            os.setuid(self._account.pw_uid)
            # A change of the user resets the parent-death signal.
            die_with_parent()

    def _library_path(self) -> dict[str, str]:
        root = UNPACKED / "root"
        if root not in self._bin.parents:
            return {}
        folders = {path.parent for path in root.rglob("*.so*")}
        return {"LD_LIBRARY_PATH": ":".join(sorted(map(str, folders)))}


def _account() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in (USER, "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresMissing("PostgreSQL does not run as root, and there is no other user")


if __name__ == "__main__":
    try:
        print(programs())
    except PostgresMissing as error:
        sys.exit(str(error))
