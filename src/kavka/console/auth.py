"""Users, roles, passwords and sessions.

The users file has a line per user: `name:role:scrypt$n$r$p$salt$hash`, salt and hash in hex. The
console reads the file again when it changes, so that users can be added or removed at run time.
Sessions are in memory only: a restart ends them. A session also ends when the password of its user
changes.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from kavka.console.attempts import Attempts, TooManyAttempts
from kavka.console.passwords import (
    MAX_PASSWORD_LENGTH,
    hash_password,
    is_outdated,
    password_matches,
    unknown_user_hash,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_SESSION_IDLE_S = 8 * 3600.0
MAX_SESSION_S = 24 * 3600.0
MAX_PROVIDER_SESSION_S = 8 * 3600.0
"""Shorter, because the console does not learn that the provider has removed a user or a group."""
PROVIDER = "provider:"
"""The start of the `credential` of a provider's user. The token of the session follows."""
MAX_SESSIONS = 10_000
MAX_USER_SESSIONS = 1000
"""Sessions of one user. A further login ends the user's oldest session."""
MAX_PENDING_CHECKS = 16
"""Pending password checks. One hash runs at a time: scrypt needs memory and a core."""

LOCK_TIMEOUT_S = 5.0
MAX_NAME_LENGTH = 64
NAME_PATTERN = re.compile(rf"[A-Za-z0-9._@-]{{1,{MAX_NAME_LENGTH}}}")


