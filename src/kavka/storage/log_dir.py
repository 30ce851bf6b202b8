"""One data directory of a broker: its lock, its `meta.properties`, its clean shutdown file, and
whether it is online.

The directory contains:

    .lock                  locked while a broker uses the directory
    meta.properties        the broker id and the cluster id
    .kafka_cleanshutdown   exists only between a clean shutdown and the next start
    <topic>-<partition>    one folder per partition (partition_dir.py describes other names)
    *-offset-checkpoint    offsets of all partitions (checkpoint.py)
"""

from __future__ import annotations

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

# The errors that take a directory offline. Any other error fails only one operation: no space
# (ENOSPC, EDQUOT, EFBIG), no descriptor or memory (EMFILE, ENFILE, ENOMEM, EAGAIN, EINTR), an
# invalid name (ENAMETOOLONG), an unsupported call (EOPNOTSUPP), or a programming error (EBADF,
# EINVAL).
_DIR_FAILURE_ERRNOS = frozenset((
    # The device has failed or lost data.
    errno.EIO, errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM, errno.EMEDIUMTYPE, errno.EREMOTEIO, errno.ENODATA,
    errno.EILSEQ, errno.ETIMEDOUT, errno.ENOLINK,
    # The file system is corrupt (EBADMSG is a wrong checksum), or read-only after an error.
    errno.EUCLEAN, errno.EBADMSG, errno.EROFS,
    # A network or FUSE file system is unavailable.
    errno.ESTALE, errno.ENOTCONN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.ENETDOWN, errno.ENETUNREACH, errno.ESHUTDOWN,
    # The directory was unmounted or removed, or this process has lost its permissions.
    errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM,
))  # fmt: skip


class LogDirError(Exception):
    """The broker cannot start because of its data directories. The message is one line for the
    user."""


def os_error(error: BaseException | None) -> OSError | None:
    """Return `error` if it is an OSError, else the OSError that caused it. Return None if there is
    no OSError, and for FileClosed."""
    while error is not None and not isinstance(error, OSError):
        if isinstance(error, FileClosed):
            return None
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error


def is_dir_failure(error: BaseException | None) -> bool:
    """Whether an error, or its cause, means that the directory has failed."""
    cause = os_error(error)
    return cause is not None and cause.errno in _DIR_FAILURE_ERRNOS


# --- meta.properties


@dataclass(slots=True)
class MetaProperties:
    """The contents of `meta.properties`. `version` is 0 in ZooKeeper mode (broker.id) and 1 in
    KRaft mode (node.id). `others` are unknown properties, which are written back unchanged."""

    broker_id: int | None = None
    cluster_id: str | None = None
    version: int = 0
    directory_id: str | None = None
    others: dict[str, str] = field(default_factory=dict)


def _escape(text: str) -> str:
    return "".join("\\" + char if char in "\\=:#!" else char for char in text)


