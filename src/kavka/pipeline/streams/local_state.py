"""The state of one task on this machine's disk.

Each task has a folder with an LMDB environment: one database per map, by the map's name, and the
database `state`. A micro-batch is one write transaction. It ends with `commit(token)`, where the
token names this attempt of the micro-batch, or with `abort`. Spark stores the same token with its
durable copy of the changes (`state_log.py`) and commits after the file does. So after a crash the
file may be one micro-batch ahead of Spark: `state` holds the values that the last micro-batch
overwrote, and `begin` returns the file to the version that Spark committed.

    state: version    marshalled (token, previous token, micro-batch, number of restores)
           undo       marshalled {map: {key: previous value or None}}
           meta       the task's state beside its maps

The file is a cache. It is not flushed to disk, so a file of an earlier boot is not used: the folder
has the boot's id in its path.

LMDB limits keys to 511 bytes. A key of more than 479 bytes is stored as its first 479 bytes and its
hash, and its value begins with the length of the key and the key.
"""

from __future__ import annotations

import fcntl
import heapq
import marshal
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import lmdb

from kavka.pipeline.streams import plain_data
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.state_folder import create_own_folder
from kavka.pipeline.streams.state_map import Entry, MemoryMap, StateMap

Values = dict[bytes, bytes | None]

_MAP_SIZE = 1 << 38
_MAX_MAPS = 4096
_MAX_KEY = 479
_HASH = 32
_LOCK_TIMEOUT = 30.0


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(int(time.time() - time.monotonic()))


def executor_folder() -> Path:
    """A folder on the disk of this executor: KAVKA_STATE_DIR (`spark.executorEnv.KAVKA_STATE_DIR`),
    else the executor's own folder as the cluster manager sets it (standalone, YARN, Kubernetes),
    which it deletes with the executor or the application."""
    for name in ("KAVKA_STATE_DIR", "SPARK_EXECUTOR_DIRS", "LOCAL_DIRS", "SPARK_LOCAL_DIRS"):
        if os.environ.get(name):
            scratch = os.environ[name].split("," if name != "SPARK_EXECUTOR_DIRS" else os.pathsep)[0]
            break
    else:
        scratch = tempfile.gettempdir()
    return Path(scratch) / f"kavka-streams-{os.getuid()}"


def _db_name(name: str) -> bytes:
    return b"map " + name.encode()


def _map_names(transaction: Any) -> list[bytes]:
    with transaction.cursor() as cursor:
        return [name for name in cursor.iternext(keys=True, values=False) if name.startswith(b"map ")]


def _file_key(key: bytes) -> bytes:
    return key if len(key) <= _MAX_KEY else key[:_MAX_KEY] + blake2b(key, digest_size=_HASH).digest()


def _file_value(key: bytes, value: bytes) -> bytes:
    return value if len(key) <= _MAX_KEY else len(key).to_bytes(4) + key + value


def _long_entry(file_value: bytes) -> Entry:
    """The entry of a long key."""
    end = 4 + int.from_bytes(file_value[:4])
    return file_value[4:end], file_value[end:]


class _FileMap:
    """Reads a map. An overlay has entries that replace those of the file; None removes one."""

    __slots__ = ("_db", "_scans", "_transaction")

    def __init__(self, db: Any, transaction: Any) -> None:
        self._db, self._transaction = db, transaction
        self._scans = 0

    def _read(self, key: bytes) -> bytes | None:
        if len(key) <= _MAX_KEY:
            value: bytes | None = self._transaction.get(key, db=self._db)
            return value
        data = self._transaction.get(_file_key(key), db=self._db)
        return None if data is None else data[4 + len(key) :]

    def _scan(self, low: bytes, high: bytes | None, reverse: bool, overlay: Values) -> Iterator[Entry]:
        entries = self._stored(low, high, reverse)
        if not overlay:
            return entries
        changed = {key: value for key, value in overlay.items() if key >= low and (high is None or key < high)}
        added = sorted(((key, value) for key, value in changed.items() if value is not None), reverse=reverse)
        unchanged = (entry for entry in entries if entry[0] not in changed)
        return heapq.merge(unchanged, added, key=itemgetter(0), reverse=reverse)

    def _stored(self, low: bytes, high: bytes | None, reverse: bool) -> Iterator[Entry]:
        self._scans += 1
        try:
            with self._transaction.cursor(self._db) as cursor:
                for key, value in _in_key_order(_file_entries(cursor, low, high, reverse), reverse):
                    if low <= key and (high is None or key < high):
                        yield key, value
                    elif (key < low) == reverse:
                        return
        finally:
            self._scans -= 1


