"""How a client, or a broker as a client of another broker, secures a connection.

`ClientSecurity` is created once per client and used for each connection: `context` wraps the socket
in TLS, `new_exchange` returns the client side of a SASL exchange.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kavka.common.config import ConfigError
from kavka.security.jaas import JaasEntry, JaasError, parse_client_jaas
from kavka.security.json_web_tokens import unsecured_token
from kavka.security.principal import SecurityProtocol
from kavka.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN, SaslClient
from kavka.security.sasl.oauth_bearer import OAuthBearerClient
from kavka.security.sasl.plain import PlainClient
from kavka.security.sasl.scram import ScramClient
from kavka.security.tls import TlsSettings, client_context

JAAS = "sasl.jaas.config"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
MODULES = {"PLAIN": "PlainLoginModule", "OAUTHBEARER": "OAuthBearerLoginModule"}
_LOGIN = "unsecuredLogin"
DEFAULT_LIFETIME_S = 3600.0

# Returns the text of a token. May do I/O. Raises SaslError.
TokenProvider = Callable[[], Awaitable[str]]


@dataclass(frozen=True)
class ClientSecurity:
    """`context` is None without TLS, `mechanism` is None without SASL."""

    protocol: SecurityProtocol
    context: ssl.SSLContext | None = None
    mechanism: str | None = None
    new_exchange: Callable[[], Awaitable[SaslClient]] | None = None


PLAINTEXT = ClientSecurity(SecurityProtocol.PLAINTEXT)


def client_security(
    values: Mapping[str, Any],
    *,
    token_provider: TokenProvider | None = None,
    now_s: Callable[[], float] = time.time,
) -> ClientSecurity:
    """Create the security of a client from parsed values by Kafka's names: `security.protocol`,
    `ssl.*`, `sasl.mechanism`, `sasl.jaas.config` or `sasl.username` and `sasl.password`.
    `token_provider` provides the tokens of OAUTHBEARER. Raises ConfigError."""
    name = values.get("security.protocol") or "PLAINTEXT"
    try:
        protocol = SecurityProtocol(name.upper())
    except ValueError:
        allowed = ", ".join(protocol.value for protocol in SecurityProtocol)
        raise ConfigError("security.protocol", f"'{name}' is not allowed; it must be one of {allowed}") from None
    context = client_context(TlsSettings.from_values(values)) if protocol.has_tls else None
    if not protocol.has_sasl:
        return ClientSecurity(protocol, context)
    mechanism = values.get("sasl.mechanism") or "GSSAPI"
    if mechanism not in MECHANISMS:
        raise ConfigError(
            "sasl.mechanism", f"'{mechanism}' is not supported, it must be one of {', '.join(MECHANISMS)}"
        )
    new_exchange = _exchanges(mechanism, values, token_provider, now_s)
    return ClientSecurity(protocol, context, mechanism, new_exchange)


def _exchanges(
    mechanism: str, values: Mapping[str, Any], token_provider: TokenProvider | None, now_s: Callable[[], float]
) -> Callable[[], Awaitable[SaslClient]]:
    entry = _login_module(mechanism, values)
    if mechanism == OAUTHBEARER:
        if token_provider is None and values.get(TOKEN_URL):
            from kavka.security.token_endpoint import TokenEndpoint

            token_provider = TokenEndpoint(values, entry.options, now_s).token
        return _token_exchanges(entry.options, token_provider, now_s)
    user, password = entry.options.get("username"), entry.options.get("password")
    if not user or password is None:
        raise ConfigError(JAAS, "username and password must be set (or sasl.username and sasl.password)")

    async def new_exchange() -> SaslClient:
        if mechanism == PLAIN:
            return PlainClient(user, password)
        is_token = entry.options.get("tokenauth", "").lower() == "true"
        return ScramClient(mechanism, user, password, {"tokenauth": "true"} if is_token else None)

    return new_exchange


def _login_module(mechanism: str, values: Mapping[str, Any]) -> JaasEntry:
    module = MODULES.get(mechanism, "ScramLoginModule")
    text = values.get(JAAS)
    if not text:
        user, password = values.get("sasl.username"), values.get("sasl.password")
        if mechanism == OAUTHBEARER:
            return JaasEntry(module, {})
        if not user or password is None:
            raise ConfigError(JAAS, f"must be set for the SASL mechanism {mechanism}")
        return JaasEntry(module, {"username": user, "password": password})
    try:
        entry = parse_client_jaas(text)
    except JaasError as error:
        raise ConfigError(JAAS, str(error)) from None
    if entry.module_name != module:
        raise ConfigError(JAAS, f"{mechanism} requires {module}, not {entry.module_name}")
    return entry


def _token_exchanges(
    options: Mapping[str, str], token_provider: TokenProvider | None, now_s: Callable[[], float]
) -> Callable[[], Awaitable[SaslClient]]:
    extensions = {
        name.removeprefix("extension_"): value for name, value in options.items() if name.startswith("extension_")
    }
    if token_provider is None and not any(name.startswith(_LOGIN) for name in options):
        raise ConfigError(
            JAAS,
            "OAUTHBEARER requires a token: set sasl.oauthbearer.token.endpoint.url, a login callback, "
            "or unsecuredLoginStringClaim_sub",
        )

    async def new_exchange() -> SaslClient:
        if token_provider is not None:
            return OAuthBearerClient(await token_provider(), extensions)
        return OAuthBearerClient(unsecured_token(login_claims(options, now_s())), extensions)

    return new_exchange


def login_claims(options: Mapping[str, str], now_s: float) -> dict[str, Any]:
    """Return the claims of an unsecured token from the options of a JAAS entry, as in Kafka:
    `unsecuredLoginStringClaim_sub`, `unsecuredLoginNumberClaim_…`, `unsecuredLoginListClaim_…`,
    `unsecuredLoginLifetimeSeconds`."""
    claims: dict[str, Any] = {
        "iat": now_s,
        "exp": now_s + float(options.get("unsecuredLoginLifetimeSeconds", DEFAULT_LIFETIME_S)),
    }
    for name, value in options.items():
        kind, _, claim = name.removeprefix(_LOGIN).partition("_")
        if not name.startswith(_LOGIN) or not claim:
            continue
        if kind == "StringClaim":
            claims[claim] = value
        elif kind == "NumberClaim":
            claims[claim] = float(value)
        elif kind == "ListClaim" and value:
            # The first character is the separator.
            claims[claim] = [item for item in value[1:].split(value[0]) if item]
    return claims
