"""Users, roles, passwords and sessions.

The file of users has one line for each: `name:role:scrypt$n$r$p$salt$hash`, salt and hash in hex. It is read again when
it changes, so that a user can be added or removed while the console runs. Sessions live in memory: a restart ends
them. A session belongs to one password: when the file has another for its user, the session is over.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import secrets
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from kavka.console.attempts import Attempts, TooSoon

SESSION_IDLE_S = 8 * 3600.0
SESSION_MAX_S = 24 * 3600.0
MAX_SESSIONS = 10_000
MAX_USER_SESSIONS = 1000
"""Of one user, whose oldest session makes room: many logins of a user end no session of another."""
MAX_PENDING = 16
"""Passwords that wait to be hashed. One at a time is: scrypt takes memory and a core."""

SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**14, 8, 1
MAX_PASSWORD = 1024
MAX_NAME = 64
NAME = re.compile(rf"[A-Za-z0-9._@-]{{1,{MAX_NAME}}}")


class Role(IntEnum):
    """What a user may do; each may do what those before it may."""

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
    """`credential` is the fingerprint of the password that this user has shown; "" for one who needs none."""

    name: str
    role: Role
    credential: str = field(default="", compare=False, repr=False)


# Whoever sits at the machine, where the console listens on localhost alone and has no file of users.
LOCAL_USER = User("local", Role.ADMIN)


class UsersError(ValueError):
    """The file of users cannot be used; `str()` is the line that says why."""


# --- passwords


def hashed(password: str) -> str:
    salt = secrets.token_bytes(16)
    digest = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    return f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${salt.hex()}${digest.hex()}"


def verified(password: str, stored: str) -> bool:
    try:
        kind, n, r, p, salt, digest = stored.split("$")
        if kind != "scrypt":
            return False
        found = _scrypt(password, bytes.fromhex(salt), int(n), int(r), int(p))
        return hmac.compare_digest(found, bytes.fromhex(digest))
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r)


def _fingerprint(stored: str) -> str:
    return hashlib.sha256(stored.encode()).hexdigest()


# What the password of a user that does not exist is compared with, so that it takes as long.
_NOBODY = hashed(secrets.token_hex(16))


# --- the file of users


class UsersFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_at: tuple[int, int, int] | None = None
        self._users: dict[str, tuple[User, str]] = {}

    def users(self) -> dict[str, tuple[User, str]]:
        """By name: the user and the hash of the password. Raises UsersError."""
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._read_at:
                self._users = self._parse(self.path.read_text(encoding="utf-8"))
                self._read_at = stamp
        except OSError as error:
            raise UsersError(f"{self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsersError(f"{self.path}: this is not text in UTF-8") from None
        return self._users

    def _parse(self, text: str) -> dict[str, tuple[User, str]]:
        found = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            pieces = line.strip().split(":")
            if len(pieces) != 3 or not NAME.fullmatch(pieces[0]) or not pieces[2].startswith("scrypt$"):
                raise UsersError(f"{self.path}:{number}: name:role:hash is expected (kavka console-user writes it)")
            try:
                role = Role.by_word(pieces[1])
            except ValueError as error:
                raise UsersError(f"{self.path}:{number}: {error}") from None
            found[pieces[0]] = User(pieces[0], role, _fingerprint(pieces[2])), pieces[2]
        return found

    def put(self, name: str, role: Role, password: str) -> None:
        if not NAME.fullmatch(name):
            raise UsersError(f"'{name}' is no name for a user: letters, digits and . _ @ - are")
        if not password:
            raise UsersError("an empty password is none")
        if len(password) > MAX_PASSWORD:
            raise UsersError(f"a password has at most {MAX_PASSWORD} characters")
        users = dict(self.users()) if self.path.exists() else {}
        users[name] = User(name, role), hashed(password)
        self._write(users)

    def remove(self, name: str) -> None:
        users = dict(self.users())
        if users.pop(name, None) is None:
            raise UsersError(f"{self.path} has no user '{name}'")
        self._write(users)

    def _write(self, users: dict[str, tuple[User, str]]) -> None:
        """Replaced as a whole, readable by its owner alone."""
        folder = self.path.absolute().parent
        handle, name = tempfile.mkstemp(dir=folder, prefix=".users-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                for user, stored in users.values():
                    file.write(f"{user.name}:{user.role.word}:{stored}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


# --- sessions


@dataclass(slots=True)
class Session:
    name: str
    credential: str
    began: float
    used: float


class Auth:
    """Who somebody is. With no file of users everybody is `LOCAL_USER`: only for a console on localhost."""

    def __init__(self, users: UsersFile | None) -> None:
        self.users = users
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, Session] = {}
        self._attempts = Attempts()
        self._known: dict[bytes, tuple[str, str]] = {}
        self._checks: dict[bytes, asyncio.Future[User | None]] = {}
        self._hashing = ThreadPoolExecutor(1, "console-password")
        self._pending = 0

    @property
    def needed(self) -> bool:
        return self.users is not None

    def is_current(self, user: User) -> bool:
        """Whether the user is still there, with the same password."""
        return self.users is None or self._current(user.name, user.credential) is not None

    def _current(self, name: str, credential: str) -> User | None:
        try:
            entry = self.users.users().get(name) if self.users is not None else None
        except UsersError:
            return None
        return entry[0] if entry is not None and entry[0].credential == credential else None

    async def check(self, name: str, password: str, address: str) -> User | None:
        """The user, if that is the password. Raises TooSoon where the limits on attempts are reached, and UsersError.
        A name or a password that nobody can have is refused before it is stored or hashed anywhere."""
        if self.users is None:
            return None
        if not NAME.fullmatch(name) or len(password) > MAX_PASSWORD:
            self._attempts.begin("", address)
            return None
        if self._pending >= MAX_PENDING:
            raise TooSoon(1.0)
        entry = self.users.users().get(name)
        self._attempts.begin(name, address)
        if not await self._verified(name, password, address, entry[1] if entry else _NOBODY) or entry is None:
            return None
        self._attempts.succeeded(name, address)
        return entry[0]

    async def _verified(self, name: str, password: str, address: str, stored: str) -> bool:
        self._pending += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._hashing, verified, password, stored)
        except asyncio.CancelledError:
            self._attempts.cancelled(name, address)
            raise
        finally:
            self._pending -= 1

    async def check_basic(self, name: str, password: str, address: str) -> User | None:
        """As `check`, for programs that send the password with every request: a right one is remembered, and equal
        requests in parallel are one attempt."""
        if self.users is None:
            return None
        entry = self.users.users().get(name)
        text = f"{name}\0{password}\0{address}".encode("utf-8", "surrogatepass")
        key = hmac.digest(self._secret, text, "sha256")
        if entry is not None and self._known.get(key) == (name, entry[1]):
            return entry[0]
        check = self._checks.get(key)
        if check is None:
            check = self._checks[key] = asyncio.ensure_future(self.check(name, password, address))
            check.add_done_callback(lambda done: self._checked(key, done))
        user = await asyncio.shield(check)
        if user is not None and entry is not None and _fingerprint(entry[1]) == user.credential:
            if len(self._known) >= MAX_SESSIONS:
                self._known.clear()
            self._known[key] = name, entry[1]
        return user

    def _checked(self, key: bytes, done: asyncio.Future[User | None]) -> None:
        del self._checks[key]
        if not done.cancelled():
            # Also where nobody waits any more: an error that is not looked at would be logged.
            done.exception()

    def close(self) -> None:
        self._hashing.shutdown(wait=False, cancel_futures=True)

    # --- sessions: the cookie is a random token; what forms carry beside it is derived from it

    def new_token(self) -> str:
        return secrets.token_urlsafe(32)

    def csrf_of(self, token: str) -> str:
        """Another one each time: pages are compressed, and what is always the same could be guessed by its length."""
        nonce = secrets.token_hex(8)
        return nonce + self._csrf(nonce, token)

    def csrf_fits(self, token: str, given: str) -> bool:
        wanted = self._csrf(given[:16], token)
        return bool(token) and hmac.compare_digest(wanted.encode(), given[16:].encode("utf-8", "replace"))

    def _csrf(self, nonce: str, token: str) -> str:
        text = f"csrf {nonce} {token}".encode("utf-8", "replace")
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()

    def begin(self, user: User) -> str:
        now = time.monotonic()
        own = [token for token, session in self._sessions.items() if session.name == user.name]
        if len(own) >= MAX_USER_SESSIONS:
            del self._sessions[own[0]]
        if len(self._sessions) >= MAX_SESSIONS:
            self._sessions = {token: s for token, s in self._sessions.items() if self._alive(s, now)}
            while len(self._sessions) >= MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        token = self.new_token()
        self._sessions[token] = Session(user.name, user.credential, now, now)
        return token

    def session_user(self, token: str) -> User | None:
        if self.users is None:
            return LOCAL_USER
        session = self._sessions.get(token)
        if session is None:
            return None
        now = time.monotonic()
        user = self._current(session.name, session.credential) if self._alive(session, now) else None
        if user is None:
            del self._sessions[token]
            return None
        session.used = now
        return user

    def end(self, token: str) -> None:
        self._sessions.pop(token, None)

    @staticmethod
    def _alive(session: Session, now: float) -> bool:
        return now - session.used < SESSION_IDLE_S and now - session.began < SESSION_MAX_S
