"""Password hashes: `scrypt$n$r$p$salt$hash`, salt and hash in hex. No I/O."""

from __future__ import annotations

import hashlib
import hmac
import secrets

N, R, P = 2**17, 8, 1
"""OWASP's first choice: 128 MiB and about 0.3 s per password."""
MAX_PASSWORD_LENGTH = 1024
_DIGEST_BYTES = 64


def hash_password(password: str) -> str:
    salt = secrets.token_bytes(16)
    return _hash_text(salt, _scrypt(password, salt, N, R, P))


def unknown_user_hash() -> str:
    """Return a hash that no password has. The password of an unknown user is compared with it, so
    that the check takes as long as for an existing user."""
    return _hash_text(secrets.token_bytes(16), secrets.token_bytes(_DIGEST_BYTES))


def _hash_text(salt: bytes, digest: bytes) -> str:
    return f"scrypt${N}${R}${P}${salt.hex()}${digest.hex()}"


def is_outdated(stored_hash: str) -> bool:
    """Whether the hash has another cost than new hashes."""
    return not stored_hash.startswith(f"scrypt${N}${R}${P}$")


def password_matches(password: str, stored_hash: str) -> bool:
    """Whether the password has this hash. False if the hash is malformed."""
    try:
        algorithm, n, r, p, salt, digest = stored_hash.split("$")
        if algorithm != "scrypt":
            return False
        computed = _scrypt(password, bytes.fromhex(salt), int(n), int(r), int(p))
        return hmac.compare_digest(computed, bytes.fromhex(digest))
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r)
