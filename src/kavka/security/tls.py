"""Creates `ssl.SSLContext` from Kafka's `ssl.*` settings, for servers and clients.

The functions read files and derive keys, which takes milliseconds: a running server calls them in a
worker thread. Errors are ConfigError with the name of the setting.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from kavka.common.config import ConfigError
from kavka.security.key_stores import KeyEntry, StoreSource

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# OpenSSL always enables all of these together: Python cannot choose among them.
_TLS13_SUITES = frozenset(
    {
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_128_CCM_SHA256",
        "TLS_AES_128_CCM_8_SHA256",
    }
)
# Settings that Java needs and OpenSSL does not.
JAVA_ONLY = (
    "ssl.provider",
    "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm",
    "ssl.secure.random.implementation",
)


@dataclass(frozen=True)
class TlsSettings:
    """The `ssl.*` settings of a listener or a client."""

    key_store: StoreSource = field(default_factory=lambda: StoreSource("ssl.keystore."))
    trust_store: StoreSource = field(default_factory=lambda: StoreSource("ssl.truststore."))
    client_auth: str = "none"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    checks_hostname: bool = True
    verifies_peer: bool = True

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> TlsSettings:
        """Take the settings from parsed values by Kafka's names. Missing names have their
        defaults."""
        get = values.get
        key_store = StoreSource(
            "ssl.keystore.",
            get("ssl.keystore.type") or "JKS",
            get("ssl.keystore.location"),
            get("ssl.keystore.password"),
            get("ssl.key.password"),
            get("ssl.keystore.certificate.chain"),
            get("ssl.keystore.key"),
        )
        trust_store = StoreSource(
            "ssl.truststore.",
            get("ssl.truststore.type") or "JKS",
            get("ssl.truststore.location"),
            get("ssl.truststore.password"),
            pem=get("ssl.truststore.certificates"),
        )
        return cls(
            key_store,
            trust_store,
            get("ssl.client.auth") or "none",
            tuple(get("ssl.enabled.protocols") or cls.enabled_protocols),
            tuple(get("ssl.cipher.suites") or ()),
            (get("ssl.endpoint.identification.algorithm", "https") or "").lower() == "https",
            get("enable.ssl.certificate.verification", True),
        )

    def stamps(self) -> tuple[Any, ...]:
        """Identify the versions of the files, so that a change can be noticed."""
        return self.key_store.stamp(), self.trust_store.stamp()


def server_context(settings: TlsSettings, entry: KeyEntry | None = None) -> ssl.SSLContext:
    """Create the context of a listener. `entry` is the key, if it is already loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _apply_versions(context, settings)
    if entry is None:
        if not settings.key_store.is_set:
            raise ConfigError("ssl.keystore.location", "must be set for a listener with TLS")
        entry = settings.key_store.load_key()
    _use_key(context, entry)
    context.verify_mode = {
        "none": ssl.CERT_NONE,
        "requested": ssl.CERT_OPTIONAL,
        "required": ssl.CERT_REQUIRED,
    }[settings.client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        _use_trusted(context, settings, ssl.Purpose.CLIENT_AUTH)
    # A peer that resumes a session of a context with another trust store would skip the check.
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Create the context of a client. Without a trust store, the system's certificates are
    trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _apply_versions(context, settings)
    context.check_hostname = settings.checks_hostname and settings.verifies_peer
    context.verify_mode = ssl.CERT_REQUIRED if settings.verifies_peer else ssl.CERT_NONE
    _use_trusted(context, settings, ssl.Purpose.SERVER_AUTH)
    if settings.key_store.is_set:
        _use_key(context, settings.key_store.load_key())
    return context


def _apply_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    for name in settings.enabled_protocols:
        if name not in _VERSIONS:
            raise ConfigError(
                "ssl.enabled.protocols", f"'{name}' is not allowed; it must be one or more of {', '.join(_VERSIONS)}"
            )
    versions = {_VERSIONS[name] for name in settings.enabled_protocols}
    if settings.cipher_suites:
        older = [suite for suite in settings.cipher_suites if suite not in _TLS13_SUITES]
        if older:
            _use_ciphers(context, older)
        else:
            versions.discard(ssl.TLSVersion.TLSv1_2)
        if len(older) == len(settings.cipher_suites):
            versions.discard(ssl.TLSVersion.TLSv1_3)
        if not versions:
            raise ConfigError("ssl.cipher.suites", "none of the suites belongs to a version in ssl.enabled.protocols")
    context.minimum_version = min(versions)
    context.maximum_version = max(versions)


def _use_ciphers(context: ssl.SSLContext, suites: list[str]) -> None:
    for suite in suites:
        try:
            context.set_ciphers(openssl_name(suite))
        except ssl.SSLError:
            raise ConfigError("ssl.cipher.suites", f"'{suite}' is not a cipher suite of OpenSSL") from None
    context.set_ciphers(":".join(map(openssl_name, suites)))


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 cipher suite: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is
    ECDHE-RSA-AES128-GCM-SHA256. OpenSSL's names stay as they are."""
    if not suite.startswith("TLS_") or "_WITH_" not in suite:
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    prefix = "" if exchange == "RSA" else f"{exchange}-"
    return (prefix + cipher).replace("_", "-")


def _use_trusted(context: ssl.SSLContext, settings: TlsSettings, purpose: ssl.Purpose) -> None:
    if not settings.trust_store.is_set:
        context.load_default_certs(purpose)
        return
    certificates = settings.trust_store.load_certificates()
    pem = b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)
    # A trusted certificate need not be a root, as in Java.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=pem.decode())


def _use_key(context: ssl.SSLContext, entry: KeyEntry) -> None:
    with _private_file(entry.pem()) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise ConfigError("ssl.keystore.location", f"the certificate cannot be used: {error.reason}") from None


@contextlib.contextmanager
def _private_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file that exists in memory only, where the system has such files."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("key")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.name