class LocalMap(_FileMap):
    """One map of a task's state.

    A change stays in memory until a scan or the commit writes it to the transaction. `changes` has
    all changes of this micro-batch, `undo` the values that the written ones replaced.
    """

    __slots__ = ("_unwritten", "changes", "undo")

    def __init__(self, db: Any, transaction: Any) -> None:
        self._db = db
        self.begin(transaction)

    def begin(self, transaction: Any) -> None:
        self._transaction = transaction
        self._scans = 0
        self.changes: Values = {}
        self.undo: Values = {}
        self._unwritten: Values = {}

    def get(self, key: bytes) -> bytes | None:
        return self.changes[key] if key in self.changes else self._read(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        self.changes[key] = self._unwritten[key] = value

    def scan(self, low: bytes = b"", high: bytes | None = None, reverse: bool = False) -> Iterator[Entry]:
        # A scan that is in use must not see the changes that were made since it began.
        if not self._scans:
            self.write()
        return self._scan(low, high, reverse, self._unwritten)

    def __len__(self) -> int:
        self.write()
        count: int = self._transaction.stat(self._db)["entries"]
        return count

    def write(self) -> None:
        """Write the changes to the transaction."""
        undo = self.undo
        for key in self._unwritten:
            if key not in undo:
                undo[key] = self._read(key)
        self.restore(self._unwritten)
        self._unwritten = {}

    def restore(self, values: Values) -> None:
        """Write values that are not changes of the micro-batch."""
        put, delete, db = self._transaction.put, self._transaction.delete, self._db
        for key, value in values.items():
            if value is None:
                delete(_file_key(key), db=db)
            elif len(key) <= _MAX_KEY:
                put(key, value, db=db)
            else:
                put(_file_key(key), _file_value(key, value), db=db)

    def growth(self) -> int:
        """Bytes that the written changes add to the state."""
        return _size(self.changes) - _size(self.undo)


def _file_entries(cursor: Any, low: bytes, high: bytes | None, reverse: bool) -> Any:
    """Entries as the file has them, from the last one below `high` back, or from `low` on."""
    if not reverse:
        return cursor.iternext() if not low or cursor.set_range(low[:_MAX_KEY]) else iter(())
    if high is not None:
        bound = high if len(high) <= _MAX_KEY else high[:_MAX_KEY] + b"\xff" * _HASH
        if cursor.set_range(bound) and not cursor.prev():
            return iter(())
    return cursor.iterprev()


def _in_key_order(entries: Iterator[Entry], reverse: bool) -> Iterator[Entry]:
    """Long keys with the same beginning are in the order of their hashes in the file."""
    long: list[Entry] = []
    for entry in entries:
        if long and entry[0][:_MAX_KEY] != long[0][0][:_MAX_KEY]:
            yield from sorted(long, reverse=reverse)
            long = []
        if len(entry[0]) > _MAX_KEY:
            long.append(_long_entry(entry[1]))
        else:
            yield entry
    yield from sorted(long, reverse=reverse)


def _size(values: Values) -> int:
    return sum(len(key) + len(value) for key, value in values.items() if value is not None)


class LocalState:
    """All maps of a task. One process at a time has a transaction; a second one waits for it."""

    def __init__(self, folder: Path) -> None:
        create_own_folder(folder)
        self._folder = folder
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._maps: dict[str, LocalMap] = {}
        self._transaction: Any = None
        self.token: bytes | None = None
        self.restores = 0
        self._environment = lmdb.open(
            os.fspath(folder), map_size=_MAP_SIZE, max_dbs=_MAX_MAPS, mode=0o600, sync=False, metasync=False
        )
        self._state = self._environment.open_db(b"state")

    def begin(self, token: bytes | None) -> bool:
        """Begin a micro-batch on the version that Spark has committed. False if the file does not
        have that version: the maps are then empty, and the caller restores them."""
        self._acquire()
        self._transaction = self._environment.begin(write=True)
        for local_map in self._maps.values():
            local_map.begin(self._transaction)
        version = self._transaction.get(b"version", db=self._state)
        self.token, previous, _, self.restores = marshal.loads(version) if version else (None, None, 0, 0)
        if token != self.token and token == previous and version:
            self._roll_back()
            self.token = token
        if token == self.token:
            return True
        self._clear()
        self.restores += 1
        self.token = token
        return False

    def map(self, name: str) -> LocalMap:
        local_map = self._maps.get(name)
        if local_map is None:
            db = self._environment.open_db(_db_name(name), txn=self._transaction)
            local_map = self._maps[name] = LocalMap(db, self._transaction)
        return local_map

    def write(self) -> tuple[dict[str, Values], int]:
        """Write all changes to the transaction. Returns them, and the bytes that they add."""
        for local_map in self._maps.values():
            local_map.write()
        changes = {name: local_map.changes for name, local_map in self._maps.items() if local_map.changes}
        return changes, sum(local_map.growth() for local_map in self._maps.values())

    def commit(self, token: bytes, batch: int, meta: bytes) -> None:
        self._transaction.put(b"meta", meta, db=self._state)
        undo = {name: local_map.undo for name, local_map in self._maps.items() if local_map.undo}
        self._transaction.put(b"undo", marshal.dumps(undo), db=self._state)
        version = marshal.dumps((token, self.token, batch, self.restores))
        self._transaction.put(b"version", version, db=self._state)
        self._transaction.commit()
        self._release()
        self.token = token

    def abort(self) -> None:
        """Discard the micro-batch."""
        if self._transaction is not None:
            self._transaction.abort()
            # Databases that were opened in the transaction are not there.
            self._maps.clear()
            self._release()

    def _release(self) -> None:
        self._transaction = None
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _acquire(self) -> None:
        limit = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise StreamsException(
                        f"another process has used {self._folder} for {_LOCK_TIMEOUT:.0f} s: is an earlier attempt of "
                        "the task still running?"
                    ) from None
                time.sleep(0.01)

    def _roll_back(self) -> None:
        """Take back the last micro-batch, which Spark has not committed."""
        for name, values in marshal.loads(self._transaction.get(b"undo", db=self._state)).items():
            self.map(name).restore(values)

    def _clear(self) -> None:
        for name in _map_names(self._transaction):
            self._transaction.drop(self._environment.open_db(name, txn=self._transaction), delete=False)


class SnapshotMap(_FileMap):
    """A map as a version of the state has it."""

    __slots__ = ("_undo",)

    def __init__(self, db: Any, transaction: Any, undo: Values) -> None:
        super().__init__(db, transaction)
        self._undo = undo

    def get(self, key: bytes) -> bytes | None:
        return self._undo[key] if key in self._undo else self._read(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        raise TypeError("the map is read-only")

    def scan(self, low: bytes = b"", high: bytes | None = None, reverse: bool = False) -> Iterator[Entry]:
        return self._scan(low, high, reverse, self._undo)

    def __len__(self) -> int:
        return sum(1 for _ in self.scan()) if self._undo else self._transaction.stat(self._db)["entries"]


class StateFile:
    """Reads the state of a task that another process writes. Use `open`: LMDB does not allow a
    process to open an environment twice."""

    _open_files: ClassVar[WeakValueDictionary[Path, StateFile]] = WeakValueDictionary()
    _opening = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> StateFile:
        with cls._opening:
            file = cls._open_files.get(folder)
            if file is None:
                file = cls._open_files[folder] = cls(folder)
            return file

    def __init__(self, folder: Path) -> None:
        self._environment = lmdb.open(os.fspath(folder), map_size=_MAP_SIZE, max_dbs=_MAX_MAPS, readonly=True)
        self._state = self._environment.open_db(b"state", create=False)
        self._dbs: dict[bytes, Any] = {}

    @staticmethod
    def exists(folder: Path) -> bool:
        return (folder / "data.mdb").exists()

    def version(self, batch: int) -> StateVersion:
        """The state after this micro-batch. A later one, which Spark has not committed, is left
        out."""
        # A transaction sees only the databases that were opened before it began.
        for name in _map_names(self._environment.begin()):
            if name not in self._dbs:
                self._dbs[name] = self._environment.open_db(name, create=False)
        transaction = self._environment.begin()
        version = transaction.get(b"version", db=self._state)
        is_later = version is not None and marshal.loads(version)[2] > batch
        undo = marshal.loads(transaction.get(b"undo", db=self._state) or b"") if is_later else {}
        return StateVersion(self, transaction, undo, transaction.get(b"meta", db=self._state))

    def db(self, name: str) -> Any | None:
        return self._dbs.get(_db_name(name))


class StateVersion:
    def __init__(self, file: StateFile, transaction: Any, undo: dict[str, Values], meta: bytes | None) -> None:
        self._file, self._transaction, self._undo = file, transaction, undo
        self.meta = None if meta is None else plain_data.loads(meta)

    def map(self, name: str) -> StateMap:
        db = self._file.db(name)
        return MemoryMap() if db is None else SnapshotMap(db, self._transaction, self._undo.get(name, {}))
