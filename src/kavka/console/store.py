"""The persistent state of the console in SQLite: lag history, rates, alert rules, alerts and the
audit log.

A single thread accesses the database; coroutines wait for it. With a lock file, only one console
can use the directory. A killed process loses nothing that was committed. After a power failure the
last transactions may be missing (`synchronous=NORMAL`), but the database is consistent.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kavka.console.settings import SettingsError

T = TypeVar("T")

HOUR_S, DAY_S = 3600, 86400
# The history has all points of the last day, and one point per ten minutes of the last two weeks.
FULL_RETENTION_S, THINNED_RETENTION_S, THINNED_INTERVAL_S = DAY_S, 14 * DAY_S, 600
MAX_AUDIT_ENTRIES = 100_000
MAX_EVENTS = 10_000
AUDIT_CHUNK = 1000

SCHEMA = """
CREATE TABLE IF NOT EXISTS history (
    cluster TEXT NOT NULL, series TEXT NOT NULL, at INTEGER NOT NULL, value REAL NOT NULL,
    PRIMARY KEY (cluster, series, at)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS history_by_time ON history (at);
CREATE TABLE IF NOT EXISTS broker (cluster TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (cluster, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rule (
    id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, threshold REAL NOT NULL,
    for_s REAL NOT NULL, webhook TEXT NOT NULL, enabled INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, rule INTEGER NOT NULL, subject TEXT NOT NULL, text TEXT NOT NULL,
    began REAL NOT NULL, ended REAL);
CREATE TABLE IF NOT EXISTS audit (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, user TEXT NOT NULL, address TEXT NOT NULL, cluster TEXT NOT NULL,
    action TEXT NOT NULL, arguments TEXT NOT NULL, outcome TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = 1;
"""
ADDED_RULE_COLUMNS = {"format": "TEXT NOT NULL DEFAULT 'json'", "silenced_until": "REAL NOT NULL DEFAULT 0"}


@dataclass(frozen=True, slots=True)
class AuditLine:
    """An entry of the audit log. `cluster` is "" for logins."""

    at: float
    user: str
    address: str
    cluster: str
    action: str
    arguments: dict[str, Any]
    outcome: str
    """`done`, or the reason for the rejection or failure."""


class Store:
    """Owns the database and its thread. Coroutines of one event loop may call it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="console-store")
        self._pruned_at = 0.0

    def open(self) -> None:
        """Lock the directory and open the database. Raises SettingsError if another console uses
        the directory or the database is invalid, and OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise SettingsError(f"another console uses the directory {self.folder} (--data selects another)") from None
        self._thread.submit(self._connect).result()

    def _connect(self) -> None:
        path = self.folder / "console.db"
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA cache_size=-2000")
            self._db.executescript(SCHEMA)
            self._upgrade()
        except sqlite3.DatabaseError as error:
            raise SettingsError(f"{path}: {error}") from None

    def _upgrade(self) -> None:
        """Add the columns of later versions."""
        columns = {row[1] for row in self._db.execute("PRAGMA table_info(rule)")}
        for name, definition in ADDED_RULE_COLUMNS.items():
            if name not in columns:
                self._db.execute(f"ALTER TABLE rule ADD COLUMN {name} {definition}")

    def close(self) -> None:
        if hasattr(self, "_db"):
            self._thread.submit(self._db.close).result()
        self._thread.shutdown()
        os.close(self._lock)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work(db)` in the thread, as one transaction. Returns its result."""

        def transaction() -> T:
            self._db.execute("BEGIN")
            try:
                result = work(self._db)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
            return result

        return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)

    # --- history: series of numbers with the names `lag/<group>`, `messages_in` …

    async def add_history(self, cluster: str, at: float, values: Mapping[str, float]) -> None:
        rows = [(cluster, series, int(at), value) for series, value in values.items()]
        await self.run(lambda db: db.executemany("INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?)", rows))
        if time.monotonic() - self._pruned_at > HOUR_S:
            self._pruned_at = time.monotonic()
            await self.prune(at)

    async def history(self, cluster: str, series: str, since: float) -> list[tuple[int, float]]:
        """Return the points (time, value) of a series in order."""
        return await self.run(
            lambda db: db.execute(
                "SELECT at, value FROM history WHERE cluster = ? AND series = ? AND at >= ? ORDER BY at",
                (cluster, series, int(since)),
            ).fetchall()
        )

    async def prune(self, now: float) -> None:
        """Delete old points of the history, and the oldest audit entries and events."""

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM history WHERE at < ?", (int(now) - THINNED_RETENTION_S,))
            # Keep the first point of every ten minutes before the last day.
            db.execute(
                f"""DELETE FROM history WHERE at < ? AND EXISTS (
                    SELECT 1 FROM history AS other WHERE other.cluster = history.cluster
                    AND other.series = history.series AND other.at < history.at
                    AND other.at >= history.at - history.at % {THINNED_INTERVAL_S})""",
                (int(now) - FULL_RETENTION_S,),
            )
            db.execute("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", (MAX_AUDIT_ENTRIES,))
            db.execute("DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?", (MAX_EVENTS,))

        await self.run(work)

    # --- brokers that were seen

    async def seen_brokers(self, cluster: str) -> set[int]:
        rows = await self.run(lambda db: db.execute("SELECT id FROM broker WHERE cluster = ?", (cluster,)).fetchall())
        return {row[0] for row in rows}

    async def add_brokers(self, cluster: str, ids: Iterable[int]) -> None:
        rows = [(cluster, broker) for broker in ids]
        await self.run(lambda db: db.executemany("INSERT OR IGNORE INTO broker VALUES (?, ?)", rows))

    async def forget_broker(self, cluster: str, broker: int) -> None:
        await self.run(lambda db: db.execute("DELETE FROM broker WHERE cluster = ? AND id = ?", (cluster, broker)))

    # --- audit

    async def audit(self, line: AuditLine) -> None:
        row = (line.at, line.user, line.address, line.cluster, line.action, json.dumps(line.arguments), line.outcome)
        await self.run(
            lambda db: db.execute(
                "INSERT INTO audit (at, user, address, cluster, action, arguments, outcome) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
        )

    async def audit_lines(self, cluster: str, limit: int, offset: int = 0) -> list[AuditLine]:
        """Return entries of the cluster and logins, newest first."""
        return [line for _, line in await self._audit_rows(cluster, limit, offset, 2**62)]

    async def all_audit_lines(self, cluster: str) -> AsyncIterator[list[AuditLine]]:
        """Yield all entries of the cluster and logins in chunks, newest first."""
        before = 2**62
        while rows := await self._audit_rows(cluster, AUDIT_CHUNK, 0, before):
            yield [line for _, line in rows]
            before = rows[-1][0]

    async def _audit_rows(self, cluster: str, limit: int, offset: int, before: int) -> list[tuple[int, AuditLine]]:
        rows = await self.run(
            lambda db: db.execute(
                "SELECT id, at, user, address, cluster, action, arguments, outcome FROM audit "
                "WHERE cluster IN (?, '') AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?",
                (cluster, before, limit, offset),
            ).fetchall()
        )
        return [
            (entry, AuditLine(at, user, address, entry_cluster, action, json.loads(arguments), outcome))
            for entry, at, user, address, entry_cluster, action, arguments, outcome in rows
        ]

    async def count_audit_lines(self, cluster: str) -> int:
        count = "SELECT count(*) FROM audit WHERE cluster IN (?, '')"
        return int(await self.run(lambda db: db.execute(count, (cluster,)).fetchone()[0]))
