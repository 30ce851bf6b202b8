"""[pure] Encrypts the passwords among dynamic settings, in Kafka's text form:

    keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,keyLength:128,
    salt:…,iterations:4096,initializationVector:…,encryptedPassword:…,passwordLength:8

The key is derived from `password.encoder.secret`, which each broker has in its properties file.
"""

from __future__ import annotations

import binascii
import hashlib
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_HASHES = {
    "PBKDF2WithHmacSHA512": "sha512",
    "PBKDF2WithHmacSHA384": "sha384",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA1": "sha1",
}
_DEFAULT_FACTORY = "PBKDF2WithHmacSHA512"
_CBC = "AES/CBC/PKCS5Padding"
# A stored value must not keep a broker busy.
_MAX_ITERATIONS = 1_000_000


class EncodingError(ValueError):
    """A password cannot be encoded or decoded. `str()` contains no secret."""


@dataclass(frozen=True)
class PasswordEncoder:
    secret: str = field(repr=False)
    old_secret: str | None = field(default=None, repr=False)
    key_factory: str = _DEFAULT_FACTORY
    cipher: str = _CBC
    key_length: int = 128
    iterations: int = 4096

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> PasswordEncoder | None:
        """Return the encoder of a broker's settings, None without `password.encoder.secret`."""
        if not values["password.encoder.secret"]:
            return None
        return cls(
            values["password.encoder.secret"],
            values["password.encoder.old.secret"],
            values["password.encoder.keyfactory.algorithm"] or _DEFAULT_FACTORY,
            values["password.encoder.cipher.algorithm"],
            values["password.encoder.key.length"],
            values["password.encoder.iterations"],
        )

    def encode(self, password: str) -> str:
        """Return the encrypted text. Raises EncodingError for an unsupported algorithm."""
        if self.cipher != _CBC:
            raise EncodingError(f"password.encoder.cipher.algorithm must be {_CBC}")
        salt, vector = secrets.token_bytes(256), secrets.token_bytes(16)
        key = _derive(self.secret, self.key_factory, salt, self.iterations, self.key_length)
        fields = {
            "keyFactoryAlgorithm": self.key_factory,
            "cipherAlgorithm": self.cipher,
            "keyLength": self.key_length,
            "salt": b64encode(salt).decode(),
            "iterations": self.iterations,
            "initializationVector": b64encode(vector).decode(),
            "encryptedPassword": b64encode(_encrypt(key, vector, password.encode())).decode(),
            "passwordLength": len(password),
        }
        return ",".join(f"{name}:{value}" for name, value in fields.items())

    def decode(self, text: str) -> str:
        """Return the password. Tries the old secret if the current secret does not fit. Raises
        EncodingError."""
        fields = dict(item.partition(":")[::2] for item in text.split(","))
        for secret in filter(None, (self.secret, self.old_secret)):
            password = _decode(secret, fields)
            if password is not None:
                return password
        raise EncodingError("the password was not encoded with password.encoder.secret")


def _decode(secret: str, fields: Mapping[str, str]) -> str | None:
    """Return None if the secret does not fit."""
    try:
        iterations, key_length = int(fields["iterations"]), int(fields["keyLength"])
        length = int(fields["passwordLength"])
        salt, vector = b64decode(fields["salt"]), b64decode(fields["initializationVector"])
        encrypted = b64decode(fields["encryptedPassword"])
        key_factory, cipher = fields["keyFactoryAlgorithm"], fields["cipherAlgorithm"]
    except (KeyError, ValueError, binascii.Error):
        raise EncodingError("the password is not in Kafka's encoded form") from None
    if cipher != _CBC or not 0 < iterations <= _MAX_ITERATIONS:
        raise EncodingError(f"the password is encoded with {cipher}, which is not supported")
    key = _derive(secret, key_factory, salt, iterations, key_length)
    try:
        password = _decrypt(key, vector, encrypted).decode()
    except ValueError:
        return None
    return password if len(password) == length else None


def _derive(secret: str, key_factory: str, salt: bytes, iterations: int, key_length: int) -> bytes:
    digest = _HASHES.get(key_factory)
    if digest is None or key_length not in (128, 192, 256):
        raise EncodingError(f"passwords cannot be encoded with {key_factory} and keys of {key_length} bits")
    return hashlib.pbkdf2_hmac(digest, secret.encode(), salt, iterations, key_length // 8)


def _encrypt(key: bytes, vector: bytes, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    padder = PKCS7(128).padder()
    encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    return encryptor.update(padder.update(data) + padder.finalize()) + encryptor.finalize()


def _decrypt(key: bytes, vector: bytes, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
    unpadder = PKCS7(128).unpadder()
    return unpadder.update(decryptor.update(data) + decryptor.finalize()) + unpadder.finalize()
