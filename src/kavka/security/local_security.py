"""The files and settings of a secured broker on this machine, and of its clients: a certificate
authority, certificates, and users. `kavka.testing` and `kavka security init` use it.

    security = LocalSecurity(folder, "SASL_SSL", users={"alice": "secret"})
    security.broker_settings()          settings of the broker
    security.client_settings("alice")   settings of Kafka's clients
    security.new_users()                users for `kavka server --add-scram`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from kavka.security.authority import DAY, Authority, Certificate
from kavka.security.jaas import OAUTH_MODULE, PLAIN_MODULE, SCRAM_MODULE
from kavka.security.principal import SecurityProtocol
from kavka.security.sasl import OAUTHBEARER, PLAIN, SCRAM_MECHANISMS, SCRAM_SHA_256

HOSTS = ("localhost", "127.0.0.1", "::1")


class LocalSecurity:
    """Creates the files in `folder`. With SASL the first mechanism is the clients' mechanism;
    `users` are names and passwords. With `client_auth` every client needs a certificate."""

    def __init__(
        self,
        folder: Path,
        protocol: str = "SASL_SSL",
        *,
        mechanisms: Sequence[str] = (SCRAM_SHA_256,),
        users: Mapping[str, str] | None = None,
        client_auth: str = "none",
        hosts: Sequence[str] = HOSTS,
        valid_for: timedelta = 30 * DAY,
    ) -> None:
        self.folder = folder
        self.protocol = SecurityProtocol(protocol)
        self.mechanisms = tuple(mechanisms)
        self.users = dict(users or {})
        self.client_auth = client_auth
        self._valid_for = valid_for
        self.authority = Authority(valid_for=valid_for)
        folder.mkdir(parents=True, exist_ok=True)
        self.ca_file = self.authority.write_pem(folder / "ca.pem")
        self.server_file = folder / "server.pem"
        self._hosts = hosts
        self.write_server_certificate(self.new_server_certificate())

    def new_server_certificate(self) -> Certificate:
        return self.authority.certificate_of("CN=broker,O=Kavka", hosts=self._hosts, valid_for=self._valid_for)

    def write_server_certificate(self, certificate: Certificate) -> None:
        """Replace the certificate of the broker, which notices the change."""
        certificate.write_pem(self.server_file)

    def client_certificate(self, user: str) -> Path:
        """The key and certificate of a user in one file. Its name is `CN=<user>,O=Kavka`."""
        path = self.folder / f"client-{user}.pem"
        if not path.exists():
            self.authority.certificate_of(f"CN={user},O=Kavka", valid_for=self._valid_for).write_pem(path)
        return path

    def broker_settings(self) -> dict[str, str]:
        """The settings of the broker, without its listeners."""
        settings: dict[str, str] = {}
        if self.protocol.has_tls:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.server_file),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.ca_file),
                "ssl.client.auth": self.client_auth,
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
            }
        if self.protocol.has_sasl:
            settings["sasl.enabled.mechanisms"] = ",".join(self.mechanisms)
            prefix = f"listener.name.{self.protocol.value.lower()}"
            if PLAIN in self.mechanisms:
                passwords = "".join(f" user_{user}={_quoted(word)}" for user, word in self.users.items())
                settings[f"{prefix}.plain.sasl.jaas.config"] = f"{PLAIN_MODULE} required{passwords};"
            if OAUTHBEARER in self.mechanisms:
                settings[f"{prefix}.oauthbearer.sasl.jaas.config"] = (
                    f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="broker";'
                )
        return settings

    def new_users(self) -> list[str]:
        """The SCRAM users in the syntax of `kavka server --add-scram`."""
        return [
            f"{mechanism}=[name={user},password={password}]"
            for mechanism in self.mechanisms
            if mechanism in SCRAM_MECHANISMS and self.protocol.has_sasl
            for user, password in self.users.items()
        ]

    def client_settings(self, user: str | None = None, mechanism: str | None = None) -> dict[str, str]:
        """The settings of a client by Kafka's names."""
        settings = {"security.protocol": self.protocol.value}
        if self.protocol.has_tls:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca_file)}
            if self.client_auth != "none" and user is not None:
                settings |= {
                    "ssl.keystore.type": "PEM",
                    "ssl.keystore.location": str(self.client_certificate(user)),
                }
        if self.protocol.has_sasl:
            user = user or next(iter(self.users))
            mechanism = mechanism or self.mechanisms[0]
            settings |= {"sasl.mechanism": mechanism, "sasl.jaas.config": self._client_jaas(user, mechanism)}
        return settings

    def _client_jaas(self, user: str, mechanism: str) -> str:
        if mechanism == OAUTHBEARER:
            return f"{OAUTH_MODULE} required unsecuredLoginStringClaim_sub={_quoted(user)};"
        module = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
        return f"{module} required username={_quoted(user)} password={_quoted(self.users[user])};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
