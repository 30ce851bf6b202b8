"""The settings of a listener.

A setting of a listener is `listener.name.<listener>.<setting>`, of a mechanism of the listener
`listener.name.<listener>.<mechanism>.<setting>`; the plain name is the default for all listeners.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import Any

from kavka.broker.settings import Settings
from kavka.security.principal import SecurityProtocol

logger = logging.getLogger(__name__)


def listener_values(values: Mapping[str, Any], listener: str) -> dict[str, Any]:
    """Return the values of all settings for a listener."""
    prefix = f"listener.name.{listener.lower()}."
    overrides = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    return {**values, **overrides}


def mechanism_values(values: Mapping[str, Any], listener: str, mechanism: str) -> dict[str, Any]:
    """Return the values of all settings for a mechanism of a listener."""
    prefix = f"listener.name.{listener.lower()}.{mechanism.lower()}."
    overrides = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    return {**listener_values(values, listener), **overrides}


def warn_if_open(settings: Settings) -> None:
    """Log one warning if a listener lets everyone on the network in."""
    values = settings.configs.values
    is_open = []
    for listener in settings.listeners:
        protocol = SecurityProtocol(listener.protocol)
        requires_certificate = listener_values(values, listener.name)["ssl.client.auth"] == "required"
        is_authenticated = protocol.has_sasl or (protocol.has_tls and requires_certificate)
        if not is_authenticated and not _is_loopback(listener.host):
            is_open.append(str(listener))
    if is_open:
        logger.warning(
            "ANYONE WHO CAN REACH %s MAY READ, WRITE AND DELETE EVERYTHING: the listener requires no authentication. "
            "Use SASL_SSL, or SSL with ssl.client.auth=required (docs/security.md)",
            ", ".join(is_open),
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
