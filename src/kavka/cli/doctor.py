"""`kavka doctor`: checks this machine and says what to change.

Each check returns findings. A finding with the state PROBLEM makes the exit code 1; ADVICE names
something that only some features need, or that matters in production.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import kavka
from kavka.cli.form import PLAIN_FORM, is_compiled
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.output import print_json, style
from kavka.cli.tool import run
from kavka.runtimes import MissingRuntime, find_java, java_version, pyspark_version

OK, ADVICE, PROBLEM = "ok", "advice", "problem"
_STYLES = {OK: ("green",), ADVICE: ("yellow",), PROBLEM: ("red", "bold")}

PORTS = {9092: "the broker", 9080: "the console", 2181: "ZooKeeper of kavka cluster up"}
MINIMUM_FREE_BYTES = 1 << 30
MINIMUM_FILES = 4096
CONNECT_TIMEOUT_S = 5.0
# A module of each extra.
EXTRAS = {"console": "jinja2", "cluster": "kazoo", "connect": "starlette", "serializers": "fastavro"}
_NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}

COMMAND = Command(
    "doctor",
    "Check this machine: Python, the client's form, optional packages, Java, Spark, ports, limits, disk and clock. "
    "With --bootstrap-server, also check that the addresses that the brokers advertise are reachable. "
    "The exit code is 1 if there is a problem.",
    (
        Option("data", "The folder for the broker's data.", "folder", default="kavka-data", completes="directory"),
        Option("bootstrap-server", "Brokers to check: host:port, separated by commas.", "server to connect to"),
        Option("command-config", "A file with client settings.", "file", completes="file"),
        Option("json", "Print JSON."),
    ),
    examples=("kavka doctor", "kavka doctor --bootstrap-server localhost:9092"),
)


class Finding(NamedTuple):
    subject: str
    state: str
    text: str
    remedy: str = ""


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> int:
    findings = list(_findings(args))
    if args["json"]:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            state = style(f"{finding.state:<8}", *_STYLES[finding.state])
            print(f"{state}{finding.subject + ':':<11}{finding.text}{': ' if finding.remedy else ''}{finding.remedy}")
    return 1 if any(finding.state == PROBLEM for finding in findings) else 0


def _findings(args: Arguments) -> Iterator[Finding]:
    yield check_python()
    yield check_form()
    yield from check_packages()
    yield check_java()
    yield check_spark()
    if "bootstrap-server" in args:
        yield from check_brokers(args)
    else:
        for port, user in PORTS.items():
            yield check_port(port, user)
    yield check_files()
    yield check_disk(Path(args["data"]))
    yield check_clock()
    yield check_host_name()


def check_python() -> Finding:
    text = f"Python {platform.python_version()}, {platform.system()} {platform.release()}, Kavka {kavka.__version__}"
    if not sys.platform.startswith("linux"):
        return Finding("Python", ADVICE, text, "Kavka is tested on Linux only; use a container or a virtual machine")
    return Finding("Python", OK, text)


def check_form() -> Finding:
    if is_compiled():
        return Finding("form", OK, "the client is compiled")
    return Finding("form", ADVICE, PLAIN_FORM)


def check_packages() -> Iterator[Finding]:
    missing = [extra for extra, module in EXTRAS.items() if find_spec(module) is None]
    if missing:
        text = f"not installed: {', '.join(missing)}"
        yield Finding("packages", ADVICE, text, f"for these features, pip install 'kavka[{','.join(missing)}]'")
    else:
        yield Finding("packages", OK, f"installed: {', '.join(EXTRAS)}")
    if find_spec("uvloop") is None and sys.platform != "win32":
        yield Finding("packages", PROBLEM, "uvloop is missing, so the broker is slow", "pip install uvloop")


def check_java() -> Finding:
    try:
        java = find_java()
        return Finding("Java", OK, f"Java {java_version(java)} ({java})")
    except MissingRuntime as error:
        return Finding("Java", ADVICE, f"ZooKeeper and Spark will not start: {error}")


def check_spark() -> Finding:
    try:
        version = pyspark_version()
    except MissingRuntime as error:
        return Finding("Spark", ADVICE, f"Streams, Connect and mirroring will not start: {error}")
    for package in ("pyarrow", "lmdb", "pandas"):
        if find_spec(package) is None:
            return Finding("Spark", ADVICE, f"PySpark {version}, without {package}", "pip install 'kavka[pipeline]'")
    pandas = importlib.metadata.version("pandas")
    if int(pandas.partition(".")[0]) >= 3:
        return Finding("Spark", PROBLEM, f"PySpark {version} with pandas {pandas}", "pip install 'pandas<3'")
    return Finding("Spark", OK, f"PySpark {version}, pandas {pandas}")


def check_port(port: int, user: str) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return Finding(f"port {port}", PROBLEM, f"cannot be bound ({error.strerror})", f"{user} uses it")
            remedy = "kavka server-stop stops Kavka's brokers; other processes: ss -ltnp, or use another port"
            return Finding(f"port {port}", ADVICE, f"is in use, and {user} uses it by default", remedy)
    return Finding(f"port {port}", OK, f"is free for {user}")


def check_files() -> Finding:
    """The broker raises the soft limit to the hard limit at its start."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MINIMUM_FILES:
        remedy = "raise it to 100000: ulimit -Hn as root, LimitNOFILE= in a systemd unit, or limits.conf"
        return Finding("files", PROBLEM, f"a process may open {hard} files; connections and segments need more", remedy)
    return Finding(
        "files", OK, f"a process may open {'any number of' if hard == resource.RLIM_INFINITY else hard} files"
    )


