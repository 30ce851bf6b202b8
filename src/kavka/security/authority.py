"""A certificate authority for tests and small clusters: keys and certificates.

authority = Authority("Test CA")
server = authority.certificate_of("broker", hosts=("localhost", "127.0.0.1"))
server.write_pem(folder / "server.pem")
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_ATTRIBUTES = {
    "CN": NameOID.COMMON_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "C": NameOID.COUNTRY_NAME,
}
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """A key, its certificate and the certificate of its issuer."""

    key: Any
    certificate: x509.Certificate
    issuer: x509.Certificate

    @property
    def key_pem(self) -> str:
        pem: bytes = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return pem.decode()

    def encrypted_key_pem(self, password: str) -> str:
        encryption = BestAvailableEncryption(password.encode())
        pem: bytes = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        return pem.decode()

    @property
    def chain_pem(self) -> str:
        return (self.certificate.public_bytes(Encoding.PEM) + self.issuer.public_bytes(Encoding.PEM)).decode()

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    def write_pem(self, path: Path) -> Path:
        """Write key and chain into one file, as `ssl.keystore.type=PEM` reads it."""
        # A rename, so that a broker that watches the file never reads half of it.
        temporary = path.with_suffix(".new")
        write_private(temporary, self.key_pem + self.chain_pem)
        temporary.rename(path)
        return path

    def write_separate(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write the chain and the key into two files, as most clients read them."""
        chain, key = folder / f"{name}.crt", folder / f"{name}.key"
        chain.write_text(self.chain_pem)
        write_private(key, self.key_pem)
        return chain, key

    def write_pkcs12(self, path: Path, password: str) -> Path:
        encryption = BestAvailableEncryption(password.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(b"key", self.key, self.certificate, [self.issuer], encryption)
        )
        return path


class Authority:
    """A certificate authority with a new key."""

    def __init__(
        self, name: str = "Kavka CA", *, use_rsa: bool = False, valid_for: datetime.timedelta = 30 * DAY
    ) -> None:
        self._use_rsa = use_rsa
        self.key: Any = _new_key(use_rsa)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + valid_for)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def write_pem(self, path: Path) -> Path:
        path.write_text(self.pem)
        return path

    def write_pkcs12(self, path: Path, password: str) -> Path:
        """Write a trust store that Java reads: its entries carry Java's mark of trust."""
        encryption = BestAvailableEncryption(password.encode())
        entries = [pkcs12.PKCS12Certificate(self.certificate, b"ca")]
        path.write_bytes(pkcs12.serialize_java_truststore(entries, encryption))
        return path

    def certificate_of(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        valid_for: datetime.timedelta = 30 * DAY,
        self_signed: bool = False,
    ) -> Certificate:
        """Sign a certificate. `name` is a common name, or attributes such as `CN=a,OU=b,O=c` with
        the most specific first. A negative `valid_for` makes an expired certificate."""
        key = _new_key(self._use_rsa)
        subject = _subject(name)
        now = datetime.datetime.now(datetime.UTC)
        end = now + valid_for
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if self_signed else self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - DAY)
            .not_valid_after(end)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(key if self_signed else self.key, hashes.SHA256())
        return Certificate(key, certificate, certificate if self_signed else self.certificate)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _new_key(use_rsa: bool) -> Any:
    if use_rsa:
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


def _subject(name: str) -> x509.Name:
    if "=" not in name:
        name = f"CN={name}"
    pairs = [pair.partition("=")[::2] for pair in reversed(name.split(","))]
    return x509.Name([x509.NameAttribute(_ATTRIBUTES[keyword], value) for keyword, value in pairs])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
