"""One data directory: who holds it, whose it is, whether it was left cleanly, and whether it still works.

What is in it:

    .lock                  held while a broker runs on the directory
    meta.properties        which broker of which cluster it belongs to
    .kafka_cleanshutdown   there only between a clean stop and the next start
    <topic>-<partition>    one folder per partition (partition_dir.py has the other forms of its name)
    *-offset-checkpoint    see checkpoint.py
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kavka.common.properties import parse_properties
from kavka.storage.checkpoint import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpoint,
)
from kavka.storage.file_slice import FileClosed
from kavka.storage.files import atomic_write, fsync_dir

LOCK_FILE = ".lock"
META_FILE = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"

# The errors that mean that a directory cannot be used any more. All others concern one request: no room (ENOSPC,
# EDQUOT, EFBIG), no handle or memory for now (EMFILE, ENFILE, ENOMEM, EAGAIN, EINTR), a name that cannot be
# (ENAMETOOLONG), a call that the file system does not have (EOPNOTSUPP), or an error of ours (EBADF, EINVAL).
_BROKEN = frozenset(
    {
        # The device does not work, or lost data.
        errno.EIO,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENOMEDIUM,
        errno.EMEDIUMTYPE,
        errno.EREMOTEIO,
        errno.ENODATA,
        errno.EILSEQ,
        errno.ETIMEDOUT,
        errno.ENOLINK,
        # The file system is corrupt (EUCLEAN; EBADMSG is a wrong checksum), or read-only since it found an error.
        errno.EUCLEAN,
        errno.EBADMSG,
        errno.EROFS,
        # A network or FUSE file system is away.
        errno.ESTALE,
        errno.ENOTCONN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ESHUTDOWN,
        # It was unmounted or removed, or this process may not use it any more.
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EACCES,
        errno.EPERM,
    }
)


class LogDirError(Exception):
    """Why a broker cannot start on its data directories: one line fit to be shown to a user."""


def os_error(error: BaseException | None) -> OSError | None:
    """The error of the system that this one is or was raised from. A file that we closed ourselves is none."""
    while error is not None and not isinstance(error, OSError):
        if isinstance(error, FileClosed):
            return None
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error


def is_dir_failure(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, means that the directory cannot be used any more."""
    cause = os_error(error)
    return cause is not None and cause.errno in _BROKEN


# --- meta.properties


@dataclass(slots=True)
class MetaProperties:
    """`version` 0 is ZooKeeper mode's (broker.id), 1 is KRaft's (node.id); `others` is kept as it was found."""

    broker_id: int | None = None
    cluster_id: str | None = None
    version: int = 0
    directory_id: str | None = None
    others: dict[str, str] = field(default_factory=dict)


def _escape(text: str) -> str:
    return "".join("\\" + char if char in "\\=:#!" else char for char in text)


def decode_meta(text: str, name: str) -> MetaProperties:
    try:
        found = parse_properties(text)
        if "version" not in found:
            raise LogDirError(
                f"{name} is empty or damaged: it has no version; restore it, or remove it if the directory belongs to "
                "this broker (it is written again at the start)"
            )
        version = int(found.pop("version"))
        if version not in (0, 1):
            raise LogDirError(f"{name} has version {version}; versions 0 and 1 can be read")
        broker_id = found.pop("broker.id" if version == 0 else "node.id", None)
        return MetaProperties(
            broker_id=None if broker_id is None else int(broker_id),
            cluster_id=found.pop("cluster.id", None),
            version=version,
            directory_id=found.pop("directory.id", None),
            others=found,
        )
    except ValueError as error:
        raise LogDirError(f"{name} cannot be understood: {error}") from None


def encode_meta(meta: MetaProperties) -> str:
    pairs = dict(meta.others)
    if meta.broker_id is not None:
        pairs["broker.id" if meta.version == 0 else "node.id"] = str(meta.broker_id)
    if meta.cluster_id is not None:
        pairs["cluster.id"] = meta.cluster_id
    if meta.directory_id is not None:
        pairs["directory.id"] = meta.directory_id
    pairs["version"] = str(meta.version)
    lines = ["#", time.strftime("#%a %b %d %H:%M:%S UTC %Y", time.gmtime())]
    lines += [f"{_escape(key)}={_escape(value)}" for key, value in sorted(pairs.items())]
    return "\n".join(lines) + "\n"


