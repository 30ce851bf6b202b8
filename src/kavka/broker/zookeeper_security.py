"""TLS and SASL to ZooKeeper, and the requirements of `zookeeper.set.acl`."""

from __future__ import annotations

import ssl
from dataclasses import replace
from importlib.util import find_spec

from kavka.broker.settings import Settings
from kavka.common.config import ConfigError
from kavka.metadata.zookeeper import Credentials
from kavka.security.jaas import JaasError, parse_client_jaas

_PREFIX = "zookeeper."
_JAAS = "zookeeper.sasl.jaas.config"
_DIGEST_MODULE = "DigestLoginModule"


def zookeeper_credentials(settings: Settings) -> Credentials | None:
    """Return the credentials of DIGEST-MD5, None without SASL. Raises ConfigError."""
    text = settings[_JAAS]
    if not text:
        return None
    try:
        entry = parse_client_jaas(text)
    except JaasError as error:
        raise ConfigError(_JAAS, str(error)) from None
    username, password = (entry.options.get(name, "") for name in ("username", "password"))
    if entry.module_name != _DIGEST_MODULE or not username or not password:
        raise ConfigError(
            _JAAS, f"requires org.apache.zookeeper.server.auth.{_DIGEST_MODULE} with username and password"
        )
    if find_spec("puresasl") is None:
        raise ConfigError(_JAAS, "requires the package pure-sasl (pip install 'kavka[cluster]')")
    return Credentials(username, password)


def zookeeper_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of connections to ZooKeeper, None without TLS. Raises ConfigError."""
    needs_certificate = settings["zookeeper.set.acl"] and not settings[_JAAS]
    if not settings["zookeeper.ssl.client.enable"]:
        if needs_certificate:
            raise ConfigError(
                "zookeeper.set.acl", f"requires {_JAAS}, or a certificate (zookeeper.ssl.client.enable=true)"
            )
        return None
    from kavka.security.tls import TlsSettings, client_context

    values = {
        name.removeprefix(_PREFIX): value
        for name, value in settings.configs.values.items()
        if name.startswith("zookeeper.ssl.")
    }
    tls = TlsSettings.from_values(values)
    if needs_certificate and not tls.key_store.is_set:
        raise ConfigError("zookeeper.set.acl", f"requires {_JAAS}, or a certificate (zookeeper.ssl.keystore.location)")
    try:
        return client_context(
            replace(
                tls,
                key_store=replace(tls.key_store, type=_type(values, "keystore")),
                trust_store=replace(tls.trust_store, type=_type(values, "truststore")),
            )
        )
    except ConfigError as error:
        raise ConfigError(_PREFIX + error.name, error.reason) from None


def _type(values: dict[str, str], store: str) -> str:
    """The format of a store. Without a setting ZooKeeper takes it from the name of the file."""
    return values[f"ssl.{store}.type"] or (
        "PEM" if (values[f"ssl.{store}.location"] or "").lower().endswith(".pem") else "JKS"
    )