class Role(IntEnum):
    """The rights of a user. Each role includes the rights of the roles before it."""

    NONE = 0
    VIEW = 1
    OPERATE = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def by_word(cls, word: str) -> Role:
        try:
            return cls[word.upper()]
        except KeyError:
            raise ValueError(f"a role is one of {', '.join(role.word for role in cls)}, not '{word}'") from None


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user. `credential` is the fingerprint of the password hash, or identifies
    the session of a user of the identity provider. It is "" without login. `groups` are those of
    the identity provider."""

    name: str
    role: Role
    credential: str = field(default="", compare=False, repr=False)
    groups: tuple[str, ...] = ()


# The user of a console that listens on localhost and has no users file.
LOCAL_USER = User("local", Role.ADMIN)
ANONYMOUS = User("", Role.NONE)


class UsersError(ValueError):
    """An invalid users file, user name or password; `str()` is one line with the reason."""


def _fingerprint(stored_hash: str) -> str:
    return hashlib.sha256(stored_hash.encode()).hexdigest()


# --- the users file


class UsersFile:
    """The users file and its parsed content. A write replaces the file atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_state: tuple[int, int, int] | None = None
        """Modification time, size and inode of the file when it was last read."""
        self._users: dict[str, tuple[User, str]] = {}

    def users(self) -> dict[str, tuple[User, str]]:
        """Return the users and their password hashes by name. Reads the file again if it has
        changed. Raises UsersError if the file cannot be read or parsed."""
        try:
            status = self.path.stat()
            file_state = (status.st_mtime_ns, status.st_size, status.st_ino)
            if file_state != self._file_state:
                self._users = self._parse(self.path.read_text(encoding="utf-8"))
                self._file_state = file_state
        except OSError as error:
            raise UsersError(f"{self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsersError(f"{self.path}: the file is not UTF-8") from None
        return self._users

    def _parse(self, text: str) -> dict[str, tuple[User, str]]:
        users = {}
        for line_number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            fields = line.strip().split(":")
            if len(fields) != 3 or not NAME_PATTERN.fullmatch(fields[0]) or not fields[2].startswith("scrypt$"):
                raise UsersError(f"{self.path}:{line_number}: expected name:role:hash, as kavka console-user writes it")
            name, role_word, stored_hash = fields
            try:
                role = Role.by_word(role_word)
            except ValueError as error:
                raise UsersError(f"{self.path}:{line_number}: {error}") from None
            users[name] = User(name, role, _fingerprint(stored_hash)), stored_hash
        return users

    def put(self, name: str, role: Role, password: str) -> None:
        """Add or replace a user. Raises UsersError for invalid inputs, and OSError."""
        if not NAME_PATTERN.fullmatch(name):
            raise UsersError(f"'{name}' is not a valid user name: only letters, digits and . _ @ - are allowed")
        if not password:
            raise UsersError("the password is empty")
        if len(password) > MAX_PASSWORD_LENGTH:
            raise UsersError(f"a password has at most {MAX_PASSWORD_LENGTH} characters")
        stored_hash = hash_password(password)
        with self._locked():
            users = dict(self.users()) if self.path.exists() else {}
            users[name] = User(name, role), stored_hash
            self._write(users)

    def remove(self, name: str) -> None:
        """Remove a user. Raises UsersError if there is no such user, and OSError."""
        with self._locked():
            users = dict(self.users())
            if users.pop(name, None) is None:
                raise UsersError(f"{self.path} has no user '{name}'")
            self._write(users)

    def replace_hash(self, name: str, stored_hash: str, new_hash: str) -> None:
        """Replace the hash of a user's password, unless another process has changed the user. Does
        nothing if another user owns the file, because a replaced file has a new owner. Raises
        UsersError and OSError."""
        with self._locked():
            user, current_hash = self.users().get(name, (None, ""))
            if user is not None and current_hash == stored_hash and self.path.stat().st_uid == os.geteuid():
                self._write({**self.users(), name: (user, new_hash)})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder of the file, so that processes do not overwrite each other's changes.
        Raises UsersError if another process holds the lock for LOCK_TIMEOUT_S."""
        folder = os.open(self.path.absolute().parent, os.O_RDONLY)
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        try:
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise UsersError(f"another process changes {self.path}") from None
                    time.sleep(0.05)
            yield
        finally:
            os.close(folder)

    def _write(self, users: dict[str, tuple[User, str]]) -> None:
        """Replace the file atomically. Only its owner can read it."""
        folder = self.path.absolute().parent
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=".users-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                for user, stored_hash in users.values():
                    file.write(f"{user.name}:{user.role.word}:{stored_hash}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


# --- sessions


@dataclass(slots=True)
class Session:
    """A login. The times are monotonic."""

    name: str
    credential: str
    began_at: float
    used_at: float
    provider_user: User | None = None
    """The user of an identity provider. Other users are in the users file."""


class Auth:
    """Owns the sessions and authenticates users. Only the event loop may call it. Without a users
    file and an identity provider the user of every request is `LOCAL_USER`, which is only for a
    console on localhost."""

    def __init__(self, users: UsersFile | None, has_provider: bool = False) -> None:
        self.users = users
        self.is_required = users is not None or has_provider
        """Whether users must log in."""
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, Session] = {}
        self.attempts = Attempts()
        self._verified_passwords: dict[bytes, tuple[str, str]] = {}
        """By the MAC of name, password and address: the name and the password hash."""
        self._checks: dict[bytes, asyncio.Future[User | None]] = {}
        self._hashing_thread = ThreadPoolExecutor(1, "console-password")
        self._pending = 0
        self._unknown_user_hash = unknown_user_hash()

    def is_current(self, user: User) -> bool:
        """Whether the user still exists with the same password, or the session of a user of the
        identity provider has not ended. False if the users file is invalid."""
        if user.credential.startswith(PROVIDER):
            session = self._sessions.get(user.credential.removeprefix(PROVIDER))
            return session is not None and _is_alive(session, time.monotonic())
        return not self.is_required or self._user_with(user.name, user.credential) is not None

    def _user_with(self, name: str, credential: str) -> User | None:
        try:
            entry = self.users.users().get(name) if self.users is not None else None
        except UsersError:
            return None
        return entry[0] if entry is not None and entry[0].credential == credential else None

    async def check(self, name: str, password: str, address: str) -> User | None:
        """Return the user, or None if the name or the password is wrong. A malformed name and a
        password that is too long are rejected without hashing. Raises TooManyAttempts, and
        UsersError if the users file is invalid."""
        if self.users is None:
            return None
        if not NAME_PATTERN.fullmatch(name) or len(password) > MAX_PASSWORD_LENGTH:
            self.attempts.begin("", address)
            return None
        if self._pending >= MAX_PENDING_CHECKS:
            raise TooManyAttempts(1.0)
        entry = self.users.users().get(name)
        self.attempts.begin(name, address)
        stored_hash = entry[1] if entry else self._unknown_user_hash
        if not await self._in_thread(name, address, lambda: password_matches(password, stored_hash)) or entry is None:
            if is_outdated(stored_hash):
                # Take at least as long as for an unknown user.
                await self._in_thread(name, address, lambda: password_matches(password, self._unknown_user_hash))
            self.attempts.record_failure(name, address)
            return None
        self.attempts.record_success(name, address)
        if is_outdated(stored_hash):
            new_hash = await self._in_thread(name, address, lambda: self._rehash(name, password, stored_hash))
            current_entry = self.users.users().get(name)
            if current_entry is not None and current_entry[1] == new_hash:
                return current_entry[0]
        return entry[0]

    def _rehash(self, name: str, password: str, stored_hash: str) -> str:
        """Store the password of a user with the current cost. Returns the new hash."""
        assert self.users is not None
        new_hash = hash_password(password)
        try:
            # A `UsersFile` is not thread-safe.
            UsersFile(self.users.path).replace_hash(name, stored_hash, new_hash)
        except (UsersError, OSError) as error:
            logger.warning("Cannot store the new password hash of %s: %s", name, error)
        return new_hash

    async def _in_thread(self, name: str, address: str, work: Callable[[], T]) -> T:
        """Run a part of a password check in the hashing thread."""
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._hashing_thread, work)
        except asyncio.CancelledError:
            self.attempts.cancel(name, address)
            raise
        finally:
            self._pending -= 1

    async def check_basic(self, name: str, password: str, address: str) -> User | None:
        """Like `check`, for programs that send the password with every request. A correct password
        is cached, and parallel requests with the same password are one attempt."""
        if self.users is None:
            return None
        entry = self.users.users().get(name)
        text = f"{name}\0{password}\0{address}".encode("utf-8", "surrogatepass")
        key = hmac.digest(self._secret, text, "sha256")
        if entry is not None and self._verified_passwords.get(key) == (name, entry[1]):
            return entry[0]
        check = self._checks.get(key)
        if check is None:
            check = self._checks[key] = asyncio.ensure_future(self.check(name, password, address))
            check.add_done_callback(lambda future: self._on_checked(key, future))
        user = await asyncio.shield(check)
        if user is not None and entry is not None and _fingerprint(entry[1]) == user.credential:
            if len(self._verified_passwords) >= MAX_SESSIONS:
                self._verified_passwords.clear()
            self._verified_passwords[key] = name, entry[1]
        return user

    def _on_checked(self, key: bytes, check: asyncio.Future[User | None]) -> None:
        del self._checks[key]
        if not check.cancelled():
            # Retrieve the error even if no caller waits: asyncio would log it otherwise.
            check.exception()

    def close(self) -> None:
        self._hashing_thread.shutdown(wait=False, cancel_futures=True)

    # --- sessions: the cookie is a random token. The CSRF tokens of forms are derived from it.

    def new_token(self) -> str:
        return secrets.token_urlsafe(32)

    def new_csrf_token(self, token: str) -> str:
        """Return a new CSRF token for a page. An attacker could derive a constant token from the
        sizes of compressed pages (BREACH)."""
        nonce = secrets.token_hex(8)
        return nonce + self._csrf(nonce, token)

    def csrf_matches(self, token: str, received: str) -> bool:
        expected = self._csrf(received[:16], token)
        return bool(token) and hmac.compare_digest(expected.encode(), received[16:].encode("utf-8", "replace"))

    def _csrf(self, nonce: str, token: str) -> str:
        text = f"csrf {nonce} {token}".encode("utf-8", "replace")
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()

    def begin_session(self, user: User) -> str:
        """Begin a session. Returns its token. A user without a password is a user of the identity
        provider, who exists only in the session."""
        now = time.monotonic()
        tokens = [token for token, session in self._sessions.items() if session.name == user.name]
        if len(tokens) >= MAX_USER_SESSIONS:
            del self._sessions[tokens[0]]
        if len(self._sessions) >= MAX_SESSIONS:
            self._sessions = {token: s for token, s in self._sessions.items() if _is_alive(s, now)}
            while len(self._sessions) >= MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        token = self.new_token()
        provider_user = None if user.credential else replace(user, credential=PROVIDER + token)
        self._sessions[token] = Session(user.name, user.credential, now, now, provider_user)
        return token

    def session_user(self, token: str) -> User | None:
        """Return the user of a session, or None if the session has ended. Extends the session."""
        if not self.is_required:
            return LOCAL_USER
        session = self._sessions.get(token)
        if session is None:
            return None
        now = time.monotonic()
        user = session.provider_user or self._user_with(session.name, session.credential)
        if not _is_alive(session, now):
            user = None
        if user is None:
            del self._sessions[token]
            return None
        session.used_at = now
        return user

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    def end_session(self, token: str) -> None:
        self._sessions.pop(token, None)


def _is_alive(session: Session, now: float) -> bool:
    max_age = MAX_SESSION_S if session.provider_user is None else MAX_PROVIDER_SESSION_S
    return now - session.used_at < MAX_SESSION_IDLE_S and now - session.began_at < max_age
