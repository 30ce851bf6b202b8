"""Reads key stores and trust stores: JKS, PKCS12 and PEM, from files, and PEM from settings
(KIP-651).

A file of the type JKS or PKCS12 is recognized by its first bytes, as in Java, where both types open
both formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from kavka.common.config import ConfigError

MAX_STORE_BYTES = 16 * 1024 * 1024
JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
STORE_TYPES = ("JKS", "PKCS12", "PEM")


class KeyEntry(NamedTuple):
    """A private key and its certificate chain, the certificate of the key first."""

    key: Any
    chain: tuple[x509.Certificate, ...]

    def pem(self) -> bytes:
        """The unencrypted key and the chain. Must not be written to a disk."""
        key: bytes = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return key + b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self.chain)

    @property
    def certificate(self) -> x509.Certificate:
        return self.chain[0]


def read_store(name: str, location: str) -> bytes:
    """Return the content of a file of keys or certificates. Raises ConfigError with the name of the
    setting."""
    try:
        with open(location, "rb") as file:
            raw = file.read(MAX_STORE_BYTES + 1)
    except OSError as error:
        raise ConfigError(name, f"cannot read {location}: {error.strerror}") from None
    if len(raw) > MAX_STORE_BYTES:
        raise ConfigError(name, f"{location} is larger than {MAX_STORE_BYTES} bytes")
    return raw


@dataclass(frozen=True)
class StoreSource:
    """Where a key store or trust store is. `prefix` is the start of its settings' names, for
    example `ssl.keystore.`. `pem` is inline text; `key_pem` the inline key of a key store."""

    prefix: str
    type: str = "JKS"
    location: str | None = None
    password: str | None = None
    key_password: str | None = None
    pem: str | None = None
    key_pem: str | None = None

    @property
    def is_set(self) -> bool:
        return bool(self.location or self.pem or self.key_pem)

    def stamp(self) -> tuple[int, int, int] | None:
        """Identify the version of the file. None for inline PEM or a file that is missing."""
        if not self.location:
            return None
        try:
            status = Path(self.location).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def load_key(self) -> KeyEntry:
        """Return the private key and its chain. Raises ConfigError that names the setting."""
        kind = self._checked_type()
        if kind == "PEM":
            if self.key_pem or self.pem:
                if not self.key_pem:
                    raise ConfigError(f"{self.prefix}key", "must be set together with the certificate chain")
                if not self.pem:
                    raise ConfigError(f"{self.prefix}certificate.chain", "must be set together with the private key")
                key = self._pem_key(self.key_pem.encode(), f"{self.prefix}key")
                return self._entry(key, self._pem_certificates(self.pem.encode(), f"{self.prefix}certificate.chain"))
            raw = self._read()
            return self._entry(
                self._pem_key(raw, f"{self.prefix}location"), self._pem_certificates(raw, f"{self.prefix}location")
            )
        raw = self._read()
        return self._jks_key(raw) if raw.startswith(JKS_MAGIC) else self._pkcs12_key(raw)

    def load_certificates(self) -> tuple[x509.Certificate, ...]:
        """Return the trusted certificates. Raises ConfigError that names the setting."""
        kind = self._checked_type()
        if kind == "PEM":
            name = f"{self.prefix}certificates" if self.pem else f"{self.prefix}location"
            return self._pem_certificates(self.pem.encode() if self.pem else self._read(), name)
        raw = self._read()
        certificates = self._jks_certificates(raw) if raw.startswith(JKS_MAGIC) else self._pkcs12_certificates(raw)
        if not certificates:
            raise ConfigError(f"{self.prefix}location", f"{self.location} contains no trusted certificate")
        return certificates

    # ---- reading

    def _checked_type(self) -> str:
        kind = self.type.upper()
        if kind not in STORE_TYPES:
            raise ConfigError(
                f"{self.prefix}type", f"'{self.type}' is not allowed; it must be one of {', '.join(STORE_TYPES)}"
            )
        if kind != "PEM" and (self.pem or self.key_pem):
            name = "certificates" if "trust" in self.prefix else "certificate.chain"
            raise ConfigError(f"{self.prefix}{name}", f"requires {self.prefix}type=PEM")
        if kind == "PEM" and self.location and (self.pem or self.key_pem):
            raise ConfigError(f"{self.prefix}location", "cannot be set together with certificates in PEM format")
        return kind

    def _read(self) -> bytes:
        name = f"{self.prefix}location"
        if not self.location:
            raise ConfigError(name, "must be set")
        return read_store(name, self.location)

    def _entry(self, key: Any, certificates: tuple[x509.Certificate, ...]) -> KeyEntry:
        public_key = key.public_key()
        for index, certificate in enumerate(certificates):
            if certificate.public_key() == public_key:
                return KeyEntry(key, (certificate, *certificates[:index], *certificates[index + 1 :]))
        raise ConfigError(self._source_name(), "contains no certificate of its private key")

    def _source_name(self) -> str:
        return f"{self.prefix}location" if self.location else f"{self.prefix}certificate.chain"

    # ---- PEM

    def _pem_key(self, raw: bytes, name: str) -> Any:
        begin = raw.find(b"-----BEGIN")
        while (
            begin >= 0 and b"PRIVATE KEY" not in raw[begin : raw.find(b"\n", begin) if b"\n" in raw[begin:] else None]
        ):
            begin = raw.find(b"-----BEGIN", begin + 1)
        if begin < 0:
            raise ConfigError(name, "contains no private key in PEM format")
        try:
            return load_pem_private_key(raw[begin:], self.key_password.encode() if self.key_password else None)
        except TypeError:
            needs = (
                "is encrypted: set its password" if not self.key_password else "is not encrypted: remove its password"
            )
            raise ConfigError("ssl.key.password", f"the private key {needs}") from None
        except ValueError as error:
            if self.key_password:
                raise ConfigError("ssl.key.password", "the password does not open the private key") from None
            raise ConfigError(name, f"the private key cannot be read: {_line(error)}") from None

    def _pem_certificates(self, raw: bytes, name: str) -> tuple[x509.Certificate, ...]:
        try:
            return tuple(x509.load_pem_x509_certificates(raw))
        except ValueError as error:
            raise ConfigError(name, f"contains no valid certificate in PEM format: {_line(error)}") from None

    # ---- PKCS12

    def _load_pkcs12(self, raw: bytes) -> Any:
        try:
            return load_pkcs12(raw, self.password.encode() if self.password is not None else None)
        except ValueError:
            raise ConfigError(
                f"{self.prefix}password", f"does not open {self.location}, or the file is neither JKS nor PKCS12"
            ) from None

    def _pkcs12_key(self, raw: bytes) -> KeyEntry:
        store = self._load_pkcs12(raw)
        if store.key is None or store.cert is None:
            raise ConfigError(f"{self.prefix}location", f"{self.location} contains no private key")
        others = tuple(other.certificate for other in store.additional_certs)
        return KeyEntry(store.key, _in_order(store.cert.certificate, others))

    def _pkcs12_certificates(self, raw: bytes) -> tuple[x509.Certificate, ...]:
        store = self._load_pkcs12(raw)
        certificates = [other.certificate for other in store.additional_certs]
        # A certificate without its private key may appear as the store's certificate.
        if store.cert is not None and store.key is None:
            certificates.insert(0, store.cert.certificate)
        return tuple(certificates)

    # ---- JKS

    def _load_jks(self, raw: bytes) -> Any:
        jks = self._jks_library()
        try:
            # As in Java without a password: the content is read, but its integrity is not checked.
            return jks.KeyStore.loads(raw, self.password, try_decrypt_keys=False)
        except jks.util.KeystoreSignatureException:
            raise ConfigError(f"{self.prefix}password", f"does not open {self.location}") from None
        except (jks.util.KeystoreException, ValueError, IndexError, KeyError) as error:
            raise ConfigError(
                f"{self.prefix}location", f"{self.location} is not a valid JKS file: {_line(error)}"
            ) from None

    def _jks_library(self) -> Any:
        try:
            import jks
        except ImportError:
            raise ConfigError(
                f"{self.prefix}location", f"{self.location} is a JKS file: install kavka[jks], or convert it to PKCS12"
            ) from None
        return jks

    def _jks_key(self, raw: bytes) -> KeyEntry:
        entries = list(self._load_jks(raw).private_keys.values())
        if not entries:
            raise ConfigError(f"{self.prefix}location", f"{self.location} contains no private key")
        entry = entries[0]
        try:
            entry.decrypt(self.key_password or self.password or "")
            key = load_der_private_key(entry.pkey_pkcs8, None)
        except (self._jks_library().util.KeystoreException, ValueError, TypeError):
            raise ConfigError("ssl.key.password", f"does not open the private key of {self.location}") from None
        chain = tuple(x509.load_der_x509_certificate(raw_certificate) for _, raw_certificate in entry.cert_chain)
        return self._entry(key, chain)

    def _jks_certificates(self, raw: bytes) -> tuple[x509.Certificate, ...]:
        return tuple(x509.load_der_x509_certificate(entry.cert) for entry in self._load_jks(raw).certs.values())


def _in_order(first: x509.Certificate, others: tuple[x509.Certificate, ...]) -> tuple[x509.Certificate, ...]:
    """Return the chain from a certificate to its root. Certificates outside the chain are
    dropped."""
    by_subject = {certificate.subject: certificate for certificate in others}
    chain = [first]
    while chain[-1].issuer != chain[-1].subject:
        issuer = by_subject.pop(chain[-1].issuer, None)
        if issuer is None:
            break
        chain.append(issuer)
    return tuple(chain)


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