def check_disk(folder: Path) -> Finding:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        remedy = "choose another folder with --override log.dirs=…, or change its owner"
        return Finding("disk", PROBLEM, f"{folder} is not writable by this user", remedy)
    if free < MINIMUM_FREE_BYTES:
        remedy = "free space, move log.dirs, or lower log.retention.bytes"
        return Finding("disk", PROBLEM, f"{folder} has {free >> 20} MiB of free space", remedy)
    file_system = _file_system(folder)
    if file_system in _MEMORY_FILE_SYSTEMS:
        return Finding(
            "disk", ADVICE, f"{folder} is in memory ({file_system})", "data is lost at a reboot: move log.dirs"
        )
    if file_system in _NETWORK_FILE_SYSTEMS:
        remedy = "fsync is slow and locks may fail: use a local disk for log.dirs"
        return Finding("disk", ADVICE, f"{folder} is on a network ({file_system})", remedy)
    return Finding("disk", OK, f"{free >> 30} GiB free at {folder}{f' ({file_system})' if file_system else ''}")


def _file_system(folder: Path) -> str:
    """Return the type of the file system, from the longest mount point above the folder; "" if
    unknown."""
    best = ("", "")
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        _, mount_point, file_system, *_ = line.split(" ")
        if folder.is_relative_to(mount_point) and len(mount_point) >= len(best[0]):
            best = (mount_point, file_system)
    return best[1]


def check_clock() -> Finding:
    """Retention and timestamps need a correct clock. The kernel knows whether a service such as
    chrony corrects it."""
    installed = Path(kavka.__file__).stat().st_mtime
    if time.time() < installed - 86400:
        now = time.strftime("%Y-%m-%d %H:%M")
        return Finding("clock", PROBLEM, f"it is {now}, before Kavka was installed", "set the clock, then use NTP")
    if _is_synchronized() is False:
        remedy = "timedatectl set-ntp true, or install chrony; retention and timestamps depend on the clock"
        return Finding("clock", ADVICE, "no time service corrects it", remedy)
    return Finding("clock", OK, f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}")


def _is_synchronized() -> bool | None:
    """Return the state of the kernel's clock; None if it cannot be read. `adjtimex` with modes 0
    changes nothing."""
    try:
        buffer = ctypes.create_string_buffer(512)
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    time_error = 5
    return None if state < 0 else state != time_error


def check_host_name() -> Finding:
    """A listener without a host advertises the host name."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        remedy = "add it to /etc/hosts, or set advertised.listeners to an address that clients can reach"
        return Finding("host name", ADVICE, f"{name} does not resolve", remedy)
    return Finding("host name", OK, name)


def check_brokers(args: Arguments) -> Iterator[Finding]:
    from kavka.cli.connecting import admin_for

    with admin_for(args) as admin:
        nodes = admin.describe_cluster().nodes
    for node in nodes:
        address = f"{node.host}:{node.port}"
        try:
            socket.create_connection((node.host, node.port), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            remedy = "set advertised.listeners of the broker to an address that this machine can reach"
            yield Finding(
                f"broker {node.id}", PROBLEM, f"it advertises {address}, not reachable here ({error})", remedy
            )
        else:
            yield Finding(f"broker {node.id}", OK, f"it advertises {address}, which is reachable")