class LogDir:
    """A data directory. Opened and locked by the thread that starts the broker; `fail` may be called from any thread
    (it only sets a flag and the first reason), all else is the log manager's."""

    __slots__ = ("_lock_fd", "cleaner", "failure", "high_watermarks", "path", "recovery_points", "start_offsets")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))
        self.failure: BaseException | None = None
        self._lock_fd = -1
        self.recovery_points = OffsetCheckpoint(self.path, RECOVERY_POINT_CHECKPOINT)
        self.start_offsets = OffsetCheckpoint(self.path, LOG_START_CHECKPOINT)
        self.high_watermarks = OffsetCheckpoint(self.path, HIGH_WATERMARK_CHECKPOINT)
        self.cleaner = OffsetCheckpoint(self.path, CLEANER_CHECKPOINT)

    def __repr__(self) -> str:
        return f"LogDir({str(self.path)!r}, {'online' if self.online else 'offline'})"

    @property
    def online(self) -> bool:
        return self.failure is None

    def fail(self, error: BaseException) -> bool:
        """Marks the directory offline; False when it already was."""
        if self.failure is not None:
            return False
        self.failure = error
        return True

    def prepare(self) -> None:
        """Makes the directory if it is not there, and finds out whether it can be read and written. Raises OSError."""
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            fsync_dir(self.path.parent)
        os.scandir(self.path).close()
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "cannot be read and written", str(self.path))

    # --- the lock

    def lock(self) -> None:
        """Takes `.lock`; LogDirError when another broker has it (in this process or another, Apache Kafka's too)."""
        if self._lock_fd >= 0:
            return
        fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if hasattr(fcntl, "F_OFD_SETLK"):
                # Java's FileChannel.tryLock is a record lock on the whole file, which does not see flock.
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN):
                raise LogDirError(
                    f"log directory {self.path} is in use by another broker: its {LOCK_FILE} is held by another process"
                ) from None
            raise
        self._lock_fd = fd

    def unlock(self) -> None:
        """The file stays, as Kafka's does; closing it lets go of it."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    @property
    def locked(self) -> bool:
        return self._lock_fd >= 0

    # --- whose it is

    def read_meta(self) -> MetaProperties | None:
        path = self.path / META_FILE
        try:
            text = path.read_text(encoding="iso-8859-1")
        except FileNotFoundError:
            return None
        return decode_meta(text, str(path))

    def write_meta(self, meta: MetaProperties) -> None:
        atomic_write(self.path / META_FILE, encode_meta(meta).encode("iso-8859-1"))

    # --- how it was left

    def take_clean_shutdown(self) -> bool:
        """Whether the last stop was clean. The mark is removed at once: a crash while loading is a crash."""
        try:
            os.unlink(self.path / CLEAN_SHUTDOWN_FILE)
        except FileNotFoundError:
            return False
        fsync_dir(self.path)
        return True

    def write_clean_shutdown(self, broker_epoch: int = -1) -> None:
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        atomic_write(self.path / CLEAN_SHUTDOWN_FILE, content.encode())

    def read_clean_shutdown_epoch(self) -> int | None:
        """The broker's epoch at its clean stop, where the mark is there and says so."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return int(json.loads((self.path / CLEAN_SHUTDOWN_FILE).read_bytes())["brokerEpoch"])
        return None


def claim_dirs(dirs: Sequence[LogDir], broker_id: int | None, cluster_id: str | None) -> tuple[int | None, str | None]:
    """Checks the `meta.properties` of all directories against each other and against what is configured or known, and
    returns the broker's and the cluster's id as far as they are known now. Raises LogDirError with one line."""
    known_broker: tuple[int, str] | None = None if broker_id is None else (broker_id, "is configured")
    known_cluster: tuple[str, str] | None = None if cluster_id is None else (cluster_id, "is this cluster's")
    for log_dir in dirs:
        meta = log_dir.read_meta()
        if meta is None:
            continue
        name = str(log_dir.path / META_FILE)
        if meta.broker_id is not None:
            if known_broker is not None and known_broker[0] != meta.broker_id:
                raise LogDirError(
                    f"{name} belongs to broker.id {meta.broker_id}, but {known_broker[0]} {known_broker[1]}; "
                    "use the right directory, or remove the file if its data may be taken over"
                )
            known_broker = (meta.broker_id, f"is in {name}")
        if meta.cluster_id is not None:
            if known_cluster is not None and known_cluster[0] != meta.cluster_id:
                raise LogDirError(
                    f"{name} belongs to cluster.id {meta.cluster_id}, but {known_cluster[0]} {known_cluster[1]}; "
                    "use the right directory or zookeeper.connect, or remove the file if its data may be taken over"
                )
            known_cluster = (meta.cluster_id, f"is in {name}")
    return (known_broker and known_broker[0], known_cluster and known_cluster[0])


def mark_dirs(dirs: Sequence[LogDir], broker_id: int, cluster_id: str) -> None:
    """Writes `meta.properties` where it is missing or does not yet say it all. Raises OSError."""
    for log_dir in dirs:
        meta = log_dir.read_meta()
        if meta is not None and meta.broker_id == broker_id and meta.cluster_id == cluster_id:
            continue
        meta = meta or MetaProperties()
        meta.broker_id = broker_id
        meta.cluster_id = cluster_id
        log_dir.write_meta(meta)
