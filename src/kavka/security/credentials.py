"""[pure] SCRAM credentials, and their text in `/config/users/<name>` as Kafka writes it:

    salt=<base64>,stored_key=<base64>,server_key=<base64>,iterations=4096

The password itself is not stored and cannot be derived. Kafka does not normalize passwords
(SASLprep), so this module does not either.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from functools import lru_cache
from typing import NamedTuple

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_NEW_USER = re.compile(
    r"(?P<mechanism>SCRAM-SHA-256|SCRAM-SHA-512)=\[name=(?P<name>[^,\]]+),password=(?P<password>.+?)"
    r"(?:,iterations=(?P<iterations>[0-9]{1,9}))?\]"
)
# As in Kafka: the bounds of AlterUserScramCredentials and of the clients.
MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384


class CredentialError(ValueError):
    """The text of a stored credential is invalid. `str()` does not contain the text."""


class ScramCredential(NamedTuple):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class NewUser(NamedTuple):
    """A user to create, from `parse_new_user`."""

    mechanism: str
    name: str
    password: str
    iterations: int = MIN_ITERATIONS

    def __repr__(self) -> str:
        return f"NewUser({self.name!r}, {self.mechanism})"


class ScramKeys(NamedTuple):
    """The keys that a client derives from a password."""

    client_key: bytes
    server_key: bytes


@lru_cache(32)
def derive_keys(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramKeys:
    """Derive the keys of a password. Takes milliseconds, so the last results are cached: a client
    opens many connections with the same password and salt."""
    salted_password = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return keys_of_salted_password(mechanism, salted_password)


def keys_of_salted_password(mechanism: str, salted_password: bytes) -> ScramKeys:
    digest = HASHES[mechanism]
    return ScramKeys(
        hmac.digest(salted_password, b"Client Key", digest), hmac.digest(salted_password, b"Server Key", digest)
    )


def credential_of_keys(mechanism: str, keys: ScramKeys, salt: bytes, iterations: int) -> ScramCredential:
    return ScramCredential(salt, hashlib.new(HASHES[mechanism], keys.client_key).digest(), keys.server_key, iterations)


def new_credential(mechanism: str, password: str, iterations: int = MIN_ITERATIONS) -> ScramCredential:
    """Return the credential of a password with a random salt."""
    salt = secrets.token_bytes(32)
    return credential_of_keys(mechanism, derive_keys(mechanism, password, salt, iterations), salt, iterations)


def credential_of_salted_password(
    mechanism: str, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of AlterUserScramCredentials, in which the client has salted the
    password."""
    return credential_of_keys(mechanism, keys_of_salted_password(mechanism, salted_password), salt, iterations)


def parse_new_user(text: str) -> NewUser:
    """Parse the syntax of `kafka-storage format --add-scram`:
    `SCRAM-SHA-256=[name=alice,password=secret,iterations=8192]`. Raises CredentialError."""
    match = _NEW_USER.fullmatch(text.strip())
    if match is None:
        raise CredentialError("expected SCRAM-SHA-256=[name=alice,password=secret] or SCRAM-SHA-512=[…]")
    iterations = int(match["iterations"] or MIN_ITERATIONS)
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise CredentialError(f"iterations must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}")
    return NewUser(match["mechanism"], match["name"], match["password"], iterations)


def format_credential(credential: ScramCredential) -> str:
    salt, stored_key, server_key = (b64encode(value).decode() for value in credential[:3])
    return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={credential.iterations}"


def parse_credential(text: str) -> ScramCredential:
    """Parse the stored text. Raises CredentialError."""
    fields = dict(item.partition("=")[::2] for item in text.split(","))
    try:
        return ScramCredential(
            b64decode(fields["salt"], validate=True),
            b64decode(fields["stored_key"], validate=True),
            b64decode(fields["server_key"], validate=True),
            int(fields["iterations"]),
        )
    except KeyError as error:
        raise CredentialError(f"the SCRAM credential has no {error.args[0]}") from None
    except (ValueError, binascii.Error):
        raise CredentialError("the SCRAM credential is not valid") from None
