"""The settings that secure the connections of clients: TLS, SASL, and names of librdkafka.

`security_of` creates the security of a client. A client without TLS and SASL loads none of the
security library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kavka.client.classes import load
from kavka.common.config import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LOW,
    PASSWORD,
    SHORT,
    STRING,
    AtLeast,
    Between,
    ConfigError,
    ConfigKey,
    OneOf,
)

if TYPE_CHECKING:
    from kavka.security.client_security import ClientSecurity, TokenProvider

K = ConfigKey

JAVA_ONLY = "has no effect: it applies to the Java client"

CALLBACK = "sasl.login.callback"
# Callback handlers of Kafka that are accepted. The client itself requests tokens from the endpoint.
_KAFKA_HANDLERS = ("OAuthBearerLoginCallbackHandler", "OAuthBearerUnsecuredLoginCallbackHandler")

# fmt: off
SECURITY = (
    K("security.protocol", STRING, "PLAINTEXT", "Protocol of connections: TLS with SSL and SASL_SSL, authentication "
      "by SASL with SASL_PLAINTEXT and SASL_SSL.",
      OneOf(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), ignore_case=True)),
    K("ssl.truststore.location", STRING, None, "The file with the trusted certificates. Without a trust store the "
      "system's certificates are trusted."),
    K("ssl.truststore.type", STRING, "JKS", "The format of the trust store: JKS (also reads PKCS12), PKCS12 or PEM."),
    K("ssl.truststore.password", PASSWORD, None, "The password of the trust store."),
    K("ssl.truststore.certificates", PASSWORD, None, "The trusted certificates in PEM format, with the type PEM."),
    K("ssl.keystore.location", STRING, None, "The file with the client's key and certificate, for listeners that "
      "require a certificate."),
    K("ssl.keystore.type", STRING, "JKS", "The format of the key store: JKS (also reads PKCS12), PKCS12 or PEM."),
    K("ssl.keystore.password", PASSWORD, None, "The password of the key store."),
    K("ssl.keystore.key", PASSWORD, None, "The client's private key in PEM format, with the type PEM."),
    K("ssl.keystore.certificate.chain", PASSWORD, None, "The client's certificate chain in PEM format, with the type "
      "PEM."),
    K("ssl.key.password", PASSWORD, None, "The password of the private key."),
    K("ssl.certificate.location", STRING, None, "A PEM file with the client's certificate chain; requires "
      "ssl.key.location (as in librdkafka)."),
    K("ssl.key.location", STRING, None, "A PEM file with the client's private key (as in librdkafka)."),
    K("ssl.endpoint.identification.algorithm", STRING, "https",
      "https: the broker's certificate must contain the host name; empty or none: it need not.",
      OneOf(("https", "none", ""), ignore_case=True), LOW),
    K("enable.ssl.certificate.verification", BOOLEAN, True,
      "Verify the broker's certificate (as in librdkafka). Set false only for tests.", importance=LOW),
    K("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), "The TLS versions."),
    K("ssl.protocol", STRING, "TLSv1.3", "The preferred TLS version.", warning=JAVA_ONLY),
    K("ssl.cipher.suites", LIST, (), "The cipher suites; empty for the default of OpenSSL.", importance=LOW),
    K("ssl.provider", STRING, None, "The Java security provider.", warning=JAVA_ONLY),
    K("ssl.keymanager.algorithm", STRING, "SunX509", "The algorithm of Java's key manager.", importance=LOW,
      warning=JAVA_ONLY),
    K("ssl.trustmanager.algorithm", STRING, "PKIX", "The algorithm of Java's trust manager.", importance=LOW,
      warning=JAVA_ONLY),
    K("ssl.secure.random.implementation", STRING, None, "Java's source of random numbers.", importance=LOW,
      warning=JAVA_ONLY),
    K("ssl.engine.factory.class", CLASS, None, "The class that creates TLS engines.", importance=LOW,
      warning=JAVA_ONLY),
    K("sasl.mechanism", STRING, "GSSAPI", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER. GSSAPI, Kafka's "
      "default, is not supported."),
    K("sasl.jaas.config", PASSWORD, None, "The login module and its options in JAAS format."),
    K("sasl.username", STRING, None, "The user name, if sasl.jaas.config is not set (as in librdkafka)."),
    K("sasl.password", PASSWORD, None, "The password, if sasl.jaas.config is not set (as in librdkafka)."),
    K(CALLBACK, CLASS, None, "A function, plain or async, that returns a token for OAUTHBEARER, or a token and "
      "the time of its expiry in seconds since the epoch (Kavka only). In a file: package.module:function."),
    K("sasl.login.callback.handler.class", CLASS, None, "Kafka's OAuthBearerLoginCallbackHandler is accepted; the "
      "settings of the token endpoint configure it. Use sasl.login.callback for a custom function."),
    K("sasl.client.callback.handler.class", CLASS, None, "The class that provides credentials.", warning=JAVA_ONLY),
    K("sasl.login.class", CLASS, None, "The class that logs in.", warning=JAVA_ONLY),
    K("sasl.oauthbearer.token.endpoint.url", STRING, None, "The URL of the token endpoint (http, https), or of a file "
      "with a token (file)."),
    K("sasl.oauthbearer.client.credentials.client.id", STRING, None, "The client's id at the token endpoint; in JAAS "
      "the option clientId."),
    K("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None, "The client's secret at the token endpoint; "
      "in JAAS the option clientSecret."),
    K("sasl.oauthbearer.scope", STRING, None, "The requested scope; in JAAS the option scope."),
    K("sasl.oauthbearer.header.urlencode", BOOLEAN, False, "URL-encode the client's id and secret in the request for "
      "a token.", importance=LOW),
    K("sasl.login.connect.timeout.ms", INT, None, "The timeout of connecting to the token endpoint (default 10 s).",
      AtLeast(1), LOW),
    K("sasl.login.read.timeout.ms", INT, None, "The timeout of a response of the token endpoint (default 10 s).",
      AtLeast(1), LOW),
    K("sasl.login.retry.backoff.ms", LONG, 100, "Delay before a failed request for a token is retried; doubles with "
      "each failure.", AtLeast(0), LOW),
    K("sasl.login.retry.backoff.max.ms", LONG, 10_000, "Requests for a token are retried for this long.",
      AtLeast(0), LOW),
    K("sasl.login.refresh.window.factor", DOUBLE, 0.8, "The fraction of a token's lifetime after which a new token "
      "is used.", Between(0.5, 1.0), LOW),
    K("sasl.login.refresh.window.jitter", DOUBLE, 0.05, "The random jitter of the refresh time.", Between(0.0, 0.25),
      LOW, warning=JAVA_ONLY),
    K("sasl.login.refresh.min.period.seconds", SHORT, 60, "The minimum time between two refreshes.",
      Between(0, 900), LOW, warning=JAVA_ONLY),
    K("sasl.login.refresh.buffer.seconds", SHORT, 300, "The time before the expiry in which a token is refreshed.",
      Between(0, 3600), LOW, warning=JAVA_ONLY),
)
# fmt: on

# Reasons why other names with these prefixes have no effect.
UNSUPPORTED_PREFIXES = {
    "sasl.kerberos.": "Kerberos is not supported",
    "sasl.oauthbearer.jwks.": "it applies to brokers",
    "sasl.oauthbearer.expected.": "it applies to brokers",
    "sasl.oauthbearer.assertion.": "the flow with assertions is not supported",
}

# Names of librdkafka. Each function returns the settings that replace the alias.
SECURITY_ALIASES: dict[str, Callable[[Any], Mapping[str, Any]]] = {
    "ssl.ca.location": lambda value: {"ssl.truststore.location": value, "ssl.truststore.type": "PEM"},
    "ssl.ca.pem": lambda value: {"ssl.truststore.certificates": value, "ssl.truststore.type": "PEM"},
    "ssl.certificate.pem": lambda value: {"ssl.keystore.certificate.chain": value, "ssl.keystore.type": "PEM"},
    "ssl.key.pem": lambda value: {"ssl.keystore.key": value, "ssl.keystore.type": "PEM"},
    "sasl.mechanisms": lambda value: {"sasl.mechanism": value},
    "sasl.oauthbearer.client.id": lambda value: {"sasl.oauthbearer.client.credentials.client.id": value},
    "sasl.oauthbearer.client.secret": lambda value: {"sasl.oauthbearer.client.credentials.client.secret": value},
}


def security_of(values: Mapping[str, Any]) -> ClientSecurity | None:
    """Create the security of a client from its parsed settings; None for PLAINTEXT. Reads the
    stores. Raises ConfigError."""
    if values["security.protocol"].upper() == "PLAINTEXT":
        return None
    from kavka.security.client_security import client_security

    return client_security(_with_pem_files(values), token_provider=_token_provider(values))


def tls_values(settings: Mapping[str, str]) -> Mapping[str, Any]:
    """Parse the `ssl.*` settings among `settings`, including the names of librdkafka. Missing
    settings have their defaults. For listeners and clients of other protocols than Kafka's. Raises
    ConfigError."""
    texts: dict[str, str] = {}
    for name, text in settings.items():
        texts |= SECURITY_ALIASES[name](text) if name in SECURITY_ALIASES else {name: text}
    keys = [key for key in SECURITY if key.name.startswith(("ssl.", "enable.ssl."))]
    return _with_pem_files({key.name: key.parse(texts[key.name]) if key.name in texts else key.default for key in keys})


def _with_pem_files(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace librdkafka's files of the certificate and the key by their content."""
    certificate, key = "ssl.certificate.location", "ssl.key.location"
    if not values[certificate] and not values[key]:
        return values
    for name, other in ((certificate, key), (key, certificate)):
        if not values[name]:
            raise ConfigError(name, f"must be set together with {other}")
    if values["ssl.keystore.location"]:
        raise ConfigError(certificate, "cannot be set together with ssl.keystore.location")
    from kavka.security.key_stores import read_store

    return {
        **values,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": read_store(certificate, values[certificate]).decode(errors="replace"),
        "ssl.keystore.key": read_store(key, values[key]).decode(errors="replace"),
    }


def _token_provider(values: Mapping[str, Any]) -> TokenProvider | None:
    handler = values["sasl.login.callback.handler.class"]
    if isinstance(handler, str) and handler.rpartition(".")[2] not in _KAFKA_HANDLERS:
        raise ConfigError(
            "sasl.login.callback.handler.class",
            f"'{handler}' is not supported; sasl.login.callback=package.module:function loads a Python function",
        )
    value = values[CALLBACK]
    if value is None:
        return None
    callback = load(CALLBACK, value, {}, "a function")
    if not callable(callback):
        raise ConfigError(CALLBACK, f"a {type(callback).__name__} is not allowed; it must be a function")

    return _provider_of(callback)


def _provider_of(callback: Callable[[], Any]) -> TokenProvider:
    from kavka.security.sasl import SaslError

    async def provide() -> str:
        try:
            result = callback()
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:
            raise SaslError(f"{CALLBACK} failed: {type(error).__name__}: {error}") from error
        token = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(token, str):
            raise SaslError(f"{CALLBACK} must return a token as text, not a {type(token).__name__}")
        return token

    return provide