def decode_meta(text: str, path: str) -> MetaProperties:
    """Parse the text of a `meta.properties` file. Raises LogDirError if it is malformed."""
    try:
        properties = parse_properties(text)
        if "version" not in properties:
            raise LogDirError(
                f"{path} is empty or damaged: it has no version; restore the file, or remove it if the directory "
                "belongs to this broker (the broker writes it again at the start)"
            )
        version = int(properties.pop("version"))
        if version not in (0, 1):
            raise LogDirError(f"{path} has the unsupported version {version}; supported versions are 0 and 1")
        broker_id = properties.pop("broker.id" if version == 0 else "node.id", None)
        return MetaProperties(
            broker_id=None if broker_id is None else int(broker_id),
            cluster_id=properties.pop("cluster.id", None),
            version=version,
            directory_id=properties.pop("directory.id", None),
            others=properties,
        )
    except ValueError as error:
        raise LogDirError(f"{path} is malformed: {error}") from None


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
    """A data directory: its lock, its failure and its checkpoint files. The thread that starts the
    broker calls `prepare` and `lock`. Any thread may call `fail`. Only the log manager may call the
    other methods."""

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
        """Take the directory offline because of `error`. Returns False if it is already offline;
        the first error is kept."""
        if self.failure is not None:
            return False
        self.failure = error
        return True

    def prepare(self) -> None:
        """Create the directory if it is missing, and check that it can be read and written. Raises
        OSError."""
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            fsync_dir(self.path.parent)
        os.scandir(self.path).close()
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no permission to read and write the directory", str(self.path))

    # --- the lock

    def lock(self) -> None:
        """Lock the `.lock` file. Raises LogDirError if another broker (including Apache Kafka) has
        locked the file, and OSError."""
        if self._lock_fd >= 0:
            return
        fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if hasattr(fcntl, "F_OFD_SETLK"):
                # Java's FileChannel.tryLock sets a record lock on the file, independent of flock.
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN):
                raise LogDirError(
                    f"log directory {self.path} is in use by another broker: another process has locked its {LOCK_FILE}"
                ) from None
            raise
        self._lock_fd = fd

    def unlock(self) -> None:
        """Release the lock by closing the file. The file is not removed, as in Kafka."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # --- meta.properties

    def read_meta(self) -> MetaProperties | None:
        """Return the contents of `meta.properties`, or None if the file is missing. Raises
        LogDirError if it is malformed, and OSError."""
        path = self.path / META_FILE
        try:
            text = path.read_text(encoding="iso-8859-1")
        except FileNotFoundError:
            return None
        return decode_meta(text, str(path))

    def write_meta(self, meta: MetaProperties) -> None:
        atomic_write(self.path / META_FILE, encode_meta(meta).encode("iso-8859-1"))

    # --- clean shutdown

    def take_clean_shutdown(self) -> bool:
        """Remove the clean shutdown file, so that a crash during loading leads to recovery. Returns
        whether the file existed: the last shutdown was clean. Raises OSError."""
        try:
            os.unlink(self.path / CLEAN_SHUTDOWN_FILE)
        except FileNotFoundError:
            return False
        fsync_dir(self.path)
        return True

    def write_clean_shutdown(self, broker_epoch: int = -1) -> None:
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        atomic_write(self.path / CLEAN_SHUTDOWN_FILE, content.encode())


def check_dir_ids(
    dirs: Sequence[LogDir], broker_id: int | None, cluster_id: str | None
) -> tuple[int | None, str | None]:
    """Check that the `meta.properties` of all directories agree with each other and with the
    configured ids. Returns the broker id and the cluster id, or None for an unknown id. Raises
    LogDirError if the ids differ."""
    expected_broker: tuple[int, str] | None = None if broker_id is None else (broker_id, "is configured")
    expected_cluster: tuple[str, str] | None = None if cluster_id is None else (cluster_id, "is this cluster's")
    for log_dir in dirs:
        meta = log_dir.read_meta()
        if meta is None:
            continue
        meta_path = str(log_dir.path / META_FILE)
        if meta.broker_id is not None:
            if expected_broker is not None and expected_broker[0] != meta.broker_id:
                raise LogDirError(
                    f"{meta_path} belongs to broker.id {meta.broker_id}, but {expected_broker[0]} "
                    f"{expected_broker[1]}; "
                    "use the right directory, or remove the file if its data may be taken over"
                )
            expected_broker = (meta.broker_id, f"is in {meta_path}")
        if meta.cluster_id is not None:
            if expected_cluster is not None and expected_cluster[0] != meta.cluster_id:
                raise LogDirError(
                    f"{meta_path} belongs to cluster.id {meta.cluster_id}, but {expected_cluster[0]} "
                    f"{expected_cluster[1]}; "
                    "use the right directory or zookeeper.connect, or remove the file if its data may be taken over"
                )
            expected_cluster = (meta.cluster_id, f"is in {meta_path}")
    return (expected_broker and expected_broker[0], expected_cluster and expected_cluster[0])


def write_dir_ids(dirs: Sequence[LogDir], broker_id: int, cluster_id: str) -> None:
    """Write the `meta.properties` files that are missing or incomplete. Raises OSError."""
    for log_dir in dirs:
        meta = log_dir.read_meta()
        if meta is not None and meta.broker_id == broker_id and meta.cluster_id == cluster_id:
            continue
        meta = meta or MetaProperties()
        meta.broker_id = broker_id
        meta.cluster_id = cluster_id
        log_dir.write_meta(meta)
