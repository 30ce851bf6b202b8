"""The broker's settings of TLS, SASL, ACLs and delegation tokens, and of TLS to ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kavka.common.config import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    NOT_IMPLEMENTED,
    PASSWORD,
    PER_BROKER,
    SHORT,
    STRING,
    AtLeast,
    Between,
    ConfigKey,
    ConfigType,
    Dynamic,
    Importance,
    OneOf,
    Validator,
)

JAVA_ONLY = "has no effect: it selects a part of Java"
NO_KERBEROS = "has no effect: GSSAPI is not supported"


def K(
    name: str,
    type: ConfigType,
    default: Any,
    help: str,
    validator: Validator | None = None,
    importance: Importance = Importance.MEDIUM,
    dynamic: Dynamic = Dynamic.READ_ONLY,
    warning: str | None = None,
) -> ConfigKey:
    return ConfigKey(name, type, default, help, validator, importance, dynamic, warning=warning)


AUTHORIZER_CLASSES = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)


def parse_principals(text: str) -> tuple[str, ...]:
    """Return the principals in a list separated by semicolons. Raises ValueError."""
    principals = tuple(principal.strip() for principal in text.split(";") if principal.strip())
    for principal in principals:
        principal_type, _, name = principal.partition(":")
        if not principal_type or not name:
            raise ValueError(f"{principal!r} does not have the form type:name")
    return principals


@dataclass(frozen=True, slots=True)
class Principals:
    allowed: str = "principals such as User:alice, separated by semicolons"

    def accepts(self, value: Any) -> bool:
        try:
            parse_principals(value)
        except ValueError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class AuthorizerClass:
    allowed: str = f"empty or one of {', '.join(AUTHORIZER_CLASSES)}"

    def accepts(self, value: Any) -> bool:
        return value == "" or value in AUTHORIZER_CLASSES


# fmt: off
SECURITY_CONFIGS: tuple[ConfigKey, ...] = (
    # Access
    K("authorizer.class.name", STRING, "",
      "The authorizer. Both class names of Kafka mean Kavka's authorizer, which stores ACLs in the metadata tree; "
      "without an authorizer every client may do everything.", AuthorizerClass(), LOW),
    K("super.users", STRING, "",
      "The principals that may do everything, separated by semicolons, for example User:admin;User:broker.",
      Principals(), MEDIUM),
    K("allow.everyone.if.no.acl.found", BOOLEAN, False,
      "Whether every principal may use a resource to which no ACL applies.", None, MEDIUM),
    K("principal.builder.class", CLASS, "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
      "The class that derives the principal of a connection.", None, MEDIUM, PER_BROKER, warning=JAVA_ONLY),
    K("connections.max.reauth.ms", LONG, 0, "The time after which a client must authenticate again; 0 for never."),
    K("connection.failed.authentication.delay.ms", INT, 100,
      "The delay before a connection that failed to authenticate is closed.", AtLeast(0), LOW),
    K("security.providers", STRING, None, "Java classes of security algorithms.", None, LOW, warning=JAVA_ONLY),
    K("delegation.token.secret.key", PASSWORD, None,
      "The secret that signs delegation tokens; it must be the same on every broker."),
    K("delegation.token.master.key", PASSWORD, None, "The deprecated name of delegation.token.secret.key."),
    K("delegation.token.max.lifetime.ms", LONG, 604800000,
      "The maximum lifetime of a delegation token, renewals included.", AtLeast(1)),
    K("delegation.token.expiry.time.ms", LONG, 86400000,
      "How long a delegation token is valid before it must be renewed.", AtLeast(1)),
    K("delegation.token.expiry.check.interval.ms", LONG, 3600000,
      "How often expired delegation tokens are removed.", AtLeast(1), LOW),
    K("password.encoder.secret", PASSWORD, None, "The secret that encodes passwords in the metadata."),
    K("password.encoder.old.secret", PASSWORD, None, "The previous value of password.encoder.secret."),
    K("password.encoder.keyfactory.algorithm", STRING, None, "The algorithm that derives the key from the secret.",
      None, LOW),
    K("password.encoder.cipher.algorithm", STRING, "AES/CBC/PKCS5Padding",
      "The cipher that encodes passwords.", None, LOW),
    K("password.encoder.key.length", INT, 128, "The length of the derived key in bits.", AtLeast(8), LOW),
    K("password.encoder.iterations", INT, 4096, "The number of iterations of the key derivation.", AtLeast(1024), LOW),
    # TLS
    K("ssl.protocol", STRING, "TLSv1.3", "The preferred TLS version.", None, MEDIUM, PER_BROKER,
      warning="has no effect: ssl.enabled.protocols selects the versions"),
    K("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), "The accepted TLS versions.", None, MEDIUM, PER_BROKER),
    K("ssl.cipher.suites", LIST, (), "The accepted cipher suites; empty for the library's default.",
      None, MEDIUM, PER_BROKER),
    K("ssl.provider", STRING, None, "The Java security provider.", None, MEDIUM, PER_BROKER, warning=JAVA_ONLY),
    K("ssl.client.auth", STRING, "none", "Whether clients must (required) or may (requested) present a certificate.",
      OneOf(("required", "requested", "none")), MEDIUM, PER_BROKER),
    K("ssl.keystore.type", STRING, "JKS", "The format of the key store.", None, MEDIUM, PER_BROKER),
    K("ssl.keystore.location", STRING, None, "The file with the broker's key and certificate.",
      None, MEDIUM, PER_BROKER),
    K("ssl.keystore.password", PASSWORD, None, "The password of the key store.", None, MEDIUM, PER_BROKER),
    K("ssl.keystore.key", PASSWORD, None, "The private key in PEM format.", None, MEDIUM, PER_BROKER),
    K("ssl.keystore.certificate.chain", PASSWORD, None, "The certificate chain in PEM format.",
      None, MEDIUM, PER_BROKER),
    K("ssl.key.password", PASSWORD, None, "The password of the private key.", None, MEDIUM, PER_BROKER),
    K("ssl.truststore.type", STRING, "JKS", "The format of the trust store.", None, MEDIUM, PER_BROKER),
    K("ssl.truststore.location", STRING, None, "The file with the trusted certificates.", None, MEDIUM, PER_BROKER),
    K("ssl.truststore.password", PASSWORD, None, "The password of the trust store.", None, MEDIUM, PER_BROKER),
    K("ssl.truststore.certificates", PASSWORD, None, "The trusted certificates in PEM format.",
      None, MEDIUM, PER_BROKER),
    K("ssl.keymanager.algorithm", STRING, "SunX509", "The algorithm of Java's key manager.", None, MEDIUM, PER_BROKER,
      warning=JAVA_ONLY),
    K("ssl.trustmanager.algorithm", STRING, "PKIX", "The algorithm of Java's trust manager.", None, MEDIUM, PER_BROKER,
      warning=JAVA_ONLY),
    K("ssl.endpoint.identification.algorithm", STRING, "https",
      "How a server's name is checked against its certificate; empty for no check.", None, LOW, PER_BROKER),
    K("ssl.secure.random.implementation", STRING, None, "Java's source of random numbers.", None, LOW, PER_BROKER,
      warning=JAVA_ONLY),
    K("ssl.principal.mapping.rules", STRING, "DEFAULT",
      "Rules that map a certificate's distinguished name to a short name.", None, LOW),
    K("ssl.engine.factory.class", CLASS, None, "The class that creates TLS engines.", None, LOW, PER_BROKER,
      warning=JAVA_ONLY),
    K("ssl.allow.dn.changes", BOOLEAN, False, "Whether a reloaded certificate may have a different distinguished name.",
      None, LOW),
    K("ssl.allow.san.changes", BOOLEAN, False,
      "Whether a reloaded certificate may have different subject alternative names.", None, LOW),
    # SASL
    K("sasl.enabled.mechanisms", LIST, ("GSSAPI",),
      "The SASL mechanisms that clients may use.", None, MEDIUM, PER_BROKER),
    K("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", "The SASL mechanism between brokers.",
      None, MEDIUM, PER_BROKER),
    K("sasl.jaas.config", PASSWORD, None, "The login module and its options, in JAAS format.",
      None, MEDIUM, PER_BROKER),
    K("sasl.server.callback.handler.class", CLASS, None, "The class that verifies credentials."),
    K("sasl.client.callback.handler.class", CLASS, None, "The class that provides credentials.", warning=JAVA_ONLY),
    K("sasl.login.callback.handler.class", CLASS, None, "The class that provides credentials for a login.",
      warning=JAVA_ONLY),
    K("sasl.login.class", CLASS, None, "The class that logs in.", warning=JAVA_ONLY),
    K("sasl.server.max.receive.size", INT, 524288, "The maximum size of a SASL message."),
    K("sasl.kerberos.service.name", STRING, None, "The Kerberos service name.", None, MEDIUM, PER_BROKER,
      warning=NO_KERBEROS),
    K("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", "The path of the kinit program.", None, MEDIUM, PER_BROKER,
      warning=NO_KERBEROS),
    K("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8,
      "The fraction of a ticket's lifetime after which it is renewed.", None, MEDIUM, PER_BROKER, warning=NO_KERBEROS),
    K("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05,
      "The random jitter of the renewal time.", None, MEDIUM, PER_BROKER, warning=NO_KERBEROS),
    K("sasl.kerberos.min.time.before.relogin", LONG, 60000, "The minimum time between two renewals.",
      None, MEDIUM, PER_BROKER, warning=NO_KERBEROS),
    K("sasl.kerberos.principal.to.local.rules", LIST, ("DEFAULT",),
      "Rules that map a Kerberos principal to a short name.", None, MEDIUM, PER_BROKER, warning=NO_KERBEROS),
    K("sasl.login.refresh.window.factor", DOUBLE, 0.8,
      "The fraction of a credential's lifetime after which it is refreshed.", None, MEDIUM, PER_BROKER),
    K("sasl.login.refresh.window.jitter", DOUBLE, 0.05,
      "The random jitter of the refresh time.", None, MEDIUM, PER_BROKER, warning=NOT_IMPLEMENTED),
    K("sasl.login.refresh.min.period.seconds", SHORT, 60, "The minimum time between two refreshes.",
      None, MEDIUM, PER_BROKER, warning=NOT_IMPLEMENTED),
    K("sasl.login.refresh.buffer.seconds", SHORT, 300, "The time before a credential expires in which it is refreshed.",
      None, MEDIUM, PER_BROKER, warning=NOT_IMPLEMENTED),
    K("sasl.login.connect.timeout.ms", INT, None, "The timeout of a connection to the identity provider.", None, LOW),
    K("sasl.login.read.timeout.ms", INT, None, "The timeout of a response from the identity provider.", None, LOW),
    K("sasl.login.retry.backoff.ms", LONG, 100,
      "The initial delay before a failed request to the identity provider is retried.", None, LOW),
    K("sasl.login.retry.backoff.max.ms", LONG, 10000, "The maximum delay before such a retry.", None, LOW),
    # OAuth
    K("sasl.oauthbearer.token.endpoint.url", STRING, None, "The URL of the token endpoint."),
    K("sasl.oauthbearer.scope", STRING, None, "The requested scope."),
    K("sasl.oauthbearer.client.credentials.client.id", STRING, None, "The client's id at the identity provider."),
    K("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None,
      "The client's secret at the identity provider."),
    K("sasl.oauthbearer.scope.claim.name", STRING, "scope", "The claim that holds the scope.", None, LOW),
    K("sasl.oauthbearer.sub.claim.name", STRING, "sub", "The claim that holds the subject.", None, LOW),
    K("sasl.oauthbearer.jwks.endpoint.url", STRING, None, "The URL of the JSON Web Key Set that verifies tokens."),
    K("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3600000, "The refresh interval of the JSON Web Key Set.",
      None, LOW),
    K("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100,
      "The initial delay before a failed fetch of the key set is retried.", None, LOW),
    K("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10000, "The maximum delay before such a retry.",
      None, LOW),
    K("sasl.oauthbearer.clock.skew.seconds", INT, 30, "The tolerated clock skew of the identity provider.", None, LOW),
    K("sasl.oauthbearer.expected.audience", LIST, None,
      "The accepted audiences; a token must contain at least one of them.", None, LOW),
    K("sasl.oauthbearer.expected.issuer", STRING, None, "The required issuer of a token.", None, LOW),
    K("sasl.oauthbearer.jwt.retriever.class", CLASS, "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
      "The class that retrieves tokens.", warning=JAVA_ONLY),
    K("sasl.oauthbearer.jwt.validator.class", CLASS, "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
      "The class that validates tokens.", warning=JAVA_ONLY),
    K("sasl.oauthbearer.assertion.algorithm", STRING, "RS256", "The signing algorithm of assertions.",
      OneOf(("ES256", "RS256"), ignore_case=True), warning=NOT_IMPLEMENTED),
    K("sasl.oauthbearer.assertion.claim.aud", STRING, None, "The audience claim of an assertion.",
      warning=NOT_IMPLEMENTED),
    K("sasl.oauthbearer.assertion.claim.exp.seconds", INT, 300, "How long an assertion is valid.",
      Between(0, 86400), LOW, warning=NOT_IMPLEMENTED),
    K("sasl.oauthbearer.assertion.claim.iss", STRING, None, "The issuer claim of an assertion.",
      warning=NOT_IMPLEMENTED),
    K("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, False, "Whether an assertion has an id claim.",
      warning=NOT_IMPLEMENTED),
    K("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, 60,
      "How far before its creation an assertion becomes valid.", Between(0, 3600), LOW, warning=NOT_IMPLEMENTED),
    K("sasl.oauthbearer.assertion.claim.sub", STRING, None, "The subject claim of an assertion.",
      warning=NOT_IMPLEMENTED),
    K("sasl.oauthbearer.assertion.file", STRING, None, "A file with a complete assertion.", warning=NOT_IMPLEMENTED),
    K("sasl.oauthbearer.assertion.private.key.file", STRING, None, "The file with the key that signs assertions.",
      warning=NOT_IMPLEMENTED),
    K("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None, "The passphrase of the private key.",
      warning=NOT_IMPLEMENTED),
    K("sasl.oauthbearer.assertion.template.file", STRING, None,
      "A file with further headers and claims of assertions.", warning=NOT_IMPLEMENTED),
    # TLS and SASL to ZooKeeper
    K("zookeeper.sasl.jaas.config", PASSWORD, None,
      "The login to ZooKeeper with DIGEST-MD5: a JAAS string with DigestLoginModule (Kavka only; Kafka reads a file)."),
    K("zookeeper.ssl.client.enable", BOOLEAN, False, "Whether the broker connects to ZooKeeper over TLS."),
    K("zookeeper.clientCnxnSocket", STRING, None, "The Java class of the connection to ZooKeeper.", warning=JAVA_ONLY),
    K("zookeeper.ssl.keystore.location", STRING, None,
      "The key store with the key and certificate presented to ZooKeeper."),
    K("zookeeper.ssl.keystore.password", PASSWORD, None, "The password of the key store."),
    K("zookeeper.ssl.keystore.type", STRING, None, "The format of the key store."),
    K("zookeeper.ssl.truststore.location", STRING, None, "The trust store that verifies ZooKeeper's certificate."),
    K("zookeeper.ssl.truststore.password", PASSWORD, None, "The password of the trust store."),
    K("zookeeper.ssl.truststore.type", STRING, None, "The format of the trust store."),
    K("zookeeper.ssl.protocol", STRING, "TLSv1.2", "The TLS version of connections to ZooKeeper.", None, LOW,
      
      warning="has no effect: zookeeper.ssl.enabled.protocols selects the versions"),
    K("zookeeper.ssl.enabled.protocols", LIST, None, "The accepted TLS versions.", None, LOW),
    K("zookeeper.ssl.cipher.suites", LIST, None, "The accepted cipher suites.", None, LOW),
    K("zookeeper.ssl.endpoint.identification.algorithm", STRING, "HTTPS",
      "How ZooKeeper's name is checked against its certificate.", None, LOW),
    K("zookeeper.ssl.crl.enable", BOOLEAN, False, "Whether certificate revocation lists are checked.", None, LOW,
      warning=NOT_IMPLEMENTED),
    K("zookeeper.ssl.ocsp.enable", BOOLEAN, False, "Whether revocation is checked with OCSP.", None, LOW,
      warning=NOT_IMPLEMENTED),
)
# fmt: on
