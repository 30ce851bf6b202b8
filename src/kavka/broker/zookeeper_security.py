"""TLS to ZooKeeper: `zookeeper.ssl.*`, `zookeeper.set.acl`."""

from __future__ import annotations

import ssl
from dataclasses import replace

from kavka.broker.settings import Settings
from kavka.common.config import ConfigError

_PREFIX = "zookeeper."


def zookeeper_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of connections to ZooKeeper, None without TLS. Raises ConfigError."""
    sets_acls = settings["zookeeper.set.acl"]
    if not settings["zookeeper.ssl.client.enable"]:
        if sets_acls:
            raise ConfigError("zookeeper.set.acl", "requires TLS to ZooKeeper (zookeeper.ssl.client.enable=true)")
        return None
    from kavka.security.tls import TlsSettings, client_context

    values = {
        name.removeprefix(_PREFIX): value
        for name, value in settings.configs.values.items()
        if name.startswith("zookeeper.ssl.")
    }
    tls = TlsSettings.from_values(values)
    if sets_acls and not tls.key_store.is_set:
        raise ConfigError("zookeeper.set.acl", "requires a certificate (zookeeper.ssl.keystore.location)")
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
